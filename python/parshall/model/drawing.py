"""Draw a model: the layout of its parts, and the chart.

Parts are placed in columns, by their distance from a source; queues have the colour of their station. A blocking
edge ends in a bar, an edge of clones is dashed, and an edge for some packets only has a label.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import altair as alt

from parshall.errors import UsageError
from parshall.figures.figure import ON_PALE_FILL, styled
from parshall.model.network import Model
from parshall.report import figure_file

COLUMN_PX = 190
ROW_PX = 74
BOX_PX = (132, 46)


@dataclass(frozen=True)
class Part:
    """A source, queue or sink, and the middle of its box in px from the upper left corner."""

    name: str
    kind: str
    station: str
    text: str
    x: float
    y: float


@dataclass(frozen=True)
class Edge:
    """An edge: a transition between two parts, with the packets that take it as its text (empty for all).

    Names of sources are ``source NAME``, since a queue may have the same name.
    """

    origin: str
    place: str
    blocks: bool
    is_clone: bool
    text: str


def edges(model: Mapping[str, Any]) -> list[Edge]:
    """Return the edges of a model, which is given as plain data."""
    found = []
    parts = [(f"source {part['name']}", part["to"]) for part in model["sources"]]
    parts += [(part["name"], part["to"]) for part in model["queues"]]
    for origin, transitions in parts:
        seen: list[set[str]] = []
        for transition in transitions:
            classes = set(transition.get("classes") or model["classes"])
            # The first transition of a class carries the packet, all others clones.
            is_clone = any(classes & earlier for earlier in seen)
            seen.append(classes)
            for choice in transition["to"]:
                text = [", ".join(transition["classes"])] if transition.get("classes") else []
                if len(transition["to"]) > 1:
                    text.append(f"{choice['probability']:.3g}")
                if transition.get("becomes"):
                    text.append(f"becomes {transition['becomes']}")
                blocks = bool(transition.get("blocks"))
                found.append(Edge(origin, choice["place"], blocks, is_clone, ": ".join(text)))
    return found


def parts(model: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a model, which is given as plain data, with their positions."""
    described = [(f"source {part['name']}", "source", "", part["name"]) for part in model["sources"]]
    described += [(part["name"], "queue", part["station"], _queue_text(part)) for part in model["queues"]]
    described += [(name, "sink", "", name) for name in model["sinks"]]
    columns = _columns(model, [name for name, *_ in described])
    rows: dict[int, int] = {}
    placed = []
    for name, kind, station, text in described:
        column = columns[name]
        row = rows[column] = rows.get(column, -1) + 1
        placed.append(Part(name, kind, station, text, (column + 0.5) * COLUMN_PX, (row + 0.5) * ROW_PX))
    deepest = max(rows.values()) + 1
    # Centre short columns.
    shift = {column: (deepest - last - 1) / 2 * ROW_PX for column, last in rows.items()}
    return [replace(part, y=part.y + shift[columns[part.name]]) for part in placed]


def _queue_text(queue: Mapping[str, Any]) -> str:
    details = []
    if queue.get("capacity_packets"):
        details.append(f"{queue['capacity_packets']} packets")
    if queue.get("capacity_bytes"):
        details.append(f"{queue['capacity_bytes']} B")
    details.append(f"priority {queue.get('priority', 0)}")
    return f"{queue['name']}\n{', '.join(details)}"


def _columns(model: Mapping[str, Any], names: list[str]) -> dict[str, int]:
    """Return the column of each part: its distance from a source; sinks are in the last column."""
    steps: dict[str, int] = {name: 0 for name in names if name.startswith("source ")}
    every = edges(model)
    for _ in names:
        for edge in every:
            if edge.origin in steps:
                steps[edge.place] = min(steps.get(edge.place, len(names)), steps[edge.origin] + 1)
    last = max(steps[name] for name in names if name not in model["sinks"]) + 1
    return {name: last if name in model["sinks"] else steps.get(name, 0) for name in names}


