"""``parshall sizes``: parse the options, count or read sizes, represent them, write."""

import json
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from parshall.cli import options
from parshall.cli.confinement import confine
from parshall.cli.options import count_option, share_option
from parshall.errors import UsageError
from parshall.host.messages import progress_line, report_start, show
from parshall.host.stopping import exiting_on_signals
from parshall.host.whole_file import refuse_input
from parshall.instruments.sizes import BUILT_IN, Counts, Parameters, SizeDistribution, compare, require_packets

COMMAND_SETTINGS = {
    "epilog": f"Built-in distributions, with --from dist: {', '.join(BUILT_IN)}. Formats: docs/sizes.md.",
}
_FROM = ("dist", "procfs", "sizes", "trace", "live")
_TO = ("dist", "procfs", "sizes", "plot")


def command(
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[INPUT]...", help="Input files, added up; - is standard input")
    ] = None,
    source: Annotated[str, typer.Option("-I", "--from", metavar="TYPE", help=f"Input: {', '.join(_FROM)}")] = "dist",
    to: Annotated[str, typer.Option("-O", "--to", metavar="TYPE", help=f"Output: {', '.join(_TO)}")] = "procfs",
    output: options.OutputFile = None,
    draws: Annotated[int, count_option("-n", "--draws", help="Number of sizes to draw, for --to sizes")] = 10_000_000,
    seed: options.Seed = 1,
    separator: Annotated[str, typer.Option("--separator", metavar="CHAR", help="Separator of dist")] = " ",
    pgset: Annotated[bool, typer.Option("-s", "--pgset", help='Wrap lines of procfs in pgset "..."')] = False,
    maximum: Annotated[int, count_option("--maximum", help="Largest size in the distribution, bytes")] = 1500,
    precision: Annotated[int, count_option("--precision", help="Cells of each array of procfs")] = 1000,
    bin: Annotated[int, count_option("--bin", help="Width of a bin, bytes")] = 20,
    outlier: Annotated[
        float,
        share_option("--outlier", help="Share of the packets from which a size is an outlier", accepted=options.PART),
    ] = 0.002,
    interface: Annotated[
        str | None, typer.Option("-i", "--interface", metavar="IF", help="Network interface, with --from live")
    ] = None,
    netns: options.Netns = None,
    duration: options.Duration = None,
    count: Annotated[int | None, count_option("-c", "--count", help="Stop after N packets, with --from live")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Report the distance of distribution and draws from input")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Count packet sizes, convert them to a distribution for the generator, or draw from one."""
    if source not in _FROM:
        raise UsageError(f"--from {source}: expected one of {', '.join(_FROM)}")
    if to not in _TO:
        raise UsageError(f"--to {to}: expected one of {', '.join(_TO)}")
    if len(separator) != 1:
        raise UsageError(f"--separator {separator!r}: expected one character")
    for name, value in (("--interface", interface), ("--netns", netns), ("--duration", duration), ("--count", count)):
        if value is not None and source != "live":
            raise UsageError(f"{name}: is for --from live; add it, or leave {name} out")
    if str(output) == "-":
        output = None
    if to == "plot":
        output = output or Path("sizes.html")
    refuse_input(output, inputs or [])
    parameters = Parameters(maximum, precision, bin, outlier)
    counts: Counts | None = None
    if source == "procfs":
        distribution = SizeDistribution.read(_only(inputs))
    else:
        if source == "live":
            counts = _live_counts(inputs, interface, netns, duration, count, quiet)
        else:
            with exiting_on_signals(), progress_line("sizes", _reading(inputs), quiet=quiet):
                counts = _counts(source, inputs, separator)
        distribution = (
            SizeDistribution.from_counts(counts, parameters) if to != "dist" or verify else SizeDistribution("")
        )
    # Without a file, the sizes may go to the same terminal.
    with exiting_on_signals(), progress_line("sizes", _writing(to, draws), quiet=quiet or output is None):
        _write(to, counts, distribution, output, draws, seed, separator, pgset)
    if to == "plot":
        show(f"{output}: written", file=sys.stderr)
    if as_json or verify or not quiet:
        # Standard output may carry the sizes.
        json_to = (sys.stderr if output is None else sys.stdout) if as_json else None
        # What a dist file has is counted at any size.
        limit_bytes = None if to == "dist" and not verify else maximum
        _report(counts, distribution, parameters, draws if verify else None, seed, json_to, limit_bytes)


def _reading(inputs: list[str] | None) -> str:
    names = inputs or ["-"]
    others = f" and {len(names) - 1} others" if len(names) > 1 else ""
    return f"reading {'standard input' if names[0] == '-' else names[0]}{others}"


def _writing(to: str, draws: int) -> str:
    return f"drawing {draws:,} sizes" if to == "sizes" else "drawing" if to == "plot" else "writing"


def _only(inputs: list[str] | None) -> str:
    if inputs and len(inputs) > 1:
        raise UsageError(f"--from procfs: expected one INPUT, found {len(inputs)}")
    return inputs[0] if inputs else "-"


def _live_counts(
    inputs: list[str] | None,
    interface: str | None,
    netns: str | None,
    duration_s: float | None,
    packets: int | None,
    quiet: bool,
) -> Counts:
    from parshall.instruments.live_sizes import count_live

    if interface is None:
        raise UsageError("--from live: expected an interface, -i IF")
    if inputs:
        raise UsageError(f"--from live: expected no INPUT, found {inputs[0]!r}")

    def start() -> None:
        report_start("sizes", f"counting at {interface}", quiet=quiet)
        confine("sizes")

    counts = count_live(
        interface,
        duration_s,
        packets,
        netns=netns,
        on_start=start,
    )
    require_packets(counts, interface)
    return counts


def _counts(source: str, inputs: list[str] | None, separator: str) -> Counts:
    counts = Counts([])
    for name in inputs or ["-"]:
        if source == "trace":
            counts = counts.joined(Counts.from_trace(name))
        elif source == "sizes":
            counts = counts.joined(Counts.from_sizes(name))
        elif name in BUILT_IN and not Path(name).exists():
            counts = counts.joined(Counts.built_in(name))
        else:
            counts = counts.joined(Counts.from_dist(name, separator))
    require_packets(counts, ", ".join(inputs or ["standard input"]))
    return counts


def _write(
    to: str,
    counts: Counts | None,
    distribution: SizeDistribution,
    output: Path | None,
    number: int,
    seed: int,
    separator: str,
    surround: bool,
) -> None:
    if to == "procfs":
        distribution.write(output, surround)
    elif to == "sizes":
        distribution.write_draws(number, seed, output)
    elif to == "dist":
        (counts or distribution.expected(number)).write(output, separator)
    else:
        assert output is not None, "plots have a file"
        _plot(counts, distribution, output, number)


def _plot(counts: Counts | None, distribution: SizeDistribution, output: Path, number: int) -> None:
    from parshall.figures import sizes as figure
    from parshall.report import figure_file

    if output.suffix not in figure_file.SUFFIXES:
        raise UsageError(f"-o {output}: expected a name that ends in .html, .png or .svg")
    expected = distribution.expected(number)
    reduced = figure.reduce(expected.pairs) if counts is None else figure.reduce(counts.pairs, expected.pairs)
    chart = figure.draw(reduced, f"{(counts or expected).total:,} packets")
    figure_file.save(chart, output)


def _report(
    counts: Counts | None,
    distribution: SizeDistribution,
    parameters: Parameters,
    draws: int | None,
    seed: int,
    json_to: TextIO | None,
    limit_bytes: int | None,
) -> None:
    """Report the counts, what of them is above the limit of the distribution, and its accuracy."""
    comparison = None
    if draws is not None:
        if counts is None:
            raise UsageError("--verify: a procfs input has no counts to compare with; give another --from")
        comparison = compare(counts, distribution, parameters, distribution.draw(draws, seed))
    if json_to is not None:
        report = {
            "packets": None if counts is None else counts.total,
            "ledger": None if counts is None else counts.ledger,
            "comparison": comparison,
        }
        print(json.dumps(report), file=json_to)
        return
    if counts is not None and counts.ledger:
        show("; ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in counts.ledger.items()), file=sys.stderr)
    if counts is not None and limit_bytes is not None:
        above = sum(packets for size, packets in counts.pairs if size > limit_bytes)
        if above:
            show(
                f"{above:,} of {counts.total:,} packets are above {limit_bytes} bytes, and the distribution leaves "
                "them out; raise --maximum",
                file=sys.stderr,
            )
    if comparison is not None:
        show(
            f"distance (total variation) of the counts from the distribution {comparison['represented_distance']:.5f}: "
            f"bins {comparison['bins_distance']:.5f}, cells at most {comparison['cells_distance']:.5f}; "
            f"from {comparison['draws']:,} draws {comparison['drawn_distance']:.5f} "
            f"(expected by chance {comparison['chance_distance']:.5f})",
            file=sys.stderr,
        )
