"""Path logs that tests make: the columns that figures and reports read, with values that are chosen."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from parshall.path.stages import STAGES

BEGIN_NS = 1_795_295_221_839_812_308
PATHS = ["forwarded", "delivered", "sent", "dropped", "consumed", "merged", "unknown", "overwritten", "open"]
NAMES = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("ns", "UTC")),
        ("event", NAMES),
        ("path", NAMES),
        ("first_stage", NAMES),
        ("last_stage", NAMES),
        ("drop_reason", pa.uint32()),
        *((f"{stage}_ns", pa.uint32()) for stage in STAGES),
        ("source", pa.binary(16)),
        ("destination", pa.binary(16)),
    ]
)
REASONS = {2: "NOT_SPECIFIED", 3: "NO_SOCKET"}


def packet(path: str, time_ns: int = 0, reason: int | None = None, **offsets_ns: int) -> dict[str, Any]:
    """Return a row of a packet; `offsets_ns` by stage, in their order."""
    passed = list(offsets_ns)
    return {
        "time": BEGIN_NS + time_ns,
        "event": "packet",
        "path": path,
        "first_stage": passed[0],
        "last_stage": passed[-1],
        "drop_reason": reason,
        **{f"{stage}_ns": offset_ns for stage, offset_ns in offsets_ns.items()},
    }


def ledger_of(packets: int, reads: int = 0) -> dict[str, Any]:
    """Return a ledger that balances."""
    lost = dict.fromkeys(("overwritten", "dropped", "missed", "failed", "unwritten"), 0)
    hooks = [
        {"hook": name, "seen": count, "filtered": 0, "thinned": 0, "logged": count, "lost": lost}
        for name, count in (("packets", packets), ("reads", reads))
    ]
    cost = {"programs": [], "reader_cpu_s": 0.1, "wall_s": 2.0, "log_bytes": 1000}
    return {"hooks": hooks, "sequence_gaps": 0, "cost": cost, "complete": True}


def write_log(path: Path, rows: Sequence[dict[str, Any]], ledger: dict[str, Any] | None = None) -> Path:
    """Write rows as a path log that was ended in order."""
    metadata = {
        "parshall.format": "path",
        "parshall.format_version": "1.0",
        "parshall.environment": json.dumps({"kernel": "6.18", "command_line": ["parshall", "path", "-o", "x.arrow"]}),
        "parshall.clock": "{}",
        "parshall.options": "{}",
        "parshall.drop_reasons": json.dumps(REASONS),
    }
    schema = SCHEMA.with_metadata(metadata)
    columns = [
        pa.array([row.get(field.name) for row in rows], pa.string()).dictionary_encode().cast(NAMES)
        if field.type == NAMES
        else pa.array([row.get(field.name) for row in rows], field.type)
        for field in schema
    ]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        if rows:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        empty = pa.RecordBatch.from_pylist([], schema)
        account = json.dumps(ledger or ledger_of(len(rows)))
        writer.write_batch(empty, custom_metadata={"parshall.ledger": account, "parshall.final": "true"})
    return path
