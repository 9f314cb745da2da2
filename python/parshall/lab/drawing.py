"""Draws the figures of a study from their evaluation. It draws, and computes nothing."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from parshall.figures.figure import WIDTH_PX, styled
from parshall.figures.legend import COLOURS, numbered

HEIGHT_PX = 320
PANEL_WIDTH_PX, PANEL_HEIGHT_PX = 360, 240
_COLUMNS = 2
# Lines with fewer values than this have marks.
_MARKED_MAX = 300
# Up to so many whole numbers on the horizontal axis have a tick each.
_TICKS_MAX = 12
_PUBLISHED = "#6b7280"
# Lines with many values have dashes.
_DASHES = ([1, 0], [6, 3], [2, 2], [10, 3, 2, 3], [1, 4], [12, 4], [4, 1], [8, 2, 2, 2])
# Marks of lines with equal values: next to each other where x is a factor, one within the other where it is measured.
_DODGE_PX, _MARK_SIZES = 7, (150, 105, 70, 42, 24, 12)
# Lines have different shapes, too, for those who cannot distinguish the colours; both are alike after 24 lines.
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


def draw(figure: dict[str, Any], others: Sequence[dict[str, Any]] = ()) -> alt.TopLevelMixin:
    """Return the chart of a figure of `parshall.lab.evaluation.evaluate`, which has points.

    Lines that `others`, the figures of the same page, have too look the same there.
    """
    lines = _lines(figure)
    looks = numbered(_lines(each) for each in [*others, figure] if each["line_title"] == figure["line_title"])
    places = [looks[line] for line in lines]
    panels = sorted({point.get("panel") or "" for point in figure["points"]}, key=_natural)
    is_single = len(panels) == 1
    charts = [_panel(figure, panel, lines, places, is_single) for panel in panels]
    whole = charts[0] if is_single else alt.concat(*charts, columns=_COLUMNS)
    chart: alt.TopLevelMixin = styled(whole.properties(title=figure["title"]))
    return chart


def split(figure: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a figure with the panels that are worth a picture, and sentences of the others.

    A panel with one mark is a sentence, and so is a figure whose runs all have one value. Without points, a figure has
    no picture.
    """
    means = figure["means"]
    if figure["is_raw"] or figure["published"] or not means:
        return figure, []
    values = {point["y"] for point in figure["points"]}
    if len(values) == 1:
        return {**figure, "points": [], "means": []}, [f"{figure['y_title']}: {values.pop():.4g} in every run."]
    counts = Counter(row["panel"] for row in means)
    alone = [row for row in means if counts[row["panel"]] == 1]
    kept = {name: [row for row in figure[name] if counts[row.get("panel") or ""] > 1] for name in ("points", "means")}
    return {**figure, **kept}, [_sentence(row, figure) for row in alone]


def _sentence(row: dict[str, Any], figure: dict[str, Any]) -> str:
    """Return what one mark would show."""
    x = f"{row['x']:.4g}" if isinstance(row["x"], float) else row["x"]
    names = ", ".join(name for name in (row["panel"], row["line"], f"{figure['x_title']} {x}") if name)
    ends = f" ({row['y_low']:.4g} to {row['y_high']:.4g})" if row["y_low"] != row["y_high"] else ""
    return f"{names}: {figure['y_title']} {row['y']:.4g}{ends}."


def _lines(figure: dict[str, Any]) -> list[str]:
    return sorted({point.get("line") or "" for point in figure["points"]}, key=_natural)


def hidden(figure: dict[str, Any]) -> int:
    """Return how many points of a figure its logarithmic axes cannot show."""
    return sum(not _is_drawable(point, figure) for point in figure["points"])


def _natural(text: str) -> tuple[Any, ...]:
    """Sort numbers as numbers."""
    try:
        return (0, float(text.split(" ")[-1]), text)
    except ValueError:
        return (1, 0.0, text)


