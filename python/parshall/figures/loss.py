"""Retransmitted segments and states of congestion control over time."""

from collections.abc import Collection

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, column_maximum
from parshall.figures.figure import Figure
from parshall.figures.frame import (
    FLOW_AND_TIME,
    bins_note,
    chart_data,
    coloured,
    frame,
    step_layers,
    sum_layers,
    time_axis,
    value_axis,
)
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction
from parshall.host.quantities import many

NAME = "loss"
TITLE = "Retransmitted segments (cumulative)"
# Marks of the states that follow losses or congestion.
MARKS = {"Recovery": "triangle-up", "Loss": "cross", "CWR": "diamond"}


def reduce(reduction: Reduction, bins: Bins) -> pl.DataFrame:
    """Reduce the kernel's count of retransmitted segments to bins.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins with records, 4), sorted by flow and time: ``flow``, ``time_s`` (middle of the bin),
        ``last`` (segments at the end of the bin), ``records``.
    """
    return reduction.cells(bins, reduction.senders).select(
        "flow", bins.middle_s(pl.col("bin")).alias("time_s"), last="retrans_last", records="records"
    )


def changes(reduction: Reduction, bins: Bins) -> pl.DataFrame:
    """Count the transitions into the states of `MARKS` for each flow and bin.

    Returns
    -------
    polars.DataFrame
        Shape (flows x bins x states that occur, 5): ``flow``, ``time_s``, ``ca_state`` (string), ``count``,
        ``last`` (retransmitted segments at that moment, the height of the mark).
    """
    return reduction.state_entries(bins, reduction.senders).select(
        "flow", bins.middle_s(pl.col("bin")).alias("time_s"), "ca_state", "count", last="retrans_last"
    )


def sums(reduced: pl.DataFrame, named: Collection[int]) -> pl.DataFrame:
    """Sum the counts of `reduce` over flows: ``time_s``, ``all``, and ``others`` of those that are not named."""
    step = pl.col("last").cast(pl.Int64)
    steps = reduced.select("flow", "time_s", step=step.diff().over("flow").fill_null(step))
    other = pl.when(~pl.col("flow").is_in(list(named))).then("step").otherwise(0)
    found = steps.group_by("time_s").agg(all=pl.col("step").sum(), others=other.sum()).sort("time_s")
    return found.with_columns(pl.col("all", "others").cum_sum())


def draw(reduced: pl.DataFrame, changed: pl.DataFrame, legend: Legend, bins: Bins) -> Figure:
    """Draw the count as steps, and a mark where congestion control entered a state of `MARKS`."""
    entered = dict(changed.group_by("ca_state").agg(pl.col("count").sum()).sort("ca_state").iter_rows())
    counts = ", ".join(f"{name} {count:,}" for name, count in entered.items())
    grey = "; of grey flows, under the pointer" if legend.is_crowded else ""
    marks = f" Marks: congestion control entered a state ({counts}{grey})." if entered else ""
    caption = f"Steps: segments retransmitted so far.{marks} {bins_note(reduced, legend, bins)}"
    data = chart_data(reduced, legend)
    summed = sums(reduced, legend.colours) if legend.is_crowded else None
    top = column_maximum(reduced, "last") if summed is None else column_maximum(summed, "all")
    height = value_axis("last", "segments", top, whole=True)
    # The legend lists only marks that are visible without the pointer.
    drawn = sorted(changed.filter(pl.col("flow").is_in(list(legend.colours)))["ca_state"].unique())
    shape = alt.Shape(
        "ca_state:N",
        scale=alt.Scale(domain=list(entered), range=[MARKS[name] for name in entered]),
        legend=alt.Legend(
            title=None, orient="top", values=drawn, labelExpr="'entered ' + datum.label", symbolStrokeColor="#333"
        )
        if drawn
        else None,
    )
    points = (
        alt.Chart(chart_data(changed, legend))
        .mark_point(size=45, filled=False, strokeWidth=1.2)
        .encode(
            x=time_axis(bins),
            y=height,
            shape=shape,
            tooltip=[
                *FLOW_AND_TIME,
                alt.Tooltip("ca_state:N", title="entered"),
                alt.Tooltip("count:Q", title="times in the bin"),
            ],
        )
    )
    tooltip = [
        alt.Tooltip("last:Q", title="retransmitted segments"),
        alt.Tooltip("records:Q", title="records"),
    ]
    layers = step_layers(reduced, data, height, legend, bins, tooltip)
    layers += coloured(points, legend, 1) if entered else []
    if summed is not None:
        flows = len(legend.labels)
        others = flows - len(legend.colours)
        layers = [*sum_layers(summed, height, bins, many(flows, "flow"), many(others, "flow")), *layers]
    return frame(NAME, TITLE, caption, layers, legend)
