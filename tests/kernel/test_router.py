"""Routers: times against tcpdump's at both edges, losses by place, set-ups, faults that leave nothing."""

import collections
import dataclasses
import ipaddress
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
from backlog import USUAL_PACKETS, backlog
from tcp_logger import small_disk

import in_process
from parshall.cli import router as router_command
from parshall.errors import ParshallError
from parshall.host.names import clean
from parshall.host.namespaces import NETNS_DIRECTORY
from parshall.instruments.generate.reception import _utc_offset_ns
from parshall.router import RouterTestbed, Setup, Traffic, measure, offer, overload, zero_loss
from parshall.router import calibrate as calibrating
from parshall.router.calibration import Calibration
from parshall.router.edges import Edge
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]

PARSHALL = Path(sys.executable).with_name("parshall")
COUNT, PPS = 2000, 20_000
# So slow that the generator always sends more than it forwards.
SLOW = Setup(rules=300)
BACKLOG_PACKETS = int(Path("/proc/sys/net/core/netdev_max_backlog").read_text())
SETUPS = {
    "rps": Setup(),
    "threaded": Setup(receive="threaded"),
    "rps without GRO": Setup(gro=False),
    "threaded without GRO": Setup(receive="threaded", gro=False),
}


@pytest.fixture(scope="module")
def nft():
    if shutil.which("nft") is None:
        pytest.skip("nftables is not installed")


@pytest.fixture
def bed():
    with RouterTestbed() as made:
        yield made


def tcpdump(host, interface, direction, file):
    command = ["tcpdump", "-i", interface, "-Q", direction, "-n", "-U", "-B", "65536", "-s", "64", "-w", str(file)]
    command += ["--immediate-mode", "--time-stamp-precision=nano", "udp dst port 9"]
    program = host.popen(command, stderr=subprocess.PIPE, text=True)
    line = program.stderr.readline()
    assert "listening" in line, line
    return program


def frames_of(file):
    """Time and bytes of each frame of a capture with nanoseconds."""
    data, at = file.read_bytes(), 24
    assert struct.unpack("I", data[:4])[0] == 0xA1B23C4D
    while at + 16 + 50 <= len(data):
        seconds, nanoseconds, captured, _ = struct.unpack("4I", data[at : at + 16])
        yield seconds * 10**9 + nanoseconds, data[at + 16 : at + 16 + captured]
        at += 16 + captured


def times_of(file, offset_ns=0):
    """Sequence number -> time (CLOCK_MONOTONIC, ns) of a capture with nanoseconds."""
    return {int.from_bytes(frame[42:50], "big"): time_ns - offset_ns for time_ns, frame in frames_of(file)}


# Each way to receive, and with GRO and without.
@pytest.mark.parametrize("name", long_except(["rps", "threaded without GRO"], SETUPS))
def test_times_are_those_of_tcpdump_at_both_edges(name, tmp_path, until):
    before_ns = _utc_offset_ns()
    with RouterTestbed(SETUPS[name]) as bed:
        files = tmp_path / "in.pcap", tmp_path / "out.pcap"
        witnesses = [
            tcpdump(bed.router, bed.ingress, "in", files[0]),
            tcpdump(bed.router, bed.egress, "out", files[1]),
        ]
        measurement = measure(bed, Traffic("poisson", pps=PPS, flows=3), COUNT)
        # tcpdump discards what it has not read when it ends.
        until("tcpdump has all", lambda: len(times_of(files[1])) >= measurement.ledger["received"])
        for witness in witnesses:
            witness.send_signal(signal.SIGINT)
            witness.communicate(timeout=20)
    offset_ns = _utc_offset_ns()
    into, out = (times_of(file, offset_ns) for file in files)
    table = measurement.table
    assert table.column("sequence").to_pylist() == list(range(COUNT))
    assert set(table.column("flow").to_pylist()) == {0, 1, 2}
    arrivals = table.column("arrival_ns").to_numpy()
    departures = np.array([departure or 0 for departure in table.column("departure_ns").to_pylist()])
    left = np.flatnonzero(departures)
    assert set(left) == set(out)
    assert len(left) == measurement.ledger["received"]
    ingress = np.array([into[number] for number in left])
    egress = np.array([out[number] for number in left])
    # The offset of the clocks is known to a microsecond or so, and changes while the clock is adjusted.
    slack_ns = 3000 + abs(offset_ns - before_ns)
    assert (ingress - arrivals[left] > -slack_ns).all()
    assert (departures[left] - ingress > -slack_ns).all()
    # tcpdump's time on the way out is taken behind ours, in the same softirq.
    assert (egress - departures[left] > -slack_ns).all()
    assert np.median(egress - departures[left]) < 20_000