def _panel(figure: dict[str, Any], panel: str, lines: list[str], places: list[int], is_single: bool) -> Any:
    drawable = [point for point in figure["points"] if _is_drawable(point, figure)]
    points = [row for row in drawable if (row.get("panel") or "") == panel]
    means = [row for row in figure["means"] if row["panel"] == panel and _is_drawable(row, figure)]
    # Panels have the same axes.
    kind = "Q" if all(isinstance(row["x"], int | float) for row in [*drawable, *figure["published"]]) else "O"
    x = alt.X(f"x:{kind}", title=figure["x_title"], scale=_scale(figure, "x", drawable, is_single))
    if kind == "O":
        # Points are in the order of the levels; of means, a line may lack the first.
        order = list(dict.fromkeys(row["x"] for row in [*drawable, *figure["means"], *figure["published"]]))
        x = alt.X("x:O", title=figure["x_title"], sort=order, axis=alt.Axis(labelAngle=0))
    elif (numbers := _whole_numbers(drawable)) and not figure["is_log_x"]:
        x = x.axis(values=numbers)
    y = alt.Y("y:Q", title=figure["y_title"], scale=_scale(figure, "y", drawable, is_single))
    channels = _Channels(figure, kind, x, y, lines, places)
    layers = _raw(figure, points, channels) if figure["is_raw"] else _repeated(points, means, channels)
    if figure["published"]:
        layers += _published(figure, x, y, kind)
    size = (WIDTH_PX, HEIGHT_PX) if is_single else (PANEL_WIDTH_PX, PANEL_HEIGHT_PX)
    chart = alt.layer(*layers).properties(width=size[0], height=size[1], title=panel)
    return chart


class _Channels:
    """What the layers of a panel share: axes, colours, shapes, dashes, tips; `places` number the looks of lines."""

    def __init__(
        self, figure: dict[str, Any], kind: str, x: alt.X, y: alt.Y, lines: list[str], places: list[int]
    ) -> None:
        def scale(values: Sequence[Any]) -> alt.Scale:
            return alt.Scale(domain=lines, range=[values[place % len(values)] for place in places])

        title = figure["line_title"] or None
        legend = alt.Legend(title=title, orient="top", columns=4, symbolOpacity=1) if lines != [""] else None
        self.kind, self.x, self.y, self.lines = kind, x, y, lines
        self.colour = alt.Color("line:N", scale=scale(COLOURS), legend=legend, sort=lines)
        self.shape = alt.Shape("line:N", scale=scale(_SHAPES), legend=legend, sort=lines)
        self.dash = alt.StrokeDash("line:N", scale=scale(_DASHES), legend=legend, sort=lines)
        self.tip = [alt.Tooltip("line:N"), alt.Tooltip(f"x:{kind}", title=figure["x_title"]), alt.Tooltip("y:Q")]

    @property
    def common(self) -> dict[str, Any]:
        """Position, colour and tool tip."""
        return {"x": self.x, "y": self.y, "color": self.colour, "tooltip": self.tip}


def _raw(figure: dict[str, Any], points: list[dict[str, Any]], channels: _Channels) -> list[alt.Chart]:
    """Draw values that are no repeats: points, lines or steps."""
    raw = alt.Chart(alt.InlineData(values=points))
    if figure["is_scatter"]:
        # Open marks of different shapes and sizes, so that points that coincide all show.
        return [
            alt.Chart(alt.InlineData(values=[row for row in points if (row.get("line") or "") == line]))
            .mark_point(size=_MARK_SIZES[-1 - (len(channels.lines) - 1 - number) % 2], strokeWidth=1)
            .encode(**channels.common, shape=channels.shape)
            for number, line in enumerate(channels.lines)
        ]
    step: Literal["step-after", "linear"] = "step-after" if figure["is_stepped"] else "linear"
    line = raw.mark_line(strokeWidth=1.6, interpolate=step)
    if len(points) >= _MARKED_MAX:
        return [line.encode(**channels.common, strokeDash=channels.dash)]
    marks = raw.mark_point(size=24, filled=True)
    return [line.encode(**channels.common), marks.encode(**channels.common, shape=channels.shape)]


