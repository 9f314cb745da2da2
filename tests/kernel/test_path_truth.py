"""Paths of packets, held against the kernel's own counters, tcpdump, and what was sent."""

import itertools
import json
import os
import socket
import statistics
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest
from conversation import connection, socket_at, transfer, transfer_for
from middle_box import real_time
from path_run import Measurement, check_balance, slow_queue
from router import Router

import in_process
from parshall.testbed import Testbed

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
COUNT = 500
# A program for each stage is verified when a measurement starts, which takes seconds for all of them.
ROUTING = ["netif_rx", "receive", "pre_routing", "local_in", "forward", "post_routing", "queue", "start_xmit", "drop"]
QUEUEING = ["netif_rx", "receive", "queue", "qdisc_enqueue", "qdisc_dequeue", "start_xmit", "drop"]
READING = ["netif_rx", "receive", "local_in", "socket_in", "tcp_receive", "data_ready", "queue", "start_xmit", "drop"]


@contextmanager
def measured(tmp_path, host, *arguments, log=True):
    """Run ``parshall path`` on the packets of a host while the block runs; fill in what it found."""
    from parshall.instruments.path import PathLog, PathProfile

    path = tmp_path / "path.arrow" if log else None
    found = {}
    options = {"stages": ROUTING, **(arguments[0] if arguments else {})}
    profile = PathProfile(path, netns=host.namespace, **options)
    try:
        yield found
    finally:
        found["summary"] = profile.stop()
    if log:
        found["log"] = PathLog(path)
    check_balance(found["summary"].ledger)


def to_sink(log, port=9000):
    """Return the rows of datagrams to a port."""
    packets = log.packets
    return packets.filter(pc.and_(pc.equal(packets["protocol"], 17), pc.equal(packets["destination_port"], port)))


def paths_of(table):
    """Return packets by code path."""
    return Counter(table["path"].to_pylist())


@pytest.fixture(scope="module")
def standing_router(root):
    """One router for all tests that change nothing about it."""
    with Testbed() as bed:
        made = Router(bed)
        made.send(1)
        yield made


def has_stage(found, stage):
    """Whether this kernel has a stage; one that it lacks is named."""
    lacking = {one["stage"] for one in found["summary"].unavailable}
    assert (stage in found["summary"].stages) != (stage in lacking)
    return stage not in lacking


def test_forwarded_packets_are_those_of_the_kernels_counter(standing_router, tmp_path):
    router = standing_router
    with socket_at(router.sink, "0.0.0.0", socket.SOCK_DGRAM) as sink:
        sink.bind(("0.0.0.0", 9000))
        before = router.counters()
        with measured(tmp_path, router.router, {"stages": None}) as found:
            router.send(COUNT)
        after = router.counters()
    rows = to_sink(found["log"])
    assert paths_of(rows) == {"forwarded": COUNT}
    assert after["ForwDatagrams"] - before["ForwDatagrams"] == COUNT
    times = [name for name in rows.column_names if name.endswith("_ns") and name not in ("whole_ns", "stolen_ns")]
    passed = {name for name in times if rows[name].null_count == 0}
    stages = ["receive", "pre_routing", "forward", "post_routing", "queue", "start_xmit"]
    order = [f"{stage}_ns" for stage in stages if has_stage(found, stage)]
    assert set(order) <= passed
    for earlier, later in itertools.pairwise(order):
        assert pc.all(pc.less_equal(rows[earlier], rows[later])).as_py(), (earlier, later)
    assert set(rows["interface"].to_pylist()) != set(rows["interface_out"].to_pylist())
    assert set(rows["source"].to_pylist()) == {str(router.source_address)}
    assert set(rows["payload_bytes"].to_pylist()) == {100}


