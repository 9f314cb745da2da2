"""Path logs and captures that tests write themselves."""

import ipaddress
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from parshall.instruments.path.stages import STAGES

BEGIN_NS = 1_795_295_221_000_000_000
PATHS = ["forwarded", "delivered", "sent", "dropped", "consumed", "merged", "segmented", "unknown", "displaced", "open"]
_NAMES = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("ns", "UTC")),
        *((name, _NAMES) for name in ("event", "path", "first_stage", "last_stage")),
        ("drop_reason", pa.uint32()),
        *((f"{name}_ns", pa.uint32()) for name in (*STAGES, "whole", "stolen")),
        *(("first_cpu", pa.uint16()), ("last_cpu", pa.uint16()), ("poll", pa.uint32()), ("poll_index", pa.uint16())),
        *((name, pa.uint32()) for name in ("netns_inode", "interface", "interface_out")),
        *(("ethernet_protocol", pa.uint16()), ("ip_version", pa.uint8()), ("protocol", pa.uint8())),
        *(("source", pa.binary(16)), ("destination", pa.binary(16))),
        *((name, pa.uint16()) for name in ("source_port", "destination_port", "ip_id")),
        *(("tcp_seq", pa.uint32()), ("tcp_ack", pa.uint32()), ("tcp_flags", pa.uint16())),
        *(("length_bytes", pa.uint32()), ("payload_bytes", pa.uint32()), ("gso_segs", pa.uint16())),
        *((name, pa.uint64()) for name in ("socket_cookie", "cgroup_id", "waking_ns", "running_ns", "read_ns")),
        *(("pid", pa.uint32()), ("command", pa.string())),
    ]
)
CLIENT, SERVER = ("10.0.0.1", 5001), ("10.0.0.2", 80)
HOST = 100


def packet(at_us: float, path: str, first: str, seq: int, payload_bytes: int, **changes: Any) -> dict[str, Any]:
    """Return a segment from client to server; stages are given as ``receive_ns=3000``."""
    source, destination = changes.pop("ends", (CLIENT, SERVER))
    row = {"time": BEGIN_NS + round(at_us * 1000), "event": "packet", "path": path, "first_stage": first}
    row |= {f"{first}_ns": 0, "whole_ns": 0, "netns_inode": HOST, "ip_version": 4, "protocol": 6, "tcp_ack": 1}
    row |= {"source": _mapped(source[0]), "destination": _mapped(destination[0]), "source_port": source[1]}
    row |= {"destination_port": destination[1], "tcp_seq": seq, "payload_bytes": payload_bytes, "gso_segs": 1}
    row["last_stage"] = changes.get("last_stage", "drop" if path == "dropped" else first)
    return row | changes


def read_of(ready_us: float, read_us: float, length_bytes: int, cookie: int, **changes: Any) -> dict[str, Any]:
    """Return a read, from data ready until it returned."""
    row: dict[str, Any] = {"time": BEGIN_NS + round(ready_us * 1000), "event": "read", "length_bytes": length_bytes}
    row |= {"read_ns": round((read_us - ready_us) * 1000), "socket_cookie": cookie, "pid": 77, "command": "reader"}
    return row | changes


def ledger_of(packets: int, reads: int = 0) -> dict[str, Any]:
    """Return a ledger that balances."""
    lost = dict.fromkeys(("overwritten", "dropped", "missed", "failed", "unwritten"), 0)
    hooks = [
        {"hook": name, "seen": count, "filtered": 0, "thinned": 0, "logged": count, "lost": lost}
        for name, count in (("packets", packets), ("reads", reads))
    ]
    cost = {"programs": [], "reader_cpu_s": 0.1, "wall_s": 2.0, "log_bytes": 1000}
    return {"hooks": hooks, "sequence_gaps": 0, "cost": cost, "complete": True}


