"""Time of one stage against another, and rank correlation of all; after Figure 3.10 of Lepe-Aldama (2002)."""

from typing import Any

import altair as alt
import polars as pl

from parshall.figures.figure import ON_PALE_FILL, Figure, finished, rows_of
from parshall.figures.path.axes import BAR, time_scale, time_ticks
from parshall.figures.path.reduction import PathReduction

_POINTS_MAX = 2_000
_PANEL_PX = 300
# Pairs of stages that fewer packets of the sample passed have no correlation worth a number: so many, or this part.
_PACKETS_MIN, _PART_MIN = 100, 0.01
_COLUMNS = {"first": pl.String, "second": pl.String, "correlation": pl.Float64, "packets": pl.Int64}


def reduce(reduction: PathReduction, path: str) -> pl.DataFrame:
    """Compute Spearman's rank correlation of each pair of stages, from the sample.

    Ranks, because times have long tails: one stall would decide Pearson's coefficient alone.

    Returns
    -------
    polars.DataFrame
        ``first``, ``second``, ``correlation`` (-1 to 1), ``packets`` (that have both times); pairs in both orders.
    """
    sample = reduction.sample.filter(path=path)
    stages = reduction.stages_of(path)
    rows = []
    for number, first in enumerate(stages):
        for second in stages[:number]:
            both = sample.select(first, second).drop_nulls()
            if (
                both.height < max(_PACKETS_MIN, _PART_MIN * sample.height)
                or both[first].n_unique() < 2
                or both[second].n_unique() < 2
            ):
                continue
            value = both.select(pl.corr(first, second, method="spearman")).item()
            rows += [(first, second, value, both.height), (second, first, value, both.height)]
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")


def draw(reduced: pl.DataFrame, reduction: PathReduction, path: str) -> Figure:
    """Draw the table of correlations, and the points of the pair that correlates most."""
    top = reduced.sort(pl.col("correlation").abs(), descending=True).row(0, named=True)
    stages = [stage for stage in reduction.stages_of(path) if stage in set(reduced["first"])]
    first, second = sorted((top["first"], top["second"]), key=stages.index)
    packets = int(reduced["packets"].max() or 0)  # type: ignore[arg-type]
    caption = (
        f"Table: Spearman's rank correlation of the times of two stages, each since the stage before, of {packets:,} "
        f"packets taken evenly. "
        f"Points: the pair that correlates most, {first} and {second} ({top['correlation']:+.2f}), one point a packet. "
        "Times that grow together have a common cause, such as a busy CPU; a model that draws them independently "
        "misses it."
    )
    chart = alt.hconcat(_table(reduced, stages), _points(reduction, path, first, second), spacing=40)
    return finished(f"correlation-{path}", f"Times of stages against each other, {path} packets", caption, chart)


def _table(reduced: pl.DataFrame, stages: list[str]) -> Any:
    base = alt.Chart(rows_of(reduced))
    x = alt.X("first:N", title=None, sort=stages, axis=alt.Axis(labelAngle=-45, ticks=False, domain=False))
    y = alt.Y("second:N", title=None, sort=stages, axis=alt.Axis(ticks=False, domain=False))
    # Blue to orange by way of white: distinct to all kinds of colour vision, and the numbers stand in the cells.
    scale = alt.Scale(domain=[-1, 0, 1], range=["#0072B2", "#ffffff", "#D55E00"], interpolate="lab")
    colour = alt.Color("correlation:Q", scale=scale, legend=None)
    tooltip = ["first:N", "second:N", alt.Tooltip("correlation:Q", format="+.3f"), alt.Tooltip("packets:Q", format=",")]
    cells = base.mark_rect(stroke="#e8e8e8").encode(x=x, y=y, color=colour, tooltip=tooltip)
    texts = base.mark_text(fontSize=11, color=ON_PALE_FILL).encode(
        x=x, y=y, text=alt.Text("correlation:Q", format="+.2f")
    )
    return alt.layer(cells, texts).properties(width=_PANEL_PX, height=_PANEL_PX)


def _channel(kind: Any, times: pl.Series) -> Any:
    """Return the channel (X or Y) of the times of a stage, on a logarithmic axis."""
    ends = float(times.min() or 1), float(times.max() or 2)  # type: ignore[arg-type]
    title = f"{times.name}, since the stage before (logarithmic)"
    return kind(f"{times.name}:Q", title=title, scale=time_scale(*ends), axis=time_ticks(*ends))


def _points(reduction: PathReduction, path: str, first: str, second: str) -> alt.Chart:
    rows = reduction.sample.filter(path=path).select(first, second).drop_nulls()
    rows = rows.filter(pl.col(first) > 0, pl.col(second) > 0)
    rows = rows.gather_every(max(1, -(-rows.height // _POINTS_MAX)))
    points: alt.Chart = (
        alt.Chart(rows_of(rows))
        .mark_point(size=14, filled=True, color=BAR, opacity=0.35)
        .encode(
            x=_channel(alt.X, rows[first]),
            y=_channel(alt.Y, rows[second]),
            tooltip=[alt.Tooltip(f"{name}:Q", title=f"{name} (ns)", format=",") for name in (first, second)],
        )
        .properties(width=_PANEL_PX, height=_PANEL_PX)
    )
    return points
