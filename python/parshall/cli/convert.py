"""``parshall convert``: parse the options, convert, say what the reader of the result should know."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from parshall.errors import UsageError
from parshall.log import FORMATS, convert
from parshall.stopping import taking_back

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s)")


def command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A log of `parshall tcp`.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"One of: {', '.join(FORMATS)}.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The file to write, - for the standard output. Default: the standard output for text "
            "when it is not a terminal, otherwise a name made of LOG.",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="web10g: poll the flows at this interval, for example 1ms."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was done as JSON.")] = False,
) -> None:
    """Convert a TCP state log into a format that other tools read."""
    if to not in FORMATS:
        raise UsageError(f"--to {to}: expected one of {', '.join(FORMATS)}")
    if log.is_dir():
        raise UsageError(f"{log}: is a directory; give a log that `parshall tcp -o` wrote")
    path = _output(log, to, output, as_json)
    every_ns = None if every is None else interval_ns(every)
    with taking_back():
        result = convert(log, to, path, every_ns=every_ns)
    for warning in result.warnings:
        print(f"parshall: convert: {warning}", file=sys.stderr)
    if as_json:
        report = {
            "format": to,
            "output": None if path is None else str(path),
            "rows": result.rows,
            "warnings": result.warnings,
        }
        print(json.dumps(report), file=sys.stderr if path is None else sys.stdout)
    elif path is not None:
        print(f"{path}: {result.rows:,} rows", file=sys.stderr)


def interval_ns(text: str) -> int:
    """Return the nanoseconds of an interval such as ``1ms`` or ``0.5 s``."""
    match = _INTERVAL.fullmatch(text.strip())
    amount = float(match[1]) * _UNITS_NS[match[2]] if match else 0.0
    # What is beyond 63 bits, some 292 years, is no interval.
    interval = round(amount) if amount < 1 << 63 else 0
    if interval < 1:
        raise UsageError(f"--every {text}: expected a time with its unit, for example 500us, 1ms or 1s")
    return interval


def _output(log: Path, to: str, output: Path | None, as_json: bool) -> Path | None:
    """Return where to write; None is the standard output."""
    suffix, is_text = FORMATS[to]
    if output is not None:
        return None if str(output) == "-" else output
    # With --json the standard output is for the report.
    if is_text and not as_json and not sys.stdout.isatty():
        return None
    return log.with_suffix(suffix)
