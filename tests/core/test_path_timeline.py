"""Joins of path logs with TCP logs and captures that were written for the purpose."""

import json
import struct

import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_log import COLUMNS, NAMES, batch_of, flow_row, write_log
from written_path_log import (
    BEGIN_NS,
    CLIENT,
    HOST,
    SERVER,
    frame_of,
    packet,
    pcap_of,
    pcapng_of,
    read_of,
    write_path_log,
)

import in_process
import parshall
from parshall.errors import ParshallError, UsageError
from parshall.instruments.path import PathLog, Trace, join, tcp_records
from parshall.instruments.path.comments import write_commented
from parshall.instruments.path.connections import connections
from parshall.instruments.path.trace import is_trace

COOKIE = 4242
UNKNOWN = "of an unknown kind; expected a path log, a TCP log, pcapng or pcap"
BACK = (SERVER, CLIENT)


def record(at_us, direction, seq, payload_bytes, event="packet", **changes):
    """Return a row of the client's TCP log."""
    row = dict.fromkeys(COLUMNS, 0) | {name: names[0] for name, names in NAMES.items()}
    row |= {"time_ns": BEGIN_NS + round(at_us * 1000), "flow": 1, "direction": direction, "event": event}
    row |= {"state": "ESTABLISHED", "cwnd_segments": 10, "srtt_us": 500, "pkt_seq": seq, "pkt_ack": 1, "gso_segs": 1}
    row |= dict.fromkeys(("app_limited", "reordering_seen", "can_undo", "original_acked"), False)
    return row | {"payload_bytes": payload_bytes} | changes


@pytest.fixture
def joined(tmp_path):
    """Write files and join them."""

    def make(rows, records=None, frames=None, capture=pcapng_of, flow=None):
        write_path_log(tmp_path / "path.arrow", rows)
        tcp = trace = None
        if records is not None:
            columns = {name: [row[name] for row in records] for name in COLUMNS}
            ends = {"local_address": CLIENT[0], "local_port": CLIENT[1], "remote_address": SERVER[0]}
            ends |= {"remote_port": SERVER[1], "netns_inode": HOST, "socket_cookie": COOKIE}
            write_log(tmp_path / "tcp.arrow", [batch_of(columns)], [flow_row(1, **(ends | (flow or {})))])
            tcp = parshall.read(tmp_path / "tcp.arrow")
        if frames is not None:
            (tmp_path / "capture").write_bytes(capture(frames))
            trace = Trace(tmp_path / "capture")
        return pl.from_arrow(join(PathLog(tmp_path / "path.arrow"), tcp, trace))

    return make


def test_a_segment_has_its_record_its_packet_and_its_state(joined):
    rows = [packet(0, "sent", "local_out", 100, 50, socket_out_ns=1000, start_xmit_ns=5000, whole_ns=5000)]
    table = joined(rows, [record(1, "out", 100, 50, cwnd_segments=23)], [(5, frame_of(100, 50))])
    (row,) = table.to_dicts()
    assert (row["tcp_match"], row["capture_match"], row["read_match"]) == ("exact", "exact", "none")
    assert (row["cwnd_segments"], row["flow"], row["capture_packets"]) == (23, 1, [1])
    assert row["is_retransmission"] is False and row["cause"] is None


def test_clocks_of_both_logs_are_brought_together(joined, tmp_path):
    write_path_log(tmp_path / "path.arrow", [packet(0, "sent", "local_out", 100, 50)], offset_ns=10**9)
    columns = {name: [value] for name, value in record(-1e6, "out", 100, 50).items()}
    ends = {"local_address": CLIENT[0], "local_port": CLIENT[1], "remote_address": SERVER[0]}
    write_log(tmp_path / "tcp.arrow", [batch_of(columns)], [flow_row(1, netns_inode=HOST, **ends)])
    table = join(PathLog(tmp_path / "path.arrow"), parshall.read(tmp_path / "tcp.arrow"))
    # The second between the two is the step of the wall clock that the logs' offsets show.
    assert table["tcp_match"].to_pylist() == ["exact"]


