"""Throughput against time: payload acknowledged, or received, per bin."""

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, greatest
from parshall.figures.frame import Figure, coloured, frame, named, pointer_layers, step_line, upward
from parshall.figures.legend import Legend

TITLE = "Throughput (Mbit/s)"
_SEQUENCE_NUMBERS = 1 << 32


def reduce(states: pl.DataFrame, bins: Bins) -> pl.DataFrame:
    """Sum what each flow moved in each bin.

    The advance of ``snd_una`` (acknowledged by the peer) or of ``rcv_nxt`` (received in order), whichever
    is greater for the flow, is booked in the bin of the record that shows it: neither counts a
    retransmission twice, and both see what thinned-out packets moved. A FIN counts as one byte.

    Parameters
    ----------
    states : polars.DataFrame
        Shape (records, ...): ``flow``, ``time_ns``, ``state``, ``snd_una``, ``rcv_nxt``, in
        the order of time.
    bins : Bins
        Where the bins are.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins from the flow's first to its last, 5), sorted by flow and time: ``flow``,
        ``time_s`` (middle of the bin), ``measure`` ("acknowledged" or "received"), ``bytes`` (int64),
        ``Mbps`` (float64, the mean over the bin).
    """
    # Before the peer's SYN, rcv_nxt is 0; the first real number would look like a jump.
    known = states.lazy().filter(pl.col("state").cast(pl.String) != "SYN_SENT")
    moved = known.select(
        "flow",
        bins.number(pl.col("time_ns")),
        acknowledged=_advance("snd_una"),
        received=_advance("rcv_nxt"),
    )
    sums = moved.group_by("flow", "bin").agg(pl.col("acknowledged", "received").sum())
    is_sender = pl.col("acknowledged").sum().over("flow") >= pl.col("received").sum().over("flow")
    booked = sums.select(
        "flow",
        "bin",
        measure=pl.when(is_sender).then(pl.lit("acknowledged")).otherwise(pl.lit("received")),
        bytes=pl.when(is_sender).then("acknowledged").otherwise("received"),
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
        .collect()
    )


def _advance(column: str) -> pl.Expr:
    """Bytes by which a sequence number went on since the flow's record before, modulo 2^32."""
    step = pl.col(column).cast(pl.Int64).diff().over("flow").fill_null(0) % _SEQUENCE_NUMBERS
    # What goes back a little, as records of two CPUs may, is no advance of nearly 4 GiB.
    return pl.when(step < _SEQUENCE_NUMBERS // 2).then(step).otherwise(0)


def draw(reduced: pl.DataFrame, legend: Legend, bins: Bins) -> Figure:
    """Draw one step a bin."""
    measures = " or ".join(sorted(reduced["measure"].unique())) or "moved"
    caption = (
        f"Payload {measures} per bin of {bins.width_text}, retransmissions not counted twice; "
        f"{int(reduced['bytes'].sum()) / 1e6:,.1f} MB of {legend.flows_text}. "
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
    line = step_line(reduced, data, height, bins)
    layers = [*coloured(line, legend, 1, 0.3), *pointer_layers(data, height, legend, bins, tooltip)]
    return Figure("throughput", TITLE, caption, frame(layers, legend, title=TITLE, caption=caption))
