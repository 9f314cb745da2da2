"""Options that several commands share, and the kinds of values that options take.

The table in ``CONTRIBUTING.md`` lists the conventions; ``tests/cli/test_conventions.py`` checks every command.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from parshall.quantities import parse_bytes, parse_count, parse_latency, parse_numbers, parse_rate, parse_seconds

HELP_NAMES = ["-h", "--help"]


def _parsed(
    parse: Callable[[str, str], Any], metavar: str, names: tuple[str, ...], help: str, shows_default: bool = True
) -> Any:
    def convert(value: Any) -> Any:
        # Typer passes the parameter's default, too.
        return parse(names[-1], value) if isinstance(value, str) else value

    return typer.Option(*names, metavar=metavar, help=help, parser=convert, show_default=shows_default)


def time_option(*names: str, help: str) -> Any:
    """Return an option that takes a time: ``90``, ``500ms``, ``10m``; the parameter has seconds."""
    return _parsed(parse_seconds, "TIME", names, help)


def latency_option(*names: str, help: str) -> Any:
    """Return an option that takes a time with its unit: ``300us``; the parameter has seconds."""
    return _parsed(parse_latency, "LATENCY", names, help)


def span_option(*names: str, help: str) -> Any:
    """Return an option that takes a time, including 0."""
    return _parsed(lambda option, text: parse_seconds(option, text, allow_0=True), "TIME", names, help)


def count_option(*names: str, help: str) -> Any:
    """Return an option that takes a number of things: ``1000``, ``10k``, ``2M``."""
    return _parsed(parse_count, "N", names, help)


def size_option(*names: str, help: str) -> Any:
    """Return an option that takes a size: ``65536``, ``64K``, ``1.5G``; the parameter has bytes."""
    return _parsed(parse_bytes, "SIZE", names, help)


def buffer_option(default_bytes: int) -> Any:
    """Return the option for the size of a ring."""
    help = f"Ring size for each CPU: 512K, 64M [default: {default_bytes >> 20}M]"
    return _parsed(parse_bytes, "SIZE", ("--buffer",), help, shows_default=False)


def rate_option(*names: str, help: str) -> Any:
    """Return an option that takes a rate: ``900k``, ``10M``, ``1G``; the parameter has a number per second."""
    return _parsed(parse_rate, "RATE", names, help)


def numbers_option(*names: str, help: str) -> Any:
    """Return an option that takes a list of numbers: ``0``, ``0,2``, ``0-3``."""
    return _parsed(parse_numbers, "N[,N...]", names, help)


Interface = Annotated[str, typer.Option("-i", "--interface", metavar="IF", help="Network interface")]
Netns = Annotated[str | None, typer.Option("--netns", metavar="NAME", help="Network namespace: name or path")]
Duration = Annotated[float | None, time_option("-d", "--duration", help="Stop after this time: 90, 500ms, 10m, 1h")]
Policy = Annotated[
    str, typer.Option("--policy", metavar="fast|slow", help="When a reader lags: overwrite (fast) or drop (slow)")
]
OutputFile = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Output file; - is stdout")]
OutputDirectory = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Output directory")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of all random numbers")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only")]
