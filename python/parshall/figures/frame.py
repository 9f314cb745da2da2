"""The frame around every figure: size, axes, what the pointer does. It draws, and computes nothing."""

import json
import math
import textwrap
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl

from parshall.figures.bins import Bins, envelope, greatest
from parshall.figures.legend import GREY, PICKED, Legend

WIDTH_PX = 900
HEIGHT_PX = 240
# Flows with up to so many rows get points.
_POINTS_MAX = 40
# Letters of a line of the caption.
_CAPTION_LETTERS = 150
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
    "legend": {"labelFontSize": 12, "labelColor": "#222", "labelLimit": 400, "columns": 4},
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
    parameters = [zoom, pick(), *([hover()] if legend.is_crowded else [])]
    chart = alt.layer(first.add_params(*parameters), *others)
    finished: alt.LayerChart = chart.properties(
        width=WIDTH_PX,
        height=HEIGHT_PX,
        title=alt.TitleParams(title, subtitle=_lines(caption)),
        description=f"{title} against time. {caption}",
    ).configure(**_CONFIG)
    return finished


def _lines(caption: str) -> list[str]:
    """Break a caption into lines that are no wider than the figure."""
    return textwrap.wrap(caption, _CAPTION_LETTERS)


def pick(*, empty: bool = True) -> alt.Parameter:
    """Return the parameter that holds the flows picked by a click; `empty`: whether all are when none was clicked."""
    return alt.selection_point(name="pick", fields=["flow"], on="click", bind="legend", empty=empty)


def hover() -> alt.Parameter:
    """Return the parameter that holds the flow under the pointer."""
    return alt.selection_point(name="hover", fields=["flow"], on="pointerover", clear="pointerout", empty=False)


def _is_named(legend: Legend) -> str:
    """Whether a flow has a colour, as an expression of Vega."""
    return f"indexof({json.dumps(legend.named)}, datum.flow) >= 0"


def coloured(layer: alt.Chart, legend: Legend, strong: float, grey: float, *, at_rest: bool = True) -> list[alt.Chart]:
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
        Opacity of each flow that has no colour of its own; 0 leaves them out until they are pointed at.
    at_rest
        Whether flows with a colour are there when none is picked.
    """
    opacity = alt.when(pick(), empty=at_rest).then(alt.value(strong)).otherwise(alt.value(strong * 0.1 * at_rest))
    if not legend.is_crowded:
        return [layer.encode(color=legend.colour(), opacity=opacity)]
    others = layer.transform_filter(f"!({_is_named(legend)})")
    # Opacity of the stroke: that of the mark would have each line composed as a picture of its own.
    behind = [others.encode(color=alt.value(GREY), strokeOpacity=alt.value(grey))] if grey else []
    own = layer.transform_filter(_is_named(legend)).encode(color=legend.colour(), opacity=opacity)
    above = others.transform_filter(pick(empty=False) | hover())
    return [
        *behind,
        *([own] if legend.colours else []),
        above.encode(color=alt.value(PICKED), opacity=alt.value(strong)),
    ]


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
            .transform_filter(pick(empty=False) | hover())
            .transform_joinaggregate(end_s="max(time_s)", groupby=["flow"])
            .transform_filter("datum.time_s == datum.end_s")
            for ink in ({"stroke": "white", "strokeWidth": 4}, {"color": PICKED})
        ]
    return layers


def _shows_dashed(legend: Legend) -> bool:
    """Whether dashed lines are few enough to be drawn for all flows."""
    return not legend.is_crowded and len(legend.labels) <= DASHED_MAX


def reading(reduced: pl.DataFrame, legend: Legend, line: str, dashed: str, limit: str) -> str:
    """How to read the layers of a state, for the caption; `dashed` is the column of the dashed line."""
    if legend.is_crowded:
        said = f"Lines: {line} over the records of a bin. Shading: smallest to largest of all flows."
    else:
        said = f"Line: {line} over the records of a bin. Shading: smallest to largest."
    if not reduced[dashed].count():
        return said
    return f"{said} Dashed: {limit}{'' if _shows_dashed(legend) else ' of the flow that is clicked'}."


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
    line = base.mark_line(strokeWidth=1.6, strokeJoin="round").encode(y=upward("mean", unit, top))
    lines = [*coloured(line, legend, 1, 0.3), *_points(reduced, base.encode(y=upward("mean", unit, top)), legend)]
    if not legend.is_crowded:
        return [*lines, *coloured(band, legend, 0.22, 0)]
    # The bands of many flows would cover each other and all lines: one band around all of them.
    everything = _as_csv(envelope(reduced))
    around = over_bins(alt.Chart(everything), bins).encode(
        y=upward("min", unit, top), y2="max:Q", color=alt.value("#eceef1")
    )
    return [around, *lines, *coloured(band, legend, 0.3, 0, at_rest=False)]


def _points(reduced: pl.DataFrame, base: alt.Chart, legend: Legend) -> list[alt.Chart]:
    """Layers of points for flows with few rows: one alone would not be seen, and over a gap they show what is known."""
    few = reduced.group_by("flow").len().filter(pl.col("len") <= _POINTS_MAX)["flow"].sort()
    if few.is_empty():
        return []
    points = base.mark_circle(size=22)
    if len(few) < len(legend.labels):
        names = [legend.labels[flow] for flow in few]
        points = points.transform_filter(alt.FieldOneOfPredicate(field="flow", oneOf=names))
    return coloured(points, legend, 1, 0.3)


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


def dashed_layers(
    reduced: pl.DataFrame, data: alt.InlineData, height: alt.Y, legend: Legend, bins: Bins
) -> list[alt.Chart]:
    """Layers that show a limit as a dashed line; of more than a few flows it shows when they are picked."""
    column = height.shorthand.split(":")[0]
    if not reduced[column].count():
        return []
    line = (
        alt.Chart(data)
        .mark_line(interpolate="step", strokeDash=[4, 3], strokeWidth=1.2)
        .encode(x=time_axis(bins), y=height, detail="flow:N")
        # An empty field of the CSV is no number, and would be drawn as 0.
        .transform_filter(f"isValid(datum.{column})")
    )
    return coloured(line, legend, 0.8, 0, at_rest=_shows_dashed(legend))


def step_layers(
    reduced: pl.DataFrame, data: alt.InlineData, height: alt.Y, legend: Legend, bins: Bins
) -> list[alt.Chart]:
    """Layers of one step a bin; flows with few bins have points."""
    base = alt.Chart(data).encode(x=time_axis(bins), y=height, detail="flow:N")
    line = base.mark_line(interpolate="step", strokeWidth=1.6)
    return [*coloured(line, legend, 1, 0.3), *_points(reduced, base, legend)]
