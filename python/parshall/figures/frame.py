"""The frame of every figure: size, axes and interaction. It draws, and computes nothing."""

import json
import math
from dataclasses import replace
from typing import Any

import altair as alt
import polars as pl

from parshall.figures.bins import GAP_BINS, Bins, column_maximum, envelope, in_parts
from parshall.figures.figure import PAPER, Figure, finished, rows_of
from parshall.figures.legend import GREY, PICKED, Legend

WIDTH_PX = 900
HEIGHT_PX = 240
# Flows with at most this many rows are drawn with points.
_POINTS_MAX = 40
# With more flows than this, dashed lines are drawn for picked flows only.
DASHED_MAX = 4
# Up to this maximum, an axis of counts has a tick at every whole number.
_TICKS_MAX = 6
# Shading around a crowd of flows is for so many bins: single bins have records of a few flows only.
ENVELOPE_BINS = 5
# Room of a letter in the legend, and of the rest of an entry.
_LETTER_PX, _ENTRY_PX = 6.2, 36
_COLUMNS_MAX = 4
# The first lines of every tooltip.
FLOW_AND_TIME = (alt.Tooltip("flow:N"), alt.Tooltip("time_s:Q", title="time (s)", format=".3f"))
# Room for six digits, so that the time axes of all figures are aligned.
_AXIS_Y = {"minExtent": 54}


# Name of the invisible layer.
POINTER_LAYER = "pointer"


def chart_data(reduced: pl.DataFrame, legend: Legend) -> alt.InlineData:
    """Return rows as data of a chart, with flows by name."""
    names = pl.col("flow").replace_strict(legend.labels, return_dtype=pl.String)
    return rows_of(reduced.with_columns(names))


def time_axis(bins: Bins) -> alt.X:
    """Return the time axis, seconds after the origin; all figures of a report share it."""
    return alt.X(
        "time_s:Q",
        title="time (s)",
        scale=alt.Scale(domain=[bins.begin_s, max(bins.end_s, bins.begin_s + 1e-6)], nice=False, zero=False),
        axis=alt.Axis(grid=False, tickCount=10),
    )


def frame(name: str, title: str, caption: str, layers: list[alt.Chart], legend: Legend) -> Figure:
    """Combine layers to a figure, and add the interaction.

    The first layer gets the parameters: ``zoom`` (shift and wheel, or drag, along the time axis) and
    ``pick`` (click on a flow or its name).
    """
    first, *others = layers
    zoom = alt.selection_interval(name="zoom", encodings=["x"], bind="scales", zoom="wheel![event.shiftKey]")
    parameters = [zoom, pick(), *([hover()] if legend.is_crowded else [])]
    # At once: the library would hold each property that is set later against its whole schema.
    sized = alt.layer(first.add_params(*parameters), *others, width=WIDTH_PX, height=HEIGHT_PX)
    description = f"{title} against time. {caption}"
    entry_px = _LETTER_PX * max(map(len, legend.named), default=1) + _ENTRY_PX
    columns = max(1, min(_COLUMNS_MAX, int(WIDTH_PX / entry_px)))
    look = {"axisY": _AXIS_Y, "legend": {"columns": columns}}
    return finished(name, title, caption, sized, width_px=WIDTH_PX, description=description, **look)


def pick(*, empty: bool = True) -> alt.Parameter:
    """Return the parameter with the flows picked by clicks; `empty`: whether no click picks all flows."""
    return alt.selection_point(name="pick", fields=["flow"], on="click", bind="legend", empty=empty)


def hover() -> alt.Parameter:
    """Return the parameter with the flow under the pointer."""
    return alt.selection_point(name="hover", fields=["flow"], on="pointerover", clear="pointerout", empty=False)


def _is_named(legend: Legend) -> str:
    """Return the Vega expression for whether a flow has its own colour."""
    return f"indexof({json.dumps(legend.named)}, datum.flow) >= 0"


def coloured(layer: alt.Chart, legend: Legend, strong: float, *, at_rest: bool = True) -> list[alt.Chart]:
    """Colour a layer by flow; flows that are not picked become faint, those without a colour show when picked.

    Parameters
    ----------
    layer
        Marks with the field ``flow``.
    legend
        Names and colours.
    strong
        Opacity of picked flows, and of all flows when none is picked.
    at_rest
        Whether flows with a colour are visible when none is picked.
    """
    is_picked = alt.when(pick(), empty=at_rest).then(alt.value(strong)).to_dict()
    opacity = alt.OpacityValue(strong * 0.1 * at_rest, condition=is_picked["condition"])
    if not legend.is_crowded:
        return [layer.encode(color=legend.colour(), opacity=opacity)]
    others = layer.transform_filter(f"!({_is_named(legend)})")
    own = layer.transform_filter(_is_named(legend)).encode(color=legend.colour(), opacity=opacity)
    above = others.transform_filter(pick(empty=False) | hover())
    return [
        *([own] if legend.colours else []),
        above.encode(color=alt.ColorValue(PICKED), opacity=alt.OpacityValue(strong)),
    ]


