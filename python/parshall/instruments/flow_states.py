"""The flows of a log as they are: who talks, how much was moved, in what state each connection is.

For logs that are finished, and for those that are being written.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl

from parshall import _native
from parshall.host.quantities import many
from parshall.instruments.lives import alive_ns
from parshall.instruments.retransmitted import retransmitted_here

_FACTS = (
    *("flow", "local_address", "local_port", "remote_address", "remote_port", "ip_version", "congestion_control"),
    *("command", "pid", "cgroup", "netns_inode", "passive", "began_before", "ending", "ended"),
    *("packets_seen", "packets_logged", "packets_thinned", "packets_dropped", "packets_overwritten"),
)
# Of these, what a flow's last row does not say, but changes.
_CHANGING_FACTS = ("flow", "began_before", "ending", "ended")
# What counts of this log need besides.
_COUNT_FACTS = ("first_time_ns", "last_time_ns", "retransmits_total", "bytes_acked", "bytes_received")
_MAY_LACK = ("acked_may_lack", "received_may_lack")
# Rows that are read before the caller can draw, or end.
_ROWS_AT_ONCE = 1 << 20


def has_flows_of(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Whether two tables have the same flows in the same order, as they mostly have."""
    return one["flow"].equals(other["flow"])


def joined_flows(left: pl.DataFrame, right: pl.DataFrame, *, how: Literal["left", "full"]) -> pl.DataFrame:
    """Join two tables, each of whose flows is in one row; for flows of both, that needs no search."""
    if has_flows_of(left, right):
        return left.hstack(right.drop("flow"))
    order: Literal["left", "left_right"] = "left" if how == "left" else "left_right"
    return left.join(right, on="flow", how=how, coalesce=True, maintain_order=order)


class FlowStates:
    """What is known of each flow of a log so far.

    Parameters
    ----------
    gap_ends_ns : sequence of int
        As for `retransmitted_here`.
    has_pauses : bool
        Whether packets may have come while nothing was observed, as with a budget.
    is_whole : bool
        Whether all of the log is read at once, so that the account of a connection completes what its rows lack. In a
        log that is followed it would come as a step, which no rate has.
    """

    def __init__(self, gap_ends_ns: Sequence[int] = (), *, has_pauses: bool = False, is_whole: bool = False) -> None:
        self._gap_ends_ns = gap_ends_ns
        self._has_pauses = has_pauses
        self._has_accounts = is_whole and not gap_ends_ns
        self._facts = pl.DataFrame()
        self._measured: pl.DataFrame | None = None
        self.records = 0
        """Rows so far."""
        self.ledger: dict[str, Any] = {}
        """The last account."""
        self.until_ns = 0
        """Until when the log is known, ns of ``CLOCK_REALTIME``; 0: nothing is."""

    def __repr__(self) -> str:
        return f"FlowStates: {many(self.table().height, 'flow')}, {many(self.records, 'record')}\n{self.table()}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def set_rows(self, measured: _native.ArrowStream, records: int) -> None:
        """Set what all rows so far say of each flow."""
        frame = pl.DataFrame(measured)
        self._measured, self.records = frame, records
        newest = frame["end_ns"].max()
        assert newest is None or isinstance(newest, int)
        self.until_ns = max(newest or 0, int(self.ledger.get("until_time_ns", 0)))

    def add_flows(self, flows: _native.ArrowStream) -> None:
        """Take in rows of the flow table; a later row of a flow replaces an earlier one."""
        frame = pl.DataFrame(flows)
        if not frame.height:
            return
        frame = frame.select(*_FACTS, *_COUNT_FACTS)
        if not self._facts.height or has_flows_of(frame, self._facts):
            self._facts = frame
        else:
            self._facts = pl.concat([self._facts, frame]).unique("flow", keep="last").sort("flow")

    def forget(self, flows: Sequence[int]) -> None:
        """Forget some flows."""
        self._facts = self._facts.filter(~pl.col("flow").is_in(flows))

    def account(self) -> dict[str, Any] | None:
        """Return the last account summed over its hooks, and what the measuring cost; None: there is none yet.

        Returns
        -------
        dict
            ``seen``, ``filtered``, ``thinned``, ``logged`` and ``lost`` (by cause) in packets and events,
            ``reader_cpu_share`` of one CPU, ``hooks_ns`` (shortest and longest mean time of a hook, or None) and
            ``log_bytes``.
        """
        hooks = self.ledger.get("hooks")
        if not hooks:
            return None
        cost = self.ledger["cost"]
        # Others run seldom, as those that walk over all sockets, or follow the reader.
        names = {hook["hook"] for hook in hooks}
        timed = [each for each in cost["programs"] if each["sampled_runs"] and each["program"] in names]
        means_ns = [each["ns_per_run"] for each in timed]
        return {
            **{name: sum(hook[name] for hook in hooks) for name in ("seen", "filtered", "thinned", "logged")},
            "lost": {cause: sum(hook["lost"][cause] for hook in hooks) for cause in hooks[0]["lost"]},
            "reader_cpu_share": cost["reader_cpu_s"] / cost["wall_s"] if cost["wall_s"] else 0.0,
            "hooks_ns": [min(means_ns), max(means_ns)] if means_ns else None,
            "log_bytes": cost["log_bytes"],
        }

    def table(self) -> pl.DataFrame:
        """Return the flows.

        Returns
        -------
        polars.DataFrame
            Shape (flows, columns): the facts of the flow table, ``acked_bytes`` (acknowledged by the peer) and
            ``received_bytes`` since the log began, ``acked_may_lack`` and ``received_may_lack`` (whether 2 GiB or more
            may have moved between two rows, of which the bytes then have the rest only), ``retransmitted`` segments
            and what for (``retransmitted_for``: "12 fast, 1 rto", causes as in docs/retransmissions.md),
            ``duration_s``, and the last ``state``, ``cwnd_segments`` and ``srtt_ms``; null where no row of the flow
            had a socket.
        """
        return self._joined(_FACTS)

    def _whole_bytes(self) -> dict[str, pl.Expr]:
        """Return columns of bytes: an account has what came after the last row, and what the log has no packets of."""
        hooks = self.ledger.get("hooks") or []
        is_thin = self._has_pauses or any(hook["thinned"] or any(hook["lost"].values()) for hook in hooks)
        if not self._has_accounts:
            return {} if is_thin else dict.fromkeys(_MAY_LACK, pl.lit(False))
        columns: dict[str, pl.Expr] = {}
        for name, account in (("acked", pl.col("bytes_acked")), ("received", pl.col("bytes_received"))):
            of_rows = pl.col(f"{name}_bytes")
            whole = pl.max_horizontal(of_rows, account.cast(pl.Int64))
            columns[f"{name}_bytes"] = pl.when(of_rows.is_not_null()).then(whole)
            columns[f"{name}_may_lack"] = pl.col(f"{name}_may_lack") & account.is_null() & is_thin
        return columns

    def _duration_ns(self) -> pl.Expr:
        """Return how long the flows lived, as reports have it; of a log that is read in part, by its rows."""
        if not self._has_accounts:
            return pl.col("end_ns") - pl.col("begin_ns")
        from_ns, until_ns = alive_ns()
        return pl.when(pl.col("begin_ns").is_not_null()).then(until_ns - from_ns)

    def changing(self) -> pl.DataFrame:
        """Return what changes of the flows: `table` without who they are, for those who look often."""
        return self._joined(_CHANGING_FACTS)

    def facts(self, flows: pl.Series) -> pl.DataFrame:
        """Return who some flows are: rows of the flow table; null where it has none yet."""
        return flows.to_frame("flow").join(self._facts.select(_FACTS), on="flow", how="left", maintain_order="left")

    def _joined(self, columns: Sequence[str]) -> pl.DataFrame:
        if self._facts.is_empty() or self._measured is None:
            return pl.DataFrame()
        joined = joined_flows(self._facts.select(*columns, *_COUNT_FACTS), self._measured, how="full")
        return (
            joined.with_columns(
                retransmitted=retransmitted_here("retransmitted_first", "retransmitted_last", self._gap_ends_ns),
                duration_s=self._duration_ns() / 1e9,
                # Rounded, since the quotient is none of the nearest number.
                srtt_ms=(pl.col("srtt_us") / 1e3).round(6),
                **self._whole_bytes(),
            )
            .drop("retransmitted_first", "retransmitted_last", "srtt_us", *_COUNT_FACTS)
            .sort("flow")
        )