def test_times_lie_between_those_of_tcpdump_at_both_edges(standing_router, tmp_path, until):
    router = standing_router
    taps = []
    for interface in (router.in_if, router.out_if):
        path = tmp_path / f"{interface}.pcap"
        command = ["tcpdump", "-i", interface, "-U", "--immediate-mode", "--time-stamp-precision=nano", "-w", str(path)]
        process = router.router.popen([*command, "udp port 9000"], stderr=subprocess.PIPE, text=True)
        assert any("listening" in line for line in iter(process.stderr.readline, ""))
        taps.append((process, path))
    with measured(tmp_path, router.router) as found:
        router.send(50)
        for _, path in taps:
            until("tcpdump has all", lambda path=path: path.exists() and path.stat().st_size >= 24 + 50 * (16 + 142))
    for process, _ in taps:
        process.terminate()
        process.communicate()
    seen = []
    for _, path in taps:
        text = subprocess.run(
            ["tcpdump", "-r", str(path), "-tt", "-n", "--nano"], capture_output=True, text=True, check=True
        ).stdout
        seen.append(
            [
                round(float(line.split()[0].split(".")[0])) * 10**9 + int(line.split()[0].split(".")[1])
                for line in text.splitlines()
            ]
        )
    rows = to_sink(found["log"])
    began = [value.value for value in rows["time"].combine_chunks()]
    assert len(began) == len(seen[0]) == len(seen[1]) == 50
    # A tap stamps packets that come in at netif_receive_skb, and those that leave right before the driver. Its clock is
    # slewed, and a virtual machine may stop in between; so the middle of all is held.
    for taps_ns, stage in zip(seen, ("receive_ns", "start_xmit_ns"), strict=True):
        offsets = rows[stage].to_pylist()
        late = [tap - ours - offset for tap, ours, offset in zip(taps_ns, began, offsets, strict=True)]
        assert abs(statistics.median(late)) < 50_000, late


@pytest.mark.parametrize("case", ["ttl", "no_socket", "no_route", "nftables"])
def test_a_drop_has_its_reason_and_its_place(request, tmp_path, case):
    router = request.getfixturevalue("router" if case == "nftables" else "standing_router")
    reasons = {
        "ttl": ("IP_INHDR", "pre_routing"),
        "no_socket": ("NO_SOCKET", "local_in"),
        "no_route": ("IP_INNOROUTES", "pre_routing"),
        "nftables": ("NETFILTER_DROP", "pre_routing"),
    }
    address, ttl = None, None
    if case == "ttl":
        ttl = 1
    elif case == "no_socket":
        address = str(router.links[0].address(router.router))
    elif case == "no_route":
        address = "203.0.113.9"
    else:
        chain = "add table ip t; add chain ip t f { type filter hook forward priority 0; }"
        rule = f"{chain}; add rule ip t f udp dport 9000 drop"
        done = router.router.run(["nft", rule], check=False)
        assert done.returncode == 0, done.stderr
    with measured(tmp_path, router.router) as found:
        router.send(20, address=address, ttl=ttl)
    rows = to_sink(found["log"])
    assert paths_of(rows) == {"dropped": 20}
    reason, place = reasons[case]
    assert set(rows["drop_reason"].to_pylist()) == {reason}
    assert rows[f"{place}_ns"].null_count == 0 or not has_stage(found, place)
    by_reason = {row["name"]: row for row in found["summary"].drops}
    assert by_reason[reason]["followed"] == 20 <= by_reason[reason]["all"]


@pytest.mark.optional
def test_meanings_are_of_reasons_that_the_kernel_has(bed, tmp_path):
    from parshall.instruments.path import PathLog
    from parshall.instruments.path.reasons import MEANINGS

    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 18):
        pytest.skip("the meanings are of the reasons of Linux 6.18; an older kernel has fewer")
    with measured(tmp_path, bed.host("quiet"), {"stages": ["receive", "drop"]}):
        pass
    log = PathLog(tmp_path / "path.arrow")
    assert set(MEANINGS) <= set(log.drop_reasons.values())
    # Of a subsystem whose module is not loaded, the kernel has the name of the subsystem.
    name_of = log.drop_reason_names()
    subsystem = next(number for number in range(1, 100) if name_of(number << 16 | 0xFFFF).startswith("OPENVSWITCH "))
    assert name_of(subsystem << 16 | 0xFFFF) == "OPENVSWITCH reason 65535"


