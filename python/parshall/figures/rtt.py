"""Smoothed and smallest round-trip time against time."""

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

TITLE = "Smoothed round-trip time (ms)"
MS_PER_US = 1e-3


def reduce(states: pl.DataFrame, bins: Bins) -> pl.DataFrame:
    """Reduce the kernel's smoothed round-trip time to bins, with its smallest one at the end of each.

    Returns
    -------
    polars.DataFrame
        What `extremes` returns for ``srtt_us``, in milliseconds, and ``min_rtt`` (float64, ms, null
        before the first sample).
    """
    srtt = extremes(states, "srtt_us", bins, MS_PER_US)
    least = extremes(states, "min_rtt_us", bins, MS_PER_US).select("flow", "time_s", min_rtt="last")
    return srtt.join(least, on=["flow", "time_s"], how="left").sort("flow", "time_s")


def draw(reduced: pl.DataFrame, legend: Legend, bins: Bins) -> Figure:
    """Draw the smoothed time as a band and a line, the smallest as a dashed line."""
    caption = (
        f"{reading(legend, 'mean', 'smallest round-trip time of the kernel')} Bins of {bins.width_text}; "
        f"{reduced['records'].sum():,} records of {legend.flows_text}."
    )
    tooltip = [
        alt.Tooltip("flow:N"),
        alt.Tooltip("time_s:Q", title="time (s)", format=".3f"),
        alt.Tooltip("mean:Q", title="srtt, mean (ms)", format=".3f"),
        alt.Tooltip("min:Q", title="smallest (ms)", format=".3f"),
        alt.Tooltip("max:Q", title="largest (ms)", format=".3f"),
        alt.Tooltip("min_rtt:Q", title="min_rtt (ms)", format=".3f"),
        alt.Tooltip("records:Q", title="records"),
    ]
    data = named(reduced.drop("first", "last"), legend)
    top = greatest(reduced, "max")
    layers = [
        *state_layers(reduced, data, legend, bins, "ms"),
        *dashed_layers(data, upward("min_rtt", "ms", top), legend, bins),
        *pointer_layers(data, upward("mean", "ms", top), legend, bins, tooltip),
    ]
    return Figure("rtt", TITLE, caption, frame(layers, legend, title=TITLE, caption=caption))
