"""A timeline as a trace: Perfetto's own types read it, and what they read is the timeline."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from written_log import COLUMNS, NAMES, batch_of, flow_row, write_log
from written_path_log import BEGIN_NS, CLIENT, HOST, SERVER, packet, read_of, write_path_log

import in_process
import parshall
from parshall.instruments.path import PathLog, join
from parshall.instruments.path.perfetto import write_trace
from parshall.instruments.path.stages import STAGES

COOKIE, ROUTER = 4242, 200
BACK = {"ends": (SERVER, CLIENT)}
ENDS = "10.0.0.1:5001 > 10.0.0.2:80 tcp"
EVIL = "x\x1b[31m\ny\u202ez"


def record(at_us: float, seq: int, event: str, direction: str, **changes: Any) -> dict[str, Any]:
    row = dict.fromkeys(COLUMNS, 0) | {name: names[0] for name, names in NAMES.items()}
    row |= {"time_ns": BEGIN_NS + round(at_us * 1000), "flow": 1, "direction": direction, "event": event}
    row |= {"cwnd_segments": 10 + round(at_us) % 7, "srtt_us": 500, "pkt_seq": seq, "pkt_ack": 1, "gso_segs": 1}
    row |= dict.fromkeys(("app_limited", "reordering_seen", "can_undo", "original_acked"), False)
    return row | {"payload_bytes": 50} | changes


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A segment that a router drops and that is sent again, packets at once, and one that a process waits for."""
    passes = {"queue_ns": 400, "start_xmit_ns": 1_000, "whole_ns": 1_500, "xmit_ns": 1_500}
    router = {"netns_inode": ROUTER, "receive_ns": 500}
    rows = [
        packet(0, "sent", "local_out", 100, 50, **passes),
        packet(0.5, "sent", "local_out", 150, 50, **passes),
        packet(2, "dropped", "netif_rx", 100, 50, drop_ns=3_000, whole_ns=3_000, drop_reason=8, **router),
        packet(3, "forwarded", "netif_rx", 150, 50, whole_ns=500, **router),
        packet(900, "sent", "local_out", 100, 50, **passes),
        packet(902, "forwarded", "netif_rx", 100, 50, whole_ns=500, **router),
        packet(
            950,
            "delivered",
            "gro",
            5,
            9,
            data_ready_ns=2_000,
            copy_ns=40_000,
            whole_ns=40_000,
            socket_cookie=COOKIE,
            **BACK,
        ),
        packet(990, "consumed", "gro", 5, 0, ends=(("10.0.0.9", 1), ("10.0.0.8", 2))),
        read_of(952, 995, 9, COOKIE, command=EVIL),
    ]
    write_path_log(tmp_path / "path.arrow", rows)
    records = [record(at_us, seq, "packet", "out") for at_us, seq in ((0, 100), (0.5, 150), (900, 100))]
    records.append(record(901, 100, "retransmit", "none"))
    columns = {name: [row[name] for row in sorted(records, key=lambda one: one["time_ns"])] for name in COLUMNS}
    ends = {"local_address": CLIENT[0], "local_port": CLIENT[1], "remote_address": SERVER[0]}
    ends |= {"remote_port": SERVER[1], "netns_inode": HOST, "socket_cookie": COOKIE}
    write_log(tmp_path / "tcp.arrow", [batch_of(columns)], [flow_row(1, **ends)])
    return tmp_path