def test_packets_of_several_sources_go_to_random_routes(tmp_path, until):
    destinations, routes = 200, 300
    with RouterTestbed(Setup(routes=routes, destinations=destinations)) as bed:
        file = tmp_path / "out.pcap"
        witness = tcpdump(bed.router, bed.egress, "out", file)
        measurement = measure(bed, Traffic("mixed", pps=PPS), COUNT)
        until("tcpdump has all", lambda: len(times_of(file)) >= measurement.ledger["received"])
        witness.send_signal(signal.SIGINT)
        witness.communicate(timeout=20)
        table = bed.router.run(["ip", "-4", "route", "show"]).stdout.splitlines()
    assert sum("via" in line for line in table) == routes
    went_to = collections.Counter(int(ipaddress.IPv4Address(frame[30:34])) for _, frame in frames_of(file))
    first = int(ipaddress.IPv4Address("198.18.1.1"))
    assert set(went_to) <= set(range(first, first + destinations))
    # Ten packets are drawn for each, and are the same in each run.
    assert measurement.ledger["received"] > COUNT / 2
    assert len(went_to) > 0.9 * destinations and max(went_to.values()) < 35
    # Of sixteen packets of a burst, fifteen are due with the one before; bursts are half of the packets.
    due_ns = measurement.table.column("due_ns").to_numpy()
    assert (np.diff(due_ns) == 0).mean() == pytest.approx(0.5 * 15 / 16, abs=0.05)


@pytest.mark.alone
@pytest.mark.parametrize(("receive", "place"), [("rps", "backlog"), ("threaded", "ring")])
def test_what_overload_loses_is_known_by_place(nft, receive, place):
    count = 50_000
    with backlog(USUAL_PACKETS), RouterTestbed(dataclasses.replace(SLOW, receive=receive)) as bed:
        ledger = offer(bed, Traffic("none", seed=1), count).ledger
    lost = sum(ledger["lost"].values())
    assert ledger["sent"] == count == ledger["received"] + lost
    assert lost > count / 10
    assert ledger["lost"][place] >= 0.99 * lost, ledger


@pytest.mark.alone
def test_what_waits_when_the_last_packet_is_sent_does_not_raise_the_rate_under_overload(nft):
    """With a queue for all packets the router forwards long after the generator has ended."""
    count = 100_000
    with backlog(count), RouterTestbed(SLOW) as bed:
        exit_of_router = Edge(bed.egress, bed.router.path, "out", capacity=count)
        offered = offer(bed, Traffic("none", seed=1), count, edges=[exit_of_router])
    assert offered.ledger["received"] == count
    assert offered.sent_pps > 1.1 * offered.received_pps
    times_ns = offered.passed[0].times_ns
    assert offered.received_pps == pytest.approx(1e9 * (count - 1) / np.ptp(times_ns), rel=0.05)


def test_lost_packets_have_an_arrival_and_no_departure(nft):
    with RouterTestbed(dataclasses.replace(SLOW, receive="threaded")) as bed:
        measurement = measure(bed, Traffic("constant", pps=3e6), 20_000)
    table, lost = measurement.table, sum(measurement.ledger["lost"].values())
    assert table.num_rows == measurement.ledger["sent"]
    assert table.column("departure_ns").null_count == lost > 0
    assert table.column("arrival_ns").null_count == 0
    assert 0 < measurement.lost_share == pytest.approx(lost / table.num_rows)


def test_flows_sizes_routes_and_rules_are_as_asked(nft):
    with RouterTestbed(Setup(routes=1000, rules=100)) as bed:
        measurement = measure(bed, Traffic("onoff", pps=PPS, flows=3, sizes="100-1400"), COUNT)
        routes = bed.router.run(["ip", "route", "show"]).stdout.splitlines()
        rules = bed.router.run(["nft", "list", "ruleset"]).stdout
    assert sum(" via " in line for line in routes) == 1000
    assert rules.count(" drop") == 100
    sizes = measurement.table.column("bytes").to_numpy()
    assert 114 <= sizes.min() < 200 and 1300 < sizes.max() <= 1414