def test_delivered_and_sent_packets_of_tcp(standing_router, tmp_path):
    router = standing_router
    with measured(tmp_path, router.sink, {"reads": True, "stages": READING}) as found:
        with connection(router.source, router.sink, str(router.sink_address), 5050) as (active, passive):
            transfer(active, passive, 2_000_000)
    if not has_stage(found, "data_ready"):
        pytest.skip("this kernel lacks stages at which a segment is delivered")
    packets = found["log"].packets
    tcp = packets.filter(pc.equal(packets["protocol"], 6))
    came = tcp.filter(pc.equal(tcp["destination_port"], 5050))
    left = tcp.filter(pc.equal(tcp["source_port"], 5050))
    assert paths_of(left) == {"sent": left.num_rows}
    counts = paths_of(came)
    # Where a CPU waits long, the sender probes: the connection has the data of the probe already, and drops it.
    probes = came.filter(pc.equal(came["path"].cast("string"), "dropped"))
    assert set(probes["drop_reason"].to_pylist()) <= {"TCP_OLD_DATA", "TCP_OLD_SEQUENCE"}
    assert counts["delivered"] + counts.get("merged", 0) + probes.num_rows == came.num_rows > 0
    data = came.filter(pc.equal(came["path"].cast("string"), "delivered"))
    # Each byte once: GRO may have put segments together, so lengths add up over what was delivered.
    assert sum(data["payload_bytes"].to_pylist()) >= 2_000_000
    ready = data.filter(pc.greater(data["payload_bytes"], 0))["data_ready_ns"]
    assert ready.null_count < len(ready)
    reads = found["log"].reads
    assert 0 < sum(reads["length_bytes"].to_pylist()) <= 2_000_000
    assert {row["kind"] for row in found["summary"].reads} >= {"read", "whole"}


def test_data_is_ready_after_its_packet_was_received(bed, tmp_path):
    """A packet that interrupts the work on a socket's backlog waits in it; what becomes ready then is not its data."""
    sender, reader = bed.host("sender"), bed.host("reader")
    address = bed.link(sender, reader).address(reader)
    with measured(tmp_path, reader, {"stages": READING}) as found:
        with connection(sender, reader, address, 9009) as (active, passive):
            transfer_for(active, passive, 1.0)
    packets = found["log"].packets
    both = packets.filter(pc.and_(pc.is_valid(packets["tcp_receive_ns"]), pc.is_valid(packets["data_ready_ns"])))
    assert both.num_rows > 1000
    early = pc.less(both["data_ready_ns"], both["tcp_receive_ns"])
    assert pc.sum(early).as_py() == 0, f"of {both.num_rows} packets"


def test_a_thread_that_was_woken_for_earlier_data_is_not_the_reader_of_later_data(bed, tmp_path, one_cpu, until):
    """It gets the CPU only after another thread has read what it was woken for, and when there is data again."""
    rounds = 100
    host = bed.host("alone")
    with (
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as sender,
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as shared,
        measured(tmp_path, host, {"reads": True, "stages": READING}) as found,
    ):
        shared.bind(("127.0.0.1", 9000))

        def read():
            for _ in range(rounds):
                shared.recv(100)

        waiting = threading.Thread(target=read)
        waiting.start()
        place = Path(f"/proc/self/task/{waiting.native_id}/wchan")
        with real_time():
            for _ in range(rounds):
                until("the other thread waits for data", lambda: place.read_text() == "__skb_wait_for_more_packets")
                sender.sendto(b"first", ("127.0.0.1", 9000))
                shared.recv(100)
                sender.sendto(b"second", ("127.0.0.1", 9000))
        waiting.join()
    if not has_stage(found, "data_ready"):
        pytest.skip("this kernel lacks the stage at which data is ready")
    reads = found["log"].reads
    assert reads.num_rows > rounds
    woken, running = reads["waking_ns"].to_pylist(), reads["running_ns"].to_pylist()
    assert len(woken) - woken.count(None) >= rounds
    ran = [(woke, ran) for woke, ran in zip(woken, running, strict=True) if ran is not None]
    assert all(woke is not None and woke <= ran for woke, ran in ran), ran


def test_filter_and_thinning_are_in_the_ledger(standing_router, tmp_path):
    router = standing_router
    with measured(tmp_path, router.router, {"filter": "udp dst port 9001", "every": 10}) as found:
        router.send(300)
        router.send(300, port=9001)
    account = found["summary"].ledger["hooks"][0]
    assert to_sink(found["log"]).num_rows == 0
    rows = to_sink(found["log"], 9001)
    assert rows.num_rows == 30
    assert account["thinned"] == 270
    assert account["filtered"] >= 300