class Read:
    """A trace as Perfetto reads it: slices of tracks, from their begin and end events."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.trace = Trace.FromString(content)
        before = len(self.trace.SerializeToString())
        self.trace.DiscardUnknownFields()
        # Every field is one that Perfetto knows, of the type that it has.
        assert before == len(self.trace.SerializeToString()) == len(content)
        self.tracks: dict[int, Any] = {}
        self.slices: list[dict[str, Any]] = []
        self.instants: list[dict[str, Any]] = []
        self.counters: dict[str, list[tuple[int, int]]] = defaultdict(list)
        open_slices: dict[int, list[dict[str, Any]]] = defaultdict(list)
        last_ns: dict[int, int] = defaultdict(int)
        for one in self.trace.packet:
            assert one.trusted_packet_sequence_id == 1
            if one.HasField("track_descriptor"):
                track = one.track_descriptor
                assert track.uuid not in self.tracks
                assert not track.HasField("parent_uuid") or track.parent_uuid in self.tracks
                self.tracks[track.uuid] = track
            elif one.HasField("track_event"):
                event, at_ns = one.track_event, one.timestamp
                number = event.track_uuid
                # Described before it is used, and in the order of time, as the importer wants slices of a track.
                assert number in self.tracks and at_ns >= last_ns[number]
                last_ns[number] = at_ns
                shown = {"at_ns": at_ns, "name": event.name, "track": self.tracks[number].name, "number": number}
                shown |= {"flows": set(event.flow_ids), "depth": len(open_slices[number])}
                shown["about"] = {
                    each.name: getattr(each, each.WhichOneof("value")) for each in event.debug_annotations
                }
                if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                    open_slices[number].append(shown)
                elif event.type == TrackEvent.TYPE_SLICE_END:
                    ended = open_slices[number].pop()
                    self.slices.append(ended | {"duration_ns": at_ns - ended["at_ns"]})
                elif event.type == TrackEvent.TYPE_INSTANT:
                    self.instants.append(shown)
                else:
                    assert event.type == TrackEvent.TYPE_COUNTER and self.tracks[number].HasField("counter")
                    self.counters[self.tracks[number].name].append((at_ns, event.counter_value))
        assert not any(open_slices.values())


def test_perfetto_reads_the_timeline(files: Path) -> None:
    done = in_process.parshall(
        "path", "--join", "path.arrow", "tcp.arrow", "--to", "perfetto", "-o", "out.pftrace", cwd=files
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "parshall: path: out.pftrace: 8 packets; open it at ui.perfetto.dev\n"
    read = Read(files / "out.pftrace")
    table = pl.from_arrow(join(PathLog(files / "path.arrow"), parshall.read(files / "tcp.arrow")))
    assert isinstance(table, pl.DataFrame)
    packets = {
        one["about"]["row"]: one
        for one in (*read.slices, *read.instants)
        if "row" in one["about"] and not one["track"].startswith("read by")
    }
    assert sorted(packets) == table["row"].to_list()
    for row in table.to_dicts():
        one = packets[row["row"]]
        assert one["at_ns"] == int(table["time"].dt.timestamp("ns")[row["row"]])
        assert one.get("duration_ns", 0) == row["whole_ns"]
        assert one["name"].startswith(row["path"]) and one["about"]["path"] == row["path"]
        assert one["about"].get("cwnd_segments") == row["cwnd_segments"]
        inside = [
            each
            for each in read.slices
            if each["number"] == one["number"]
            and each["depth"] == 1
            and one["at_ns"] <= each["at_ns"] <= one["at_ns"] + row["whole_ns"]
        ]
        times = sorted((row[f"{name}_ns"], name) for name in STAGES if row[f"{name}_ns"] is not None)
        if row["whole_ns"]:
            assert [each["name"] for each in sorted(inside, key=lambda each: each["at_ns"])] == [
                f"to {name}" for _, name in times[1:]
            ]
            assert sum(each["duration_ns"] for each in inside) == times[-1][0]
    # Packets at once are on two tracks of one name.
    assert {one["track"] for one in packets.values()} == {
        ENDS,
        "10.0.0.2:80 > 10.0.0.1:5001 tcp",
        "10.0.0.9:1 > 10.0.0.8:2 tcp",
    }
    assert packets[0]["number"] != packets[1]["number"] and packets[0]["track"] == packets[1]["track"]
    groups = {track.name for track in read.tracks.values() if not track.HasField("parent_uuid")}
    assert groups == {f"netns {HOST}", f"netns {ROUTER}"}


def test_drops_retransmissions_and_readers_are_linked(files: Path) -> None:
    table = join(PathLog(files / "path.arrow"), parshall.read(files / "tcp.arrow"))
    write_trace(table, files / "out.pftrace")
    read = Read(files / "out.pftrace")
    packets = {
        one["about"]["row"]: one
        for one in read.slices
        if "row" in one["about"] and not one["track"].startswith("read by")
    }
    assert packets[2]["name"] == "dropped NETFILTER_DROP" and packets[4]["name"] == "sent (retransmission)"
    assert packets[2]["about"]["place"] == "receive" and packets[2]["about"]["sent_again_row"] == 4
    # The sent segment and its drop at the router; the drop and what repairs it; its way to the router.
    assert packets[0]["flows"] & packets[2]["flows"] and packets[2]["flows"] & packets[4]["flows"]
    assert packets[4]["flows"] & packets[5]["flows"] and not packets[0]["flows"] & packets[4]["flows"]
    assert packets[1]["flows"] & packets[3]["flows"] and not packets[1]["flows"] & packets[0]["flows"]
    (waited,) = (one for one in read.slices if one["track"].startswith("read by"))
    assert waited["track"] == "read by x\\x1b[31m\\ny\\u202ez (pid 77)"
    row = table.slice(6, 1).to_pylist()[0]
    assert waited["duration_ns"] == row["wait_ns"] == 43_000 and waited["at_ns"] == BEGIN_NS + 952_000
    windows = [value for _, value in read.counters["cwnd (segments)"]]
    assert windows == [value for value in table["cwnd_segments"].to_pylist() if value is not None]
    assert {value for _, value in read.counters["srtt (us)"]} == {500}


def test_the_time_of_day_is_known(files: Path) -> None:
    write_trace(join(PathLog(files / "path.arrow")), files / "out.pftrace")
    first = Read(files / "out.pftrace").trace.packet[0]
    assert {clock.clock_id: clock.timestamp for clock in first.clock_snapshot.clocks} == {1: BEGIN_NS, 6: BEGIN_NS}
    assert first.sequence_flags == 1


def test_a_timeline_without_packets_is_an_empty_trace(files: Path) -> None:
    table = join(PathLog(files / "path.arrow"))
    assert write_trace(pa.Table.from_batches([], table.schema), files / "out.pftrace") == 0
    assert (files / "out.pftrace").read_bytes() == b""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "perfetto"], "--to perfetto: is for files that were measured; name them with --join"),
        (["--join", "path.arrow", "--to", "perfetto"], "--to perfetto: needs a file; name one with -o"),
        (["--join", "path.arrow", "--to", "chrome", "-o", "x"], "--to chrome: expected perfetto"),
    ],
)
def test_a_wrong_request_is_one_line(files: Path, words: list[str], message: str) -> None:
    done = in_process.parshall("path", *words, cwd=files)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and message in done.stderr
    assert not (files / "x").exists()
