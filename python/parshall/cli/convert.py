"""``parshall convert``: parse the options, convert, print warnings and the number of rows."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.options import Accepted, numbers_option, time_option
from parshall.errors import UsageError
from parshall.host.messages import progress_line, say, show
from parshall.host.stopping import exiting_on_signals
from parshall.host.whole_file import refuse_input
from parshall.instruments.tcp_log import FORMATS, convert, files_of

COMMAND_SETTINGS = {
    "epilog": f"Formats: {', '.join(FORMATS)}. Without -o, text goes to standard output when it is not a terminal; "
    "otherwise the file is LOG with another suffix.",
}
# Nanoseconds in 63 bits.
_INTERVALS = Accepted("a time from 1ns to 292 years", lambda time_s: 0 < round(time_s * 1e9) < 1 << 63)


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Log of `parshall tcp`")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="Format, see below")],
    output: options.OutputFile = None,
    every: Annotated[
        float | None,
        time_option("--every", help="web10g: poll the flows at this interval, for example 1ms", accepted=_INTERVALS),
    ] = None,
    flow: Annotated[Any, numbers_option("--flow", help="Only these flows, by number: 2, 2,5 or 2-5")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Convert a TCP state log into a format that other tools read."""
    if to not in FORMATS:
        raise UsageError(f"--to {to}: expected one of {', '.join(FORMATS)}")
    path = _output(log, to, output, as_json)
    refuse_input(path, files_of(log))
    every_ns = None if every is None else round(every * 1e9)
    # Without a file, the rows may go to the same terminal.
    with exiting_on_signals(), progress_line("convert", f"reading {log}", quiet=quiet or path is None):
        result = convert(log, to, path, every_ns=every_ns, flows=flow or ())
    for warning in result.warnings:
        say("convert", warning)
    if as_json:
        output_name = None if path is None else str(path)
        report = {"format": to, "output": output_name, "rows": result.rows, "warnings": result.warnings}
        print(json.dumps(report), file=sys.stderr if path is None else sys.stdout)
    elif path is not None and not quiet:
        show(f"{path}: {result.rows:,} rows", file=sys.stderr)


def _output(log: Path, to: str, output: Path | None, as_json: bool) -> Path | None:
    """Return the output file; None is standard output."""
    suffix, is_text = FORMATS[to]
    if output is not None:
        return None if str(output) == "-" else output
    # With --json, standard output has the JSON report.
    if is_text and not as_json and not sys.stdout.isatty():
        return None
    # Of the directory of a log that rotated: in it, by its name.
    return log / f"{log.resolve().name}{suffix}" if log.is_dir() else log.with_suffix(suffix)