def test_a_packet_in_an_interrupt_leaves_the_header_of_another_alone(bed, tmp_path, one_cpu):
    """The timer of a queue discipline sends packets while a program reads one that a thread sends on the same CPU."""
    host = bed.host("busy")
    limit = ["rate", "20mbit", "burst", "2000", "limit", "20000"]
    host.run(["tc", "qdisc", "replace", "dev", "lo", "root", "tbf", *limit])
    payloads = {9000: bytes(10), 9001: bytes(20)}
    with (
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as sender,
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as first,
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as second,
        measured(tmp_path, host, {"filter": "udp dst port 9001"}) as found,
    ):
        first.bind(("127.0.0.1", 9000))
        second.bind(("127.0.0.1", 9001))
        for port in (9000, 9001, 9001, 9001) * 5_000:
            sender.sendto(payloads[port], ("127.0.0.1", port))
    packets = found["log"].packets
    assert packets.num_rows > 5_000
    assert set(packets["destination_port"].to_pylist()) == {9001}
    assert set(packets["payload_bytes"].to_pylist()) == {len(payloads[9001])}


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("udp", True),
        ("ip and udp dst port 9000", True),
        ("udp[8:4] < 10", None),
        ("ip[8] > 0 and (udp[4:2] & 1 = 0)", True),
        ("len = 128", True),
        ("tcp", False),
        ("src host 198.51.100.7", False),
        ("ip[2:2] - 28 = 100 and ip[0] & 0xf = 5", True),
    ],
)
def test_filters_match_what_libpcap_matches(standing_router, tmp_path, expression, matches):
    router = standing_router
    stages = ["netif_rx", "receive", "start_xmit"]
    with measured(tmp_path, router.router, {"filter": expression, "stages": stages}) as found:
        router.send(20)
    expected = {True: 20, False: 0, None: 10}[matches]
    assert to_sink(found["log"]).num_rows == expected


def test_histograms_count_what_a_log_counts(standing_router, tmp_path):
    router = standing_router
    stages = ["gro", "netif_rx", "receive", "forward", "queue", "start_xmit", "drop"]
    with measured(tmp_path, router.router, {"stages": stages, "by": "connection"}, log=False) as found:
        router.send(COUNT)
    summary = found["summary"]
    groups = [row for row in summary.times if row["group"] and row["stage"] == "whole"]
    ours = [row for row in groups if row["group"]["connection"][3] == 9000]
    assert [(row["path"], row["packets"]) for row in ours] == [("forwarded", COUNT)]
    assert sum(count for _, count in ours[0]["buckets"]) == COUNT
    assert summary.paths["forwarded"] >= COUNT
    assert ours[0]["median_ns"] > 0


def test_what_is_under_way_at_the_end_is_open(router, tmp_path):
    """A packet that waits in a full queue discipline has not ended."""
    slow_queue(router.router, router.out_if, 100_000)
    with measured(tmp_path, router.router, {"stages": QUEUEING}) as found:
        router.send(60)
    counts = paths_of(to_sink(found["log"]))
    assert counts["open"] > 0
    assert counts["open"] + counts["forwarded"] == 60
    waited = to_sink(found["log"])
    assert waited.filter(pc.equal(waited["path"].cast("string"), "open"))["qdisc_enqueue_ns"].null_count == 0


def test_a_small_table_counts_what_it_overwrites(router, tmp_path):
    slow_queue(router.router, router.out_if, 10_000_000)
    with measured(tmp_path, router.router, {"packets_max": 1024, "stages": QUEUEING}) as found:
        router.send(5000)
    rows = to_sink(found["log"])
    # One that was displaced begins anew: where it is sent, or where it is received from the queue of its CPU.
    begun_again = rows.filter(pc.not_equal(rows["first_stage"].cast("string"), "netif_rx")).num_rows
    displaced = paths_of(rows)["displaced"]
    assert displaced > 0 and begun_again <= displaced
    assert rows.num_rows - begun_again == 5000


