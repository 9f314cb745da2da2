"""The time of a stage over the measurement, with its outliers; after Figure 3.13 of Lepe-Aldama (2002)."""

from typing import Any

import altair as alt
import polars as pl

from parshall.figures.figure import WIDTH_PX, Figure, finished, rows_of
from parshall.figures.path.axes import BAR, time_scale, time_ticks
from parshall.figures.path.reduction import PathReduction

_STAGES_MAX = 3
_BINS = 200
_PANEL_PX = 130
_OUTLIER = "#D55E00"


def stages_of(reduction: PathReduction, path: str) -> list[str]:
    """Return the stages that take most of the time, in the order of the path."""
    stages = reduction.stages_of(path)
    shares = reduction.times.filter(pl.col("path") == path, pl.col("stage").is_in(stages)).sort(
        "share", descending=True
    )
    return sorted(shares["stage"].head(_STAGES_MAX), key=stages.index)


def reduce(reduction: PathReduction, path: str) -> pl.DataFrame:
    """Reduce the sample of a code path to bins of time.

    Returns
    -------
    polars.DataFrame
        ``stage``, ``time_s`` (middle of the bin, since the first packet), ``low_ns``, ``median_ns``, ``high_ns`` (5th,
        50th and 95th percentile of the times above 0 of the sampled packets in the bin), ``packets``. Bins without
        packets have no row.
    """
    sample = reduction.sample.filter(path=path)
    begin_s, end_s = float(sample["time_s"].min() or 0), float(sample["time_s"].max() or 0)  # type: ignore[arg-type]
    width_s = max(end_s - begin_s, 1e-6) / _BINS
    number = ((pl.col("time_s") - begin_s) / width_s).floor().clip(0, _BINS - 1)
    long = sample.unpivot(stages_of(reduction, path), index="time_s", variable_name="stage", value_name="time_ns")
    time = pl.col("time_ns")
    return (
        long.drop_nulls()
        .filter(time > 0)
        .group_by("stage", number.alias("bin"))
        .agg(low_ns=time.quantile(0.05), median_ns=time.median(), high_ns=time.quantile(0.95), packets=pl.len())
        .sort("stage", "bin")
        .with_columns(time_s=(begin_s + (pl.col("bin") + 0.5) * width_s).round(6))
        .drop("bin")
    )


def draw(reduced: pl.DataFrame, reduction: PathReduction, path: str) -> Figure:
    """Draw a panel for each of the stages that take most time."""
    stages = [stage for stage in stages_of(reduction, path) if stage in set(reduced["stage"])]
    end_s = float(reduction.sample["time_s"].max() or 0)  # type: ignore[arg-type]
    panels = [_panel(reduced, reduction, path, stage, end_s, stage == stages[-1]) for stage in stages]
    count = int(reduction.longest.filter(pl.col("path") == path).group_by("stage").len()["len"].max() or 0)  # type: ignore[arg-type]
    caption = (
        "The stages that take most of the time; the time of each is that since the stage before. "
        "Line: median of the sampled packets of a bin; shading: 5th to 95th percentile. "
        f"Marks: the longest times of all packets, up to {count} a stage."
    )
    chart = alt.vconcat(*panels, spacing=12)
    return finished(
        f"trace-{path}", f"Times since the stage before over the measurement, {path} packets", caption, chart
    )


def _panel(reduced: pl.DataFrame, reduction: PathReduction, path: str, stage: str, end_s: float, is_last: bool) -> Any:
    bins = reduced.filter(stage=stage)
    longest = reduction.longest.filter(path=path, stage=stage).select("time_s", "time_ns")
    ends = float(bins["low_ns"].min() or 1), float(longest["time_ns"].max() or 2)  # type: ignore[arg-type]
    x = alt.X(
        "time_s:Q",
        title="time since the first packet (s)" if is_last else None,
        scale=alt.Scale(domain=[0, max(end_s, 1e-6)], nice=False),
        # Labels at the ends of the axis stay below their ticks. Moved inwards, they would touch the next label.
        axis=alt.Axis(grid=False, labels=is_last, labelFlush=False),
    )
    scale, axis = time_scale(*ends), time_ticks(*ends, minExtent=50)

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=stage, scale=scale, axis=axis)

    base = alt.Chart(rows_of(bins)).encode(x=x)
    tooltip = [alt.Tooltip("time_s:Q", title="time (s)"), alt.Tooltip("time_ns:Q", title="ns", format=",")]
    points = alt.Chart(rows_of(longest)).mark_point(size=16, color=_OUTLIER, strokeWidth=1)
    return alt.layer(
        base.mark_area(color=BAR, opacity=0.25).encode(y=y("low_ns"), y2=alt.Y2("high_ns:Q")),
        base.mark_line(color=BAR, strokeWidth=1.6).encode(y=y("median_ns")),
        points.encode(x=x, y=y("time_ns"), tooltip=tooltip),
    ).properties(width=WIDTH_PX - 100, height=_PANEL_PX)
