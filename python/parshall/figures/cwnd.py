"""Congestion window and slow-start threshold over time."""

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, column_maximum
from parshall.figures.frame import (
    Figure,
    chart_data,
    dashed_layers,
    frame,
    layer_note,
    pointer_layers,
    state_layers,
    value_axis,
)
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction

TITLE = "Congestion window (segments)"


def reduce(reduction: Reduction, bins: Bins) -> pl.DataFrame:
    """Reduce the congestion window of flows that sent payload to bins.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins with records, 7), sorted by flow and time: ``flow``, ``time_s`` (middle of the bin),
        ``min``, ``max``, ``mean`` (segments, over records, not over time), ``ssthresh`` (segments at the end of the
        bin, null while it is infinite), ``records``.
    """
    return reduction.cells(bins, reduction.senders).select(
        "flow",
        bins.middle_s(pl.col("bin")).alias("time_s"),
        min="cwnd_min",
        max="cwnd_max",
        mean=pl.col("cwnd_sum") / pl.col("records"),
        ssthresh="ssthresh_last",
        records="records",
    )


def draw(reduced: pl.DataFrame, legend: Legend, bins: Bins) -> Figure:
    """Draw the window as a band and a line, the threshold as a dashed line."""
    caption = (
        f"{layer_note(reduced, legend, 'mean', 'ssthresh', 'slow-start threshold')} Bins of {bins.width_text}; "
        f"{reduced['records'].sum():,} records of {legend.flows_text}.{legend.colour_note}"
    )
    tooltip = [
        alt.Tooltip("flow:N"),
        alt.Tooltip("time_s:Q", title="time (s)", format=".3f"),
        alt.Tooltip("mean:Q", title="cwnd, mean (segments)", format=".1f"),
        alt.Tooltip("min:Q", title="smallest"),
        alt.Tooltip("max:Q", title="largest"),
        alt.Tooltip("ssthresh:Q", title="ssthresh (segments)"),
        alt.Tooltip("records:Q", title="records"),
    ]
    data = chart_data(reduced, legend)
    top = column_maximum(reduced, "max")
    layers = [
        *state_layers(reduced, data, legend, bins, "segments"),
        *dashed_layers(reduced, data, value_axis("ssthresh", "segments", top), legend, bins),
        *pointer_layers(data, value_axis("mean", "segments", top), legend, bins, tooltip),
    ]
    return Figure("cwnd", TITLE, caption, frame(layers, legend, title=TITLE, caption=caption))
