"""Several logs in one figure: what all flows of each moved, and the round-trip times that they had."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import polars as pl

from parshall.figures.figure import Figure, finished, rows_of
from parshall.figures.legend import COLOURS
from parshall.figures.reduction import Reduction
from parshall.figures.throughput import sums
from parshall.host.quantities import many

_WIDTH_PX, _HEIGHT_PX = 900, 240
_BINS_MAX, _ROWS_MAX = 200, 20_000
MOVED, ROUND_TRIPS = "throughput-of-logs", "round-trip-times"
_DISTRIBUTION = {"line": pl.String, "rtt_ms": pl.Float64, "share": pl.Float64}


@dataclass(frozen=True)
class Lines:
    """What the figures have of one log.

    Attributes
    ----------
    moved : polars.DataFrame
        ``time_s`` since the first record of the log (middle of a bin), ``Mbps`` of all its flows; a connection whose
        two ends are flows counts once.
    held : polars.DataFrame
        `Reduction.round_trips`.
    """

    moved: pl.DataFrame
    held: pl.DataFrame


def lines_of(reduction: Reduction) -> Lines:
    """Return the lines of a log: at most some hundred rows, whatever the log has."""
    moved = pl.DataFrame(schema={"time_s": pl.Float64, "Mbps": pl.Float64})
    if reduction.drawn:
        bins = reduction.bins(_BINS_MAX, _ROWS_MAX, without_gaps=True)
        summed = sums(reduction, bins, [])
        moved = pl.concat([moved, summed.select("time_s", pl.col("all").cast(pl.Float64).alias("Mbps"))])
    return Lines(moved, reduction.round_trips())


def moved(lines: Mapping[str, Lines]) -> pl.DataFrame:
    """Return the throughput of all flows of each log over its own time: ``log``, and the columns of `Lines.moved`."""
    frames = [pl.DataFrame(schema={"log": pl.String, "time_s": pl.Float64, "Mbps": pl.Float64})]
    frames += [each.moved.select(pl.lit(name).alias("log"), pl.all()) for name, each in lines.items()]
    return pl.concat(frames)


def round_trips(lines: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the distribution of smoothed round-trip times over time, of each line.

    Parameters
    ----------
    lines : mapping of str to polars.DataFrame
        Rows of `Reduction.round_trips`, by the name of the line.

    Returns
    -------
    polars.DataFrame
        ``line``, ``rtt_ms`` in ascending order, ``share``: the percentage of the time of all its flows together in
        which the smoothed round-trip time was at most this. Values are within 2 %.
    """
    frames = [pl.DataFrame(schema=_DISTRIBUTION)]
    for name, held in lines.items():
        levels = held.group_by("level").agg(pl.col("held_ns").sum(), pl.col("held_us_ns").sum()).sort("level")
        until_ns = pl.col("held_ns").cum_sum()
        frames.append(
            levels.select(
                pl.lit(name).alias("line"),
                (pl.col("held_us_ns") / pl.col("held_ns") / 1e3).alias("rtt_ms"),
                (100 * until_ns / pl.col("held_ns").sum()).cast(pl.Float64).alias("share"),
            )
        )
    return pl.concat(frames)


def _with_ends(rows: pl.DataFrame) -> pl.DataFrame:
    """Return distributions from 0 % on, and up to the greatest value of all."""
    begin = rows.group_by("line", maintain_order=True).first().with_columns(share=pl.lit(0.0))
    end = rows.group_by("line", maintain_order=True).last().with_columns(rtt_ms=pl.lit(rows["rtt_ms"].max()))
    lines = rows["line"].unique(maintain_order=True)
    whole = pl.concat([each.select(*_DISTRIBUTION) for each in (begin, rows, end)])
    return pl.concat([whole.filter(line=line).sort("rtt_ms", "share") for line in lines])


def figures_of(lines: Mapping[str, Lines], *, omitted: int = 0) -> list[Figure]:
    """Return the figures of several logs together; those without data are left out.

    `omitted` is the number of logs that moved fewer bytes than these, for captions.
    """
    found = []
    verb = "is" if omitted == 1 else "are"
    note = f" {many(omitted, 'log')} that moved fewer bytes {verb} left out." if omitted else ""
    throughputs = moved(lines)
    if throughputs["log"].n_unique() > 1:
        caption = (
            f"Payload that all flows of each log moved, {many(len(lines), 'log')}; a connection with both ends in "
            f"one log counts once. Times are since the first record of each log.{note}"
        )
        x = alt.X("time_s:Q", title="time (s)")
        y = alt.Y("Mbps:Q", title="Mbit/s", scale=alt.Scale(zero=True))
        tooltip = [
            alt.Tooltip("log:N"),
            alt.Tooltip("time_s:Q", title="time (s)", format=".3f"),
            alt.Tooltip("Mbps:Q", title="throughput (Mbit/s)", format=".2f"),
        ]
        title = "Throughput of each log (Mbit/s)"
        found.append(_drawn(MOVED, title, caption, throughputs, "log", x, y, tooltip, steps="step"))
    held = round_trips({name: each.held for name, each in lines.items()})
    if held["line"].n_unique() > 1:
        found.append(draw_round_trips(held, "log", note))
    return found


def draw_round_trips(rows: pl.DataFrame, kind: str, note: str = "") -> Figure:
    """Draw what `round_trips` returns; `kind` says what a line is, and `note` what is left out."""
    caption = (
        "Percentage of the time in which the smoothed round-trip time of flows that sent was at most so long; each "
        f"value holds until the flow's next record. One line for each {kind}.{note}"
    )
    x = alt.X("rtt_ms:Q", title="smoothed round-trip time (ms)", scale=alt.Scale(type="log", nice=False))
    y = alt.Y("share:Q", title="share of the time (%)", scale=alt.Scale(domain=[0, 100]))
    tooltip = [
        alt.Tooltip("line:N", title=kind),
        alt.Tooltip("rtt_ms:Q", title="at most (ms)", format=".3f"),
        alt.Tooltip("share:Q", title="share of the time (%)", format=".1f"),
    ]
    title = "Distribution of the smoothed round-trip time"
    return _drawn(ROUND_TRIPS, title, caption, _with_ends(rows), "line", x, y, tooltip, steps="step-after")


def _drawn(
    name: str,
    title: str,
    caption: str,
    rows: pl.DataFrame,
    line: str,
    x: alt.X,
    y: alt.Y,
    tooltip: list[Any],
    *,
    steps: Literal["step", "step-after"],
) -> Figure:
    names = rows[line].unique(maintain_order=True).to_list()
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(names))]
    legend = alt.Legend(title=None, orient="top", symbolType="stroke", symbolStrokeWidth=3, labelLimit=400)
    chart = alt.Chart(rows_of(rows), width=_WIDTH_PX, height=_HEIGHT_PX)
    marks = chart.mark_line(interpolate=steps, strokeWidth=2).encode(
        x=x,
        y=y,
        color=alt.Color(f"{line}:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        tooltip=tooltip,
    )
    return finished(name, title, caption, marks, width_px=_WIDTH_PX)
