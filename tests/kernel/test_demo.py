"""The tour, as a user runs it: it succeeds, report and ledgers are right, nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import in_process
from output_schemas import validated
from suites import long_except

PARSHALL = Path(sys.executable).with_name("parshall")
pytestmark = pytest.mark.kernel


@dataclass
class Ended:
    """A demo that has ended."""

    pid: int
    returncode: int
    stdout: str
    stderr: str


def demo(*arguments: object) -> Ended:
    command = [PARSHALL, "demo", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        output = program.communicate(timeout=120)
    return Ended(program.pid, program.returncode, *output)


@pytest.fixture(scope="module")
def tour(root, tmp_path_factory):
    """Run the tour for three seconds, once for all tests."""
    directory = tmp_path_factory.mktemp("demo")
    return directory, demo("--duration", 3, "-o", directory, "--json")


def test_the_tour_succeeds_and_writes_a_report(tour):
    directory, ended = tour
    assert ended.returncode == 0
    # On a busy machine it warns that the link was late; no other message is allowed.
    assert [line for line in ended.stderr.splitlines() if "too busy" not in line] == []
    report = Path(validated("demo", ended.stdout)["report"])
    assert report == directory / "report.html"
    assert report.stat().st_size > 500_000
    figures = {path.name for path in (directory / "figures").iterdir()}
    assert {"sender-cwnd.png", "sender-rtt.svg", "receiver-throughput.png"} <= figures


def test_the_ledgers_of_both_ends_balance(tour):
    import polars as pl

    import parshall
    from parshall.report.account import findings, hook_accounts

    directory, _ = tour
    for name in ("sender", "receiver"):
        log = parshall.read(directory / f"{name}.arrow")
        assert log.complete
        assert findings(log.ledger, pl.from_arrow(log.flows), log.records.num_rows) == []
        assert sum(account.logged for account in hook_accounts(log.ledger)) > 1000
        # The host's own interfaces, not those of the machine.
        assert set(log.environment["interfaces"]) == {"lo", "eth0"}


def test_each_log_holds_its_end_of_both_flows(tour):
    import parshall

    directory, ended = tour
    reported = {flow["port"]: flow for flow in json.loads(ended.stdout)["flows"]}
    assert [flow["congestion_control"] for flow in reported.values()] == ["cubic", "bbr"]
    for name, port, is_passive in (("sender", "remote_port", False), ("receiver", "local_port", True)):
        rows = parshall.read(directory / f"{name}.arrow").flows.to_pylist()
        assert {row[port]: row["congestion_control"] for row in rows} == {
            number: flow["congestion_control"] for number, flow in reported.items()
        }
        assert [row["passive"] for row in rows] == [is_passive] * 2


def test_the_log_has_the_bytes_that_the_programs_moved(tour):
    import parshall
    from parshall.figures import reduce

    directory, ended = tour
    reported = {flow["port"]: flow for flow in json.loads(ended.stdout)["flows"]}
    for name, port, measure in (
        ("sender", "remote_port", "acknowledged"),
        ("receiver", "local_port", "received"),
    ):
        log = parshall.read(directory / f"{name}.arrow")
        for row in reduce(log).table.iter_rows(named=True):
            assert row["measure"] == measure
            moved = reported[row[port]]["received_bytes"]
            # SYN and FIN are a byte each; that of the peer's SYN is none of an accepted connection.
            assert row["bytes"] - moved == (2 if measure == "acknowledged" else 1)


def test_the_flows_fill_the_bottleneck_and_its_queue(tour):
    import parshall

    directory, ended = tour
    result = json.loads(ended.stdout)
    relay = result["testbed"]["statistics"][0].get("relay")
    if relay is None:
        pytest.skip("the kernel played the link and has other counters")
    assert relay["a_to_b"]["queue_peak_packets"] == 100
    assert sum(relay["a_to_b"]["own_lost"].values()) == 0
    received_bytes = sum(flow["received_bytes"] for flow in result["flows"])
    # On a busy machine the flows begin one after the other, and the last segments come late.
    times_ns = parshall.read(directory / "receiver.arrow").records.column("time_ns").cast("int64").to_numpy()
    lasted_s = np.ptp(times_ns) / 1e9
    # 95.64 Mbit/s of payload are possible; slow start and the reverse path take some.
    assert 0.6 * 95.64e6 / 8 * 3 < received_bytes < 1.01 * 95.64e6 / 8 * lasted_s


@pytest.mark.long
def test_the_report_can_be_written_again_from_its_directory(tour, tmp_path):
    directory, _ = tour
    again = subprocess.run([PARSHALL, "report", directory, "-o", tmp_path], capture_output=True, text=True, timeout=120)
    assert (again.returncode, again.stdout.strip()) == (0, str(tmp_path / "report.html"))
    assert "a queue of 100 packets" in " ".join((tmp_path / "report.html").read_text().split())


@pytest.mark.parametrize("moment", long_except(["compete for"], ["Backend of the link", "compete for"]))
def test_an_interrupted_demo_keeps_its_logs(root, tmp_path, moment):
    running = subprocess.Popen(
        [PARSHALL, "demo", "--duration", "60", "-o", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    for line in running.stdout:
        if moment in line:
            break
    # As a terminal does: to the whole foreground process group.
    os.killpg(running.pid, signal.SIGINT)
    rest, errors = running.communicate(timeout=60)
    assert running.returncode == 0
    assert [line for line in errors.splitlines() if "too busy" not in line] == []
    assert "Report:" in rest
    assert (tmp_path / "report.html").exists()


@pytest.mark.long
def test_the_tour_runs_where_no_cgroups_are_mounted(bed, tmp_path):
    """`ip netns exec` mounts a new /sys: the tour mounts the cgroups privately, and both ends must find theirs."""
    inside = ["ip", "netns", "exec", bed.host("outer").path.name]
    done = subprocess.run(
        [*inside, PARSHALL, "demo", "--duration", "1", "--json", "-o", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert all(flow["received_bytes"] > 0 for flow in json.loads(done.stdout)["flows"])


@pytest.mark.parametrize("duration", ["0", "-1", "1e9", "soon"])
def test_a_wrong_duration_is_a_usage_error_in_one_line(tmp_path, duration):
    ended = in_process.parshall("demo", "--duration", duration, "-o", tmp_path / "none")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "--duration" in ended.stderr
    assert not (tmp_path / "none").exists()


def test_nothing_is_left_behind(tour):
    _, ended = tour
    assert not list(Path("/run/netns").glob(f"parshall-{ended.pid}-*"))