def test_the_nearest_of_several_is_marked(joined):
    rows = [packet(at_us, "sent", "local_out", 100, 0, whole_ns=2000) for at_us in (0, 1000, 2000)]
    records = [record(at_us + 1, "out", 100, 0, cwnd_segments=at_us) for at_us in (0, 1000, 2000)]
    table = joined(rows, records, [(at_us + 1, frame_of(100, 0)) for at_us in (0, 1000, 2000)])
    assert table["tcp_match"].to_list() == ["nearest"] * 3
    assert table["cwnd_segments"].to_list() == [0, 1000, 2000]
    assert table["capture_match"].to_list() == ["nearest"] * 3
    assert table["capture_packets"].to_list() == [[1], [2], [3]]


def test_a_record_belongs_to_one_row_only(joined):
    rows = [packet(at_us, "sent", "local_out", 100, 0) for at_us in (0, 1000)]
    table = joined(rows, [record(999, "out", 100, 0)])
    assert table["tcp_match"].to_list() == ["none", "nearest"]


def test_what_is_too_far_away_does_not_match(joined):
    table = joined(
        [packet(0, "sent", "local_out", 100, 50)], [record(50_000, "out", 100, 50)], [(50_000, frame_of(100, 50))]
    )
    assert (table["tcp_match"][0], table["capture_match"][0]) == ("none", "none")


def test_another_host_with_the_same_ends_has_no_record(joined):
    rows = [packet(0, "sent", "local_out", 100, 50, netns_inode=HOST + 1)]
    assert joined(rows, [record(0, "out", 100, 50)])["tcp_match"].to_list() == ["none"]


def test_segments_of_a_large_packet_are_its_packets(joined):
    rows = [packet(0, "sent", "local_out", 100, 3000, gso_segs=3, whole_ns=9000)]
    frames = [(2, frame_of(100, 1000)), (3, frame_of(1100, 1000)), (4, frame_of(2100, 1000)), (5, frame_of(3100, 1000))]
    table = joined(rows, [record(0, "out", 100, 3000)], frames)
    assert table["capture_packets"].to_list() == [[1, 2, 3]]
    assert table["capture_match"].to_list() == ["exact"]


def test_segments_that_gso_cut_are_not_sent_again(joined):
    """Each has a row of its own, with the beginning of the large packet; a loss sends one of them again."""
    rows = [packet(0, "segmented", "local_out", 100, 3000, gso_segs=3, whole_ns=9000)]
    rows += [packet(0, "sent", "local_out", 100 + at * 1000, 1000, whole_ns=9500) for at in range(3)]
    rows += [packet(900, "segmented", "local_out", 1100, 2000, gso_segs=2)]
    rows += [packet(900, "sent", "local_out", 1100 + at * 1000, 1000) for at in range(2)]
    records = [
        record(0, "out", 100, 3000, flow_seq=1, snd_nxt=100),
        record(900, "out", 1100, 2000, flow_seq=2, snd_nxt=3100),
    ]
    table = joined(rows, records)
    assert table["tcp_match"].to_list() == ["nearest", *["none"] * 3, "nearest", "none", "none"]
    assert table["sent_row"].to_list() == [None, 0, 0, 0, None, 4, 4]
    assert table["is_retransmission"].to_list() == [False] * 4 + [True] * 3
    (one,) = connections(table.to_arrow())
    assert (one["retransmissions"], one["spurious"]) == (1, 0)


def test_a_record_after_gro_is_larger_than_the_row(joined):
    ends = {"ends": BACK}
    rows = [
        packet(0, "delivered", "gro", 100, 1000, socket_in_ns=3000, **ends),
        packet(0.5, "merged", "gro", 1100, 1000, **ends),
    ]
    table = joined(rows, [record(3, "in", 100, 2000)])
    assert table["tcp_match"].to_list() == ["exact", "none"]
    assert table["tcp_payload_bytes"].to_list() == [2000, None]


