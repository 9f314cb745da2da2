"""Logs that tests make: the columns that figures and reports read, with values that are chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

NAMES = {
    "direction": ["in", "out", "none"],
    "event": ["packet", "retransmit", "congestion_state", "close"],
    "state": ["UNKNOWN", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "NEW_SYN_RECV"],
    "ca_state": ["Open", "Disorder", "CWR", "Recovery", "Loss"],
}
NUMBERS = {
    "cwnd_segments": 10,
    "ssthresh_segments": None,
    "srtt_us": 6000,
    "min_rtt_us": 5900,
    "snd_una": 0,
    "snd_nxt": 0,
    "rcv_nxt": 0,
    "total_retrans": 0,
    "gso_segs": 1,
}
BEGIN_NS = 1_795_295_221_839_812_308
RETRANSMISSIONS = pa.schema(
    {
        "time_ns": pa.timestamp("ns", "UTC"),
        "flow": pa.uint32(),
        "pkt_seq": pa.uint32(),
        "payload_bytes": pa.uint32(),
        "segments": pa.uint16(),
        "cause": pa.dictionary(pa.int8(), pa.string()),
        "spurious": pa.bool_(),
        "evidence": pa.dictionary(pa.int8(), pa.string()),
    }
)
COUNTS = ("seen", "filtered", "thinned", "logged", "dropped", "overwritten", "unwritten")


def records(flow: Any, time_ns: Any, **columns: Any) -> pa.Table:
    """Return rows of a log; columns that are not given have one value all along.

    Parameters
    ----------
    flow, time_ns : array-like
        Shape (records,); times are nanoseconds after `BEGIN_NS`.
    **columns
        Shape (records,), numbers, or names for the columns of `NAMES`.
    """
    count = len(time_ns)
    table: dict[str, pa.Array] = {
        "time_ns": pa.array(np.asarray(time_ns, dtype=np.int64) + BEGIN_NS, pa.timestamp("ns", "UTC")),
        "flow": pa.array(np.asarray(flow, dtype=np.uint32), pa.uint32()),
    }
    for name, names in NAMES.items():
        chosen = columns.get(name, ["out" if name == "direction" else names[name == "state"]] * count)
        indices = np.asarray([names.index(each) for each in chosen], dtype=np.int8)
        table[name] = pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(names))
    for name, constant in NUMBERS.items():
        values = columns.get(name)
        table[name] = pa.array([constant] * count if values is None else values, pa.uint32())
    return pa.table(table)


def flow_row(flow: int, logged: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a row of the flow table whose account balances."""
    row: dict[str, Any] = {
        "flow": flow,
        "local_address": "10.77.1.1",
        "local_port": 40000 + flow,
        "remote_address": "10.77.1.2",
        "remote_port": 5001,
        "congestion_control": "cubic",
        "passive": False,
        "began_before": False,
        "first_time_ns": None,
        "last_time_ns": None,
        "retransmits_total": None,
        "bytes_acked": None,
        "bytes_received": None,
    }
    for kind in ("packets", "events"):
        row |= {f"{kind}_{count}": 0 for count in COUNTS}
    return row | {"packets_seen": logged, "packets_logged": logged} | changes


def hook_account(hook: str, seen: int, **changes: Any) -> dict[str, Any]:
    """Return a hook's account in which all that was seen was logged."""
    lost = dict.fromkeys(("overwritten", "dropped", "missed", "failed", "unwritten"), 0)
    lost |= changes.pop("lost", {})
    account = {"hook": hook, "seen": seen, "filtered": 0, "thinned": 0, "logged": seen, "unowned": 0}
    return account | {"lost": lost} | changes


def ledger_of(count: int) -> dict[str, Any]:
    """Return a ledger that balances, for a log of some records."""
    return {
        "hooks": [
            hook_account("tcp_ingress", 0),
            hook_account("tcp_egress", count),
            hook_account("tcp_flow", 2),
        ],
        "sequence_gaps": 0,
        "cost": {
            "programs": [
                {"program": "tcp_ingress", "sampled_runs": 0, "ns_per_run": 0.0},
                {"program": "tcp_egress", "sampled_runs": 250, "ns_per_run": 431.5},
            ],
            "reader_cpu_s": 0.25,
            "wall_s": 10.0,
            "log_bytes": 40 * count,
        },
        "complete": True,
    }


@dataclass
class MadeLog:
    """A log as `parshall.read` gives it."""

    records: pa.Table
    flows: pa.Table
    ledger: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=lambda: {"command_line": ["/x/parshall", "tcp"]})
    complete: bool = True
    batch_rows: int | None = None
    retransmissions: pa.Table = field(default_factory=RETRANSMISSIONS.empty_table)
    listeners: pa.Table = field(default_factory=lambda: pa.table({}))
    gaps: pa.Table = field(default_factory=lambda: pa.table({}))
    thinning: pa.Table = field(default_factory=lambda: pa.table({}))

    @property
    def truncation(self) -> str | None:
        """Where and why the log ends early."""
        return None if self.complete else "ends early at byte 1: the last message is incomplete"

    def batches(self, columns: Sequence[str] | None = None) -> list[pa.RecordBatch]:
        """Return the records batch by batch."""
        return (self.records if columns is None else self.records.select(columns)).to_batches(self.batch_rows)


def log_of(table: pa.Table, **changes: Any) -> MadeLog:
    """Return a log with these records, and a flow table and a ledger that fit them."""
    counts = table.group_by("flow").aggregate([("flow", "count")]).to_pylist()
    rows = [flow_row(row["flow"], row["flow_count"]) for row in sorted(counts, key=lambda row: row["flow"])]
    flows = pa.Table.from_pylist(rows) if rows else pa.Table.from_pylist([flow_row(1)]).slice(0, 0)
    parts = {"records": table, "flows": flows, "ledger": ledger_of(table.num_rows)}
    return MadeLog(**(parts | changes))


def many_flows(flows: int, each: int, generator: np.random.Generator, span_s: float = 60.0) -> pa.Table:
    """Return the records of flows that send with windows like a random walk, in the order of time."""
    count = flows * each
    flow = np.repeat(np.arange(1, flows + 1), each)
    time_ns = np.sort(generator.integers(0, int(span_s * 1e9), (flows, each)), axis=1).ravel()
    cwnd = np.clip(50 + np.cumsum(generator.normal(0, 2, (flows, each)), axis=1), 2, 500).ravel()
    srtt_us = generator.gamma(8, 2000, count)
    sent = np.cumsum(np.full((flows, each), 1448), axis=1).ravel()
    retransmitted = np.cumsum(generator.random((flows, each)) < 0.002, axis=1).ravel()
    order = np.argsort(time_ns, kind="stable")
    return records(
        flow[order],
        time_ns[order],
        cwnd_segments=cwnd.astype(np.uint32)[order],
        ssthresh_segments=(cwnd * 0.7).astype(np.uint32)[order],
        srtt_us=srtt_us.astype(np.uint32)[order],
        snd_una=sent.astype(np.uint32)[order],
        snd_nxt=(sent + 1448).astype(np.uint32)[order],
        total_retrans=retransmitted.astype(np.uint32)[order],
    )
