"""``parshall report``: write one HTML file with figures, ledger and cost of logs."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parshall.cli import options
from parshall.cli.stores import opened_fleet
from parshall.errors import ParshallError, UsageError, printable
from parshall.host.input_file import open_regular, read_json
from parshall.host.messages import progress_line, show
from parshall.host.stopping import exiting_on_signals

if TYPE_CHECKING:
    from parshall.fleet.reading import Fleet

TESTBED_FILE = "testbed.json"
# What makes a directory that of a study.
BUNDLE_FILE = "bundle.json"
PAGE = "report.html"
# Of messages of an Arrow stream.
_ARROW_HEAD = b"\xff" * 4


def command(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="LOG_OR_DIR...", help="Logs, histograms, directories of logs, studies, or a store"),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Output directory [default: see below]"),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Title of the report")] = None,
    since: options.Since = None,
    until: options.Until = None,
    hosts: options.OfHosts = None,
    cluster: options.Cluster = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Write report.html, a self-contained page, and its figures as PNG and SVG.

    Histograms are what `parshall path --json` printed. Of the directory of a study (`parshall lab`), its report; of
    several, the lines of all in each figure, and of two a comparison. The default output directory is that of the
    first log if it is yours, and otherwise, as for the study in DIR, report-DIR in the current directory. Of a store
    that `parshall tcp --ship` fills, a directory or URL, the logs of all its hosts.
    """
    fleet = opened_fleet("report", inputs, since, until, cluster, hosts, quiet=quiet)
    if fleet is not None:
        _report_fleet(fleet, hosts, output, title, cluster, quiet, as_json)
        return
    inputs_here = [Path(each) for each in inputs]
    if any((path / BUNDLE_FILE).is_file() for path in inputs_here):
        _report_studies(inputs_here, output, title, quiet, as_json)
        return
    paths = logs_of(inputs_here)
    directory = output or _own_directory(paths[0].parent)
    is_replaced = os.access(directory / PAGE, os.F_OK)
    testbed_file = next((path / TESTBED_FILE for path in inputs_here if (path / TESTBED_FILE).is_file()), None)
    with exiting_on_signals(), progress_line("report", "preparing", quiet=quiet) as show_progress:
        # Imported late: the drawing libraries load slowly, and errors in arguments should be quick.
        from parshall.report.images import start_drawing

        start_drawing()
        from parshall.instruments.path.histograms import PathHistograms, is_path_histograms
        from parshall.instruments.path.log import PathLog, is_path_log

        names = ", ".join(printable(path.stem) for path in paths[:3])
        heading = title or f"Parshall: {names}{' ...' if len(paths) > 3 else ''}"
        histograms = [path for path in paths if is_path_histograms(path)]
        for path in paths:
            if path not in histograms:
                _check_log(path)
        of_paths = [path for path in paths if path in histograms or is_path_log(path)]
        if of_paths and len(of_paths) < len(paths):
            raise UsageError(
                f"{of_paths[0]}: paths among TCP logs; give logs of one kind, and name a directory with -o"
            )
        if of_paths:
            from parshall.report.path import write_report as write_path_report

            named = names_of(paths).items()
            report = write_path_report(
                {name: PathHistograms(path) if path in histograms else PathLog(path) for name, path in named},
                directory,
                heading,
                progress=show_progress,
            )
        else:
            from parshall.instruments.tcp_log import read
            from parshall.report import write_report

            report = write_report(
                {name: read(path) for name, path in names_of(paths).items()},
                directory,
                heading,
                testbed=_testbed(testbed_file) if testbed_file else None,
                progress=show_progress,
            )
    _show(report, is_replaced, quiet, as_json)


