"""Names and colours of flows, the same in every figure of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl

from parshall.figures.reduction import Reduction

# Okabe and Ito, "Color Universal Design" (2008), for all kinds of colour vision; without yellow, which
# is hard to see on white. Behind them five of Tol's "muted" (2021), for logs of more than seven flows.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#332288", "#999933", "#882255", "#44AA99", "#DDCC77"),
)
# More connections than this cannot be distinguished by colour: those that moved the most bytes get one, others grey.
NAMED_MAX = 12
GREY = "#8a8f98"
# Colour of a grey flow under the pointer.
PICKED = "#e6007e"
# Fraction of the colour that the other end of a connection keeps.
_TINT = 0.5


@dataclass(frozen=True)
class Legend:
    """Names and colours of the flows of one log.

    Attributes
    ----------
    labels : dict of int to str
        Name of each flow, unique in the log.
    colours : dict of int to str
        Colour, ``#rrggbb``, of each flow that has one; a connection has the same colour in all logs.
    other_ends : frozenset of int
        Flows that are the second end of a connection whose first end is in the log; they have a lighter colour.
    note : str
        Text of captions about omitted flows.
    """

    labels: dict[int, str]
    colours: dict[int, str]
    other_ends: frozenset[int] = frozenset()
    note: str = ""

    @property
    def flows_text(self) -> str:
        """Number of connections and flows, for captions."""
        connections = len(self.labels) - len(self.other_ends)
        ends = f"{many(connections, 'connection')}, " if self.other_ends else ""
        return f"{ends}{many(len(self.labels), 'flow')}{self.note}"

    @property
    def colour_note(self) -> str:
        """Explanation of the colours, for captions; empty when each flow has its own."""
        note = " Lighter: the other end of a connection." if self.other_ends else ""
        grey = len(self.labels) - len(self.colours)
        return f"{note} Grey: {many(grey, 'flow')} more; point at one for its name." if grey else note

    @property
    def is_crowded(self) -> bool:
        """Whether there are too many flows for one colour each."""
        return len(self.labels) > len(self.colours)

    @property
    def named(self) -> list[str]:
        """Names of the flows that have a colour."""
        return [self.labels[flow] for flow in self.colours]

    def subset(self, flows: Iterable[int], note: str = "") -> "Legend":
        """Return the legend of some of the flows, with a note about the others."""
        kept = sorted(set(flows))
        labels = {flow: self.labels[flow] for flow in kept}
        colours = {flow: self.colours[flow] for flow in kept if flow in self.colours}
        return Legend(labels, colours, self.other_ends & set(kept), note or self.note)

    def colour(self) -> alt.Color:
        """Return the colour encoding by name; the legend has one entry for each connection."""
        firsts = [flow for flow in self.colours if flow not in self.other_ends]
        listed = firsts or list(self.colours)
        return alt.Color(
            "flow:N",
            scale=alt.Scale(domain=self.named, range=list(self.colours.values())),
            legend=alt.Legend(
                title=None,
                orient="top",
                values=[self.labels[flow] for flow in listed],
                symbolType="stroke",
                symbolStrokeWidth=3,
            ),
        )


def legends(reductions: Sequence[Reduction]) -> list[Legend]:
    """Name and colour the flows of several logs that are drawn or listed in tables.

    Returns
    -------
    list of Legend
        One for each log.
    """
    logs = [_rows(reduction) for reduction in reductions]
    moved_bytes: dict[frozenset[Any], int] = {}
    for number, rows in enumerate(logs):
        for row in rows.values():
            key = _connection(number, row, rows)
            moved_bytes[key] = max(moved_bytes.get(key, 0), row["bytes"] or 0)
    most = set(sorted(moved_bytes, key=lambda key: -moved_bytes[key])[:NAMED_MAX])
    colours = dict(zip([key for key in moved_bytes if key in most], COLOURS, strict=False))
    return [_legend(number, rows, colours) for number, rows in enumerate(logs)]


def _rows(reduction: Reduction) -> dict[int, dict[str, Any]]:
    shown = sorted({*reduction.drawn, *reduction.listed})
    columns = [
        *("flow", "congestion_control", "passive", "local_address", "local_port", "remote_address", "remote_port"),
        *("bytes", "other_end", "is_counted"),
    ]
    rows = reduction.table.filter(pl.col("flow").is_in(shown)).select(columns)
    return {row["flow"]: row for row in rows.iter_rows(named=True)}


def _connection(log: int, row: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]]) -> frozenset[Any]:
    """Return a key that is equal for both ends of a connection, in all logs."""
    first = row if row["is_counted"] else rows.get(row["other_end"], row)
    if first["local_address"] is None:
        return frozenset({(log, first["flow"])})
    near = (first["local_address"], first["local_port"])
    return frozenset({near, (first["remote_address"], first["remote_port"])})


def _legend(log: int, rows: Mapping[int, dict[str, Any]], colours: Mapping[frozenset[Any], str]) -> Legend:
    labels = _labels([row for row in rows.values() if _is_first(row, rows)])
    others = frozenset(flow for flow, row in rows.items() if flow not in labels)
    labels |= {flow: f"{labels[rows[flow]['other_end']]}, other end" for flow in others}
    chosen = {flow: colours.get(_connection(log, row, rows)) for flow, row in rows.items()}
    return Legend(
        dict(sorted(labels.items())),
        {flow: _lighter(colour) if flow in others else colour for flow, colour in chosen.items() if colour},
        others,
    )


def _is_first(row: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]]) -> bool:
    return bool(row["is_counted"]) or row["other_end"] not in rows


def _lighter(colour: str) -> str:
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - _TINT * (255 - part)):02x}" for part in parts)


def _labels(rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Name flows by the shortest of three forms that makes the names unique."""
    known = [row for row in rows if row["local_address"] is not None]
    by_form = zip(*(_forms(row) for row in known), strict=True)
    names = next((names for names in by_form if len(set(names)) == len(names)), ())
    labels = {row["flow"]: name for row, name in zip(known, names, strict=True)}
    # A truncated log may have records of flows that its flow table lacks.
    return labels | {row["flow"]: f"flow {row['flow']}, addresses unknown" for row in rows if row["flow"] not in labels}


def _forms(row: Mapping[str, Any]) -> tuple[str, str, str]:
    ends = (row["local_port"], row["remote_port"])
    service, client = ends if row["passive"] else ends[::-1]
    control = row["congestion_control"]
    return (
        f"{control}, port {service}",
        f"{control}, ports {client} to {service}",
        f"flow {row['flow']}, {control}, port {service}",
    )


def many(count: int, thing: str) -> str:
    """Return a count with its noun in the singular or plural."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
