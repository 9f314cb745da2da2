"""``parshall report``: logs in, one HTML file with figures, account and cost out."""

import json
from pathlib import Path
from typing import Annotated

import typer

from parshall.errors import ParshallError, UsageError
from parshall.stopping import taking_back

LOG_SUFFIX = ".arrow"
TESTBED_FILE = "testbed.json"


def command(
    inputs: Annotated[list[Path], typer.Argument(metavar="LOG_OR_DIR...", help="Logs, or directories of them.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Where the report goes; beside the first log."),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Heading of the report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Give the path of the report as JSON.")] = False,
) -> None:
    """Write report.html, which needs nothing else to be read, and its figures as PNG and SVG."""
    paths = logs_of(inputs)
    directory = output or paths[0].parent
    # Imported late: drawing brings libraries along that a wrong argument should not wait for.
    from parshall.log import read
    from parshall.report import write_report

    described = next((path / TESTBED_FILE for path in inputs if (path / TESTBED_FILE).is_file()), None)
    with taking_back():
        report = write_report(
            {name: read(path) for name, path in names_of(paths).items()},
            directory,
            title or f"Parshall: {', '.join(path.stem for path in paths[:3])}{' ...' if len(paths) > 3 else ''}",
            testbed=_testbed(described) if described else None,
        )
    print(json.dumps({"report": str(report)}) if as_json else report)


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
    except ValueError as error:
        raise ParshallError(f"{path}: is no JSON ({error}); remove it, or name the logs one by one") from None
    if not isinstance(described, dict) or "links" not in described:
        raise ParshallError(f"{path}: is no description of a testbed; remove it, or name the logs one by one")
    return described
