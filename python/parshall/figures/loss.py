"""Retransmitted segments, and what congestion control made of losses, against time."""

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, extremes, greatest
from parshall.figures.frame import (
    Figure,
    coloured,
    frame,
    named,
    pointer_layers,
    step_line,
    time_axis,
    upward,
)
from parshall.figures.legend import Legend

TITLE = "Retransmitted segments (cumulative)"
# The states that mean trouble, with the marks that they get; Open and Disorder are the way back.
MARKS = {"Recovery": "triangle-up", "Loss": "cross", "CWR": "diamond"}


def reduce(states: pl.DataFrame, bins: Bins) -> pl.DataFrame:
    """Reduce the kernel's count of retransmitted segments to bins.

    Returns
    -------
    polars.DataFrame
        What `extremes` returns for ``total_retrans``; ``last`` is the count at the end of the bin.
    """
    return extremes(states, "total_retrans", bins)


def changes(states: pl.DataFrame, bins: Bins) -> pl.DataFrame:
    """Count the changes into the states `MARKS` for each flow and bin.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins x states that occur, 5): ``flow``, ``time_s``, ``ca_state`` (string), ``count``
        (uint32), ``last`` (float64, retransmitted segments at that moment: where the mark goes).
    """
    return (
        states.lazy()
        .with_columns(pl.col("event", "ca_state").cast(pl.String))
        .filter(pl.col("event") == "congestion_state", pl.col("ca_state").is_in(list(MARKS)))
        .group_by("flow", bins.number(pl.col("time_ns")), "ca_state")
        .agg(count=pl.len(), last=pl.col("total_retrans").last().cast(pl.Float64))
        .sort("flow", "bin", "ca_state")
        .select("flow", bins.middle_s(pl.col("bin")).alias("time_s"), "ca_state", "count", "last")
        .collect()
    )


def draw(reduced: pl.DataFrame, changed: pl.DataFrame, legend: Legend, bins: Bins) -> Figure:
    """Draw the count as steps, and a mark where congestion control entered a state of `MARKS`."""
    entered = dict(changed.group_by("ca_state").agg(pl.col("count").sum()).sort("ca_state").iter_rows())
    marks = ", ".join(f"{name} {count:,}" for name, count in entered.items()) or "none"
    caption = (
        f"Steps: segments retransmitted so far. Marks: congestion control entered a state ({marks}). "
        f"Bins of {bins.width_text}; {reduced['records'].sum():,} records of {legend.flows_text}."
    )
    data = named(reduced.select("flow", "time_s", "last", "records"), legend)
    height = upward("last", "segments", greatest(reduced, "last"), whole=True)
    line = step_line(reduced, data, height, bins)
    shape = alt.Shape(
        "ca_state:N",
        scale=alt.Scale(domain=list(entered), range=[MARKS[name] for name in entered]),
        legend=alt.Legend(title=None, orient="top", labelExpr="'entered ' + datum.label", symbolStrokeColor="#333"),
    )
    points = (
        alt.Chart(named(changed, legend))
        .mark_point(size=45, filled=False, strokeWidth=1.2)
        .encode(
            x=time_axis(bins),
            y=height,
            shape=shape,
            tooltip=[
                alt.Tooltip("flow:N"),
                alt.Tooltip("time_s:Q", title="time (s)", format=".3f"),
                alt.Tooltip("ca_state:N", title="entered"),
                alt.Tooltip("count:Q", title="times in the bin"),
            ],
        )
    )
    tooltip = [
        alt.Tooltip("flow:N"),
        alt.Tooltip("time_s:Q", title="time (s)", format=".3f"),
        alt.Tooltip("last:Q", title="retransmitted segments"),
        alt.Tooltip("records:Q", title="records"),
    ]
    layers = [
        *coloured(line, legend, 1, 0.3),
        *pointer_layers(data, height, legend, bins, tooltip),
        *(coloured(points, legend, 1, 0) if entered else []),
    ]
    return Figure("loss", TITLE, caption, frame(layers, legend, title=TITLE, caption=caption))