def test_a_drop_and_its_retransmission_are_linked(joined):
    router = {"netns_inode": 200}
    dropped = {"drop_ns": 3000, "whole_ns": 3000, "receive_ns": 1000, "drop_reason": 8}
    rows = [
        packet(0, "sent", "local_out", 100, 50),
        packet(2, "dropped", "netif_rx", 100, 50, **router, **dropped),
        packet(3, "sent", "local_out", 150, 50),
        packet(4, "forwarded", "netif_rx", 150, 50, **router),
        packet(900, "sent", "local_out", 100, 50),
        packet(902, "forwarded", "netif_rx", 100, 50, **router),
        # Sent again without need: the bytes arrived.
        packet(1900, "sent", "local_out", 150, 50),
    ]
    sent = [(0, 100), (3, 150), (900, 100), (1900, 150)]
    records = [record(at_us, "out", seq, 50) for at_us, seq in sent]
    records += [record(at_us + 1, "none", seq, 50, "retransmit") for at_us, seq in sent[2:]]
    table = joined(rows, records)
    assert table["sent_row"].to_list() == [None, 0, None, 2, None, 4, None]
    assert table["place"].to_list() == [None, "receive", *[None] * 5]
    assert table["sent_again_row"].to_list() == [None, 4, *[None] * 5]
    assert table["sent_again_ns"][1] == 895_000
    assert table["lost_row"].to_list() == [None, None, None, None, 1, 1, None]
    assert table["is_retransmission"].to_list() == [False, False, False, False, True, True, True]
    assert table["cause"].to_list() == [None, None, None, None, "unknown", "unknown", "unknown"]
    (one,) = connections(table.to_arrow())
    assert (one["retransmissions"], one["lost"], one["causes"]) == (2, 1, {"unknown": 2})
    assert one["drops"] == [
        {"netns_inode": 200, "place": "receive", "reason": "NETFILTER_DROP", "packets": 1, "sent_again": 1}
    ]


def sent_three_times(log_sent, log_events, events_dropped=0, joined=None):
    """Join a segment that is dropped in this host, sent again, and sent once more, with a log of some of it."""
    rows = [
        packet(0, "dropped", "local_out", 100, 50, drop_ns=1000, whole_ns=1000, drop_reason=8),
        packet(2, "sent", "local_out", 150, 50),
        packet(900, "sent", "local_out", 100, 50),
        packet(1900, "sent", "local_out", 150, 50),
    ]
    sent = [(0, 100), (2, 150), (900, 100), (1900, 150)]
    records = [record(*sent[at][:1], "out", sent[at][1], 50, flow_seq=at + 1) for at in log_sent]
    records += [record(sent[at][0] + 1, "none", sent[at][1], 50, "retransmit", flow_seq=at + 1) for at in log_events]
    return joined(rows, records, flow={"events_dropped": events_dropped})


@pytest.mark.parametrize("log_events", [[2, 3], []])
def test_a_retransmission_without_record_repairs_its_drop(joined, log_events):
    """A log that takes every n-th packet has all events, and one that lost records may lack these, too."""
    table = sent_three_times([0, 1], log_events, events_dropped=2 - len(log_events), joined=joined)
    assert table["tcp_match"].to_list() == ["nearest", "nearest", "none", "none"]
    assert table["is_retransmission"].to_list() == [False, False, True, True]
    assert table["cause"].to_list() == [None, None, "unknown", "unknown"]
    assert table["sent_again_row"].to_list() == [2, None, None, None]
    assert table["lost_row"].to_list() == [None, None, 0, None]
    (one,) = connections(table.to_arrow())
    assert (one["retransmissions"], one["lost"], one["causes"]) == (2, 1, {"unknown": 2})


def test_data_in_front_of_the_next_byte_to_send_was_sent_before(joined):
    """Also where the log lost the event; of a packet without data only the event says so."""
    rows = [packet(0, "sent", "local_out", 1000, 50), packet(5, "sent", "local_out", 9000, 0)]
    rows += [packet(9, "sent", "local_out", 9000, 50), packet(900, "sent", "local_out", 2**32 - 50, 50)]
    records = [record(0, "out", 1000, 50, snd_nxt=9000), record(5, "out", 9000, 0, snd_nxt=9000)]
    # The next byte wraps.
    records += [record(9, "out", 9000, 50, snd_nxt=9000), record(900, "out", 2**32 - 50, 50, snd_nxt=0)]
    # This log has no account of retransmissions.
    assert joined(rows, records)["is_retransmission"].to_list() == [True, None, False, True]


