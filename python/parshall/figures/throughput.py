"""Throughput over time: payload acknowledged or received in each bin."""

from collections.abc import Collection

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, column_maximum
from parshall.figures.figure import Figure
from parshall.figures.frame import chart_data, frame, step_layers, sum_layers, value_axis
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction
from parshall.host.quantities import many

NAME = "throughput"
TITLE = "Throughput (Mbit/s)"


def reduce(reduction: Reduction, bins: Bins) -> pl.DataFrame:
    """Sum the bytes that each flow moved in each bin.

    The advance of ``snd_una`` (acknowledged by the peer) or of ``rcv_nxt`` (received in order), whichever
    is larger for the flow, is counted in the bin of the record that shows it. Neither counts a
    retransmission twice, and both include the bytes of thinned packets. A FIN counts as one byte.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins from the flow's first to its last, 5), sorted by flow and time: ``flow``,
        ``time_s`` (middle of the bin), ``measure`` ("acknowledged" or "received"), ``bytes`` (int64),
        ``Mbps`` (float64, the mean over the bin).
    """
    counted = (
        reduction.cells(bins)
        .join(reduction.table.select("flow", "measure"), on="flow", maintain_order="left")
        .with_columns(bytes=pl.when(pl.col("measure") == "received").then("received").otherwise("acknowledged"))
    )
    # In a bin without a record nothing moved, so it counts as 0.
    all_bins = (
        counted.group_by("flow", "measure")
        .agg(bin=pl.int_ranges(pl.col("bin").min(), pl.col("bin").max() + 1).first())
        .explode("bin")
    )
    return (
        all_bins.join(counted.select("flow", "bin", "bytes"), on=["flow", "bin"], how="left")
        .sort("flow", "bin")
        .select(
            "flow",
            bins.middle_s(pl.col("bin")).alias("time_s"),
            "measure",
            pl.col("bytes").fill_null(0),
            (pl.col("bytes").fill_null(0) * 8 / bins.width_s / 1e6).alias("Mbps"),
        )
    )


def sums(reduction: Reduction, bins: Bins, named: Collection[int]) -> pl.DataFrame:
    """Sum the throughput over flows; a connection whose two ends are flows counts once.

    Parameters
    ----------
    reduction, bins
        As for `reduce`.
    named : collection of int
        Numbers of the flows that have a line of their own.

    Returns
    -------
    polars.DataFrame
        Shape (bins from the first to the last with records, 3), sorted by time: ``time_s``, ``all`` (of all flows,
        Mbit/s) and ``others`` (of those that are not named).
    """
    moved = reduction.moved(bins)
    other = pl.when(~pl.col("flow").is_in(list(named))).then("bytes").otherwise(0)
    found = moved.group_by("bin").agg(all=pl.col("bytes").sum(), others=other.sum())
    numbers = moved.select(bin=pl.int_range(pl.col("bin").min(), pl.col("bin").max() + 1))
    mbps = pl.col("all", "others").fill_null(0) * 8 / bins.width_s / 1e6
    return (
        numbers.join(found, on="bin", how="left").sort("bin").select(bins.middle_s(pl.col("bin")).alias("time_s"), mbps)
    )


def draw(
    reduced: pl.DataFrame, legend: Legend, bins: Bins, reduction: Reduction, summed: pl.DataFrame | None
) -> Figure:
    """Draw one step for each bin; `summed` has the sums of all flows, of which some have no line of their own."""
    seen = reduction.table.filter(pl.col("records").is_not_null())
    counted = seen.filter("is_counted")["flow"]
    flows = seen.height
    # A connection whose two ends are flows counts once.
    kind = "flow" if len(counted) == flows else "connection"
    total_bytes = reduction.counted_bytes
    all_text = many(flows, "flow") if kind == "flow" else f"{many(len(counted), kind)}, {many(flows, 'flow')}"
    moved = f"{all_text}; lines: {legend.flows_text}" if legend.note else legend.flows_text
    measures = " or ".join(sorted(reduced["measure"].unique())) if total_bytes else "moved"
    # Where logs share an axis, it may be longer than this one.
    last_share = 1.0 if reduction.end_ns is None else bins.share_until(reduction.end_ns)
    last = (
        f" The log ends {last_share:.0%} into the last bin, so that its rate is too low."
        if round(last_share, 2) < 1
        else ""
    )
    caption = (
        f"Payload {measures} per bin of {bins.width_text}, retransmissions not counted twice; "
        f"{total_bytes / 1e6:,.1f} MB of {moved}.{legend.colour_note}{last}"
    )
    tooltip = [
        alt.Tooltip("Mbps:Q", title="throughput (Mbit/s)", format=".2f"),
        alt.Tooltip("bytes:Q", title="bytes in the bin", format=","),
        alt.Tooltip("measure:N", title="payload"),
    ]
    data = chart_data(reduced, legend)
    top = max(column_maximum(reduced, "Mbps"), 0 if summed is None else column_maximum(summed, "all"))
    height = value_axis("Mbps", "Mbit/s", top)
    layers = step_layers(reduced, data, height, legend, bins, tooltip)
    if summed is not None:
        others = counted.filter(~counted.is_in(list(legend.colours))).len()
        layers = [*sum_layers(summed, height, bins, many(len(counted), kind), many(others, kind)), *layers]
    return frame(NAME, TITLE, caption, layers, legend)