def pointer_layers(
    data: alt.InlineData, height: alt.Y, legend: Legend, bins: Bins, tooltip: list[alt.Tooltip]
) -> list[alt.Chart]:
    """Return invisible layers that catch the pointer, and labels for the flow under it.

    `tooltip` has the lines behind those of `FLOW_AND_TIME`.
    """
    base = alt.Chart(data).encode(x=time_axis(bins), y=height, detail=alt.Detail("flow:N"))
    touch = base.mark_point(size=100, filled=True, opacity=0).encode(tooltip=[*FLOW_AND_TIME, *tooltip])
    touch.name = POINTER_LAYER
    layers = [touch]
    if legend.is_crowded:
        # A white outline, since lines run through the text.
        layers += [
            base.mark_text(align="right", dy=-9, fontSize=12, fontWeight="bold", **ink)
            .encode(text=alt.Text("flow:N"))
            .transform_filter(pick(empty=False) | hover())
            .transform_joinaggregate(end_s="max(time_s)", groupby=["flow"])
            .transform_filter("datum.time_s == datum.end_s")
            for ink in ({"stroke": PAPER, "strokeWidth": 4}, {"color": PICKED})
        ]
    return layers


def _shows_dashed(legend: Legend) -> bool:
    """Whether dashed lines are drawn for all flows: there are only a few."""
    return not legend.is_crowded and len(legend.labels) <= DASHED_MAX


def bins_note(reduced: pl.DataFrame, legend: Legend, bins: Bins) -> str:
    """Return the part of the caption about the bins, records and flows."""
    records = f"{reduced['records'].sum():,} records of {legend.flows_text}"
    note = f"Bins of {bins.width_text}; {records}.{legend.colour_note}"
    has_gaps = "part" in reduced.columns and column_maximum(reduced, "part") > 0
    return f"{note} A line breaks where a flow had no record for more than {GAP_BINS} bins." if has_gaps else note


def state_figure(
    name: str,
    title: str,
    unit: str,
    dashed: tuple[str, str],
    reduced: pl.DataFrame,
    legend: Legend,
    bins: Bins,
    tooltip: list[alt.Tooltip],
) -> Figure:
    """Draw a state as a band and a line, and its limit as a dashed line; `dashed` is its column and its name."""
    reduced = in_parts(reduced, bins)
    caption = f"{_layer_note(reduced, legend, *dashed)} {bins_note(reduced, legend, bins)}"
    data = chart_data(reduced, legend)
    top = column_maximum(reduced, "max")
    layers = [
        *_state_layers(reduced, data, legend, bins, unit),
        *_dashed_layers(reduced, data, value_axis(dashed[0], unit, top), top, legend, bins),
        *pointer_layers(data, value_axis("mean", unit, top), legend, bins, tooltip),
    ]
    return frame(name, title, caption, layers, legend)


def _layer_note(reduced: pl.DataFrame, legend: Legend, dashed: str, limit: str) -> str:
    """Return the part of the caption that explains the layers."""
    if legend.is_crowded:
        note = (
            f"Lines: mean over the records of a bin. Shading, over {ENVELOPE_BINS} bins: smallest to largest of all "
            "flows; stronger: 80 % of the means."
        )
    else:
        note = "Line: mean over the records of a bin. Shading: smallest to largest."
    if not reduced[dashed].count():
        return note
    return f"{note} Dashed: {limit}{'' if _shows_dashed(legend) else ' of the clicked flow'}."


def value_axis(field: str, unit: str, top: float, *, whole: bool = False) -> alt.Y:
    """Return the vertical axis from 0 to `top`; with `whole`, ticks are at whole numbers only."""
    # A fixed range: layers that appear when a flow is picked must not move the axis.
    if whole and top <= _TICKS_MAX:
        # For small ranges, Vega adds ticks between whole numbers, even with a minimum step.
        ticks = list(range(max(math.ceil(top), 1) + 1))
        scale, axis = alt.Scale(domain=[0, ticks[-1]]), alt.Axis(values=ticks, format="d")
        return alt.Y(f"{field}:Q", title=unit, scale=scale, axis=axis)
    return alt.Y(f"{field}:Q", title=unit, scale=alt.Scale(domain=[0, top * 1.02 or 1], nice=True))


def _state_layers(
    reduced: pl.DataFrame, data: alt.InlineData, legend: Legend, bins: Bins, unit: str
) -> list[alt.Chart]:
    """Return layers with the range of each bin as a band and the mean as a line."""
    top = column_maximum(reduced, "max")
    base = alt.Chart(data).encode(x=time_axis(bins), detail=[alt.Detail("flow:N"), alt.Detail("part:N")])
    band = over_bins(base, bins).encode(y=value_axis("min", unit, top), y2=alt.Y2("max:Q"))
    height = value_axis("mean", unit, top)
    line = base.mark_line(strokeWidth=1.6, strokeJoin="round").encode(y=height)
    lines = [*coloured(line, legend, 1), *_points(reduced, height, legend, bins)]
    if not legend.is_crowded:
        return [*lines, *coloured(band, legend, 0.22)]
    # The bands of many flows would hide each other and the lines, so draw one around all flows, and one around most.
    wide = replace(bins, width_ns=ENVELOPE_BINS * bins.width_ns)
    everything = over_bins(alt.Chart(rows_of(envelope(reduced, wide))), wide)
    around = everything.encode(y=value_axis("min", unit, top), y2=alt.Y2("max:Q"), color=alt.ColorValue("#eceef1"))
    most = everything.encode(
        y=value_axis("low", unit, top), y2=alt.Y2("high:Q"), color=alt.ColorValue(GREY), opacity=alt.OpacityValue(0.4)
    )
    return [around, most, *lines, *coloured(band, legend, 0.3, at_rest=False)]


