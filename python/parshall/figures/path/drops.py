"""Dropped packets by the kernel's reason and the last stage that they passed."""

import altair as alt
import polars as pl

from parshall.figures.figure import PAPER, WIDTH_PX, Figure, finished, rows_of
from parshall.figures.path.axes import stage_colours, stage_scale
from parshall.figures.path.reduction import PathReduction
from parshall.instruments.path.stages import STAGES

_REASONS_MAX = 20
_BAR_PX = 26


def reduce(reduction: PathReduction) -> pl.DataFrame:
    """Return the drops of the most frequent reasons.

    Returns
    -------
    polars.DataFrame
        ``reason``, ``place``, ``packets``, ``order`` (of the place), ``all`` (packets of the reason).
    """
    order = {stage: number for number, stage in enumerate(STAGES)}
    totals = reduction.drops.group_by("reason").agg(all=pl.col("packets").sum())
    most = totals.sort("all", "reason", descending=[True, False]).head(_REASONS_MAX)
    return most.join(reduction.drops, on="reason", maintain_order="left").with_columns(
        order=pl.col("place").replace_strict(order)
    )


def draw(reduced: pl.DataFrame, reduction: PathReduction) -> Figure:
    """Draw one bar a reason, with a part for each place."""
    reasons = reduced["reason"].unique(maintain_order=True).to_list()
    places = [stage for stage in STAGES if stage in set(reduced["place"])]
    # Room for the numbers behind the bars.
    top = 1.15 * int(reduced["all"].max() or 1)  # type: ignore[arg-type]
    axis = alt.Axis(format=",d", tickCount=6, tickMinStep=1)
    y = alt.Y("reason:N", title=None, sort=reasons, axis=alt.Axis(labelLimit=260, ticks=False, domain=False))
    bars = (
        alt.Chart(rows_of(reduced))
        .mark_bar(stroke=PAPER, strokeWidth=1)
        .encode(
            y=y,
            x=alt.X("sum(packets):Q", title="packets", scale=alt.Scale(domain=[0, top], nice=False), axis=axis),
            color=alt.Color(
                "place:N",
                scale=stage_scale(stage_colours(reduction, places)),
                sort=places,
                legend=alt.Legend(title="dropped after stage"),
            ),
            order=alt.Order("order:Q"),
            tooltip=["reason:N", "place:N", alt.Tooltip("packets:Q", format=",")],
        )
    )
    sums = reduced.select("reason", "all").unique(maintain_order=True)
    texts = (
        alt.Chart(rows_of(sums))
        .mark_text(align="left", dx=5, fontSize=12, color="#333")
        .encode(y=y, x=alt.X("all:Q", title="packets"), text=alt.Text("all:Q", format=","))
    )
    caption = (
        f"{int(reduction.drops['packets'].sum()):,} dropped packets, by the kernel's reason (skb_drop_reason) and the "
        "last stage that they passed."
    )
    left = reduction.drops["reason"].n_unique() - len(reasons)
    if left > 0:
        caption += f" The {_REASONS_MAX} most frequent reasons; {left} more are not drawn."
    chart = alt.layer(bars, texts).properties(width=WIDTH_PX - 330, height=_BAR_PX * len(reasons))
    return finished("drops", "Dropped packets by reason and place", caption, chart)