def test_a_flow_has_all_events_where_no_account_misses_one():
    lost = dict.fromkeys(("events_dropped", "events_overwritten", "events_unwritten", "retransmits_lost"), 0)
    flows = [lost, lost | {"events_overwritten": 1}, lost | {"retransmits_lost": 2}, lost | {"retransmits_lost": None}]
    found = pl.DataFrame(flows).select(tcp_records.has_all_events()).to_series().to_list()
    assert found == [True, False, False, None]


@pytest.mark.parametrize("each_us", [3, 2_000_000])
def test_numbers_that_wrap_are_no_copies(joined, each_us):
    """Three gigabytes apart, and more: the same numbers come again, but the bytes are others."""
    step = 1_500_000_000
    rows = [packet(at * each_us, "sent", "local_out", at * step % 2**32, 60_000) for at in range(12)]
    table = joined(rows, [record(0, "out", 0, 60_000)])
    assert table["tcp_match"].to_list() == ["exact"] + ["none"] * 11
    assert table["is_retransmission"].to_list() == [False] + [None] * 11
    again = [*rows, packet(12 * each_us, "sent", "local_out", 11 * step % 2**32, 60_000)]
    found = joined(again, [record(0, "out", 0, 60_000)])["is_retransmission"].to_list()
    # Behind a long time in which nothing was seen it is not known.
    assert found == [False, *[None] * 11, True if each_us == 3 else None]


def test_an_event_is_not_of_a_packet_before_one_that_was_not_logged(joined):
    """The retransmission came a millisecond after the original and was thinned: its event is not of the original."""
    rows = [packet(0, "sent", "local_out", 100, 50), packet(1000, "sent", "local_out", 100, 50)]
    records = [record(0, "out", 100, 50, flow_seq=1), record(1001, "none", 100, 50, "retransmit", flow_seq=2)]
    table = joined(rows, records)
    assert table["is_retransmission"].to_list() == [False, True]
    # An ACK that came meanwhile is in the log, so that no packet is missing between the two.
    records = [record(0, "out", 100, 50, flow_seq=1), record(1000, "out", 100, 50, flow_seq=2)]
    records += [record(1000.5, "in", 7, 0, flow_seq=3), record(1001, "none", 100, 50, "retransmit", flow_seq=3)]
    assert joined(rows, records)["is_retransmission"].to_list() == [False, True]


def test_connections_that_had_the_same_ends_have_readers_of_their_own(tmp_path):
    """One after the other, as a client with a fixed port or a busy proxy makes them."""
    ends = {"local_address": CLIENT[0], "local_port": CLIENT[1], "remote_address": SERVER[0]}
    ends |= {"remote_port": SERVER[1], "netns_inode": HOST}
    rows, flows, records = [], [], []
    for number in range(20):
        begin_us = number * 1e6
        came = packet(begin_us, "delivered", "netif_rx", 1000 * number, 50, ends=BACK, data_ready_ns=500)
        reader = {"pid": 500 + number, "command": f"c{number}"}
        rows += [came, read_of(begin_us + 1, begin_us + 11, 50, 100 + number, **reader)]
        times = {"first_time_ns": BEGIN_NS + number * 10**9, "last_time_ns": BEGIN_NS + number * 10**9 + 900_000}
        flows.append(flow_row(number + 1, **ends, **times, socket_cookie=100 + number, ended=True))
        records.append(record(begin_us, "in", 1000 * number, 50, flow=number + 1))
    write_path_log(tmp_path / "path.arrow", rows)
    columns = {name: [row[name] for row in records] for name in COLUMNS}
    write_log(tmp_path / "tcp.arrow", [batch_of(columns)], flows)
    logs = PathLog(tmp_path / "path.arrow"), parshall.read(tmp_path / "tcp.arrow")
    for log in (logs[1], None):
        # Without a TCP log, sockets are known by what they sent; here nothing.
        table = pl.from_arrow(join(logs[0], log))
        expected = [f"c{number}" for number in range(20)] if log else [None] * 20
        assert table["command"].to_list() == expected
        assert table["wait_ns"].to_list() == ([10_500] * 20 if log else [None] * 20)