def test_the_packets_are_processed_on_the_router_s_cpu(bed, nft):
    if bed.setup.shares_cpu:
        pytest.skip("this machine has one CPU")
    rule = (
        "add table ip cpus; add chain ip cpus f { type filter hook forward priority 0; }; "
        f"add rule ip cpus f udp dport 9 meta cpu {bed.setup.router_cpu} counter"
    )
    bed.router.run(["nft", rule])
    measurement = measure(bed, Traffic("constant", pps=PPS), COUNT)
    rules = json.loads(bed.router.run(["nft", "-j", "list", "chain", "ip", "cpus", "f"]).stdout)["nftables"]
    (counter,) = (
        part["counter"] for entry in rules for part in entry.get("rule", {}).get("expr", []) if "counter" in part
    )
    # The measurement begins with packets of its own.
    assert counter["packets"] >= measurement.ledger["received"] > 0.9 * COUNT


def test_a_napi_thread_is_bound_to_the_router_s_cpu():
    with RouterTestbed(Setup(receive="threaded")) as bed:
        measure(bed, Traffic("constant", pps=PPS), COUNT)
        assert os.sched_getaffinity(bed.napi_thread) == {bed.setup.router_cpu}
        assert Path(f"/proc/{bed.napi_thread}/comm").read_text().startswith("napi/")


def test_a_router_that_does_not_forward_is_named(bed):
    bed.router.sysctl("net.ipv4.ip_forward", 0)
    with pytest.raises(ParshallError, match=r"net\.ipv4\.ip_forward is 0; set it"):
        measure(bed, Traffic(), COUNT)


def test_packets_without_a_route_are_lost_in_the_stack(bed):
    bed.router.run(["ip", "route", "del", "198.18.1.0/24"])
    with pytest.raises(ParshallError, match=rf"none of {COUNT} packets left it: .*'stack': {COUNT}"):
        measure(bed, Traffic("constant", pps=PPS), COUNT)


def test_a_namespace_that_another_process_is_creating_does_not_matter(bed):
    # Between the creation of the file and the mount.
    name = NETNS_DIRECTORY / f"half-made-{os.getpid()}"
    name.touch()
    try:
        assert measure(bed, Traffic("constant", pps=PPS), COUNT).ledger["sent"] == COUNT
    finally:
        name.unlink()


def test_one_cpu_for_router_and_generator(one_cpu):
    with RouterTestbed() as bed:
        assert bed.setup.shares_cpu
        measurement = measure(bed, Traffic("constant", pps=5000), 500)
    assert measurement.setup["cpu"] == measurement.setup["sender_cpu"] == one_cpu
    ledger = measurement.ledger
    assert ledger["sent"] == 500 == ledger["received"] + sum(ledger["lost"].values())
    assert ledger["received"] > 0


@pytest.mark.alone
def test_capacity_without_loss_and_under_overload(bed):
    beyond = overload(bed, Traffic(flows=3), count=30_000, repeats=2)
    assert beyond.low_pps <= beyond.pps <= beyond.high_pps
    once = overload(bed, Traffic(flows=3), count=30_000, repeats=1)
    # No more arrives than was sent. The sink's clock leaves out a slow beginning and end.
    for found in (beyond, once):
        assert 0 <= found.lost_share < 1
        assert 0 < found.pps < 2 * found.sent_pps
    assert once.low_pps == once.high_pps == once.pps
    found = zero_loss(bed, Traffic("constant"), duration_s=0.02, trials=40, resolution=0.3)
    assert found.low_pps <= found.pps <= found.high_pps
    assert 0 < len(found.trials) <= 40
    assert all(trial.sent_pps > 0 for trial in found.trials)


