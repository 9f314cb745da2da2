"""Histograms of the time of each stage, one panel a stage, on one axis; after Figures 3.7, 3.8, Lepe-Aldama (2002)."""

from typing import Any

import altair as alt
import polars as pl

from parshall.figures.figure import WIDTH_PX, Figure, finished, rows_of
from parshall.figures.path.axes import BAR, INK, time_scale, time_ticks
from parshall.figures.path.reduction import PathReduction
from parshall.host.quantities import many
from parshall.instruments.path.stages import WHOLE

_PANEL_PX = 42
# The width to which heights refer, in powers of two: 9 %.
_HEIGHT_OCTAVES = 1 / 8


def reduce(reduction: PathReduction, path: str) -> pl.DataFrame:
    """Reduce the times of a code path to histograms.

    Returns
    -------
    polars.DataFrame
        ``stage``, ``from_ns``, ``until_ns``, ``percent`` (of the packets that have a time of this stage), ``height``
        (percent for each 9 % of time, whatever the widths of the buckets are).
    """
    octaves = (pl.col("until_ns") / pl.col("from_ns")).log(2)
    return (
        reduction.histograms.filter(path=path)
        .select("stage", "from_ns", "until_ns", percent=100 * pl.col("packets") / pl.col("packets").sum().over("stage"))
        .with_columns(height=pl.col("percent") * _HEIGHT_OCTAVES / octaves)
    )


def draw(reduced: pl.DataFrame, reduction: PathReduction, path: str) -> Figure:
    """Draw a panel for each stage, with median and 99th percentile."""
    stages = [*reduction.stages_of(path), WHOLE]
    times = reduction.times.filter(path=path)
    low_ns, high_ns = float(reduced["from_ns"].min()), float(reduced["until_ns"].max())  # type: ignore[arg-type]
    scale = time_scale(low_ns, high_ns)
    panels = [_panel(reduced, times, stage, scale, (low_ns, high_ns), stage == stages[-1]) for stage in stages]
    chart = alt.vconcat(*panels, spacing=4)
    packets = int(times.filter(stage=WHOLE)["packets"].sum())
    caption = (
        f"{many(packets, 'packet')}. A stage has the time since the stage before; whole: from the first stage to the "
        "last. Height: packets for each 9 % of time, each panel to its own maximum. Solid line: median; dashed: 99th "
        "percentile."
    )
    return finished(f"times-{path}", f"Time of each stage since the stage before, {path} packets", caption, chart)


def _panel(
    reduced: pl.DataFrame,
    times: pl.DataFrame,
    stage: str,
    scale: alt.Scale,
    ends_ns: tuple[float, float],
    is_last: bool,
) -> Any:
    axis = time_ticks(*ends_ns, grid=True, labels=is_last, ticks=is_last, domain=is_last)
    x = alt.X("from_ns:Q", title="time (logarithmic)" if is_last else None, scale=scale, axis=axis)
    beside: dict[str, Any] = {"titleAngle": 0, "titleAlign": "right", "titleX": -8, "titleY": _PANEL_PX / 2 + 5}
    beside["minExtent"] = 92
    axis_y = alt.Axis(labels=False, ticks=False, grid=False, domain=False, **beside)
    y = alt.Y("height:Q", title=stage, axis=axis_y)
    bars = (
        alt.Chart(rows_of(reduced.filter(stage=stage)))
        .mark_rect(color=BAR, strokeWidth=0)
        .encode(
            x=x,
            x2=alt.X2("until_ns:Q"),
            y=y,
            y2=alt.datum(0),
            tooltip=[
                alt.Tooltip("from_ns:Q", title="from (ns)", format=",.0f"),
                alt.Tooltip("until_ns:Q", title="until (ns)", format=",.0f"),
                alt.Tooltip("percent:Q", title="packets (%)", format=".3f"),
            ],
        )
    )
    row = alt.Chart(rows_of(times.filter(stage=stage).select("median_ns", "p99_ns", "max_ns", "packets")))
    tooltip = [
        alt.Tooltip(f"{name}:Q", title=name.replace("_ns", " (ns)"), format=",.0f")
        for name in ("median_ns", "p99_ns", "max_ns", "packets")
    ]
    lines = [
        row.mark_rule(color=INK, strokeWidth=1.6, strokeDash=dash).encode(
            x=alt.X(f"{name}:Q", scale=scale), tooltip=tooltip
        )
        for name, dash in (("median_ns", [1, 0]), ("p99_ns", [4, 3]))
    ]
    return alt.layer(bars, *lines).properties(width=WIDTH_PX - 100, height=_PANEL_PX)