@pytest.mark.parametrize("step_ns", [1000, 10**9])
def test_a_series_whose_clock_was_set_between_is_refused(tmp_path, step_ns):
    """The times of its first file would be taken for all."""
    write_path_log(tmp_path / "path.arrow", [packet(0, "sent", "local_out", 100, 50)])
    columns = {name: [value] for name, value in record(0, "out", 100, 50).items()}
    ends = {"local_address": CLIENT[0], "local_port": CLIENT[1], "remote_address": SERVER[0]}
    for number in (1, 2):
        part = {"run": f"run {number}", "number": 1, "began_ns": BEGIN_NS + number}
        offset_ns = step_ns * (number - 1)
        write_log(
            tmp_path / f"log.00000{number}.arrow", [batch_of(columns)], [flow_row(1, netns_inode=HOST, **ends)],
            part=part, monotonic_offset_ns=offset_ns,
        )  # fmt: skip
    logs = PathLog(tmp_path / "path.arrow"), parshall.read(tmp_path / "log.arrow")
    if step_ns == 1000:
        assert join(*logs).num_rows == 1
    else:
        with pytest.raises(
            UsageError, match=r"log\.arrow: between its first file and log\.000002\.arrow the clock was set"
        ):
            join(*logs)


def test_a_summary_says_what_its_logs_lack_and_what_is_not_known(joined, tmp_path):
    rows = [packet(0, "sent", "local_out", 100, 50), packet(900, "sent", "local_out", 100, 50)]
    records = [record(0, "out", 100, 50), record(900, "out", 100, 50, snd_nxt=150)]
    joined(rows, records)
    files = (tmp_path / "path.arrow", tmp_path / "tcp.arrow")
    done = in_process.parshall("path", "--join", *files)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "  retransmissions: 1 (1 unknown), 0 for a drop seen here, 0 spurious, 1 not known" in lines
    assert lines[-2] == f"{files[0]}: seen 2 = filtered 0 + thinned 0 + logged 2 + lost 0"
    assert lines[-1] == f"{files[1]}: no ledger: it ended within its first second"
    found = json.loads(in_process.parshall("path", "--join", *files, "--json").stdout)
    assert found["ledgers"]["path"]["hooks"][0]["logged"] == 2 and not found["ledgers"]["tcp"]["hooks"]


@pytest.mark.parametrize("has_records", [True, False])
def test_what_was_sent_again_before_the_drop_was_not_sent_for_it(joined, has_records):
    """A segment waits in a backlog and is dropped there, when a copy of it was sent already."""
    receiver = {"netns_inode": 200}
    rows = [
        packet(0, "sent", "local_out", 100, 50),
        packet(2, "dropped", "receive", 100, 50, drop_ns=800_000, whole_ns=800_000, drop_reason=8, **receiver),
        packet(500, "sent", "local_out", 100, 50),
        packet(502, "forwarded", "receive", 100, 50, **receiver),
        packet(900, "sent", "local_out", 100, 50),
        packet(902, "forwarded", "receive", 100, 50, **receiver),
    ]
    records = [record(at_us, "out", 100, 50) for at_us in (0, 500, 900)]
    records += [record(at_us + 1, "none", 100, 50, "retransmit") for at_us in (500, 900)]
    table = joined(rows, records if has_records else None)
    again = 4 if has_records else 5
    assert table["sent_again_row"].to_list() == [None, again, *[None] * 4]
    assert table["sent_again_ns"][1] == (98_000 if has_records else 100_000)
    # The copy that came first is none that this drop made necessary.
    assert table["lost_row"].to_list() == ([None, None, None, None, 1, 1] if has_records else [None] * 6)


