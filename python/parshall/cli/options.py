"""Options that several commands share, and the kinds of values that options take.

The table in ``CONTRIBUTING.md`` lists the conventions; ``tests/cli/test_conventions.py`` checks every command.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from parshall.errors import UsageError
from parshall.host.quantities import (
    parse_bytes,
    parse_count,
    parse_fraction,
    parse_latency,
    parse_numbers,
    parse_percent,
    parse_port,
    parse_rate,
    parse_seconds,
    parse_whole,
    size_text,
)

HELP_NAMES = ["-h", "--help"]
_LARGEST_RING = "256M"
# What the end of a file's name says to other tools.
_KINDS = {
    **dict.fromkeys((".pcap", ".pcapng", ".cap"), "a capture"),
    ".arrow": "an Arrow file",
    ".csv": "a CSV file",
    ".json": "a JSON file",
    ".parquet": "a Parquet file",
    ".toml": "a TOML file",
}


class Accepted(NamedTuple):
    """The numbers that an option accepts; a refusal has the text as it was typed."""

    expected: str
    """What is expected, after the word."""
    holds: Callable[[float], bool]
    """Whether a number is accepted."""


PART = Accepted("a share from 0 to below 1, such as 0.02 or 2%", lambda share: 0 <= share < 1)


BUDGETS = Accepted("a share of one CPU above 0, at most 1, such as 0.01 or 1%", lambda share: 0 < share <= 1)


def _parsed(
    parse: Callable[[str, str], Any],
    metavar: str,
    names: tuple[str, ...],
    help: str,
    shows_default: bool = True,
    accepted: Accepted | None = None,
) -> Any:
    def convert(text: Any) -> Any:
        # Typer passes the parameter's default, too.
        if not isinstance(text, str):
            return text
        value = parse(names[-1], text)
        if accepted and not accepted.holds(value):
            raise UsageError(f"{names[-1]} {text}: expected {accepted.expected}")
        return value

    return typer.Option(*names, metavar=metavar, help=help, parser=convert, show_default=shows_default)


def time_option(*names: str, help: str, accepted: Accepted | None = None) -> Any:
    """Return an option that takes a time: ``90``, ``500ms``, ``10m``; the parameter has seconds."""
    return _parsed(parse_seconds, "TIME", names, help, accepted=accepted)


def latency_option(*names: str, help: str) -> Any:
    """Return an option that takes a time with its unit: ``300us``; the parameter has seconds."""
    return _parsed(parse_latency, "LATENCY", names, help)


def span_option(*names: str, help: str) -> Any:
    """Return an option that takes a time, including 0."""
    return _parsed(lambda option, text: parse_seconds(option, text, allow_0=True), "TIME", names, help)


def count_option(*names: str, help: str, allow_0: bool = False) -> Any:
    """Return an option that takes a number of things: ``1000``, ``10k``, ``2M``."""
    return _parsed(lambda option, text: parse_count(option, text, allow_0=allow_0), "N", names, help)


def snaplen_option(*names: str, longest: int) -> Any:
    """Return an option that takes a snapshot length; 0 is the longest, as of tcpdump."""

    def parse(option: str, text: str) -> int:
        return longest if text.strip() == "0" else parse_count(option, text)

    return _parsed(parse, "N", names, "Maximum bytes of a packet to keep")


def size_option(*names: str, help: str) -> Any:
    """Return an option that takes a size: ``65536``, ``64K``, ``1.5G``; the parameter has bytes."""
    return _parsed(parse_bytes, "SIZE", names, help)


def buffer_option(default_bytes: int) -> Any:
    """Return the option for the size of a ring."""
    help = f"Ring size for each CPU: 1M, 64M [default: {default_bytes >> 20}M]"
    return _parsed(parse_bytes, "SIZE", ("--buffer",), help, shows_default=False)


def ring_bytes(size_bytes: int, smallest: str = "32K") -> int:
    """Return the size of a ring, which is a power of two: the next one."""
    if not parse_bytes("", smallest) <= size_bytes <= parse_bytes("", _LARGEST_RING):
        raise UsageError(f"--buffer {size_text(size_bytes)}: expected a size from {smallest} to {_LARGEST_RING}")
    return 1 << (size_bytes - 1).bit_length()


def rate_option(*names: str, counted: str, help: str) -> Any:
    """Return an option that takes a rate: ``900k``, ``10M``, ``1G``; the parameter has bits or packets per second."""
    return _parsed(lambda option, text: parse_rate(option, text, counted), "RATE", names, help)


def whole_option(*names: str, metavar: str, help: str, shows_default: bool = True) -> Any:
    """Return an option that takes a whole number."""
    return _parsed(parse_whole, metavar, names, help, shows_default)


def share_option(*names: str, help: str, accepted: Accepted | None = None) -> Any:
    """Return an option that takes a share of a whole: ``0.6``, ``60%``."""
    return _parsed(parse_fraction, "SHARE", names, help, accepted=accepted)


def budget_option(*, help: str) -> Any:
    """Return the option of a budget, a share of one CPU: ``1%``, ``0.01``."""

    def parse(option: str, text: str) -> float:
        if text.strip() == "1":
            # Who means a hundredth would spend a CPU.
            raise UsageError(f"{option} 1: a hundredth of a CPU, or all of it? Give 1% or 100%")
        return parse_fraction(option, text)

    return _parsed(parse, "SHARE", ("--budget",), help, accepted=BUDGETS)


def percent_option(*names: str, help: str) -> Any:
    """Return an option that takes percent: ``95``, ``95%``."""
    return _parsed(parse_percent, "PERCENT", names, help)


def port_option(*names: str, help: str) -> Any:
    """Return an option that takes the number of a port."""
    return _parsed(parse_port, "P", names, help)


def numbers_option(*names: str, help: str) -> Any:
    """Return an option that takes a list of numbers: ``0``, ``0,2``, ``0-3``."""
    return _parsed(parse_numbers, "N[,N...]", names, help)


def named_for(path: Path | None, what: str, suffix: str) -> Path | None:
    """Return the name of an output file, which must not be that of another kind: other tools would go by it."""
    kinds = [_KINDS[each] for each in path.suffixes[-2:] if each in _KINDS and each != suffix] if path else []
    if path is not None and kinds:
        raise UsageError(f"-o {path}: is the name of {kinds[-1]}, and this is {what}; name it {path.stem}{suffix}")
    return path


def log_file(path: Path | None) -> Path | None:
    """Return the name of a log, which must not be that of another kind of file."""
    return named_for(path, "a log", ".arrow")


def csv_file(path: Path | None) -> Path | None:
    """Return the name of a table, which must not be that of another kind of file."""
    return named_for(path, "a table as CSV", ".csv")


Interface = Annotated[str, typer.Option("-i", "--interface", metavar="IF", help="Network interface")]
Netns = Annotated[str | None, typer.Option("--netns", metavar="NAME", help="Network namespace: name or path")]
Duration = Annotated[float | None, time_option("-d", "--duration", help="Stop after this time: 90, 500ms, 10m, 1h")]
Policy = Annotated[
    str, typer.Option("--policy", metavar="fast|slow", help="When a reader lags: overwrite (fast) or drop (slow)")
]
OutputFile = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Output file; - is stdout")]
OutputDirectory = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Output directory")]
RotateSize = Annotated[int | None, size_option("--rotate-size", help="Start a new file at this size")]
RotateTime = Annotated[float | None, time_option("--rotate-time", help="Start a new file after this time")]
RotateFiles = Annotated[int | None, count_option("--rotate-files", help="Keep the newest N files")]
Keep = Annotated[float | None, time_option("--keep", help="Remove rotated files that are older than this")]
Ship = Annotated[
    str | None, typer.Option("--ship", metavar="URL", help="Send each finished file to this directory or object store")
]
ShipAs = Annotated[
    str | None, typer.Option("--ship-as", metavar="NAME", help="Name of this host there [default: its host name]")
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="DATE", help="Of a store, files with something since this UTC time")
]
Until = Annotated[str | None, typer.Option("--until", metavar="DATE", help="Of a store, files before this UTC time")]
OfHosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="Of a store, only this host (repeatable)")
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="ADDRESS", help="Read a store on this Dask cluster: tcp://host:8786")
]
Ports = Annotated[list[int] | None, port_option("--port", help="Only flows with this port (repeatable)")]
Hosts = Annotated[list[str] | None, typer.Option("--host", metavar="A", help="Only flows with this host (repeatable)")]
Pids = Annotated[
    list[int] | None, whole_option("--pid", metavar="PID", help="Only sockets of this process (repeatable)")
]
Cgroup = Annotated[
    Path | None, typer.Option("--cgroup", metavar="PATH", help="Only sockets below this cgroup (version 2)")
]
Unit = Annotated[str | None, typer.Option("--unit", metavar="NAME", help="Only sockets of this unit of systemd")]
Container = Annotated[
    str | None, typer.Option("--container", metavar="NAME", help="Only sockets of this container: name or ID")
]


def _parse_seed(option: str, text: str) -> int:
    number = parse_whole(option, text)
    if not 0 <= number < 1 << 64:
        raise UsageError(f"{option} {text}: expected a whole number from 0 to 2^64 - 1")
    return number


Seed = Annotated[int, _parsed(_parse_seed, "N", ("--seed",), "Seed of all random numbers")]
MetricsAddress = Annotated[
    str | None, typer.Option("--metrics", metavar="ADDR", help="Serve metrics for Prometheus at [ADDRESS:]PORT")
]
Otlp = Annotated[str | None, typer.Option("--otlp", metavar="URL", help="Send metrics to this OpenTelemetry collector")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only")]
