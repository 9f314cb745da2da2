"""Timelines of packets, held against losses that are scripted, tcpdump, tshark and a reader's own clock."""

import json
import socket
import statistics
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

import polars as pl
import pytest
from conversation import Tcpdump, connection, send_marker, socket_at, transfer
from ports import PORTS
from tcp_flow_table import unacknowledged_of

import in_process
import parshall
from parshall.instruments.capture import Capture, Output, Ring
from parshall.instruments.path import PathLog, PathProfile, Trace, join
from parshall.instruments.tcp import TcpLog

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
PARSHALL = [sys.executable, "-m", "parshall"]
PORT = next(PORTS)
# Without netfilter, whose hooks are those of one namespace: these packets pass three. And no more than is judged, for
# the kernel verifies a program for each stage, which takes seconds for all of them.
STAGES = ["netif_rx", "receive", "socket_in", "tcp_receive", "data_ready"]
STAGES += ["queue", "qdisc_enqueue", "qdisc_dequeue", "start_xmit", "drop"]


@contextmanager
def followed(tmp_path, router):
    """Follow the packets of a connection on all three hosts, log its TCP, capture at the router's inner edge."""
    with ExitStack() as stack:
        ring = Ring(router.in_if, netns=router.router.namespace)
        stack.enter_context(Capture([Output(tmp_path / "capture.pcapng", "tcp")], ring))
        stack.enter_context(TcpLog(tmp_path / "tcp.arrow", port=PORT))
        options = {"stages": STAGES, "reads": True, "filter": f"tcp port {PORT}", "packets_max": 1 << 18}
        profile = PathProfile(tmp_path / "path.arrow", **options)
        yield stack.enter_context(profile)


def timeline_of(tmp_path):
    """Join what `followed` wrote."""
    files = PathLog(tmp_path / "path.arrow"), parshall.read(tmp_path / "tcp.arrow"), Trace(tmp_path / "capture.pcapng")
    return pl.from_arrow(join(*files))


def toward_sink(table):
    """Return the data of the transfer."""
    return table.filter((pl.col("destination_port") == PORT) & (pl.col("payload_bytes") > 0))


def seen_at_edges(router, tmp_path, until, run):
    """Return the segments with data that tcpdump saw before the router, and those behind it."""
    taps = [
        Tcpdump(router.router, interface, PORT, tmp_path / f"{interface}.pcap")
        for interface in (router.in_if, router.out_if)
    ]
    run()
    send_marker(router.source, str(router.sink_address), PORT)
    return [
        [packet for packet in tap.stop(until) if packet.payload_bytes and packet.source_port != PORT] for tap in taps
    ]


def dropped_between(before, behind):
    """Return how often each segment was seen before the router and not behind it."""
    return Counter(packet.seq for packet in before) - Counter(packet.seq for packet in behind)


def times_of_single(packets):
    """Return the time in seconds of each segment that was seen once, by its sequence number."""
    seen = Counter(packet.seq for packet in packets)
    return {packet.seq: packet.time_s for packet in packets if seen[packet.seq] == 1}


def transferred(router, payload_bytes):
    """Transfer data from source to sink; segments leave one by one, so that each skb is one."""
    for host, interface in ((router.source, router.source_if), (router.router, router.in_if)):
        host.run(["ip", "link", "set", interface, "gso_max_segs", "1"])
    with connection(router.source, router.sink, str(router.sink_address), PORT) as (active, passive):
        transfer(active, passive, payload_bytes)