def test_the_command_shows_a_table_and_a_ledger(standing_router):
    router = standing_router
    words = ["--netns", router.router.namespace, "--duration", "1", "--filter", "udp dst port 9000"]
    with Measurement(*words, "--stages", "gro,netif_rx,receive,queue,start_xmit") as measurement:
        router.send(COUNT)
        done = measurement.end()
    assert done.returncode == 0, done.stderr
    assert f"forwarded: {COUNT:,} packets" in done.stderr
    assert "start_xmit" in done.stderr and "whole" in done.stderr


def test_attached_a_share_of_the_time(standing_router):
    router = standing_router
    stages = ["--stages", "netif_rx,receive,start_xmit"]
    done = in_process.parshall(
        "path", "--netns", router.router.namespace, *stages, "--duration", "4", "--share", "30%", "--json", "-q"
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    # Windows of half a second, and the time to attach and detach; the last one may be cut short.
    assert 1 <= summary["windows"] <= 4
    assert 0.5 * (summary["windows"] - 1) < summary["attached_s"] < 3


def test_a_measurement_too_short_for_its_windows_says_so(standing_router):
    words = ["--netns", standing_router.router.namespace, "--stages", "netif_rx,receive,start_xmit"]
    done = in_process.parshall("path", *words, "--share", "5%", "--duration", "0.2")
    assert "--share 5%: a window of 0.5 s comes every 10 s on average, at random; in 0.2 s the share" in done.stderr
    # It is said before the start, so the end is not waited for.
    with Measurement(*words, "--share", "95%", "--duration", "6") as measurement:
        assert "a window of" not in measurement.begun


def test_a_cost_that_cannot_be_measured_is_said_with_what_it_needs(standing_router):
    router = standing_router
    stages = "--stages=gro,netif_rx,receive,pre_routing,forward,queue,start_xmit"
    done = in_process.parshall("path", "--netns", router.router.namespace, "--probe-cost", stages, "--duration", "1")
    assert done.returncode == 0, done.stderr
    assert "parshall: path: --probe-cost: not measured: fewer than 5 pairs of windows" in done.stderr
    # At the beginning, too, when there still is time to measure longer.
    began, _, ended = done.stderr.partition("started")
    assert (
        "--probe-cost: needs about 8 s of steady traffic; in 1 s it may not know" in began
        and "needs about" not in ended
    )


@pytest.mark.parametrize("stages", [[], ["--stages", "netif_rx,receive,local_in,socket_in,tcp_receive"]])
def test_stages_without_one_between_the_ends_have_no_cost(stages):
    """Without the last of its stages the whole of a packet is another, shorter time: no cost of a program."""
    done = in_process.parshall("path", "--probe-cost", *stages, "--duration", "1")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "expected with --probe-cost, one between the first and the last of a packet: pre_routing" in done.stderr


@pytest.mark.alone
@pytest.mark.long
def test_what_the_probes_cost_is_measured_and_subtracted(router):
    """Histograms are of windows with all probes; less their cost, the whole is about that of few probes."""
    from parshall.instruments.path import PathProfile

    stages = ["gro", "netif_rx", "receive", "pre_routing", "forward", "post_routing", "queue", "start_xmit"]
    edges = ["gro", "netif_rx", "receive", "queue", "start_xmit"]
    with PathProfile(netns=router.router.namespace, stages=stages, probe_cost=True) as profile:
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s:
            router.send(500)
    (cost,) = (row for row in profile.summary.probe_cost if row["path"] == "forwarded")
    assert (cost["probes"], cost["is_distinguishable"]) == (3, cost["ns_per_probe"] > cost["interval_ns"])
    rows = {row["stage"]: row for row in profile.summary.times if row["path"] == "forwarded"}
    assert rows["forward"]["packets"] == pytest.approx(rows["whole"]["packets"], rel=0.01)
    assert rows["whole"]["packets"] < profile.summary.paths["forwarded"]
    assert rows["whole"]["probe_cost_ns"] == pytest.approx(6 * cost["ns_per_probe"], rel=0.01)
    with PathProfile(netns=router.router.namespace, stages=edges) as few:
        router.send(20_000)
    (whole,) = (row for row in few.summary.times if row["path"] == "forwarded" and row["stage"] == "whole")
    # Three stages are left with one probe each. The host drifts between the two measurements.
    expected_ns = whole["median_ns"] - 3 * cost["ns_per_probe"]
    assert rows["whole"]["median_less_probes_ns"] == pytest.approx(expected_ns, rel=0.5)
