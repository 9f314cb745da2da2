"""The frame around every figure: size, axes, what the pointer does. It draws, and computes nothing."""

import math
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, envelope, greatest
from parshall.figures.legend import GREY, PICKED, Legend

WIDTH_PX = 900
HEIGHT_PX = 240
# With up to so many rows a flow in the mean, lines get points: one alone would not be seen, and where a line goes over
# a gap, points tell what was measured.
_POINTS_MAX = 40
# More dashed lines than this hide what they belong to.
DASHED_MAX = 4
# Up to here every whole number has a mark at an axis that counts.
_FEW = 6
# Name of the layer that nobody sees.
POINTER_LAYER = "pointer"
_CONFIG: dict[str, Any] = {
    "font": "Helvetica, Arial, sans-serif",
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelColor": "#333",
        "titleColor": "#333",
        "gridColor": "#e8e8e8",
        "domainColor": "#999",
        "tickColor": "#999",
    },
    # Room for the widest number, so that the time axes of all figures stand below each other.
    "axisY": {"minExtent": 42, "titleX": -44},
    "legend": {"labelFontSize": 12, "labelColor": "#222"},
    "title": {
        "fontSize": 15,
        "anchor": "start",
        "color": "#111",
        "subtitleColor": "#555",
        "subtitleFontSize": 12,
    },
}


@dataclass(frozen=True)
class Figure:
    """A figure and what must be said about it.

    Attributes
    ----------
    name : str
        File name without suffix.
    title : str
        What it shows, with the unit.
    caption : str
        How it was reduced, and from what.
    chart : altair.LayerChart
        The drawing.
    """

    name: str
    title: str
    caption: str
    chart: alt.LayerChart


def named(reduced: pl.DataFrame, legend: Legend) -> alt.InlineData:
    """Return rows as data of a chart, flows by name; as CSV, which is a third of JSON's size."""
    names = pl.col("flow").replace_strict(legend.labels, return_dtype=pl.String)
    return _as_csv(reduced.with_columns(names))


def _as_csv(rows: pl.DataFrame) -> alt.InlineData:
    text = rows.with_columns(pl.selectors.float().round_sig_figs(7)).write_csv()
    numbers: dict[str, Any] = {name: "number" for name, kind in rows.schema.items() if kind.is_numeric()}
    return alt.InlineData(values=text, format=alt.CsvDataFormat(type="csv", parse=numbers))


def time_axis(bins: Bins) -> alt.X:
    """Seconds after the origin; all figures of a report have the same axis."""
    return alt.X(
        "time_s:Q",
        title="time (s)",
        scale=alt.Scale(domain=[bins.begin_s, max(bins.end_s, bins.begin_s + 1e-6)], nice=False, zero=False),
        axis=alt.Axis(grid=False, tickCount=10),
    )


def frame(layers: list[alt.Chart], legend: Legend, *, title: str, caption: str) -> alt.LayerChart:
    """Lay layers over each other, and add what the pointer does.

    The first layer gets the parameters: ``zoom`` (shift and wheel, or drag, along the time) and
    ``pick`` (click on a flow or its name).
    """
    first, *others = layers
    zoom = alt.selection_interval(name="zoom", encodings=["x"], bind="scales", zoom="wheel![event.shiftKey]")
    parameters = [zoom, pick(legend), *([hover()] if legend.is_crowded else [])]
    chart = alt.layer(first.add_params(*parameters), *others)
    finished: alt.LayerChart = chart.properties(
        width=WIDTH_PX,
        height=HEIGHT_PX,
        title=alt.TitleParams(title, subtitle=caption),
        description=f"{title} against time. {caption}",
    ).configure(**_CONFIG)
    return finished


def pick(legend: Legend) -> alt.Parameter:
    """Return the parameter that holds the flows picked by a click."""
    if legend.is_crowded:
        return alt.selection_point(name="pick", fields=["flow"], on="click", empty=False)
    return alt.selection_point(name="pick", fields=["flow"], on="click", bind="legend")


def hover() -> alt.Parameter:
    """Return the parameter that holds the flow under the pointer."""
    return alt.selection_point(name="hover", fields=["flow"], on="pointerover", clear="pointerout", empty=False)


def coloured(layer: alt.Chart, legend: Legend, strong: float, grey: float) -> list[alt.Chart]:
    """Give a layer the colours of its flows; what is not picked becomes faint.

    Parameters
    ----------
    layer
        Marks that have the field ``flow``.
    legend
        Names and colours.
    strong
        Opacity of a flow that is picked, and of all when none is.
    grey
        Opacity of each of many flows that have no colour of their own; 0 leaves them out.
    """
    picked = pick(legend)
    if legend.is_crowded:
        # Opacity of the stroke: that of the mark would have each line composed as a picture of its own.
        behind = [layer.encode(color=alt.value(GREY), strokeOpacity=alt.value(grey))] if grey else []
        above = layer.transform_filter(picked | hover())
        return [*behind, above.encode(color=alt.value(PICKED), opacity=alt.value(strong))]
    opacity = alt.when(picked).then(alt.value(strong)).otherwise(alt.value(strong * 0.1))
    return [layer.encode(color=legend.colour(), opacity=opacity)]


