"""A capture file with a comment at each packet whose path is known, for Wireshark."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from parshall.errors import printable
from parshall.host.quantities import duration_text
from parshall.host.whole_file import new_file
from parshall.instruments.path.stages import STAGES
from parshall.instruments.path.trace import ENHANCED, SECTION, Block, Trace

_COMMENT, _END = 1, 0
_COMMENT_BYTES_MAX = 60_000
_NS_RESOLUTION = 9
_TEXT_COLUMNS = [
    *("row", "path", "place", "drop_reason", "netns_inode", *(f"{name}_ns" for name in STAGES), "capture_packets"),
    *("capture_match", "tcp_match", "cwnd_segments", "ssthresh_segments", "srtt_us", "ca_state", "is_retransmission"),
    *("cause", "spurious", "lost_row", "sent_again_ns", "read_match", "pid", "command", "wait_ns"),
]


def write_commented(capture: Trace, timeline: pa.Table, path: Path) -> int:
    """Write the packets of a capture as pcapng, with a comment for each row of the timeline that has the packet.

    Parameters
    ----------
    capture : Trace
        The capture that was joined.
    timeline : pyarrow.Table
        From `join`.
    path : pathlib.Path
        The file. It replaces an old one when it is complete.

    Returns
    -------
    int
        Packets with comments.

    Raises
    ------
    ParshallError
        The capture is damaged, or the file cannot be written.
    """
    comments = _comments(timeline)
    number = commented = 0
    with new_file(path, "wb") as (file, commit):
        if not capture.is_pcapng:
            # A pcap file has no sections, and one link type.
            file.write(_block(SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1), "<"))
        has_interface = capture.is_pcapng
        for block in capture.blocks():
            if block.data is None:
                file.write(_block(block.kind, block.body, block.order))
                continue
            number += 1
            texts = comments.get(number, []) if block.kind == ENHANCED else []
            commented += bool(texts)
            if not has_interface:
                resolution = struct.pack("<HHB3xHH", _NS_RESOLUTION, 1, 9, _END, 0)
                file.write(_block(1, struct.pack("<HHI", block.link_type, 0, 0) + resolution, "<"))
                has_interface = True
            body, order = (block.body, block.order) if capture.is_pcapng else (_from_pcap(block), "<")
            file.write(_block(block.kind, _with_comments(body, order, texts), order))
        file.flush()
        commit()
    return commented


def comment_of(row: dict[str, Any], lost: dict[str, Any] | None) -> str:
    """Return what is known of a row of the timeline as one line.

    Parameters
    ----------
    row : dict
        The row.
    lost : dict or None
        The row of the copy that was dropped before, if any.
    """
    passed = [(row[f"{name}_ns"], name) for name in STAGES if row[f"{name}_ns"] is not None]
    stages = ", ".join(f"{name} +{duration_text(past)}" for past, name in sorted(passed))
    parts = [f"{row['path']} in netns {row['netns_inode']} ({row['capture_match']}): {stages}"]
    if row["path"] == "dropped":
        again = row["sent_again_ns"]
        later = "" if again is None else f", sent again {duration_text(again)} later"
        parts.append(f"dropped after {row['place']}: {row['drop_reason']}{later}")
    if row["tcp_match"] != "none":
        threshold = "-" if row["ssthresh_segments"] is None else row["ssthresh_segments"]
        parts.append(
            f"cwnd {row['cwnd_segments']}, ssthresh {threshold}, srtt {row['srtt_us']} us, "
            f"ca_state {row['ca_state']} ({row['tcp_match']})"
        )
    if row["is_retransmission"]:
        where = f", copy dropped after {lost['place']}: {lost['drop_reason']}" if lost else ""
        judged = {True: ", spurious", False: "", None: ""}[row["spurious"]]
        parts.append(f"retransmission: {row['cause']}{judged}{where}")
    if row["read_match"] != "none":
        waited = "" if row["wait_ns"] is None else f" {duration_text(row['wait_ns'])} after its data was ready"
        parts.append(f"read by {row['command']} (pid {row['pid']}){waited} ({row['read_match']})")
    return printable("; ".join(parts))


def _comments(timeline: pa.Table) -> dict[int, list[str]]:
    """Return the comments of each packet, by its number."""
    comments: dict[int, list[str]] = {}
    table = timeline.select(_TEXT_COLUMNS)
    for batch in table.to_batches(8192):
        for row in batch.to_pylist():
            if not row["capture_packets"]:
                continue
            lost = None if row["lost_row"] is None else table.slice(row["lost_row"], 1).to_pylist()[0]
            text = comment_of(row, lost)
            for number in row["capture_packets"]:
                comments.setdefault(number, []).append(text)
    return comments


def _block(kind: int, body: bytes, order: str) -> bytes:
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def _from_pcap(block: Block) -> bytes:
    assert block.time_ns is not None and block.data is not None
    wire = struct.unpack(block.order + "I", block.body)[0]
    head = struct.pack("<IIIII", 0, block.time_ns >> 32, block.time_ns & 0xFFFFFFFF, len(block.data), wire)
    return head + _padded(block.data)


def _with_comments(body: bytes, order: str, texts: list[str]) -> bytes:
    if not texts:
        return body
    captured = struct.unpack_from(order + "I", body, 12)[0]
    options = 20 + (captured + 3 & ~3)
    rest = body[options:] or struct.pack(order + "HH", _END, 0)
    return body[:options] + b"".join(_options(order, texts)) + rest


def _options(order: str, texts: list[str]) -> Iterator[bytes]:
    for text in texts:
        value = text.encode()[:_COMMENT_BYTES_MAX]
        yield struct.pack(order + "HH", _COMMENT, len(value)) + _padded(value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
