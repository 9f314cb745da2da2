"""Logs that tests write themselves, byte by byte after docs/formats/tcp-log.md, without Parshall's writer."""

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

STATES = [
    *("UNKNOWN", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT"),
    *("LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV"),
]
NAMES = {
    "direction": ["in", "out", "none"],
    "event": ["packet", "retransmit", "congestion_state", "close", "dsack"],
    "state": STATES,
    "ca_state": ["Open", "Disorder", "CWR", "Recovery", "Loss"],
    "timer": ["none", "retransmit", "window_probe", "loss_probe", "reordering"],
    "ending": ["open", "fin", "fin_sent", "reset_received", "aborted", "timeout", "unreachable"],
}
_NUMBERS = {
    "flow_seq": pa.uint64(),
    "pacing_rate_Bps": pa.uint64(),
    "delivery_rate_Bps": pa.uint64(),
    "app_limited": pa.bool_(),
    "snd_scale": pa.uint8(),
    "rcv_scale": pa.uint8(),
    "pkt_flags": pa.uint16(),
    "gso_segs": pa.uint16(),
    "dupthresh_segments": pa.uint8(),
    "reordering_seen": pa.bool_(),
    "can_undo": pa.bool_(),
    "original_acked": pa.bool_(),
}
COLUMNS = [
    *("time_ns", "flow", "direction", "event", "flow_seq", "state", "cwnd_segments", "ssthresh_segments"),
    *("mss_bytes", "srtt_us", "rttvar_us", "min_rtt_us", "rto_us", "snd_una", "snd_nxt", "snd_wnd_bytes"),
    *("rcv_nxt", "rcv_wnd_bytes", "packets_out", "retrans_out", "lost_out", "sacked_out", "total_retrans"),
    *("ca_state", "pacing_rate_Bps", "delivery_rate_Bps", "delivered", "delivered_ce", "app_limited"),
    *("sndbuf_bytes", "sndbuf_used_bytes", "rcvbuf_bytes", "rcvbuf_used_bytes", "snd_scale", "rcv_scale"),
    *("pkt_seq", "pkt_ack", "pkt_flags", "payload_bytes", "gso_segs"),
    *("timer", "dupthresh_segments", "reordering_seen", "can_undo", "original_acked", "ending"),
]
_NULLABLE = ("ssthresh_segments", "min_rtt_us", "pacing_rate_Bps", *COLUMNS[-6:])
_TIME = pa.timestamp("ns", "UTC")


def _type(name: str) -> pa.DataType:
    if name == "time_ns":
        return _TIME
    if name in NAMES:
        return pa.dictionary(pa.int8(), pa.string())
    return _NUMBERS.get(name, pa.uint32())


SCHEMA = pa.schema([pa.field(name, _type(name), nullable=name in _NULLABLE) for name in COLUMNS])
_ACCOUNT = ("seen", "filtered", "thinned", "logged", "dropped", "overwritten", "unwritten")
_COUNTS = [f"packets_{name}" for name in _ACCOUNT] + [
    f"events_{name}" for name in _ACCOUNT if name not in ("filtered", "thinned")
]
_FLOW_TYPES = {
    "flow": pa.uint32(),
    "local_address": pa.string(),
    "local_port": pa.uint16(),
    "remote_address": pa.string(),
    "remote_port": pa.uint16(),
    "ip_version": pa.uint8(),
    "congestion_control": pa.string(),
    "socket_cookie": pa.uint64(),
    "cgroup_id": pa.uint64(),
    "cgroup": pa.string(),
    "netns_cookie": pa.uint64(),
    "netns_inode": pa.uint32(),
    "command": pa.string(),
    "pid": pa.uint32(),
    "uid": pa.uint32(),
    "passive": pa.bool_(),
    "began_before": pa.bool_(),
    "mss_clamp_bytes": pa.uint32(),
    "advmss_bytes": pa.uint32(),
    "sack": pa.bool_(),
    "timestamps": pa.bool_(),
    "ecn": pa.bool_(),
    "window_scaling": pa.bool_(),
    "first_time_ns": _TIME,
    "last_time_ns": _TIME,
    "ended": pa.bool_(),
} | dict.fromkeys(_COUNTS, pa.uint64())
FLOW_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=name in ("cgroup", "command", "pid")) for name, kind in _FLOW_TYPES.items()]
)

# Columns that came with version 1.3.
_LATER_FLOW_COLUMNS = [pa.field("mptcp_token", pa.uint32()), pa.field("retransmits_total", pa.uint32())]


