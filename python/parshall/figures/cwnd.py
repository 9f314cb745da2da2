"""Congestion window and slow-start threshold against time."""

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, extremes, greatest
from parshall.figures.frame import (
    Figure,
    dashed_layers,
    frame,
    named,
    pointer_layers,
    reading,
    state_layers,
    upward,
)
from parshall.figures.legend import Legend

TITLE = "Congestion window (segments)"


def reduce(states: pl.DataFrame, bins: Bins) -> pl.DataFrame:
    """Reduce the congestion window to bins, with the slow-start threshold at the end of each.

    Returns
    -------
    polars.DataFrame
        What `extremes` returns for ``cwnd_segments``, and ``ssthresh`` (float64, segments, null while
        it is infinite).
    """
    cwnd = extremes(states, "cwnd_segments", bins)
    ssthresh = extremes(states, "ssthresh_segments", bins)
    last = ssthresh.select("flow", "time_s", ssthresh="last")
    return cwnd.join(last, on=["flow", "time_s"], how="left").sort("flow", "time_s")


def draw(reduced: pl.DataFrame, legend: Legend, bins: Bins) -> Figure:
    """Draw the window as a band and a line, the threshold as a dashed line."""
    caption = (
        f"{reading(legend, 'mean', 'slow-start threshold')} Bins of {bins.width_text}; "
        f"{reduced['records'].sum():,} records of {legend.flows_text}."
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
    data = named(reduced.drop("first", "last"), legend)
    top = greatest(reduced, "max")
    layers = [
        *state_layers(reduced, data, legend, bins, "segments"),
        *dashed_layers(data, upward("ssthresh", "segments", top), legend, bins),
        *pointer_layers(data, upward("mean", "segments", top), legend, bins, tooltip),
    ]
    return Figure("cwnd", TITLE, caption, frame(layers, legend, title=TITLE, caption=caption))
