"""What flows are called and which colour they have: the same in every figure of a report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pyarrow as pa

# Okabe and Ito, "Color Universal Design" (2008), for all kinds of colour vision; without yellow, which
# is lost on white. Behind them five of Tol's "muted" (2021), for logs of more than seven flows.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#332288", "#999933", "#882255", "#44AA99", "#DDCC77"),
)
# More flows than this cannot be told apart by colour: then one at a time is picked out of grey.
NAMED_MAX = 12
GREY = "#8a8f98"
PICKED = "#D55E00"


@dataclass(frozen=True)
class Legend:
    """Names and colours of the flows of one log.

    Attributes
    ----------
    labels : dict of int to str
        Name of each flow, unique in the log.
    colours : dict of int to str
        Colour of each flow, ``#rrggbb``; the two ends of a connection have the same one in all logs.
    note : str
        What captions say of flows that were left out.
    """

    labels: dict[int, str]
    colours: dict[int, str]
    note: str = ""

    @property
    def flows_text(self) -> str:
        """How many flows there are, for captions."""
        return f"{len(self.labels):,} flow{'' if len(self.labels) == 1 else 's'}{self.note}"

    @property
    def is_crowded(self) -> bool:
        """Whether the flows are too many to have a colour each."""
        return len(self.labels) > NAMED_MAX

    def only(self, flows: Iterable[int], note: str = "") -> "Legend":
        """Return the legend of some of the flows, with what is to be said of the others."""
        kept = sorted(flows)
        labels, colours = ({flow: named[flow] for flow in kept} for named in (self.labels, self.colours))
        return Legend(labels, colours, note or self.note)

    def covering(self, flows: Iterable[int]) -> "Legend":
        """Return the legend with names for flows, too, that the flow table lacks, as that of a cut log may."""
        unknown = sorted(set(flows) - set(self.labels))
        labels = {flow: f"flow {flow}, addresses unknown" for flow in unknown}
        colours = {flow: COLOURS[(len(self.labels) + place) % len(COLOURS)] for place, flow in enumerate(unknown)}
        return Legend(self.labels | labels, self.colours | colours, self.note) if unknown else self

    def colour(self) -> alt.Color:
        """Return the encoding of the colour by name."""
        return alt.Color(
            "flow:N",
            scale=alt.Scale(domain=list(self.labels.values()), range=list(self.colours.values())),
            legend=alt.Legend(
                title=None, orient="top", symbolType="stroke", symbolStrokeWidth=3, labelLimit=400, columns=4
            ),
        )


def legends(tables: Sequence[pa.Table]) -> list[Legend]:
    """Name and colour the flows of several logs.

    Parameters
    ----------
    tables : sequence of pyarrow.Table
        The flow table of each log.

    Returns
    -------
    list of Legend
        One a log.
    """
    connections: dict[frozenset[tuple[str, int]], int] = {}
    found = []
    for table in tables:
        rows = table.select(
            [
                "flow",
                "congestion_control",
                "local_address",
                "local_port",
                "remote_address",
                "remote_port",
                "passive",
            ]
        ).to_pylist()
        colours = {}
        for row in rows:
            ends = frozenset(((row["local_address"], row["local_port"]), (row["remote_address"], row["remote_port"])))
            number = connections.setdefault(ends, len(connections))
            colours[row["flow"]] = COLOURS[number % len(COLOURS)]
        found.append(Legend(_labels(rows), colours))
    return found


def _labels(rows: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Name flows by the shortest of three forms that tells them apart."""
    by_form = zip(*(_forms(row) for row in rows), strict=True)
    labels = next((names for names in by_form if len(set(names)) == len(names)), ())
    return {row["flow"]: label for row, label in zip(rows, labels, strict=True)}


def _forms(row: dict[str, Any]) -> tuple[str, str, str]:
    ends = (row["local_port"], row["remote_port"])
    service, client = ends if row["passive"] else ends[::-1]
    control = row["congestion_control"]
    return (
        f"{control}, port {service}",
        f"{control}, ports {client} to {service}",
        f"flow {row['flow']}, {control}, port {service}",
    )