def draw(model: Model) -> alt.LayerChart:
    """Draw a network of queues."""
    data = model.as_dict()
    placed = parts(data)
    by_name = {part.name: part for part in placed}
    width, height = (max(getattr(part, axis) for part in placed) for axis in "xy")
    stations = [station["name"] for station in data["stations"]]
    boxes = [
        {
            "left": part.x - BOX_PX[0] / 2,
            "right": part.x + BOX_PX[0] / 2,
            "top": part.y - BOX_PX[1] / 2,
            "bottom": part.y + BOX_PX[1] / 2,
            "x": part.x,
            "text_y": part.y - 7 * part.text.count("\n"),
            "station": part.station or part.kind,
            "text": part.text.split("\n"),
        }
        for part in placed
    ]
    lines = [_line(by_name[edge.origin], by_name[edge.place], edge) for edge in edges(data)]

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", axis=None, scale=alt.Scale(domain=[0, width + COLUMN_PX / 2], nice=False))

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", axis=None, scale=alt.Scale(domain=[height + ROW_PX / 2, 0], nice=False))

    edge = alt.Chart(alt.InlineData(values=lines))
    box = alt.Chart(alt.InlineData(values=boxes))
    dash = alt.condition("datum.is_clone", alt.value([4, 3]), alt.value([1, 0]))
    fills = alt.Scale(domain=[*stations, "source", "sink"], range=[*_colours(len(stations)), "#ffffff", "#dddddd"])
    layers = [
        edge.mark_rule(color="#999").encode(x("left"), y("from_y"), x2="right:Q", y2="to_y:Q", strokeDash=dash),
        # Blocking edges end in a bar, the others in an arrow.
        edge.transform_filter("datum.blocks")
        .mark_rule(color="#333", strokeWidth=3)
        .encode(x("right"), y("bar_top"), y2="bar_bottom:Q"),
        edge.transform_filter("!datum.blocks")
        .mark_point(shape="triangle-right", filled=True, size=60, color="#999", opacity=1)
        .encode(x("right"), y("to_y")),
        edge.mark_text(fontSize=9, color="#555", dy=-6).encode(x("middle_x"), y("middle_y"), text="text:N"),
        box.mark_rect(stroke="#555555", cornerRadius=5).encode(
            x("left"),
            y("top"),
            x2="right:Q",
            y2="bottom:Q",
            fill=alt.Fill("station:N", scale=fills, title="station", legend=alt.Legend(orient="bottom")),
        ),
        box.mark_text(fontSize=10, lineHeight=14, color=ON_PALE_FILL).encode(x("x"), y("text_y"), text="text:N"),
    ]
    chart: alt.LayerChart = styled(
        alt.layer(*layers).properties(
            width=width + COLUMN_PX / 2,
            height=height + ROW_PX / 2,
            title=alt.TitleParams(
                f"{model.name}: queues by station; blocking edges end in a bar, edges of clones are dashed",
                anchor="start",
            ),
        )
    )
    return chart


def _line(origin: Part, place: Part, edge: Edge) -> dict[str, Any]:
    # A backward edge goes from the left side to the right side.
    side = BOX_PX[0] / 2 if place.x >= origin.x else -BOX_PX[0] / 2
    end = place.x - side - (4 if side > 0 else -4)
    if place.x == origin.x:
        side, end = 0.0, place.x
    text, is_stub = edge.text, False
    if place.kind == "sink" and place.x - origin.x > 1.5 * COLUMN_PX:
        # Draw a stub with the name of a distant sink, since a line would run under other parts.
        end = origin.x + side + 0.12 * COLUMN_PX
        place = replace(place, y=origin.y + 0.42 * ROW_PX)
        text, is_stub = f"{text} to {place.name}".strip(), True
    below = place.y > origin.y
    vertical = BOX_PX[1] / 2 * (1 if below else -1) if place.x == origin.x else 0.0
    return {
        "left": origin.x + side,
        "right": end,
        "from_y": origin.y + vertical,
        "to_y": place.y - vertical,
        "bar_top": place.y - vertical - 9,
        "bar_bottom": place.y - vertical + 9,
        # The label of a stub is below it.
        "middle_x": end if is_stub else (origin.x + side + end) / 2,
        "middle_y": place.y + 18 if is_stub else (origin.y + vertical + place.y - vertical) / 2,
        "blocks": edge.blocks,
        "is_clone": edge.is_clone,
        "text": text,
    }


def _colours(count: int) -> list[str]:
    pale = ["#cfe3f5", "#fbe3c8", "#d5edd0", "#ecd9ee", "#f7d6d6", "#e3e3bd", "#d0ece9", "#e5dccf"]
    return [pale[number % len(pale)] for number in range(count)]


def save(model: Model, path: Path) -> None:
    """Draw a network into a file; raise `UsageError` if its suffix is unknown."""
    if path.suffix not in figure_file.SUFFIXES:
        raise UsageError(f"{path}: has suffix {path.suffix or 'none'}; expected {', '.join(figure_file.SUFFIXES)}")
    figure_file.save(draw(model), path, is_fixed=True)