def check_losses(table, edges, reason, places):
    """Fail unless the drops are those of the witness, and each retransmission repairs one of them; return the drops."""
    witness = dropped_between(*edges)
    data = toward_sink(table)
    lost = data.filter(pl.col("drop_reason").is_in(reason))
    found = Counter(lost["tcp_seq"].to_list())
    assert found == witness
    assert witness
    assert set(lost["place"]) <= places
    rows = {row["row"]: row for row in data.to_dicts()}
    for row in lost.to_dicts():
        if row["sent_again_row"] is None:
            # On a busy machine a segment may be sent again although it arrives, and this copy be dropped.
            arrived_s = [packet.time_s for packet in edges[1] if packet.seq == row["tcp_seq"]]
            assert arrived_s and arrived_s[0] < row["time"].timestamp(), (row, arrived_s)
            continue
        again = rows[row["sent_again_row"]]
        assert again["is_retransmission"] and again["first_stage"] != "start_xmit"
        assert again["tcp_seq"] <= row["tcp_seq"] < again["tcp_seq"] + again["payload_bytes"]
        assert again["time"] > row["time"] and row["sent_again_ns"] > 0
    again = data.filter(pl.col("is_retransmission") & (pl.col("tcp_match") != "none"))
    again = again.filter(pl.col("tcp_seq").is_in(list(witness)) & pl.col("lost_row").is_not_null())
    assert set(again["tcp_seq"]) == set(lost.drop_nulls("sent_again_row")["tcp_seq"])
    for row in again.to_dicts():
        copy = rows[row["lost_row"]]
        assert copy["drop_reason"] in reason and copy["time"] < row["time"]
        assert copy["tcp_seq"] == row["tcp_seq"]
    return witness


def drop_every(router, number):
    """Let the router drop every so many-th data segment."""
    rule = (
        "add table ip t; add chain ip t f { type filter hook forward priority 0; }; "
        f"add rule ip t f tcp dport {PORT} ip length > 1000 numgen inc mod {number} == {number // 3} counter drop"
    )
    done = router.router.run(["nft", rule], check=False)
    assert done.returncode == 0, done.stderr


def test_each_retransmission_has_the_copy_that_a_firewall_dropped(router, tmp_path, until):
    drop_every(router, 40)
    with followed(tmp_path, router):
        edges = seen_at_edges(router, tmp_path, until, lambda: transferred(router, 1_000_000))
    table = timeline_of(tmp_path)
    witness = check_losses(table, edges, {"NETFILTER_DROP"}, {"receive"})
    text = router.router.run(["nft", "-j", "list", "table", "ip", "t"]).stdout
    counters = [
        part["counter"]["packets"]
        for entry in json.loads(text)["nftables"]
        for part in entry.get("rule", {}).get("expr", [])
        if "counter" in part
    ]
    assert counters == [witness.total()]
    data = toward_sink(table)
    assert data.filter(pl.col("path") == "forwarded")["capture_match"].to_list().count("none") == 0
    logged = data.filter(pl.col("is_retransmission") & (pl.col("tcp_match") != "none"))
    records = pl.from_arrow(parshall.read(tmp_path / "tcp.arrow").records)
    sent = logged.filter(pl.col("sent_row").is_null())
    assert sent.height == records.filter(pl.col("event").cast(pl.String) == "retransmit").height
    judged = parshall.read(tmp_path / "tcp.arrow").retransmissions
    assert Counter(sent["cause"].to_list()) == Counter(cause or "unknown" for cause in judged["cause"].to_pylist())
    assert set(sent["cause"].to_list()) & {"rack", "fast"}


def test_each_retransmission_has_the_copy_that_a_full_queue_dropped(router, tmp_path, until):
    rate = ["rate", "40mbit", "burst", "3200", "limit", "12000"]
    done = router.router.run(["tc", "qdisc", "replace", "dev", router.out_if, "root", "tbf", *rate], check=False)
    assert done.returncode == 0, done.stderr
    with followed(tmp_path, router):
        edges = seen_at_edges(router, tmp_path, until, lambda: transferred(router, 1_000_000))
    table = timeline_of(tmp_path)
    reasons = {"QDISC_DROP", "QDISC_OVERLIMIT", "QDISC_CONGESTED"}
    witness = check_losses(table, edges, reasons, {"queue", "qdisc_enqueue"})
    text = router.router.run(["tc", "-s", "-j", "qdisc", "show", "dev", router.out_if]).stdout
    assert json.loads(text)[0]["drops"] == witness.total()
    queued = toward_sink(table).filter((pl.col("path") == "forwarded") & pl.col("qdisc_dequeue_ns").is_not_null())
    waited_ns = pl.col("qdisc_dequeue_ns").cast(pl.Int64) - pl.col("qdisc_enqueue_ns").cast(pl.Int64)
    queued = queued.select("tcp_seq", waited_ns=waited_ns)
    # A full queue of 12,000 bytes lasts 2.4 ms at 40 Mbit/s; how much longer depends on who else wants the CPU.
    assert queued["waited_ns"].max() > 1_000_000
    arrived_s, left_s = (times_of_single(edge) for edge in edges)
    crossed_ns = {seq: (left_s[seq] - arrived_s[seq]) * 1e9 for seq in arrived_s.keys() & left_s.keys()}
    rows = [(row, crossed_ns[row["tcp_seq"]]) for row in queued.to_dicts() if row["tcp_seq"] in crossed_ns]
    assert len(rows) > 100
    # tcpdump's times, read as floats, are right to 0.24 us; its clock may be slewed by 0.05 % beside the kernel's.
    assert all(row["waited_ns"] < crossed * 1.001 + 1000 for row, crossed in rows)
    assert statistics.median(crossed - row["waited_ns"] for row, crossed in rows) < 100_000


