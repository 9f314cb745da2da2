"""A timeline as a trace of Perfetto: one track for each connection, reader and counter."""

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from parshall.errors import printable
from parshall.host.whole_file import new_file
from parshall.instruments.path.profile import group_text
from parshall.instruments.path.stages import STAGES

TRACE_SUFFIX = ".pftrace"
# Of perfetto_trace.proto: numbers of fields, and of types of events.
_PACKET, _TIMESTAMP, _SEQUENCE, _EVENT, _SEQUENCE_FLAGS, _CLOCKS, _DESCRIPTOR = 1, 8, 10, 11, 13, 6, 60
_TYPE, _TRACK, _NAME, _VALUE, _FLOW = 9, 11, 23, 30, 47
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_BOOTTIME, _REALTIME = 6, 1
_STATE_CLEARED = 1
# What a slice shows when it is chosen.
_SHOWN = (
    *("row", "path", "place", "drop_reason", "interface_in", "interface_out", "length_bytes", "payload_bytes"),
    *("gso_segs", "tcp_seq", "tcp_ack", "tcp_match", "cwnd_segments", "ssthresh_segments", "srtt_us", "ca_state"),
    *("is_retransmission", "cause", "spurious", "lost_row", "sent_again_row", "sent_again_ns", "capture_match"),
    *("capture_packets", "read_match", "pid", "command", "wait_ns"),
)
_COUNTERS = {"cwnd_segments": "cwnd (segments)", "srtt_us": "srtt (us)"}
_ROWS_AT_ONCE = 10_000
# Drops and the retransmissions that repair them have flows of their own.
_REPAIR = 1 << 40


def write_trace(timeline: pa.Table, path: Path) -> int:
    """Write a timeline as a trace that ui.perfetto.dev opens.

    Parameters
    ----------
    timeline : pyarrow.Table
        From `join`.
    path : pathlib.Path
        The file. It replaces an old one when it is complete.

    Returns
    -------
    int
        Packets written.

    Notes
    -----
    Each network namespace is a group of tracks; in it, each direction of a connection is a track with a slice for each
    packet, from its first stage to its last, and inside it a slice until each stage. Packets at once are beside each
    other. Arrows lead from one place of a segment to the next, and from a dropped one to its retransmission.
    """
    with new_file(path, "wb") as (file, commit):
        trace = _Trace(file)
        linked = set(timeline["sent_row"].drop_null().to_pylist())
        for batch in timeline.to_batches(_ROWS_AT_ONCE):
            times = batch["time"].cast(pa.int64()).to_pylist()
            for row, time_ns in zip(batch.drop_columns(["time"]).to_pylist(), times, strict=True):
                trace.add(row, time_ns, linked)
        file.flush()
        commit()
    return int(timeline.num_rows)