def _report_fleet(
    fleet: "Fleet",
    hosts: list[str] | None,
    output: Path | None,
    title: str | None,
    cluster: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    name = fleet.url.rstrip("/").rpartition("/")[2].partition("?")[0] or "store"
    if hosts:
        name += f"-{hosts[0]}" + (f"-and-{len(hosts) - 1}-more" if len(hosts) > 1 else "")
    directory = output or _here(Path(name))
    is_replaced = os.access(directory / PAGE, os.F_OK)
    with exiting_on_signals(), progress_line("report", f"reading {fleet}", quiet=quiet) as show_progress:
        from parshall.report import LOGS_MAX, digest, digest_of_many, write_report
        from parshall.report.document import check_destination

        check_destination(directory)
        digests = fleet.map(
            digest if len(fleet.logs) <= LOGS_MAX else digest_of_many,
            cluster=cluster,
            progress=lambda done, every: show_progress(f"reading {fleet.url}: {done} of {every} logs"),
        )
        report = write_report(
            dict(zip(fleet.names, digests, strict=True)),
            directory,
            title or f"Parshall: {printable(', '.join([fleet.url, *(hosts or [])]))}",
            progress=show_progress,
        )
    _show(report, is_replaced, quiet, as_json)


def _check_log(path: Path) -> None:
    """Raise `ParshallError` for a file that can be no log of any kind; what cannot be read, its reader names."""
    try:
        with open_regular(path) as file:
            head = file.read(len(_ARROW_HEAD))
    except (OSError, UsageError):
        return
    if not _ARROW_HEAD.startswith(head):
        raise ParshallError(
            f"{path}: is neither a log nor histograms; give a log of `parshall tcp` or `parshall path`, or what "
            "`parshall path --json` printed"
        )


def _show(report: Path, is_replaced: bool, quiet: bool, as_json: bool) -> None:
    if as_json:
        show(json.dumps({"report": str(report), "replaced": is_replaced}))
    elif not quiet:
        show(f"{report} (replaced the report that was there)" if is_replaced else report)


def _report_studies(inputs: list[Path], output: Path | None, title: str | None, quiet: bool, as_json: bool) -> None:
    # A study may be of others: it is read only.
    output = output or _here(inputs[-1])
    is_replaced = os.access(output / PAGE, os.F_OK)
    with exiting_on_signals(), progress_line("report", "drawing the study", quiet=quiet):
        from parshall.lab.report import write_report

        report = write_report(inputs, output, title)
    _show(report, is_replaced, quiet, as_json)


def _own_directory(directory: Path) -> Path:
    """Return a directory if it is this user's, or the current one; otherwise one in the current directory."""
    is_own = directory.stat().st_uid == os.geteuid() or directory.samefile(Path())
    return directory if is_own else _here(directory)


def _here(directory: Path) -> Path:
    """Return the directory in the current one for the report of a directory that is only read."""
    output = Path(f"report-{directory.resolve().name}")
    if output.is_symlink():
        raise UsageError(f"{output}: is a symbolic link; name a directory with -o")
    return output


def logs_of(inputs: list[Path]) -> list[Path]:
    """Return the logs that the arguments name: files, and all logs of directories; those that rotated by one name."""
    from parshall.instruments.tcp_log import LOG_SUFFIX, exists, logs_in

    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = logs_in(path)
            if not inside:
                raise UsageError(f"{path}: no log ({LOG_SUFFIX}) in this directory; name the file")
            found += inside
        elif exists(path):
            found.append(path)
        else:
            raise UsageError(
                f"{path}: no such file or directory; give a log of `parshall tcp` or `parshall path`, what "
                "`parshall path --json` printed, or the directory of a study"
            )
    return found


def names_of(paths: list[Path]) -> dict[str, Path]:
    """Return logs by the shortest names that are unique."""
    stems = [printable(path.stem) for path in paths]
    if len(set(stems)) == len(stems):
        return dict(zip(stems, paths, strict=True))
    return {printable(str(path)): path for path in paths}


def _testbed(path: Path) -> dict[str, object]:
    try:
        described = read_json(path)
    except ValueError as error:
        raise ParshallError(f"{path}: is not JSON ({error}); remove it, or name the logs one by one") from None
    if not isinstance(described, dict) or "links" not in described:
        raise ParshallError(f"{path}: does not describe a testbed; remove it, or name the logs one by one")
    return described