# It reads a message for each line of its input, and says when it is about to.
READER = f"""
import socket, sys, time
listener = socket.create_server(("0.0.0.0", {PORT}))
print("ready", flush=True)
connection, _ = listener.accept()
for line in sys.stdin:
    print("reading", flush=True)
    before = time.monotonic_ns()
    data = connection.recv(65536)
    print(before, time.monotonic_ns(), len(data), flush=True)
"""


def test_what_gso_cuts_in_this_host_was_sent_again_as_often_as_tcpdump_saw_it(router, tmp_path, until):
    """A large packet and each segment of it have rows of their own: the segments are no copies of its bytes."""
    router.source.run(["ethtool", "-K", router.source_if, "tso", "off"])
    drop_every(router, 40)

    def run():
        with connection(router.source, router.sink, str(router.sink_address), PORT) as (active, passive):
            transfer(active, passive, 1_000_000)

    with followed(tmp_path, router):
        wire, _ = seen_at_edges(router, tmp_path, until, run)
    highest, again = 0, Counter()
    for packet in wire:
        at = (packet.seq - wire[0].seq) % 2**32
        if at < highest:
            again[packet.seq] += 1
        highest = max(highest, at + packet.payload_bytes)
    assert again
    with router.source.enter():
        netns_inode = Path("/proc/thread-self/ns/net").stat().st_ino
    sent = toward_sink(timeline_of(tmp_path)).filter(netns_inode=netns_inode, path="sent")
    assert sent.height == len(wire)
    assert Counter(sent.filter("is_retransmission")["tcp_seq"]) == again
    cut = sent.filter(pl.col("tcp_match") == "none")
    assert cut.height > len(wire) / 2 and cut["sent_row"].null_count() == 0