def batch_of(columns: dict[str, Any], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return rows; names may be given as names or as their indices, a null is None."""
    arrays = []
    for name in schema.names:
        values = columns[name]
        if name in NAMES:
            indices = [NAMES[name].index(value) if isinstance(value, str) else value for value in values]
            arrays.append(pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(NAMES[name])))
        else:
            arrays.append(pa.array(values, _type(name)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def flow_row(flow: int, **changes: Any) -> dict[str, Any]:
    """Return a row of the flow table: an IPv4 connection that agreed on all options."""
    row: dict[str, Any] = dict.fromkeys(_FLOW_TYPES, 0)
    row |= dict.fromkeys(("cgroup", "command", "pid"), None)
    row |= dict.fromkeys(("passive", "began_before", "ended"), False)
    row |= dict.fromkeys(("sack", "timestamps", "ecn", "window_scaling"), True)
    row |= {
        "flow": flow,
        "local_address": "10.0.0.1",
        "local_port": 5000 + flow,
        "remote_address": "10.0.0.2",
        "remote_port": 80,
        "ip_version": 4,
        "congestion_control": "cubic",
        "mss_clamp_bytes": 1460,
        "advmss_bytes": 1460,
    }
    return row | changes


def listener_row(listener: int, **changes: Any) -> dict[str, Any]:
    """Return a row of the table of listeners: one that never refused anything, of an unknown process."""
    row: dict[str, Any] = {
        "listener": listener,
        "local_address": "0.0.0.0",
        "local_port": 8000 + listener,
        "ip_version": 4,
        **dict.fromkeys(("socket_cookie", "netns_cookie", "netns_inode", "cgroup_id"), 7),
        **dict.fromkeys(("cgroup", "command", "pid", "first_refused_time_ns", "last_refused_time_ns")),
        "backlog_connections": 5,
        "queue_last_connections": 0,
        "queue_longest_connections": 3,
        "syns_refused": 0,
        "acks_refused": 0,
        "ended": False,
    }
    return row | changes


def write_log(
    path: Path,
    batches: Iterable[pa.RecordBatch],
    flows: list[dict[str, Any]],
    ledger: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    columns: pa.Schema = SCHEMA,
    compression: str = "zstd",
    listeners: list[dict[str, Any]] | None = None,
    part: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    monotonic_offset_ns: int = 0,
) -> None:
    """Write a whole log: schema, rows, one tick with the flow table and the ledger, end of stream.

    With ``part`` it is a file of a log that rotates.
    """
    texts = {
        "format": "tcp-state",
        "format_version": "1",
        "environment": json.dumps(environment or {"kernel": {"release": "6.18.3"}}),
        "clock": json.dumps({"clock": "CLOCK_REALTIME", "monotonic_offset_ns": monotonic_offset_ns}),
        "options": json.dumps(options or {}),
        "hz": "1000",
    } | ({} if part is None else {"part": json.dumps(part)})
    schema = columns.with_metadata({f"parshall.{key}": text for key, text in texts.items()})
    table = io.BytesIO()
    has_later = any(field.name in row for field in _LATER_FLOW_COLUMNS for row in flows)
    flow_schema = pa.schema([*FLOW_SCHEMA, *_LATER_FLOW_COLUMNS]) if has_later else FLOW_SCHEMA
    with pa.ipc.new_stream(table, flow_schema) as stream:
        stream.write_table(pa.Table.from_pylist(flows, flow_schema))
    cost = {"programs": [], "reader_cpu_s": 0.0, "wall_s": 0.0, "log_bytes": 0}
    ledger = ledger or {"hooks": [], "sequence_gaps": 0, "cost": cost, "complete": True}
    tick = {
        "parshall.flows": base64.b64encode(table.getvalue()).decode(),
        "parshall.listeners": json.dumps(listeners or []),
        "parshall.ledger": json.dumps(ledger),
        "parshall.final": "true",
    }
    nothing = batch_of({name: [] for name in columns.names}, columns)
    with path.open("wb") as file:
        # Rows are compressed, dictionaries are not.
        head = _messages(schema, nothing, {}, pa.ipc.IpcWriteOptions())
        for message in head[:-1]:
            file.write(message.serialize())
        last, written = None, b""
        for batch in batches:
            # A repeated batch is encoded once.
            if batch is not last:
                last, written = batch, _with_crc(schema, batch, {}, compression)
            file.write(written)
        file.write(_with_crc(schema, nothing, tick, compression))
        file.write(struct.pack("<iI", -1, 0))


def _messages(schema: pa.Schema, batch: pa.RecordBatch, metadata: dict[str, str], options: Any) -> list[pa.ipc.Message]:
    written = io.BytesIO()
    with pa.ipc.new_stream(written, schema, options=options) as stream:
        stream.write_batch(batch.replace_schema_metadata(schema.metadata), custom_metadata=metadata or None)
    return list(pa.ipc.MessageReader.open_stream(written.getvalue()))


def _with_crc(schema: pa.Schema, batch: pa.RecordBatch, metadata: dict[str, str], compression: str) -> bytes:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    body = _messages(schema, batch, metadata, options)[-1].body
    texts = "".join(metadata.values()).encode()
    crc = zlib.crc32(struct.pack("<Q", batch.num_rows) + texts + (body.to_pybytes() if body else b""))
    message = _messages(schema, batch, metadata | {"parshall.crc32": f"{crc:08x}"}, options)[-1]
    return message.serialize().to_pybytes()


def random_columns(rows: int, flows: int, seed: int, begin_ns: int = 1_700_000_000_000_000_000) -> dict[str, Any]:
    """Return columns with random values of all magnitudes, in the order of time."""
    generator = np.random.default_rng(seed)

    def numbers(bits: int) -> Any:
        # A random number of significant bits, so that small and large values occur.
        return generator.integers(0, 1 << 62, rows) >> (62 - generator.integers(0, bits + 1, rows))

    columns: dict[str, Any] = {}
    for name in COLUMNS:
        if name in NAMES:
            columns[name] = generator.integers(0, len(NAMES[name]), rows)
        elif _type(name) == pa.bool_():
            columns[name] = generator.integers(0, 2, rows).astype(bool)
        else:
            bits = 62 if _type(name) == pa.uint64() else _type(name).bit_width
            columns[name] = numbers(bits)
        if name in _NULLABLE:
            columns[name] = [None if generator.random() < 0.2 else value.item() for value in columns[name]]
    columns["flow"] = generator.integers(1, flows + 1, rows)
    columns["time_ns"] = begin_ns + np.cumsum(generator.integers(0, 3_000_000, rows))
    return columns
