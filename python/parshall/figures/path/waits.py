"""Where packets waited: the stages of the packets around the percentiles of the whole path, stacked."""

import altair as alt
import polars as pl

from parshall.figures.figure import ON_FILL, ON_PALE_FILL, PAPER, WIDTH_PX, Figure, finished, rows_of
from parshall.figures.path.axes import dark_stages, stage_colours, stage_scale, time_text
from parshall.figures.path.reduction import PERCENTILES, PathReduction
from parshall.instruments.path.stages import WHOLE

_BAR_PX = 44
# A part that takes less of its bar than this has no room for its name.
_NAMED_PERCENT_MIN = 9.0


def reduce(reduction: PathReduction, path: str) -> pl.DataFrame:
    """Reduce a code path to the parts of its stages in the whole time of the packets around each percentile.

    Returns
    -------
    polars.DataFrame
        ``percentile`` (with its time as text), ``stage``, ``mean_ns``, ``from_percent``, ``until_percent``,
        ``middle_percent``, ``percent`` (of the bar), ``label`` (name of the stage, empty where it has no room),
        ``packets`` (around the percentile).
    """
    stages = reduction.stages_of(path)
    rows = reduction.waits.filter(path=path)
    wholes = rows.filter(stage=WHOLE).select("percentile", whole_ns="mean_ns")
    order = {name: number for number, name in enumerate(stages)}
    ranks = {name: number for number, name in enumerate(PERCENTILES)}
    parts = (
        rows.filter(pl.col("stage").is_in(stages))
        .join(wholes, on="percentile")
        .sort(pl.col("percentile").replace_strict(ranks), pl.col("stage").replace_strict(order))
        .with_columns(percent=100 * pl.col("mean_ns") / pl.col("mean_ns").sum().over("percentile"))
        .with_columns(until_percent=pl.col("percent").cum_sum().over("percentile"))
    )
    texts = [f"{row['percentile']}: {time_text(row['whole_ns'])}" for row in parts.iter_rows(named=True)]
    return parts.select(
        pl.Series("percentile", texts, dtype=pl.String),
        "stage",
        "mean_ns",
        "packets",
        "until_percent",
        "percent",
        from_percent=pl.col("until_percent") - pl.col("percent"),
        middle_percent=pl.col("until_percent") - pl.col("percent") / 2,
        label=pl.when(pl.col("percent") >= _NAMED_PERCENT_MIN).then("stage").otherwise(pl.lit("")),
    )


def draw(reduced: pl.DataFrame, reduction: PathReduction, path: str) -> Figure:
    """Draw one bar a percentile, with a part for each stage."""
    rows = reduced["percentile"].unique(maintain_order=True).to_list()
    stages = [stage for stage in reduction.stages_of(path) if stage in set(reduced["stage"])]
    colours = stage_colours(reduction, stages)
    base = alt.Chart(rows_of(reduced))
    y = alt.Y("percentile:N", title=None, sort=rows, axis=alt.Axis(labelFontSize=13, ticks=False, domain=False))
    x = alt.X("from_percent:Q", title="part of the whole path (%)", scale=alt.Scale(domain=[0, 100], nice=False))
    colour = alt.Color(
        "stage:N",
        scale=stage_scale(colours),
        sort=stages,
        legend=alt.Legend(title=["stage: time since", "the stage before"], orient="right", symbolType="square"),
    )
    tooltip = [
        alt.Tooltip("percentile:N"),
        alt.Tooltip("stage:N"),
        alt.Tooltip("mean_ns:Q", title="mean (ns)", format=",.0f"),
        alt.Tooltip("percent:Q", title="of the whole (%)", format=".1f"),
        alt.Tooltip("packets:Q", format=","),
    ]
    bars = base.mark_bar(stroke=PAPER, strokeWidth=1.2).encode(
        x=x, x2=alt.X2("until_percent:Q"), y=y, color=colour, tooltip=tooltip
    )
    ink = (
        alt.when(alt.FieldOneOfPredicate("stage", dark_stages(colours)))
        .then(alt.value(ON_FILL))
        .otherwise(alt.value(ON_PALE_FILL))
    )
    names = base.mark_text(fontSize=12).encode(x=alt.X("middle_percent:Q"), y=y, text=alt.Text("label:N"), color=ink)
    counts = reduced.group_by("percentile", maintain_order=True).agg(pl.col("packets").first())
    packets = ", ".join(f"{count:,}" for count in counts["packets"])
    packets += " packet" if packets == "1" else " packets"
    caption = (
        "Each bar: mean times of the packets around a percentile of the time from first to last stage "
        f"({packets}, from top to bottom). A part is the time since the stage before, waiting included."
    )
    chart = alt.layer(bars, names).properties(width=WIDTH_PX - 240, height=_BAR_PX * len(rows))
    return finished(f"waits-{path}", f"Where {path} packets spent their time", caption, chart)
