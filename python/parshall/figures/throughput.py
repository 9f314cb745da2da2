"""Throughput against time: payload acknowledged, or received, per bin."""

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, greatest
from parshall.figures.frame import Figure, frame, named, pointer_layers, step_layers, upward
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction

TITLE = "Throughput (Mbit/s)"


def reduce(reduction: Reduction, bins: Bins) -> pl.DataFrame:
    """Sum what each flow moved in each bin.

    The advance of ``snd_una`` (acknowledged by the peer) or of ``rcv_nxt`` (received in order), whichever
    is greater for the flow, is booked in the bin of the record that shows it: neither counts a
    retransmission twice, and both see what thinned-out packets moved. A FIN counts as one byte.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins from the flow's first to its last, 5), sorted by flow and time: ``flow``,
        ``time_s`` (middle of the bin), ``measure`` ("acknowledged" or "received"), ``bytes`` (int64),
        ``Mbps`` (float64, the mean over the bin).
    """
    booked = (
        reduction.cells(bins)
        .join(reduction.table.select("flow", "measure"), on="flow", maintain_order="left")
        .with_columns(bytes=pl.when(pl.col("measure") == "received").then("received").otherwise("acknowledged"))
    )
    # A bin without a record is a bin in which nothing moved, not one of which nothing is known.
    all_bins = (
        booked.group_by("flow", "measure")
        .agg(bin=pl.int_ranges(pl.col("bin").min(), pl.col("bin").max() + 1).first())
        .explode("bin")
    )
    return (
        all_bins.join(booked.select("flow", "bin", "bytes"), on=["flow", "bin"], how="left")
        .sort("flow", "bin")
        .select(
            "flow",
            bins.middle_s(pl.col("bin")).alias("time_s"),
            "measure",
            pl.col("bytes").fill_null(0),
            (pl.col("bytes").fill_null(0) * 8 / bins.width_s / 1e6).alias("Mbps"),
        )
    )


def draw(reduced: pl.DataFrame, legend: Legend, bins: Bins, total_bytes: int) -> Figure:
    """Draw one step a bin."""
    measures = " or ".join(sorted(reduced["measure"].unique())) if total_bytes else "moved"
    caption = (
        f"Payload {measures} per bin of {bins.width_text}, retransmissions not counted twice; "
        f"{total_bytes / 1e6:,.1f} MB of {legend.flows_text}.{legend.reading} "
        f"The time ends {bins.last_share:.0%} into the last bin."
    )
    tooltip = [
        alt.Tooltip("flow:N"),
        alt.Tooltip("time_s:Q", title="time (s)", format=".3f"),
        alt.Tooltip("Mbps:Q", title="throughput (Mbit/s)", format=".2f"),
        alt.Tooltip("bytes:Q", title="bytes in the bin", format=","),
        alt.Tooltip("measure:N", title="payload"),
    ]
    data = named(reduced, legend)
    height = upward("Mbps", "Mbit/s", greatest(reduced, "Mbps"))
    layers = [
        *step_layers(reduced, data, height, legend, bins),
        *pointer_layers(data, height, legend, bins, tooltip),
    ]
    return Figure("throughput", TITLE, caption, frame(layers, legend, title=TITLE, caption=caption))