class Follower:
    """Follows a log that is being written, from the beginning of its newest file.

    Parameters
    ----------
    path : str or os.PathLike
        The log, as for `parshall.read`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._native = _native.LogFollower(Path(path))
        part = json.loads(self._native.metadata.get("parshall.part", "{}"))
        # The files before the newest one are not read.
        self._states = FlowStates(
            [part["began_ns"]] if part.get("number", 1) > 1 else [], has_pauses=bool(self.options.get("budget"))
        )
        self._is_current = False
        self.until_ns = 0
        """Until when the log is known, ns of ``CLOCK_REALTIME``; 0: nothing is."""
        self.listeners: dict[int, dict[str, Any]] = {}
        """The listeners when `states` was last asked for, by number; rows as of `Log.listeners`, times as numbers."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the log."""
        options = json.loads(self._native.metadata.get("parshall.options", "{}"))
        return options if isinstance(options, dict) else {}

    def read(self) -> bool:
        """Read what came since the last call; return whether there may be more at once."""
        self.until_ns, has_more = self._native.read(_ROWS_AT_ONCE)
        self._is_current = False
        return has_more

    @property
    def states(self) -> FlowStates:
        """What is known so far."""
        states = self._states
        if not self._is_current:
            # What the flow table says of a flow decides why its segments were sent again.
            states.add_flows(self._native.flows())
            states.set_rows(*self._native.states())
            for row in json.loads(self._native.listeners()):
                self.listeners[row["listener"]] = row
            ledger, _ = self._native.account()
            states.ledger = json.loads(ledger) if ledger else {}
            states.until_ns = self.until_ns
            self._is_current = True
        return states

    def forget(self, flows: Sequence[int]) -> None:
        """Forget flows that ended, so that memory does not grow with all that ever were."""
        self._native.forget(flows)
        self._states.forget(flows)

    @property
    def has_ended(self) -> bool:
        """Whether the log has its end."""
        return self._native.account()[1]
