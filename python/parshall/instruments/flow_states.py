"""The flows of a log as they are: who talks, how much was moved, in what state each connection is.

For logs that are finished, and for those that are being written.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from parshall import _native
from parshall.instruments.tcp_log import Log

_COLUMNS = (
    *("time_ns", "flow", "direction", "state", "cwnd_segments", "srtt_us", "snd_una", "rcv_nxt", "total_retrans"),
    *("pkt_seq", "pkt_ack", "pkt_flags", "payload_bytes"),
)
_FACTS = (
    *("flow", "local_address", "local_port", "remote_address", "remote_port", "ip_version", "congestion_control"),
    *("command", "pid", "cgroup", "netns_inode", "passive", "began_before", "ending", "ended"),
    *("packets_seen", "packets_logged", "packets_thinned", "packets_dropped", "packets_overwritten"),
)
# In these states the kernel has no full socket, and what it would tell of one is 0.
_WITHOUT_SOCKET = ("NEW_SYN_RECV", "TIME_WAIT", "LISTEN", "UNKNOWN")
_SEQUENCE_NUMBERS = 1 << 32
# Rows that are read before the caller can draw, or end.
_ROWS_AT_ONCE = 1 << 18
_MEASURED: dict[str, pl.DataType | type[pl.DataType]] = {
    "flow": pl.UInt32,
    "records": pl.UInt64,
    "begin_ns": pl.Int64,
    "end_ns": pl.Int64,
    "acked_bytes": pl.Int64,
    "received_bytes": pl.Int64,
    "acked_at": pl.Int64,
    "received_at": pl.Int64,
    "retransmitted_first": pl.UInt32,
    "retransmitted_last": pl.UInt32,
    "state": pl.String,
    "cwnd_segments": pl.UInt32,
    "srtt_us": pl.UInt32,
    "snd_una": pl.UInt32,
    "rcv_nxt": pl.UInt32,
}


_LASTS = ("state", "cwnd_segments", "srtt_us", "snd_una", "rcv_nxt")


class FlowStates:
    """What the rows of a log say of each flow so far."""

    def __init__(self) -> None:
        self._facts = pl.DataFrame()
        self._measured = pl.DataFrame(schema=_MEASURED)
        self.records = 0
        """Rows so far."""
        self.ledger: dict[str, Any] = {}
        """The last account."""

    def add_rows(self, batch: pa.RecordBatch | pa.Table, flow_base: int = 0) -> None:
        """Add rows, in the order of the file; `flow_base` is added to the numbers of their flows."""
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        self.records += frame.height
        full = pl.all_horizontal(pl.col("state") != name for name in _WITHOUT_SOCKET)
        rows = frame.filter(full).select(
            flow=pl.col("flow") + flow_base,
            time_ns=pl.col("time_ns").dt.epoch("ns"),
            state=pl.col("state").cast(pl.String),
            cwnd_segments="cwnd_segments",
            srtt_us=pl.when(pl.col("srtt_us") > 0).then("srtt_us"),
            # Before the peer's SYN there is no number to advance from.
            **{name: pl.when(pl.col("state") != "SYN_SENT").then(number) for name, number in _NUMBERS.items()},
            total_retrans="total_retrans",
        )
        if rows.is_empty():
            return
        before = self._measured.select("flow", *_NUMBERS).join(
            rows.select(pl.col("flow").unique()), on="flow", how="semi"
        )
        numbers = pl.concat([before, rows.select("flow", *_NUMBERS)])
        steps = numbers.select(acked=_step("snd_una"), received=_step("rcv_nxt")).tail(rows.height)
        last = {name: pl.col(name).last(ignore_nulls=True) for name in _LASTS}
        found = (
            rows.hstack(steps)
            .group_by("flow", maintain_order=True)
            .agg(
                records=pl.len().cast(pl.UInt64),
                begin_ns=pl.col("time_ns").min(),
                end_ns=pl.col("time_ns").max(),
                retransmitted_first=pl.col("total_retrans").min(),
                retransmitted_last=pl.col("total_retrans").max(),
                **{f"{name}_bytes": pl.col(name).cum_sum().max() for name in ("acked", "received")},
                **{f"{name}_at": pl.col(name).sum() for name in ("acked", "received")},
                **last,
            )
            # Positions begin where the rows before ended.
            .join(self._measured.select("flow", acked="acked_at", received="received_at"), on="flow", how="left")
            .with_columns(
                pl.col(f"{name}_{what}") + pl.col(name).fill_null(0)
                for name in ("acked", "received")
                for what in ("bytes", "at")
            )
        )
        self._measured = (
            pl.concat([self._measured, found.select(*_MEASURED).cast(pl.Schema(_MEASURED))])
            .group_by("flow", maintain_order=True)
            .agg(
                pl.col("records").sum(),
                *(pl.col(name).min() for name in ("begin_ns", "retransmitted_first")),
                *(pl.col(name).max() for name in ("end_ns", "retransmitted_last", "acked_bytes", "received_bytes")),
                *(pl.col(name).last(ignore_nulls=True) for name in (*_LASTS, "acked_at", "received_at")),
            )
            .select(*_MEASURED)
        )

    def add_flows(self, flows: pa.Table) -> None:
        """Take in rows of the flow table; a later row of a flow replaces an earlier one."""
        frame = pl.from_arrow(flows)
        assert isinstance(frame, pl.DataFrame)
        if frame.height:
            facts = [self._facts, frame.select(_FACTS)] if self._facts.height else [frame.select(_FACTS)]
            self._facts = pl.concat(facts).unique("flow", keep="last", maintain_order=True)

    @property
    def until_ns(self) -> int:
        """Until when the log is known, ns of ``CLOCK_REALTIME``; 0: nothing is."""
        newest = self._measured["end_ns"].max()
        assert newest is None or isinstance(newest, int)
        return max(newest or 0, int(self.ledger.get("until_time_ns", 0)))

    def table(self) -> pl.DataFrame:
        """Return the flows.

        Returns
        -------
        polars.DataFrame
            Shape (flows, columns): the facts of the flow table, ``acked_bytes`` (acknowledged by the peer) and
            ``received_bytes`` since the log began, ``retransmitted`` segments, ``duration_s``, and the last ``state``,
            ``cwnd_segments`` and ``srtt_ms``; null where no row of the flow had a socket.
        """
        facts = self._facts if self._facts.height else pl.DataFrame(schema={"flow": pl.UInt32})
        joined = facts.join(self._measured, on="flow", how="full", coalesce=True, maintain_order="left_right")
        earlier = pl.when(pl.col("began_before").fill_null(True)).then("retransmitted_first").otherwise(0)
        return (
            joined.with_columns(
                retransmitted=pl.col("retransmitted_last").cast(pl.Int64) - earlier,
                duration_s=(pl.col("end_ns") - pl.col("begin_ns")) / 1e9,
                srtt_ms=pl.col("srtt_us") / 1e3,
            )
            .drop(
                "retransmitted_first", "retransmitted_last", "snd_una", "rcv_nxt", "srtt_us", "acked_at", "received_at"
            )
            .sort("flow")
            if "began_before" in joined.columns
            else joined.clear()
        )


def _ahead(number: pl.Expr, of: pl.Expr) -> pl.Expr:
    """Return how far a sequence number is ahead of another one, modulo 2^32; negative: behind."""
    step = (number.cast(pl.Int64) - of.cast(pl.Int64)) % _SEQUENCE_NUMBERS
    return pl.when(step < _SEQUENCE_NUMBERS // 2).then(step).otherwise(step - _SEQUENCE_NUMBERS)


def _step(column: str) -> pl.Expr:
    """Return the advance of a sequence number since the flow's previous row.

    It may be negative: rows of two CPUs may be out of order, and a segment may wait while the application holds the
    socket.
    """
    number = pl.col(column).forward_fill().over("flow")
    return _ahead(number, number.shift().over("flow")).fill_null(0)


# A row has the state without its packet, so what an inbound packet acknowledges and brings is added.
_IS_INBOUND = pl.col("direction") == "in"
_ACK = 16
_ACKED = pl.when(
    _IS_INBOUND & (pl.col("pkt_flags") & _ACK != 0) & (_ahead(pl.col("pkt_ack"), pl.col("snd_una")) > 0)
).then("pkt_ack")
_OVERLAP = _ahead(pl.col("rcv_nxt"), pl.col("pkt_seq"))
_BROUGHT = pl.when(_IS_INBOUND & (_OVERLAP >= 0) & (pl.col("payload_bytes") > _OVERLAP)).then(
    (pl.col("pkt_seq").cast(pl.Int64) + pl.col("payload_bytes")) % _SEQUENCE_NUMBERS
)
_NUMBERS = {
    "snd_una": _ACKED.otherwise("snd_una"),
    "rcv_nxt": _BROUGHT.otherwise(pl.col("rcv_nxt").cast(pl.Int64)).cast(pl.UInt32),
}


def states_of(log: Log) -> Iterator[FlowStates]:
    """Read a log; yield the states after each piece of it, and finally those of all."""
    states = FlowStates()
    states.ledger = log.ledger
    states.add_flows(log.flows)
    pending: list[pa.RecordBatch] = []
    for batch in log.batches(_COLUMNS):
        pending.append(batch)
        if sum(each.num_rows for each in pending) >= _ROWS_AT_ONCE:
            states.add_rows(pa.Table.from_batches(pending))
            pending = []
            yield states
    if pending:
        states.add_rows(pa.Table.from_batches(pending))
    yield states


class Follower:
    """Follows a log that is being written, from the beginning of its newest file.

    Parameters
    ----------
    path : str or os.PathLike
        The log, as for `parshall.read`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._native = _native.LogFollower(Path(path), _COLUMNS)
        self.states = FlowStates()
        """What is known so far."""
        self.listeners: dict[int, dict[str, Any]] = {}
        """The listeners so far, by number; rows as of `Log.listeners`, times as numbers."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the log."""
        options = json.loads(self._native.metadata.get("parshall.options", "{}"))
        return options if isinstance(options, dict) else {}

    def read(self) -> bool:
        """Read what came since the last call; return whether there may be more at once."""
        pieces = self._native.records(_ROWS_AT_ONCE)
        by_base: dict[int, list[pa.RecordBatch]] = {}
        for stream, base in pieces:
            by_base.setdefault(base, []).extend(pa.RecordBatchReader.from_stream(stream))
        rows = 0
        for base, batches in by_base.items():
            table = pa.Table.from_batches(batches)
            rows += table.num_rows
            self.states.add_rows(table, base)
        self.states.add_flows(pa.RecordBatchReader.from_stream(self._native.flows()).read_all())
        for row in json.loads(self._native.listeners()):
            self.listeners[row["listener"]] = row
        ledger, _ = self._native.account()
        self.states.ledger = json.loads(ledger) if ledger else {}
        return rows >= _ROWS_AT_ONCE

    @property
    def has_ended(self) -> bool:
        """Whether the log has its end."""
        return self._native.account()[1]