class _Trace:
    """Writes packets of a trace, and describes a track when it is first used."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._tracks: dict[tuple[Any, ...], int] = {}
        # Slices of one track may not overlap: until when each track of a connection is used.
        self._used: dict[tuple[Any, ...], list[int]] = {}
        self._has_begun = False

    def add(self, row: dict[str, Any], time_ns: int, linked: set[int]) -> None:
        """Write a packet, TCP's state with it, and the wait of its reader."""
        if not self._has_begun:
            self._has_begun = True
            # Perfetto shows the time of day when it knows how its clock relates to it.
            clocks = (_bytes(1, _number(1, clock) + _number(2, time_ns)) for clock in (_BOOTTIME, _REALTIME))
            begins = _number(_SEQUENCE_FLAGS, _STATE_CLEARED) + _bytes(_CLOCKS, b"".join(clocks))
            self._write(_number(_TIMESTAMP, time_ns) + begins)
        netns = ("netns", row["netns_inode"])
        ends = _ends(row)
        until_ns = time_ns + (row["whole_ns"] or 0)
        about = b"".join(_annotation(name, row[name]) for name in _SHOWN if row.get(name) is not None)
        about += b"".join(_varint(_FLOW << 3 | 1) + struct.pack("<Q", flow) for flow in _flows(row, linked))
        name = row["path"] + (f" {row['drop_reason']}" if row.get("drop_reason") else "")
        name += " (retransmission)" if row.get("is_retransmission") else ""
        track = self._lane((*netns, ends), ends, netns, time_ns, until_ns)
        if until_ns == time_ns:
            self._event(track, time_ns, _INSTANT, name, about)
        else:
            self._event(track, time_ns, _BEGIN, name, about)
            for stage, begin_ns, end_ns in _stages(row):
                self._event(track, time_ns + begin_ns, _BEGIN, f"to {stage}")
                self._event(track, time_ns + end_ns, _END)
            self._event(track, until_ns, _END)
        for column, counter in _COUNTERS.items():
            if row.get(column) is not None and row.get("tcp_match") not in (None, "none"):
                number = self._track((*netns, ends, column), counter, (*netns, ends, 0), is_counter=True)
                self._event(number, time_ns, _COUNTER, about=_number(_VALUE, row[column]))
        if row.get("wait_ns") is not None and row.get("data_ready_ns") is not None:
            ready_ns = time_ns + row["data_ready_ns"]
            reader = f"read by {row['command']} (pid {row['pid']})"
            lane = self._lane((*netns, reader), reader, netns, ready_ns, ready_ns + row["wait_ns"])
            self._event(lane, ready_ns, _BEGIN, ends, about)
            self._event(lane, ready_ns + row["wait_ns"], _END)

    def _lane(self, key: tuple[Any, ...], name: str, group: tuple[Any, ...], begin_ns: int, end_ns: int) -> int:
        """Return a track of this name that is free; Perfetto shows tracks of one name as one."""
        used = self._used.setdefault(key, [])
        number = next((at for at, until_ns in enumerate(used) if until_ns <= begin_ns), len(used))
        if number == len(used):
            used.append(0)
        used[number] = end_ns
        return self._track((*key, number), name, group)

    def _track(self, key: tuple[Any, ...], name: str, group: tuple[Any, ...], *, is_counter: bool = False) -> int:
        """Return the number of a track, described at its first use together with its group."""
        if key not in self._tracks:
            parent = self._tracks.get(group)
            if parent is None:
                parent = self._tracks[group] = len(self._tracks) + 1
                self._describe(parent, f"netns {group[1]}")
            self._tracks[key] = len(self._tracks) + 1
            self._describe(self._tracks[key], name, _number(5, parent) + (_bytes(8, b"") if is_counter else b""))
        return self._tracks[key]

    def _describe(self, number: int, name: str, more: bytes = b"") -> None:
        self._write(_bytes(_DESCRIPTOR, _number(1, number) + _text(2, name) + more))

    def _event(self, track: int, time_ns: int, kind: int, name: str = "", about: bytes = b"") -> None:
        event = _number(_TYPE, kind) + _number(_TRACK, track) + (_text(_NAME, name) if name else b"") + about
        self._write(_number(_TIMESTAMP, time_ns) + _bytes(_EVENT, event))

    def _write(self, packet: bytes) -> None:
        self._file.write(_bytes(_PACKET, packet + _number(_SEQUENCE, 1)))


def _ends(row: dict[str, Any]) -> str:
    if row.get("source") is None:
        return "not IP"
    ends = [row[name] for name in ("source", "source_port", "destination", "destination_port", "protocol")]
    return group_text({"connection": ends}) or ""


def _stages(row: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield each stage that a packet passed after another one, with the times in between."""
    passed = sorted(
        (row[f"{name}_ns"], at, name) for at, name in enumerate(STAGES) if row.get(f"{name}_ns") is not None
    )
    for (begin_ns, _, _), (end_ns, _, name) in itertools.pairwise(passed):
        if begin_ns < end_ns <= row["whole_ns"]:
            yield name, begin_ns, end_ns


def _flows(row: dict[str, Any], linked: set[int]) -> Iterator[int]:
    """Yield the numbers of the arrows that a packet is on."""
    if row.get("sent_row") is not None:
        yield row["sent_row"] + 1
    elif row["row"] in linked:
        yield row["row"] + 1
    if row.get("sent_again_row") is not None:
        yield _REPAIR + row["row"]
    if row.get("lost_row") is not None:
        yield _REPAIR + row["lost_row"]


def _annotation(name: str, value: Any) -> bytes:
    if isinstance(value, bool):
        shown = _number(2, value)
    elif isinstance(value, int):
        shown = _number(3, value) if value >= 0 else _text(6, str(value))
    else:
        shown = _text(6, value if isinstance(value, str) else str(value))
    return _bytes(4, _text(10, name) + shown)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, printable(value).encode())
