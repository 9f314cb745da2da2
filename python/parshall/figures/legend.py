"""Names and colours of flows, the same in every figure of a report."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import polars as pl

from parshall.figures.reduction import Reduction
from parshall.host.quantities import many

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
        verb = "shows" if grey == 1 else "show"
        return f"{note} The other {many(grey, 'flow')} {verb} under the pointer." if grey else note

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
        colours = {flow: colour for flow, colour in self.colours.items() if flow in labels}
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
    for number, (rows, reduction) in enumerate(zip(logs, reductions, strict=True)):
        # A colour is of use to flows that are drawn.
        for row in (rows[flow] for flow in reduction.drawn or rows):
            key = _connection(number, row, rows)
            moved_bytes[key] = max(moved_bytes.get(key, 0), row["bytes"] or 0)
    most = sorted(moved_bytes, key=lambda key: -moved_bytes[key])[:NAMED_MAX]
    is_crowd = len(moved_bytes) > len(most)
    # Of a crowd the largest come first; few stay in the order of the log.
    colours = dict(zip(most if is_crowd else moved_bytes, COLOURS, strict=False))
    return [_legend(number, rows, colours, is_crowd) for number, rows in enumerate(logs)]


def numbered(groups: Iterable[Sequence[str]]) -> dict[str, int]:
    """Number what the figures of a page show, so that each looks the same in all of them.

    Parameters
    ----------
    groups : iterable
        What is shown together, by its name: the lines of a figure.

    Returns
    -------
    dict of str to int
        The lowest numbers that differ within each group.
    """
    groups = list(groups)
    found: dict[str, int] = {}
    for name in dict.fromkeys(name for group in groups for name in group):
        beside = {found.get(other) for group in groups if name in group for other in group}
        found[name] = next(number for number in itertools.count() if number not in beside)
    return found


def _rows(reduction: Reduction) -> dict[int, dict[str, Any]]:
    shown = sorted({*reduction.drawn, *reduction.listed})
    columns = [
        *("flow", "congestion_control", "passive", "local_address", "local_port", "remote_address", "remote_port"),
        *("bytes", "other_end", "is_counted"),
        *({"command"} & set(reduction.table.columns)),
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


def _legend(
    log: int, rows: Mapping[int, dict[str, Any]], colours: Mapping[frozenset[Any], str], is_crowd: bool
) -> Legend:
    labels = _labels([row for row in rows.values() if _is_first(row, rows)], is_crowd)
    others = frozenset(flow for flow, row in rows.items() if flow not in labels)
    labels |= {flow: f"{labels[rows[flow]['other_end']]}, other end" for flow in others}
    order = list(colours)
    keys = {flow: _connection(log, row, rows) for flow, row in rows.items()}
    named = sorted((flow for flow in rows if keys[flow] in colours), key=lambda flow: order.index(keys[flow]))
    chosen = {flow: colours[keys[flow]] for flow in named}
    return Legend(
        dict(sorted(labels.items())),
        {flow: _lighter(colour) if flow in others else colour for flow, colour in chosen.items()},
        others,
    )


def _is_first(row: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]]) -> bool:
    return bool(row["is_counted"]) or row["other_end"] not in rows


def _lighter(colour: str) -> str:
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - _TINT * (255 - part)):02x}" for part in parts)


def _labels(rows: Sequence[Mapping[str, Any]], is_crowd: bool) -> dict[int, str]:
    """Name flows by the shortest of the forms that makes the names unique; those of a crowd have the other host."""
    known = [row for row in rows if row["local_address"] is not None]
    by_form = zip(*(_forms(row)[2 * is_crowd :] for row in known), strict=True)
    names = next((names for names in by_form if len(set(names)) == len(names)), ())
    labels = {row["flow"]: name for row, name in zip(known, names, strict=True)}
    # A truncated log may have records of flows that its flow table lacks.
    return labels | {row["flow"]: f"flow {row['flow']}, addresses unknown" for row in rows if row["flow"] not in labels}


def _forms(row: Mapping[str, Any]) -> tuple[str, ...]:
    ends = (row["local_port"], row["remote_port"])
    service, client = ends if row["passive"] else ends[::-1]
    control = row["congestion_control"]
    address = row["remote_address"]
    far = f"[{address}]:{row['remote_port']}" if ":" in address else f"{address}:{row['remote_port']}"
    both = f"{far} to {service}" if row["passive"] else f"{client} to {far}"
    process = f" ({row['command']})" if row.get("command") else ""
    return (
        f"{control}, port {service}",
        f"{control}, ports {client} to {service}",
        f"{control}, {both}{process}",
        f"flow {row['flow']}, {control}, {both}{process}",
    )