def pointer_layers(
    data: alt.InlineData, height: alt.Y, legend: Legend, bins: Bins, tooltip: list[alt.Tooltip]
) -> list[alt.Chart]:
    """Layers that catch the pointer, larger than what is drawn, and that name a flow out of many."""
    base = alt.Chart(data).encode(x=time_axis(bins), y=height, detail="flow:N")
    touch = base.mark_point(size=100, filled=True, opacity=0).encode(tooltip=tooltip)
    layers = [touch.properties(name=POINTER_LAYER)]
    if legend.is_crowded:
        # White below the letters, for the lines run through them.
        layers += [
            base.mark_text(align="right", dy=-9, fontSize=12, fontWeight="bold", **ink)
            .encode(text="flow:N")
            .transform_filter(pick(legend) | hover())
            .transform_joinaggregate(end_s="max(time_s)", groupby=["flow"])
            .transform_filter("datum.time_s == datum.end_s")
            for ink in ({"stroke": "white", "strokeWidth": 4}, {"color": PICKED})
        ]
    return layers


def reading(legend: Legend, line: str, dashed: str) -> str:
    """How to read the layers of a state, for the caption."""
    if legend.is_crowded:
        return (
            f"Lines: {line} over the records of a bin, a line a flow. Shading: smallest to largest of all "
            f"flows. Point at a flow for its own, and for its {dashed} (dashed)."
        )
    of_which = "" if len(legend.labels) <= DASHED_MAX else " of the flow that is clicked"
    return f"Line: {line} over the records of a bin. Shading: smallest to largest. Dashed: {dashed}{of_which}."


def upward(field: str, unit: str, top: float, *, whole: bool = False) -> alt.Y:
    """Vertical axis from 0 to the greatest value that is drawn; of whole numbers it has no marks between."""
    # Given, not left to Vega: what is drawn only when it is picked must not move the axis.
    if whole and top <= _FEW:
        # Vega would put marks between so few, whatever the smallest step that it is told.
        marks = list(range(max(math.ceil(top), 1) + 1))
        scale, axis = alt.Scale(domain=[0, marks[-1]]), alt.Axis(values=marks, format="d")
        return alt.Y(f"{field}:Q", title=unit, scale=scale, axis=axis)
    return alt.Y(f"{field}:Q", title=unit, scale=alt.Scale(domain=[0, top * 1.02 or 1], nice=True))


def state_layers(reduced: pl.DataFrame, data: alt.InlineData, legend: Legend, bins: Bins, unit: str) -> list[alt.Chart]:
    """Layers that show smallest to largest of each bin as a band and the mean as a line.

    Parameters
    ----------
    reduced
        What `extremes` returns.
    data
        The same, as data of a chart.
    legend, bins
        Names and colours; the time axis.
    unit
        Title of the vertical axis.
    """
    top = greatest(reduced, "max")
    base = alt.Chart(data).encode(x=time_axis(bins), detail="flow:N")
    band = over_bins(base, bins).encode(y=upward("min", unit, top), y2="max:Q")
    line = base.mark_line(strokeWidth=1.6, strokeJoin="round", point=_has_few_rows(reduced))
    line = line.encode(y=upward("mean", unit, top))
    if not legend.is_crowded:
        return [*coloured(line, legend, 1, 0), *coloured(band, legend, 0.22, 0)]
    # The bands of many flows would cover each other and all lines: one band around all of them.
    everything = _as_csv(envelope(reduced))
    around = over_bins(alt.Chart(everything), bins).encode(
        y=upward("min", unit, top), y2="max:Q", color=alt.value("#eceef1")
    )
    return [around, *coloured(line, legend, 1, 0.3), *coloured(band, legend, 0.3, 0)]


def _has_few_rows(reduced: pl.DataFrame) -> bool:
    return reduced.height <= _POINTS_MAX * reduced["flow"].n_unique()


def over_bins(chart: alt.Chart, bins: Bins) -> alt.Chart:
    """Return rectangles from the begin to the end of each bin that has a row: none where there was no record."""
    half_s = bins.width_s / 2
    rectangles: alt.Chart = (
        chart.transform_calculate(end_s=f"datum.time_s + {half_s!r}")
        # The field keeps its name, by which the zoom of all figures knows the axis.
        .transform_calculate(time_s=f"datum.time_s - {half_s!r}")
        .mark_rect(aria=False)
        .encode(x=time_axis(bins), x2="end_s:Q")
    )
    return rectangles


def dashed_layers(data: alt.InlineData, height: alt.Y, legend: Legend, bins: Bins) -> list[alt.Chart]:
    """Layers that show a limit as a dashed line; of more than a few flows it shows when they are picked."""
    line = (
        alt.Chart(data)
        .mark_line(interpolate="step", strokeDash=[4, 3], strokeWidth=1.2)
        .encode(x=time_axis(bins), y=height, detail="flow:N")
        # An empty field of the CSV is no number, and would be drawn as 0.
        .transform_filter(f"isValid(datum.{height.shorthand.split(':')[0]})")
    )
    if legend.is_crowded or len(legend.labels) <= DASHED_MAX:
        return coloured(line, legend, 0.8, 0)
    shown = alt.when(pick(legend), empty=False).then(alt.value(0.8)).otherwise(alt.value(0))
    return [line.encode(color=legend.colour(), opacity=shown)]


def step_line(reduced: pl.DataFrame, data: alt.InlineData, height: alt.Y, bins: Bins) -> alt.Chart:
    """Layer of one step a bin; a flow with a single bin is a point."""
    marks = alt.Chart(data).mark_line(interpolate="step", strokeWidth=1.6, point=_has_few_rows(reduced))
    line: alt.Chart = marks.encode(x=time_axis(bins), y=height, detail="flow:N")
    return line