# Beside others, the router may lose packets at every rate.
@pytest.mark.alone
def test_the_command_measures_a_share_of_the_capacity(monkeypatch, tmp_path, capsys):
    # The search for the capacity need not be precise here.
    short = {"duration_s": 0.05, "trials": 10, "resolution": 0.3}
    monkeypatch.setattr(router_command, "_SHORT", short)
    monkeypatch.setattr(router_command, "_OVERLOAD_PACKETS", 30_000)
    file = tmp_path / "packets.parquet"
    router_command.measure_router(load=0.3, count=30_000, output=file, as_json=True)
    output, errors = capsys.readouterr()
    assert "parshall: router: started" in errors
    result = json.loads(output)
    assert result["traffic"]["pps"] == pytest.approx(0.3 * result["capacity"]["pps"])
    # The sender may be late, and is never early. Late at the beginning, it has less time for the rest.
    assert 0 < result["offered_pps"] < 1.1 * result["traffic"]["pps"]
    table = pyarrow.parquet.read_table(file)
    assert table.num_rows == 30_000
    beside = json.loads(table.schema.metadata[b"parshall.router"])
    assert beside["ledger"] == result["ledger"]
    assert beside["setup"]["receive"] == "rps"
    assert "kernel" in json.dumps(beside["environment"])


def test_a_file_that_cannot_be_written_is_refused_before_the_measurement(tmp_path):
    file = tmp_path / "none" / "packets.parquet"
    done = in_process.parshall("router", "measure", "-d", "60", "-o", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"parshall: router: {file}: cannot be written: No such file or directory")


def test_a_full_disk_keeps_the_old_file_and_the_result_is_shown(tmp_path):
    with small_disk(tmp_path / "small", "64k") as disk:
        file = disk / "packets.parquet"
        file.write_text("old")
        done = in_process.parshall("router", "measure", "--pps", "50k", "-c", "12000", "-o", file)
        kept = file.read_text()
    assert done.returncode == 1
    assert f"parshall: router: {file}: No space left on device; make room" in done.stderr
    assert "sent 12,000" in done.stdout
    assert kept == "old"


def started(*arguments):
    program = subprocess.Popen(
        [PARSHALL, "router", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "started" in program.stderr.readline()
    return program


def owned_by(pid):
    return [path.name for path in NETNS_DIRECTORY.glob(f"parshall-{pid}-*")]


@pytest.mark.parametrize("number", long_except([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_an_interrupted_measurement_leaves_nothing(number):
    program = started("measure", "-d", "60")
    assert owned_by(program.pid)
    program.send_signal(number)
    _, errors = program.communicate(timeout=30)
    assert program.returncode == 128 + number, errors
    assert not owned_by(program.pid)


def test_what_a_killed_measurement_leaves_is_removed():
    program = started("measure", "-d", "60")
    program.kill()
    program.communicate()
    clean()
    assert not owned_by(program.pid)


def test_one_cpu_is_warned_of():
    first = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", first, PARSHALL, "router", "measure", "-c", "500", "--pps", "5k"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"CPU {first}: runs router and generator" in done.stderr


@pytest.mark.long
def test_a_router_is_calibrated_before_it_is_measured_in_another_namespace_too(nft, bed, tmp_path):
    """As on a host of a study."""
    file = tmp_path / "here.toml"
    command = [PARSHALL, "router", "measure", "--rules", "300", "--pps", "20k", "-c", "5000", "--calibrate", file]
    done = bed.router.run([*map(str, command), "--json"], check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_calibrated"], done.stderr
    assert Calibration.read(file).queue_packets == BACKLOG_PACKETS


def test_the_length_of_the_backlog_is_found_in_another_namespace_too(bed):
    """It is visible only in the first one."""
    with bed.router.enter():
        assert calibrating._sysctl("netdev_max_backlog") == BACKLOG_PACKETS


def test_a_calibration_before_a_measurement_is_written(monkeypatch, tmp_path):
    requests = []
    found = SimpleNamespace(write=lambda path: path.write_text("calibration"))
    monkeypatch.setattr(calibrating, "calibrate_in", lambda bed, **options: requests.append(options) or found)
    file = tmp_path / "here.toml"
    assert router_command._calibrate(None, file, Traffic(sizes="100", flows=3))
    assert file.read_text() == "calibration"
    assert (requests[0]["sizes"], requests[0]["flows"]) == ("100", 3)


def test_a_calibration_that_is_refused_is_reported(monkeypatch, tmp_path, capsys):
    """The measurement goes on."""

    def refuse(bed, **options):
        raise ParshallError("calibration: lost packets")

    monkeypatch.setattr(calibrating, "calibrate_in", refuse)
    file = tmp_path / "here.toml"
    assert not router_command._calibrate(None, file, Traffic())
    assert capsys.readouterr().err == f"parshall: router: calibration: lost packets; {file} was not written\n"
    assert not file.exists()
