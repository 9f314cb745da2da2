"""``parshall sizes``: parse the options, count or read, represent, write."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from parshall.errors import UsageError
from parshall.quantities import parse_seconds
from parshall.sizes import BUILT_IN, Counts, Law, Parameters, compare, require_packets

COMMAND_SETTINGS = {
    "epilog": f"Built-in distributions, with --from dist: {', '.join(BUILT_IN)}. Formats: docs/sizes.md.",
}
_FROM = ("dist", "procfs", "sizes", "trace", "live")
_TO = ("dist", "procfs", "sizes", "plot")


def command(
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[INPUT]...", help="Files, read as one; - is the standard input.")
    ] = None,
    source: Annotated[str, typer.Option("-I", "--from", metavar="TYPE", help=f"One of: {', '.join(_FROM)}.")] = "dist",
    to: Annotated[str, typer.Option("-O", "--to", metavar="TYPE", help=f"One of: {', '.join(_TO)}.")] = "procfs",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write there; for plot .html, .png or .svg.")
    ] = None,
    number: Annotated[
        int, typer.Option("-n", metavar="N", help="Sizes to generate, for --to sizes (and procfs to dist).")
    ] = 10_000_000,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the generated sizes.")] = 1,
    separator: Annotated[str, typer.Option("--fs", metavar="CHAR", help="Separator of dist.")] = " ",
    surround: Annotated[bool, typer.Option("-s", "--pgset", help='Put lines of procfs into pgset "...".')] = False,
    maximum: Annotated[int, typer.Option("--max", metavar="BYTES", help="Largest size considered.")] = 1500,
    precision: Annotated[int, typer.Option("--prec", metavar="N", help="Cells of each array of procfs.")] = 1000,
    bin_bytes: Annotated[int, typer.Option("--hwidth", metavar="BYTES", help="Sizes in a bin.")] = 20,
    outlier: Annotated[
        float, typer.Option("--outlb", metavar="SHARE", help="A size of this share or more is an outlier.")
    ] = 0.002,
    interface: Annotated[str | None, typer.Option("-i", "--if", metavar="IF", help="Interface, for live.")] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Stop live after 90, 90s, 10m, 1h.")] = None,
    count: Annotated[int | None, typer.Option("-c", "--count", metavar="N", help="Stop live after N packets.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Say how far the law and N draws from it are from the input.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Tell what was done as JSON.")] = False,
) -> None:
    """Count packet sizes, turn them into a law for the generator, or draw from one."""
    if source not in _FROM:
        raise UsageError(f"--from {source}: expected one of {', '.join(_FROM)}")
    if to not in _TO:
        raise UsageError(f"--to {to}: expected one of {', '.join(_TO)}")
    if len(separator) != 1:
        raise UsageError(f"--fs {separator!r}: expected one character")
    if not 0 <= number < 1 << 64:
        raise UsageError(f"-n {number}: expected 0 or more sizes")
    parameters = Parameters(maximum, precision, bin_bytes, outlier)
    counts: Counts | None = None
    if source == "procfs":
        law = Law.read(_only(inputs))
    else:
        duration_s = None if duration is None else parse_seconds("--duration", duration)
        counts = _counts(source, inputs, separator, interface, duration_s, count)
        law = Law.of_counts(counts, parameters) if to != "dist" or verify else Law("")
    _write(to, counts, law, output, number, seed, separator, surround)
    _tell(counts, law, parameters, number if verify else None, seed, as_json)


def _only(inputs: list[str] | None) -> str:
    if inputs and len(inputs) > 1:
        raise UsageError(f"--from procfs: expected one INPUT, found {len(inputs)}")
    return inputs[0] if inputs else "-"


def _counts(
    source: str,
    inputs: list[str] | None,
    separator: str,
    interface: str | None,
    duration_s: float | None,
    packets: int | None,
) -> Counts:
    if source == "live":
        from parshall.live_sizes import count_live

        if interface is None:
            raise UsageError("--from live: expected an interface, -i IF")
        if inputs:
            raise UsageError(f"--from live: expected no INPUT, found {inputs[0]!r}")
        counts = count_live(interface, duration_s, packets)
        require_packets(counts, interface)
        return counts
    counts = Counts([])
    for name in inputs or ["-"]:
        if source == "trace":
            counts = counts.joined(Counts.of_trace(name))
        elif source == "sizes":
            counts = counts.joined(Counts.of_sizes(name))
        elif name in BUILT_IN and not Path(name).exists():
            counts = counts.joined(Counts.built_in(name))
        else:
            counts = counts.joined(Counts.of_dist(name, separator))
    require_packets(counts, ", ".join(inputs or ["standard input"]))
    return counts


def _write(
    to: str,
    counts: Counts | None,
    law: Law,
    output: Path | None,
    number: int,
    seed: int,
    separator: str,
    surround: bool,
) -> None:
    if to == "procfs":
        law.write(output, surround)
    elif to == "sizes":
        law.write_draws(number, seed, output)
    elif to == "dist":
        (counts or law.expected(number)).write(output, separator)
    else:
        _plot(counts, law, output or Path("sizes.html"), number)


def _plot(counts: Counts | None, law: Law, output: Path, number: int) -> None:
    from parshall.figures import file as figure_file
    from parshall.figures import sizes as figure

    if output.suffix not in figure_file.SUFFIXES:
        raise UsageError(f"-o {output}: expected a name that ends in .html, .png or .svg")
    expected = law.expected(number)
    reduced = figure.reduce(expected.pairs) if counts is None else figure.reduce(counts.pairs, expected.pairs)
    chart = figure.draw(reduced, f"{(counts or expected).total:,} packets")
    figure_file.save(chart, output)
    print(f"{output}: written", file=sys.stderr)


def _tell(counts: Counts | None, law: Law, parameters: Parameters, draws: int | None, seed: int, as_json: bool) -> None:
    """Say what was counted and how exact the law is, on the standard error output."""
    comparison = None
    if draws is not None:
        if counts is None:
            raise UsageError("--verify: there is nothing counted to compare a procfs input with")
        comparison = compare(counts, law, parameters, law.draw(draws, seed))
    if as_json:
        report = {
            "packets": None if counts is None else counts.total,
            "ledger": None if counts is None else counts.ledger,
            "comparison": comparison,
        }
        print(json.dumps(report), file=sys.stderr)
        return
    if counts is not None and counts.ledger:
        print(
            "; ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in counts.ledger.items()), file=sys.stderr
        )
    if counts is not None:
        above = sum(packets for size, packets in counts.pairs if size > parameters.maximum_bytes)
        if above:
            print(
                f"{above:,} of {counts.total:,} packets are above {parameters.maximum_bytes} bytes and not considered",
                file=sys.stderr,
            )
    if comparison is not None:
        print(
            f"distance (total variation) of counted sizes from the law {comparison['represented_distance']:.5f}: "
            f"bins {comparison['bins_distance']:.5f}, cells up to {comparison['cells_distance']:.5f}; "
            f"from {comparison['draws']:,} draws {comparison['drawn_distance']:.5f} "
            f"(chance {comparison['chance_distance']:.5f})",
            file=sys.stderr,
        )