def test_connections_of_equal_ends_in_other_namespaces_are_others(joined):
    """A sender and a router have segments in common; two containers with equal addresses have none."""
    rows = [
        packet(0, "sent", "local_out", 100, 50),
        packet(1, "forwarded", "netif_rx", 100, 50, netns_inode=200),
        packet(2, "sent", "local_out", 150, 50),
        packet(3, "sent", "local_out", 7000, 50, netns_inode=300),
        packet(4, "forwarded", "netif_rx", 7000, 50, netns_inode=400),
        packet(5, "delivered", "netif_rx", 7000, 50, netns_inode=500),
    ]
    found = connections(joined(rows).to_arrow())
    assert [(one["netns_inodes"], sum(one["paths"].values())) for one in found] == [
        ([HOST, 200] if HOST < 200 else [200, HOST], 3),
        ([300, 400, 500], 3),
    ]
    assert found[0]["connection"] == found[1]["connection"]


def test_each_part_of_a_large_packet_that_was_dropped_is_linked(joined):
    rows = [
        packet(0, "dropped", "local_out", 100, 200, drop_ns=10, drop_reason=8, gso_segs=2),
        packet(500, "sent", "local_out", 100, 100),
        packet(600, "sent", "local_out", 200, 100),
    ]
    records = [record(0, "out", 100, 200), record(500, "out", 100, 100), record(600, "out", 200, 100)]
    records += [record(501, "none", 100, 100, "retransmit"), record(601, "none", 200, 100, "retransmit")]
    table = joined(rows, records)
    assert table["lost_row"].to_list() == [None, 0, 0]
    assert table["sent_again_row"].to_list() == [1, None, None]


def test_without_a_tcp_log_a_drop_has_the_next_copy_at_its_place(joined):
    rows = [
        packet(0, "dropped", "netif_rx", 100, 50, drop_ns=1000, drop_reason=8),
        packet(900, "forwarded", "netif_rx", 100, 50),
    ]
    table = joined(rows)
    assert table["sent_again_row"].to_list() == [1, None]
    assert table["is_retransmission"].to_list() == [None, None]


def test_sequence_numbers_wrap(joined):
    seq = (1 << 32) - 1000
    rows = [packet(0, "sent", "local_out", seq, 2000, whole_ns=5000), packet(10, "sent", "local_out", 1000, 50)]
    table = joined(rows, [record(0, "out", seq, 2000), record(10, "out", 1000, 50)], [(1, frame_of(seq, 1000))])
    assert table["tcp_match"].to_list() == ["exact", "exact"]
    assert table["capture_packets"].to_list() == [[1], None]


def test_the_read_that_copied_a_packet_is_its_read(joined):
    def delivered(at_us, seq, **more):
        return packet(at_us, "delivered", "netif_rx", seq, 50, ends=BACK, **more)

    rows = [
        delivered(0, 100, data_ready_ns=1000, copy_ns=20_000),
        # Behind a gap: ready when the next row closes it.
        delivered(2, 200, copy_ns=80_000),
        delivered(50, 150, data_ready_ns=1000, copy_ns=29_000),
        # Read by a call that no data became ready for.
        delivered(200, 250, data_ready_ns=1000, copy_ns=900_000),
        # Merged into another skb: only the time is known.
        delivered(2000, 300, data_ready_ns=1000),
        read_of(1, 22, 50, COOKIE, waking_ns=500, running_ns=9000),
        read_of(51, 83, 100, COOKIE),
        read_of(1500, 1501, 10, COOKIE),
        read_of(2001, 2040, 60, COOKIE),
        read_of(0, 1, 1, COOKIE + 1),
    ]
    table = joined(rows, [])
    assert table["read_match"].to_list() == ["exact", "exact", "exact", "none", "nearest"]
    assert table["wait_ns"].to_list() == [21_000, 32_000, 32_000, None, 39_000]
    assert table["running_ns"].to_list()[0] == 9000
    assert set(table["command"].to_list()) == {"reader", None}


def test_without_a_tcp_log_the_socket_is_that_which_sent(joined):
    rows = [
        packet(0, "sent", "local_out", 1, 0, socket_cookie=COOKIE),
        packet(5, "delivered", "netif_rx", 100, 50, ends=BACK, data_ready_ns=1000),
        read_of(6, 8, 50, COOKIE),
    ]
    table = joined(rows)
    assert table["read_match"].to_list() == ["none", "exact"]


