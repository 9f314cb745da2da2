"""Draws the figures of a study from their evaluation. It draws, and computes nothing."""

import itertools
from typing import Any, Literal

import altair as alt

from parshall.figures.legend import COLOURS

WIDTH_PX, HEIGHT_PX = 760, 320
PANEL_WIDTH_PX, PANEL_HEIGHT_PX = 360, 240
_COLUMNS = 2
# Lines with fewer values than this have marks.
_MARKED_MAX = 300
# Up to so many whole numbers on the horizontal axis have a tick each.
_TICKS_MAX = 12
_PUBLISHED = "#6b7280"
# Lines have different shapes, too, for those who cannot tell the colours.
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
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
    },
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 400},
    "title": {"fontSize": 15, "anchor": "start", "color": "#111"},
}


def draw(figure: dict[str, Any]) -> alt.TopLevelMixin:
    """Return the chart of a figure of `parshall.lab.evaluation.evaluate`, which has points."""
    lines = sorted({point.get("line") or "" for point in figure["points"]}, key=_natural)
    panels = sorted({point.get("panel") or "" for point in figure["points"]}, key=_natural)
    is_single = len(panels) == 1
    charts = [_panel(figure, panel, lines, is_single) for panel in panels]
    whole = charts[0] if is_single else alt.concat(*charts, columns=_COLUMNS)
    chart: alt.TopLevelMixin = whole.properties(title=figure["title"]).configure(**_CONFIG)
    return chart


def _natural(text: str) -> tuple[Any, ...]:
    """Sort numbers as numbers."""
    try:
        return (0, float(text.split(" ")[-1]), text)
    except ValueError:
        return (1, 0.0, text)


def _panel(figure: dict[str, Any], panel: str, lines: list[str], is_single: bool) -> Any:
    def of_panel(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if (row.get("panel") or "") == panel and _is_drawable(row, figure)]

    points, means = of_panel(figure["points"]), of_panel(figure["means"])
    kind = "Q" if all(isinstance(row["x"], int | float) for row in [*points, *figure["published"]]) else "O"
    x = alt.X(f"x:{kind}", title=figure["x_title"], scale=_scale(figure["is_log_x"] and kind == "Q", kind))
    if kind == "O":
        x = alt.X("x:O", title=figure["x_title"], sort=None, axis=alt.Axis(labelAngle=0))
    elif (numbers := _whole_numbers(points)) and not figure["is_log_x"]:
        x = x.axis(values=numbers)
    y = alt.Y("y:Q", title=figure["y_title"], scale=_y_scale(figure, points))
    colours = alt.Scale(domain=lines, range=[COLOURS[number % len(COLOURS)] for number in range(len(lines))])
    shapes = alt.Scale(domain=lines, range=[_SHAPES[number % len(_SHAPES)] for number in range(len(lines))])
    legend = (
        alt.Legend(title=figure["line_title"] or None, orient="top", columns=4, symbolOpacity=1)
        if lines != [""]
        else None
    )
    colour = alt.Color("line:N", scale=colours, legend=legend, sort=lines)
    shape = alt.Shape("line:N", scale=shapes, legend=legend, sort=lines)
    tip = [alt.Tooltip("line:N"), alt.Tooltip(f"x:{kind}", title=figure["x_title"]), alt.Tooltip("y:Q")]
    layers: list[alt.Chart] = []
    if figure["is_raw"]:
        raw = alt.Chart(alt.InlineData(values=points))
        step: Literal["step-after", "linear"] = "step-after" if figure["is_stepped"] else "linear"
        if figure["is_scatter"]:
            # Open marks of different shapes, so that points that coincide all show.
            layers.append(raw.mark_point(size=22).encode(x=x, y=y, color=colour, shape=shape, tooltip=tip))
        else:
            layers.append(raw.mark_line(strokeWidth=1.6, interpolate=step).encode(x=x, y=y, color=colour, tooltip=tip))
        if not figure["is_scatter"] and len(points) < _MARKED_MAX:
            layers.append(raw.mark_point(size=14, filled=True).encode(x=x, y=y, color=colour, tooltip=tip))
    else:
        single = alt.Chart(alt.InlineData(values=points))
        mean = alt.Chart(alt.InlineData(values=means))
        extremes = [alt.Tooltip("y:Q", title="mean"), alt.Tooltip("y_low:Q"), alt.Tooltip("y_high:Q"), "count:Q"]
        # The runs themselves, so that outliers show.
        layers.append(single.mark_point(size=12, opacity=0.35).encode(x=x, y=y, color=colour, tooltip=tip))
        layers.append(mean.mark_rule(opacity=0.8).encode(x=x, y="y_low:Q", y2="y_high:Q", color=colour))
        if kind == "Q" and any(row["x_low"] != row["x_high"] for row in means):
            across = mean.mark_rule(opacity=0.4).encode(x="x_low:Q", x2="x_high:Q", y=y, color=colour)
            layers.append(across)
        if kind == "Q":
            layers.append(mean.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour))
        marks = mean.mark_point(size=55, filled=True)
        layers.append(marks.encode(x=x, y=y, color=colour, shape=shape, tooltip=[*tip[:2], *extremes]))
    if figure["published"]:
        layers += _published(figure, x, y, kind)
    size = (WIDTH_PX, HEIGHT_PX) if is_single else (PANEL_WIDTH_PX, PANEL_HEIGHT_PX)
    chart = alt.layer(*layers).properties(width=size[0], height=size[1], title=panel)
    return chart