def test_a_readers_wait_is_that_of_its_own_clock(router, tmp_path, until):
    reader = router.sink.popen([sys.executable, "-c", READER], stdin=PIPE, stdout=PIPE, text=True)
    assert reader.stdout.readline() == "ready\n"
    times = []
    with followed(tmp_path, router), socket_at(router.source, "0.0.0.0", socket.SOCK_STREAM) as sender:
        sender.connect((str(router.sink_address), PORT))
        for number in range(40):
            is_late = number % 2
            # Each message is read by itself, every other one when it has been there for a while.
            if is_late:
                sender.sendall(bytes(500))
                until("the message has come", lambda: not unacknowledged_of(sender))
            reader.stdin.write("read\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "reading\n"
            if not is_late:
                sender.sendall(bytes(500))
            times.append([int(word) for word in reader.stdout.readline().split()])
        reader.communicate(timeout=30)
    offset_ns = PathLog(tmp_path / "path.arrow").clock["monotonic_offset_ns"]
    rows = toward_sink(timeline_of(tmp_path)).filter(pl.col("path") == "delivered")
    rows = rows.with_columns(pl.col("time").dt.epoch("ns")).to_dicts()
    assert len(rows) == len(times) == 40
    late = []
    for row, (before_ns, after_ns, length) in zip(rows, times, strict=True):
        assert length == row["payload_bytes"] == 500
        assert (row["read_match"], row["pid"]) == ("exact", reader.pid)
        assert row["command"].startswith("python")
        ready_ns = row["time"] - offset_ns + row["data_ready_ns"]
        ended_ns = ready_ns + row["wait_ns"]
        assert before_ns <= ended_ns <= after_ns
        assert row["wait_ns"] == row["read_ns"] >= before_ns - ready_ns
        late.append(after_ns - ended_ns)
    # Half of them, as others may take the reader's CPU before it looks at its clock.
    assert sorted(late)[20] < 1_000_000


def test_tshark_shows_comments_and_the_same_packets(router, tmp_path):
    drop_every(router, 40)
    with followed(tmp_path, router):
        transferred(router, 400_000)
    names = [tmp_path / name for name in ("path.arrow", "tcp.arrow", "capture.pcapng")]
    commented = tmp_path / "commented.pcapng"
    done = in_process.parshall("path", "--join", *names, "-o", commented)
    assert done.returncode == 0, done.stderr
    fields = ["frame.number", "frame.time_epoch", "tcp.seq_raw", "tcp.ack_raw", "tcp.len"]
    packets = tshark(commented, *fields, "frame.comment")
    assert [packet[:-1] for packet in packets] == tshark(names[2], *fields)
    comments = {int(packet[0]): packet[-1] for packet in packets}
    table = timeline_of(tmp_path)
    router_rows = table.filter(pl.col("path").is_in(["forwarded", "dropped"]) & (pl.col("capture_match") != "none"))
    for row in router_rows.to_dicts():
        for number in row["capture_packets"]:
            assert f"{row['path']} in netns {row['netns_inode']}" in comments[number]
            if row["drop_reason"] == "NETFILTER_DROP":
                assert "NETFILTER_DROP, sent again" in comments[number]
            if row["is_retransmission"]:
                assert "retransmission: " in comments[number]
            if row["lost_row"] is not None:
                assert ", copy dropped after " in comments[number]
    assert router_rows["lost_row"].count() > 0
    assert any("cwnd " in text for text in comments.values())
    done = in_process.parshall("path", "--join", *names)
    assert done.returncode == 0, done.stderr
    assert f":{PORT} tcp" in done.stdout and "NETFILTER_DROP after" in done.stdout and "read by" in done.stdout


def tshark(path, *fields):
    """Return fields of all packets, as tshark shows them."""
    command = ["tshark", "-r", str(path), "-T", "fields", "-o", "tcp.analyze_sequence_numbers:false"]
    words = [word for field in fields for word in ("-e", field)]
    text = subprocess.run([*command, *words], capture_output=True, text=True, check=True).stdout
    return [line.split("\t") for line in text.splitlines()]


def test_one_command_measures_and_joins(router, tmp_path):
    names = {
        option: tmp_path / name
        for option, name in (("-o", "p.arrow"), ("--tcp-log", "t.arrow"), ("--capture", "c.pcapng"))
    }
    options = [word for option, path in names.items() for word in (option, str(path))]
    stages = ["--stages", ",".join(STAGES), "--reads", "--filter", f"tcp port {PORT}"]
    place = ["-i", router.sink_if, "--netns", router.sink.namespace, "--json"]
    command = [*PARSHALL, "path", *options, *stages, *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert any("started" in line for line in iter(process.stderr.readline, ""))
        transferred(router, 500_000)
        process.terminate()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    found = {one["connection"]: one for one in json.loads(output)["connections"]}
    (toward,) = [one for name, one in found.items() if name.endswith(f":{PORT} tcp")]
    assert toward["paths"]["delivered"] > 0 and toward["readers"]
    table = pl.from_arrow(join(PathLog(names["-o"]), parshall.read(names["--tcp-log"]), Trace(names["--capture"])))
    data = toward_sink(table).filter(pl.col("path") == "delivered")
    assert data.height and set(data["tcp_match"]) <= {"exact", "nearest"}
    assert set(data["capture_match"]) <= {"exact", "nearest"}