def _points(reduced: pl.DataFrame, height: alt.Y, legend: Legend, bins: Bins) -> list[alt.Chart]:
    """Return layers of points where a line alone would be invisible or misleading: few rows, or one by itself."""
    is_lone = pl.len().over("flow", "part") == 1 if "part" in reduced.columns else pl.lit(False)
    few = reduced.filter((pl.len().over("flow") <= _POINTS_MAX) | is_lone)
    if few.is_empty():
        return []
    column = height.shorthand.split(":")[0]
    points = alt.Chart(chart_data(few.select("flow", "time_s", column), legend)).mark_circle(size=22)
    return coloured(points.encode(x=time_axis(bins), y=height, detail=alt.Detail("flow:N")), legend, 1)


def over_bins(chart: alt.Chart, bins: Bins) -> alt.Chart:
    """Return rectangles over the bins that have a row; bins without records stay empty."""
    half_s = bins.width_s / 2
    rectangles: alt.Chart = (
        chart.transform_calculate(end_s=f"datum.time_s + {half_s!r}")
        # The field keeps its name, since the zoom of all figures refers to it.
        .transform_calculate(time_s=f"datum.time_s - {half_s!r}")
        .mark_rect(aria=False)
        .encode(x=time_axis(bins), x2=alt.X2("end_s:Q"))
    )
    return rectangles


def _dashed_layers(
    reduced: pl.DataFrame, data: alt.InlineData, height: alt.Y, top: float, legend: Legend, bins: Bins
) -> list[alt.Chart]:
    """Return layers with a limit as a dashed line; with many flows, it shows for picked flows only.

    What lies above `top`, the axis's end, leaves the picture there: it would else be as high as the limit.
    """
    column = height.shorthand.split(":")[0]
    if not reduced[column].count():
        return []
    line = (
        alt.Chart(data)
        .mark_line(interpolate="step", strokeDash=[4, 3], strokeWidth=1.2, clip=True)
        .encode(x=time_axis(bins), y=height, detail=[alt.Detail("flow:N"), alt.Detail("part:N")])
        # An empty CSV field would be drawn as 0.
        .transform_filter(f"isValid(datum.{column})")
        # Also what is not seen takes as many dashes as it is long.
        .transform_calculate(**{column: f"min(datum.{column}, {3 * max(top, 1)})"})
    )
    return coloured(line, legend, 0.8, at_rest=_shows_dashed(legend))


def step_layers(
    reduced: pl.DataFrame,
    data: alt.InlineData,
    height: alt.Y,
    legend: Legend,
    bins: Bins,
    tooltip: list[alt.Tooltip],
) -> list[alt.Chart]:
    """Return layers with one step for each bin, and those of the pointer; flows with few bins have points."""
    base = alt.Chart(data).encode(x=time_axis(bins), y=height, detail=alt.Detail("flow:N"))
    line = base.mark_line(interpolate="step", strokeWidth=1.6)
    return [
        *coloured(line, legend, 1),
        *_points(reduced, height, legend, bins),
        *pointer_layers(data, height, legend, bins, tooltip),
    ]


def sum_layers(sums: pl.DataFrame, height: alt.Y, bins: Bins, all_text: str, others: str) -> list[alt.Chart]:
    """Return layers with the sum of all flows as a line, and that of the flows without a colour as an area.

    Parameters
    ----------
    sums
        ``time_s``, ``all``, ``others``.
    height
        The vertical axis; its field is replaced.
    bins
        The bins of the time axis.
    all_text, others
        How many flows or connections there are, and how many without a colour, such as "12 flows".
    """

    def layer(mark: alt.Chart, field: str, name: str, paint: Any, colour: str, symbol: str) -> alt.Chart:
        # With a legend of its own, which does not pick flows.
        legend = alt.Legend(title=None, orient="top", symbolType=symbol, symbolStrokeWidth=2)
        colours = paint("sum:N", scale=alt.Scale(domain=[name], range=[colour]), legend=legend)
        y = height.copy(deep=False)
        y.shorthand = f"{field}:Q"
        named: alt.Chart = mark.transform_calculate(sum=json.dumps(name)).encode(time_axis(bins), y, colours)
        return named

    base = alt.Chart(rows_of(sums))
    area, line = base.mark_area(interpolate="step", opacity=0.4), base.mark_line(interpolate="step", strokeWidth=1.2)
    return [
        layer(area, "others", f"the other {others}", alt.Fill, GREY, "square"),
        layer(line, "all", f"all {all_text}", alt.Stroke, "#333", "stroke"),
    ]