def _repeated(points: list[dict[str, Any]], means: list[dict[str, Any]], channels: _Channels) -> list[alt.Chart]:
    """Draw every run, means, minima and maxima; each line beside the others."""
    is_factor = all(row["x_low"] == row["x_high"] for row in means)
    layers: list[alt.Chart] = []
    for number, line in enumerate(channels.lines):
        middle = (len(channels.lines) - 1) / 2
        offset: dict[str, Any] = {"xOffset": (number - middle) * _DODGE_PX} if is_factor else {}
        single, mean = (
            alt.Chart(alt.InlineData(values=[row for row in rows if (row.get("line") or "") == line]))
            for rows in (points, means)
        )
        common = channels.common
        # The runs themselves, so that outliers show.
        layers.append(single.mark_point(size=12, opacity=0.35, **offset).encode(**common))
        bar = {**common, "y": "y_low:Q", "y2": "y_high:Q"}
        layers.append(mean.mark_rule(opacity=0.8, **offset).encode(**bar))
        if not is_factor:
            across = {**common, "x": "x_low:Q", "x2": "x_high:Q"}
            layers.append(mean.mark_rule(opacity=0.4).encode(**across))
        if channels.kind == "Q":
            layers.append(mean.mark_line(strokeWidth=1.6, **offset).encode(**common))
        size = 55 if is_factor else _MARK_SIZES[number % len(_MARK_SIZES)]
        extremes = [alt.Tooltip("y:Q", title="mean"), alt.Tooltip("y_low:Q"), alt.Tooltip("y_high:Q"), "count:Q"]
        marks = mean.mark_point(size=size, filled=is_factor, **offset)
        layers.append(marks.encode(**{**common, "tooltip": [*channels.tip[:2], *extremes]}, shape=channels.shape))
    return layers


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
            texts.append(marks.encode(x=x, y=y, text=alt.Text("line:N")))
    # Two points are no curve.
    curves = [point for point in figure["published"] if numbers.count(point["line"]) > 2]
    return [
        alt.Chart(alt.InlineData(values=curves))
        .mark_line(color=_PUBLISHED, strokeDash=[5, 3])
        .encode(x=x, y=y, detail=group),
        data.mark_point(color=_PUBLISHED, size=40, shape="diamond").encode(x=x, y=y, detail=group, tooltip=tip),
        *texts,
    ]


def _whole_numbers(points: list[dict[str, Any]]) -> list[int]:
    """Return the values of x when they are few whole numbers: the ticks of the axis then."""
    values = sorted({point["x"] for point in points})
    is_count = all(isinstance(value, int) for value in values) and len(values) <= _TICKS_MAX
    return values if is_count and values and values[-1] <= 2 * _TICKS_MAX else []


def _is_drawable(row: dict[str, Any], figure: dict[str, Any]) -> bool:
    """Whether a logarithmic axis can show a row."""
    return not (
        (figure["is_log_x"] and isinstance(row["x"], int | float) and row["x"] <= 0)
        or (figure["is_log_y"] and row["y"] <= 0)
    )


def _scale(figure: dict[str, Any], axis: str, points: list[dict[str, Any]], is_single: bool) -> alt.Scale:
    """Return the scale of an axis, over all panels; percentages of repeats have the range of `share_range`."""
    if figure[f"is_log_{axis}"]:
        return alt.Scale(type="log", nice=False, padding=12, **_domain(axis, points, is_single))
    if axis == "y" and _is_share(figure, points):
        return alt.Scale(domain=share_range([point["y"] for point in [*points, *figure["published"]]]))
    return alt.Scale(zero=True, **_domain(axis, points, is_single))


def _is_share(figure: dict[str, Any], points: list[dict[str, Any]]) -> bool:
    """Whether the vertical axis has percentages of repeats."""
    is_linear = figure["y_title"].endswith("(%)") and not figure["is_raw"] and not figure["is_log_y"]
    return is_linear and all(0 <= point["y"] <= 100 for point in points)


def begins_at(figure: dict[str, Any]) -> int:
    """Return where the vertical axis of percentages begins; 0 of all other figures."""
    values = [point["y"] for point in [*figure["points"], *figure["published"]]]
    return share_range(values)[0] if _is_share(figure, figure["points"]) else 0


def share_range(values: Sequence[float]) -> list[int]:
    """Return the ends of an axis of percentages: all, unless the values are near one end."""
    if not values or min(values) < 90:
        return [0, next(end for end in (1, 10, 100) if (values and max(values) <= end) or end == 100)]
    return [99 if min(values) >= 99 else 90, 100]


def _domain(axis: str, points: list[dict[str, Any]], is_single: bool) -> dict[str, Any]:
    values = [point[axis] for point in points]
    if is_single or not values or isinstance(values[0], str):
        return {}
    return {"domainMax": max(values)}