def write_path_log(
    path: Path,
    rows: Sequence[dict[str, Any]],
    ledger: dict[str, Any] | None = None,
    offset_ns: int = 0,
    options: dict[str, Any] | None = None,
) -> Path:
    """Write rows as a path log that was ended in order."""
    metadata = {
        "format": "path",
        "format_version": "1.1",
        "environment": json.dumps({"kernel": "6.18", "command_line": ["parshall", "path", "-o", "x.arrow"]}),
        "options": json.dumps(options or {}),
        "drop_reasons": json.dumps(
            {"2": "NOT_SPECIFIED", "3": "NO_SOCKET", "8": "NETFILTER_DROP", "196609": "OVS_DROP_LAST_ACTION"}
        ),
        "drop_subsystems": json.dumps({"0": "CORE", "3": "OPENVSWITCH"}),
        "clock": json.dumps({"clock": "CLOCK_REALTIME", "monotonic_offset_ns": offset_ns}),
    }
    schema = SCHEMA.with_metadata({f"parshall.{key}": text for key, text in metadata.items()})
    names = {"event": ["packet", "read"], "path": PATHS, "first_stage": list(STAGES), "last_stage": list(STAGES)}
    columns: list[pa.Array] = []
    for field in SCHEMA:
        values = [row.get(field.name) for row in rows]
        if field.name in names:
            known = names[field.name]
            indices = pa.array([None if value is None else known.index(value) for value in values], pa.int8())
            columns.append(pa.DictionaryArray.from_arrays(indices, pa.array(known)))
        else:
            columns.append(pa.array(values, field.type))
    with path.open("wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        account = json.dumps(ledger or ledger_of(len(rows)))
        empty = pa.RecordBatch.from_pylist([], schema)
        stream.write_batch(empty, custom_metadata={"parshall.ledger": account, "parshall.final": "true"})
    return path


def frame_of(seq: int, payload_bytes: int, ack: int = 1, ends: Any = (CLIENT, SERVER), vlan: bool = False) -> bytes:
    """Return an Ethernet frame with a TCP segment."""
    (source, source_port), (destination, destination_port) = ends
    tcp = struct.pack(">HHIIBBHHH", source_port, destination_port, seq, ack, 5 << 4, 16, 1000, 0, 0)
    tcp += bytes(payload_bytes)
    if ":" in source:
        kind, ip = 0x86DD, struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64)
    else:
        kind, ip = 0x0800, struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0)
    ip += ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    tag = struct.pack(">HH", 0x8100, 7) if vlan else b""
    return bytes(12) + tag + struct.pack(">H", kind) + ip + tcp


def pcap_of(packets: list[tuple[float, bytes]], order: str = "<") -> bytes:
    """Return a pcap file with nanoseconds; times are microseconds after `BEGIN_NS`."""
    data = struct.pack(order + "IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    for at_us, frame in packets:
        seconds, fraction = divmod(BEGIN_NS + round(at_us * 1000), 10**9)
        data += struct.pack(order + "IIII", seconds, fraction, len(frame), len(frame)) + frame
    return data


def pcapng_of(packets: list[tuple[float, bytes]], order: str = "<", options: bytes = b"") -> bytes:
    """Return a pcapng file with nanoseconds."""

    def block(kind: int, body: bytes) -> bytes:
        length = struct.pack(order + "I", len(body) + 12)
        return struct.pack(order + "I", kind) + length + body + length

    data = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(1, struct.pack(order + "HHIHHB3xHH", 1, 0, 0, 9, 1, 9, 0, 0))
    for at_us, frame in packets:
        time_ns = BEGIN_NS + round(at_us * 1000)
        head = struct.pack(order + "IIIII", 0, time_ns >> 32, time_ns & 0xFFFFFFFF, len(frame), len(frame))
        data += block(6, head + frame + bytes(-len(frame) % 4) + options)
    return data


def _mapped(address: str) -> bytes:
    parsed = ipaddress.ip_address(address)
    return parsed.packed if parsed.version == 6 else bytes(10) + b"\xff\xff" + parsed.packed
