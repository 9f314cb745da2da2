"""One view of the flows: filtered, grouped, sorted, and cut to the lines on the screen."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from parshall.errors import UsageError, printable
from parshall.host.cgroups import ContainerNames
from parshall.instruments.flow_states import has_flows_of

SORTS = (
    *("flow", "process", "unit", "local", "peer", "state", "cc", "acked", "received", "acked_Mbps", "received_Mbps"),
    *("rtt_ms", "cwnd", "retr", "retr_for"),
)
GROUPS = ("process", "unit", "peer_address", "local_port", "peer_port", "state", "cc", "netns")
LINES_MAX = 500
FILTER_CHARACTERS_MAX = 200
UNKNOWN = "?"
"""Shown for a flow whose process is not known."""
# Columns that a word of a filter is searched in.
_TEXTS = ("process", "unit", "local", "peer", "state", "cc", "retr_for")
# Whether bytes may be more.
_MAY_LACK = ("acked_may_lack", "received_may_lack")
_SUMS = ("acked", "received", "acked_Mbps", "received_Mbps", "retr")
_UNITS = (".service", ".scope")


@dataclass(frozen=True)
class View:
    """Which flows are shown, and in which order.

    Attributes
    ----------
    sort : str
        One of `SORTS`; with a group also ``group`` and ``flows``.
    descending : bool
        Whether the greatest comes first.
    words : str
        Words of the filter: each is a part of one of the flow's texts, or its process number.
    group : str
        One of `GROUPS`; empty: one line for each flow.
    offset, count : int
        First line that is shown, counted from 0, and number of lines.
    at_ns : int or None
        Time of the view, nanoseconds of ``CLOCK_REALTIME``; None: the newest.
    """

    sort: str = "acked_Mbps"
    descending: bool = True
    words: str = ""
    group: str = ""
    offset: int = 0
    count: int = 50
    at_ns: int | None = None

    def __post_init__(self) -> None:
        if self.sort not in (*SORTS, *(("group", "flows") if self.group else ())):
            raise UsageError(f"sort {self.sort}: expected one of {', '.join(SORTS)}")
        if self.group and self.group not in GROUPS:
            raise UsageError(f"group {self.group}: expected one of {', '.join(GROUPS)}")
        if not 0 <= self.offset < 1 << 32 or not 0 <= self.count <= LINES_MAX:
            raise UsageError(f"offset {self.offset}, count {self.count}: expected at most {LINES_MAX} lines")
        if len(self.words) > FILTER_CHARACTERS_MAX:
            raise UsageError(f"filter: expected at most {FILTER_CHARACTERS_MAX} characters")


def lines(facts: pl.DataFrame, flows: pl.DataFrame, view: View) -> tuple[int, dict[str, list[Any]]]:
    """Return the number of lines of a view, and the lines that it shows, as columns.

    Parameters
    ----------
    facts : polars.DataFrame
        What never changes in a flow, see `described`.
    flows : polars.DataFrame
        What changes in a flow, see `History.at`.
    """
    if not facts.width:
        return 0, {}
    table = flows.select(
        "flow",
        # How the connection ended; TCP's state while it has not.
        state=pl.when(pl.col("ending").is_not_null() & (pl.col("ending") != "open"))
        .then(pl.col("ending").cast(pl.String))
        .when(pl.col("ended").fill_null(False))
        .then(pl.lit("ended"))
        .otherwise(pl.col("state").cast(pl.String)),
        acked="acked_bytes",
        received="received_bytes",
        acked_may_lack="acked_may_lack",
        received_may_lack="received_may_lack",
        acked_Mbps="acked_Mbps",
        received_Mbps="received_Mbps",
        rtt_ms="srtt_ms",
        cwnd="cwnd_segments",
        retr="retransmitted",
        retr_for="retransmitted_for",
    )
    if not view.words and not view.group and view.sort in table.columns:
        # Of 10,000 flows, those that are shown need a name.
        known = table
        if not has_flows_of(table, facts):
            known = table.join(facts.select("flow"), on="flow", how="semi", maintain_order="left")
        shown = _sorted(known, view.sort, view).slice(view.offset, view.count)
        return known.height, _named(shown, facts).to_dict(as_series=False)
    table = _named(table, facts)
    for word in view.words.lower().split():
        matches = [pl.col(name).str.to_lowercase().str.contains(word, literal=True) for name in _TEXTS]
        matches.append(pl.col("pid").cast(pl.String) == word)
        table = table.filter(pl.any_horizontal(matches).fill_null(False))
    if view.group:
        table = table.group_by(group=pl.col(view.group).cast(pl.String)).agg(
            pl.len().alias("flows"),
            *(pl.col(name).sum() for name in _SUMS),
            *(pl.col(name).any() for name in _MAY_LACK),
            pl.col("rtt_ms").median(),
            pl.col("cwnd").median(),
        )
    sort = view.sort if view.sort in table.columns else "acked_Mbps"
    shown = _sorted(table, sort, view).slice(view.offset, view.count)
    return table.height, shown.to_dict(as_series=False)


def _sorted(table: pl.DataFrame, sort: str, view: View) -> pl.DataFrame:
    tie = "group" if view.group else "flow"
    return table.sort([sort, tie], descending=[view.descending, False], nulls_last=True)


def _named(table: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Return the flows of a table that have names, with them."""
    joined = table.join(facts, on="flow", how="inner", maintain_order="left")
    return joined.select(*facts.columns, pl.exclude(facts.columns))


def described(table: pl.DataFrame, containers: ContainerNames) -> pl.DataFrame:
    """Return what never changes in each flow of `FlowStates.table`, as the screen shows it."""
    if not table.width:
        return table
    return table.select(
        "flow",
        process=pl.col("command").fill_null(UNKNOWN).map_elements(printable, pl.String),
        pid="pid",
        unit=pl.col("cgroup").fill_null("").map_elements(partial(unit_of, containers=containers), pl.String),
        local=_end("local"),
        peer=_end("remote"),
        peer_address="remote_address",
        local_port="local_port",
        peer_port="remote_port",
        netns="netns_inode",
        cc=pl.col("congestion_control").cast(pl.String),
    )


def unit_of(cgroup: str, containers: ContainerNames) -> str:
    """Return the name of a control group's container, else of its systemd unit, else its own."""
    if container := containers.of_group(cgroup):
        return container
    names = printable(cgroup).strip("/").split("/")
    return next((name for name in reversed(names) if name.endswith(_UNITS)), names[-1])


def _end(side: str) -> pl.Expr:
    address, port = pl.col(f"{side}_address"), pl.col(f"{side}_port").cast(pl.String)
    is_ipv6 = address.str.contains(":", literal=True)
    return pl.when(is_ipv6).then(pl.format("[{}]:{}", address, port)).otherwise(pl.format("{}:{}", address, port))