@pytest.mark.parametrize("rows", [[], [packet(0, "sent", "local_out", 1, 1, protocol=17, tcp_seq=None, tcp_ack=None)]])
def test_nothing_to_join_gives_the_same_columns(joined, rows):
    full = joined([packet(0, "sent", "local_out", 100, 50)], [record(0, "out", 100, 50)], [(0, frame_of(100, 50))])
    for records, frames in ((None, None), ([], []), ([record(0, "out", 1, 1)], [(0, frame_of(1, 1))])):
        table = joined(rows, records, frames)
        assert table.height == len(rows)
        assert table.schema == full.schema
        assert connections(table.to_arrow()) == []


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("capture", [pcap_of, pcapng_of])
def test_captures_of_both_byte_orders(tmp_path, capture, order):
    six = (("2001:db8::1", 1), ("2001:db8::2", 2))
    frames = [
        (1, frame_of(7, 9)),
        (2, frame_of(8, 0, vlan=True)),
        (3, frame_of(9, 5, 3, six)),
        (4, bytes(60)),
        (5, b""),
    ]
    (tmp_path / "capture").write_bytes(capture(frames, order))
    found = list(Trace(tmp_path / "capture").segments())
    assert [(one.packet, one.seq, one.payload_bytes) for one in found] == [(1, 7, 9), (2, 8, 0), (3, 9, 5)]
    assert [one.time_ns for one in found] == [BEGIN_NS + 1000, BEGIN_NS + 2000, BEGIN_NS + 3000]
    assert (found[2].source, found[2].destination_port, found[2].ack) == ("2001:db8::1", 2, 3)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_captures(tmp_path, compression):
    frames, path = [(number, frame_of(100 * number, 9)) for number in range(1, 2000)], tmp_path / "capture"
    with pa.output_stream(str(path), compression=compression) as file:
        file.write(pcapng_of(frames))
    assert is_trace(path)
    assert [one.seq for one in Trace(path).segments()] == [100 * number for number, _ in frames]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ParshallError, match="damaged") as error:
        list(Trace(path).segments())
    assert len(str(error.value).splitlines()) == 1


@given(st.data())
def test_damaged_captures_give_packets_or_one_error(tmp_path_factory, data):
    good = data.draw(st.sampled_from([pcap_of, pcapng_of]))([(1, frame_of(7, 9)), (2, frame_of(8, 0))])
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(4, len(good) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(4, len(good)))]))
    try:
        assert len(list(Trace(path).segments())) <= 2
    except ParshallError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("capture", [pcap_of, pcapng_of])
@pytest.mark.parametrize("order", ["<", ">"])
def test_comments_leave_packets_as_they_are(tmp_path, capture, order):
    frames = [(1, frame_of(100, 50)), (2, frame_of(900, 3))]
    options = {"options": struct.pack(order + "HH4sHH", 2, 4, bytes(4), 0, 0)} if capture is pcapng_of else {}
    (tmp_path / "capture").write_bytes(capture(frames, order, **options))
    write_path_log(
        tmp_path / "path.arrow", [packet(0, "sent", "local_out", 100, 50, start_xmit_ns=1000, whole_ns=1000)]
    )
    trace = Trace(tmp_path / "capture")
    timeline = join(PathLog(tmp_path / "path.arrow"), None, trace)
    assert write_commented(trace, timeline, tmp_path / "out.pcapng") == 1
    made = list(Trace(tmp_path / "out.pcapng").blocks())
    packets = [(block.time_ns, block.data) for block in made if block.data is not None]
    assert packets == [(BEGIN_NS + round(at_us * 1000), frame) for at_us, frame in frames]
    assert sum(b"sent in netns 100 (exact)" in block.body for block in made) == 1
    again = list(Trace(tmp_path / "out.pcapng").segments())
    assert again == list(trace.segments())


