"""``parshall report``: logs in, one HTML file with figures, account and cost out."""

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from parshall.cli import options
from parshall.errors import ParshallError, UsageError, printable
from parshall.stopping import taking_back

LOG_SUFFIX = ".arrow"
TESTBED_FILE = "testbed.json"


def command(
    inputs: Annotated[list[Path], typer.Argument(metavar="LOG_OR_DIR...", help="Logs, or directories of logs")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Output directory [default: that of the first log]"),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Title of the report")] = None,
    as_json: options.Json = False,
) -> None:
    """Write report.html, which needs nothing else to be read, and its figures as PNG and SVG."""
    paths = logs_of(inputs)
    directory = output or paths[0].parent
    described = next((path / TESTBED_FILE for path in inputs if (path / TESTBED_FILE).is_file()), None)
    with taking_back(), progress_line() as show:
        show("preparing")
        # Imported late: drawing brings libraries along that a wrong argument should not wait for.
        from parshall.log import read
        from parshall.report import write_report

        report = write_report(
            {name: read(path) for name, path in names_of(paths).items()},
            directory,
            title or f"Parshall: {', '.join(path.stem for path in paths[:3])}{' ...' if len(paths) > 3 else ''}",
            testbed=_testbed(described) if described else None,
            progress=show,
        )
    print(json.dumps({"report": str(report)}) if as_json else report)


@contextlib.contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """While entered, show what is being done in one line of standard error, when that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    clear = "\r\x1b[K"

    def show(text: str) -> None:
        # Names of files are part of it, and may have anything in them.
        line = printable(text)[: shutil.get_terminal_size().columns - len("report: ") - 1]
        print(f"{clear}report: {line}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(clear, end="", file=sys.stderr, flush=True)


def logs_of(inputs: list[Path]) -> list[Path]:
    """Return the logs that arguments stand for: files as they are, directories by what is in them.

    Raises
    ------
    UsageError
        There is no such file, or no log in a directory.
    """
    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = sorted(path.glob(f"*{LOG_SUFFIX}"))
            if not inside:
                raise UsageError(f"{path}: no log ({LOG_SUFFIX}) is in this directory; name the file")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UsageError(f"{path}: no such file; give a log that `parshall tcp -o` wrote")
    return found


def names_of(paths: list[Path]) -> dict[str, Path]:
    """Return logs by the shortest names that tell them apart."""
    stems = [path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return dict(zip(stems, paths, strict=True))
    return {str(path): path for path in paths}


def _testbed(path: Path) -> dict[str, object]:
    try:
        described = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ParshallError(f"{path}: is no JSON ({error}); remove it, or name the logs one by one") from None
    if not isinstance(described, dict) or "links" not in described:
        raise ParshallError(f"{path}: is no description of a testbed; remove it, or name the logs one by one")
    return described