def _published(figure: dict[str, Any], x: alt.X, y: alt.Y, kind: str) -> list[alt.Chart]:
    """Draw the document's numbers in grey, each with its name at its last point."""
    data = alt.Chart(alt.InlineData(values=figure["published"]))
    group = alt.Detail("line:N")
    tip = [alt.Tooltip("line:N", title="published"), f"x:{kind}", "y:Q"]
    labels: dict[str, dict[str, Any]] = {point["line"]: point for point in figure["published"]}
    # A name to the right of a line's only point, and to the left of its last one.
    numbers = [point["line"] for point in figure["published"]]
    texts = []
    sides: tuple[tuple[bool, Literal["left", "right"]], ...] = ((True, "left"), (False, "right"))
    # Names of neighbouring lines stand above and below them.
    for (is_only, align), (first, dy) in itertools.product(sides, ((0, -9), (1, 14))):
        ends = [point for name, point in labels.items() if (numbers.count(name) == 1) == is_only][first::2]
        marks = alt.Chart(alt.InlineData(values=ends)).mark_text(
            align=align, dx=8 if is_only else 0, dy=0 if is_only else dy, color=_PUBLISHED, fontSize=11
        )
        if ends:
            texts.append(marks.encode(x=x, y=y, text="line:N"))
    return [
        data.mark_line(color=_PUBLISHED, strokeDash=[5, 3]).encode(x=x, y=y, detail=group),
        data.mark_point(color=_PUBLISHED, size=40, shape="diamond").encode(x=x, y=y, detail=group, tooltip=tip),
        *texts,
    ]


def _whole_numbers(points: list[dict[str, Any]]) -> list[int]:
    """Return the values of x when they are few whole numbers: the ticks of the axis then."""
    values = sorted({point["x"] for point in points})
    is_count = all(isinstance(value, int) for value in values) and len(values) <= _TICKS_MAX
    return values if is_count and values and values[-1] <= 2 * _TICKS_MAX else []


def _y_scale(figure: dict[str, Any], points: list[dict[str, Any]]) -> alt.Scale:
    """Return the vertical scale; percentages have the whole range, so that small differences look small."""
    is_share = figure["y_title"].endswith("(%)") and not figure["is_raw"]
    if is_share and not figure["is_log_y"] and all(0 <= point["y"] <= 100 for point in points):
        return alt.Scale(domain=[0, 100])
    return _scale(figure["is_log_y"], "Q")


def _is_drawable(row: dict[str, Any], figure: dict[str, Any]) -> bool:
    """Whether a logarithmic axis can show a row."""
    return not (
        (figure["is_log_x"] and isinstance(row["x"], int | float) and row["x"] <= 0)
        or (figure["is_log_y"] and row["y"] <= 0)
    )


def _scale(is_log: bool, kind: str) -> alt.Scale:
    if kind == "O":
        return alt.Scale()
    return alt.Scale(type="log", nice=False, padding=12) if is_log else alt.Scale(zero=True)