@pytest.fixture
def files(tmp_path):
    """Write one file of each kind."""
    write_path_log(tmp_path / "path.arrow", [packet(0, "sent", "local_out", 100, 50)])
    columns = {name: [value] for name, value in record(0, "out", 100, 50).items()}
    write_log(tmp_path / "tcp.arrow", [batch_of(columns)], [flow_row(1)])
    (tmp_path / "capture.pcap").write_bytes(pcap_of([(0, frame_of(100, 50))]))
    (tmp_path / "text").write_text("no log")
    with (tmp_path / "other.arrow").open("wb") as file, pa.ipc.new_stream(file, pa.schema([("a", pa.int8())])):
        pass
    return tmp_path


def test_a_file_that_has_none_of_the_packets_is_named(files):
    (files / "later.pcap").write_bytes(pcap_of([(0, frame_of(900_000, 50))]))
    done = run(files, "--join", "path.arrow", "capture.pcap", "-o", "out.arrow")
    assert done.returncode == 0 and "has none of" not in done.stderr
    done = run(files, "--join", "path.arrow", "tcp.arrow", "later.pcap", "-o", "out.arrow")
    assert done.returncode == 0
    for name in ("tcp.arrow", "later.pcap"):
        assert (
            f"--join {name}: has none of the 1 packet; is it of the same time, host and network namespace"
            in done.stderr
        )


def run(directory, *arguments):
    """Run the command in a directory."""
    return in_process.parshall("path", *arguments, cwd=directory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--join", "missing"], "--join missing: No such file or directory; name a file that can be read"),
        (["--join", "text"], "--join text: of an unknown kind; expected a path log, a TCP log, pcapng or pcap"),
        (
            ["--join", "other.arrow"],
            "--join other.arrow: of an unknown kind; expected a path log, a TCP log, pcapng or pcap",
        ),
        (
            ["--join", "tcp.arrow"],
            "--join tcp.arrow: no path log among the files; make one with: parshall path -o FILE",
        ),
        (
            ["--join", "path.arrow", "path.arrow"],
            "--join path.arrow: a second path log beside path.arrow; leave out one of them",
        ),
        (
            ["--join", "path.arrow", "-o", "x.txt"],
            "-o x.txt: with --join, expected a name that ends in .arrow, .parquet, .pcapng or .pftrace",
        ),
        (
            ["--join", "path.arrow", "-o", "x.pcapng"],
            "-o x.pcapng: no capture to comment; give a pcapng or pcap file with --join, too",
        ),
        (
            ["--join", "path.arrow", "-o", "path.arrow"],
            "path.arrow: is also an input, and would be replaced; name another output",
        ),
        (["--join", "path.arrow", "--reads"], "--reads: does not go with --join, which measures nothing; leave it out"),
        (["path.arrow"], "path.arrow: an argument; to join files, give --join"),
        (["--tcp-log", "t"], "--tcp-log t: joins a log of packets; name one with -o FILE"),
        (["-o", "p", "--tcp-log", "-"], "--tcp-log -: is read again at the end; name a file"),
        (["-o", "p", "--capture", "c.pcapng"], "--capture c.pcapng: no interface; name one with -i"),
        (
            ["-o", "p", "-i", "lo", "--capture", "c.pcapng.zst"],
            "--capture c.pcapng.zst: expected a name that ends in .pcapng or .pcap",
        ),
    ],
)
def test_wrong_files_and_options_get_one_line(files, arguments, message):
    done = run(files, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"parshall: path: {message}\n")
    assert not (files / "x.pcapng").exists()


def test_outputs_of_the_command(files):
    inputs = ["--join", "tcp.arrow", "capture.pcap", "path.arrow"]
    for name in ("out.arrow", "out.parquet", "out.pcapng"):
        done = run(files, *inputs, "-o", name)
        assert done.returncode == 0, done.stderr
    with (files / "out.arrow").open("rb") as file:
        table = pa.ipc.open_stream(file).read_all()
    assert table.num_rows == 1 and pyarrow.parquet.read_table(files / "out.parquet").num_rows == 1
    assert list(Trace(files / "out.pcapng").segments()) == list(Trace(files / "capture.pcap").segments())
    done = run(files, *inputs)
    assert done.stdout.startswith(f"10.0.0.1:5001 > 10.0.0.2:80 tcp, netns {HOST}\n  skbs: 1 sent\n")
