"""Timelines of packets, held against losses that are scripted, tcpdump, tshark and a reader's own clock."""

import json
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager

import polars as pl
import pytest
from conversation import Tcpdump, connection, send_marker, socket_at, transfer

import parshall
from parshall.capture import Capture, Output, Ring
from parshall.path import PathLog, PathProfile, Trace, join
from parshall.path.stages import ALL_STAGES
from parshall.tcp import TcpLog

# The kernel runs no program of a tracepoint inside of itself, so a busy host may hide a packet.
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root"), pytest.mark.attempts(3)]
PARSHALL = [sys.executable, "-m", "parshall"]
PORT = 5050
# Netfilter hooks are those of one namespace, and these packets pass three.
HOOKS = ("pre_routing", "local_in", "forward", "local_out", "post_routing")
STAGES = [name for name in ALL_STAGES if name not in HOOKS]


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


def dropped_between(router, tmp_path, until, run):
    """Return how often each segment was seen before the router and not behind it, as tcpdump saw both edges."""
    taps = [
        Tcpdump(router.router, interface, PORT, tmp_path / f"{interface}.pcap")
        for interface in (router.in_if, router.out_if)
    ]
    run()
    send_marker(router.source, str(router.sink_address), PORT)
    seen = [
        Counter(packet.seq for packet in tap.stop(until) if packet.payload_bytes and packet.source_port != PORT)
        for tap in taps
    ]
    return seen[0] - seen[1]


def transferred(router, payload_bytes):
    """Transfer data from source to sink; segments leave one by one, so that each skb is one."""
    for host, interface in ((router.source, router.source_if), (router.router, router.in_if)):
        host.run(["ip", "link", "set", interface, "gso_max_segs", "1"])
    with connection(router.source, router.sink, str(router.sink_address), PORT) as (active, passive):
        transfer(active, passive, payload_bytes)


def check_losses(table, witness, reason, places):
    """Fail unless the drops are those of the witness, and each retransmission repairs one of them."""
    data = toward_sink(table)
    lost = data.filter(pl.col("drop_reason").is_in(reason))
    assert Counter(lost["tcp_seq"].to_list()) == witness
    assert witness
    assert set(lost["place"]) <= places
    rows = {row["row"]: row for row in data.to_dicts()}
    for row in lost.to_dicts():
        again = rows[row["sent_again_row"]]
        assert again["is_retransmission"] and again["first_stage"] != "start_xmit"
        assert again["tcp_seq"] <= row["tcp_seq"] < again["tcp_seq"] + again["payload_bytes"]
        assert again["time"] > row["time"] and row["sent_again_ns"] > 0
    again = data.filter(pl.col("is_retransmission") & (pl.col("tcp_match") != "none"))
    again = again.filter(pl.col("tcp_seq").is_in(list(witness)) & pl.col("lost_row").is_not_null())
    assert set(again["tcp_seq"]) == set(witness)
    for row in again.to_dicts():
        copy = rows[row["lost_row"]]
        assert copy["drop_reason"] in reason and copy["time"] < row["time"]
        assert copy["tcp_seq"] == row["tcp_seq"]


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
        witness = dropped_between(router, tmp_path, until, lambda: transferred(router, 2_000_000))
    table = timeline_of(tmp_path)
    check_losses(table, witness, {"NETFILTER_DROP"}, {"receive"})
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
        witness = dropped_between(router, tmp_path, until, lambda: transferred(router, 1_000_000))
    table = timeline_of(tmp_path)
    reasons = {"QDISC_DROP", "QDISC_OVERLIMIT", "QDISC_CONGESTED"}
    check_losses(table, witness, reasons, {"queue", "qdisc_enqueue"})
    text = router.router.run(["tc", "-s", "-j", "qdisc", "show", "dev", router.out_if]).stdout
    assert json.loads(text)[0]["drops"] == witness.total()
    queued = toward_sink(table).filter((pl.col("path") == "forwarded") & pl.col("qdisc_dequeue_ns").is_not_null())
    waited = queued["qdisc_dequeue_ns"].cast(pl.Int64) - queued["qdisc_enqueue_ns"].cast(pl.Int64)
    # A full queue of 12,000 bytes lasts 2.4 ms at 40 Mbit/s.
    assert 1_000_000 < waited.max() < 10_000_000


READER = f"""
import json, socket, sys, time
listener = socket.create_server(("0.0.0.0", {PORT}))
print("ready", flush=True)
connection, _ = listener.accept()
times = []
while True:
    if len(times) % 2:
        time.sleep(0.03)
    before = time.time_ns()
    data = connection.recv(65536)
    if not data:
        break
    times.append([before, time.time_ns(), len(data)])
print(json.dumps(times))
"""


def test_a_readers_wait_is_that_of_its_own_clock(router, tmp_path):
    reader = router.sink.popen([sys.executable, "-c", READER], stdout=subprocess.PIPE, text=True)
    assert reader.stdout.readline() == "ready\n"
    with followed(tmp_path, router):
        with socket_at(router.source, "0.0.0.0", socket.SOCK_STREAM) as sender:
            sender.connect((str(router.sink_address), PORT))
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(40):
                sender.sendall(bytes(500))
                # The messages come apart, so that each is read by itself; the reader is late for every other one.
                time.sleep(0.05)
        times = json.loads(reader.communicate(timeout=30)[0])
    rows = toward_sink(timeline_of(tmp_path)).filter(pl.col("path") == "delivered").to_dicts()
    assert len(rows) == len(times) == 40
    late = []
    for row, (before_ns, after_ns, length) in zip(rows, times, strict=True):
        assert length == row["payload_bytes"] == 500
        assert (row["read_match"], row["pid"]) == ("exact", reader.pid)
        assert row["command"].startswith("python")
        ready_ns = timestamp_ns(row["time"]) + row["data_ready_ns"]
        ended_ns = ready_ns + row["wait_ns"]
        # The wall clock is slewed.
        assert before_ns - 100_000 <= ended_ns <= after_ns + 100_000
        assert row["wait_ns"] == row["read_ns"] and row["wait_ns"] >= before_ns - ready_ns - 100_000
        late.append(after_ns - ended_ns)
    assert sorted(late)[20] < 1_000_000


def timestamp_ns(value):
    """Return a time of polars, which Python's times cut to microseconds, to the microsecond."""
    return round(value.timestamp() * 1_000_000) * 1000


def test_tshark_shows_comments_and_the_same_packets(router, tmp_path):
    drop_every(router, 40)
    with followed(tmp_path, router):
        transferred(router, 1_000_000)
    names = [tmp_path / name for name in ("path.arrow", "tcp.arrow", "capture.pcapng")]
    commented = tmp_path / "commented.pcapng"
    command = [*PARSHALL, "path", "--join", *map(str, names)]
    done = subprocess.run([*command, "-o", str(commented)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    fields = ["frame.number", "frame.time_epoch", "tcp.seq_raw", "tcp.ack_raw", "tcp.len"]
    assert tshark(commented, *fields) == tshark(names[2], *fields)
    comments = {int(number): text for number, text in tshark(commented, "frame.number", "frame.comment")}
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
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
