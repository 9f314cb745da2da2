"""``parshall model`` as a user runs it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest


def parshall(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parshall", "model", *arguments], capture_output=True, text=True, timeout=120
    )


def test_list_names_models_and_their_parameters() -> None:
    assert "bsd-router" in parshall("list").stdout
    rows = json.loads(parshall("list", "bsd-router", "--json").stdout)
    assert {"parameter": "cpu_mhz", "default": 1000.0, "unit": "MHz"}.items() <= rows[-1].items() or any(
        row["parameter"] == "cpu_mhz" and row["unit"] == "MHz" for row in rows
    )


def test_run_gives_json() -> None:
    done = parshall("run", "bsd-router", "--load", "100mbps", "--duration", "0.05", "--set", "cpu_mhz=2000", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["model"] == "bsd-router" and len(data["replications"]) == 5


def test_run_writes_traces(tmp_path: Path) -> None:
    done = parshall("run", "single-queue", "--duration", "0.01", "--warm-up", "0", "--trace", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packets.arrow", "visits.arrow"]


def test_sweep_writes_a_table(tmp_path: Path) -> None:
    table = tmp_path / "sweep.csv"
    done = parshall("sweep", "single-queue", "--over", "load_mbps=50:150:50", "--duration", "0.02", "-o", str(table))
    assert done.returncode == 0, done.stderr
    assert len(table.read_text().splitlines()) == 1 + 3 * 4


def test_plan_finds_the_capacity_of_a_queue() -> None:
    done = parshall("plan", "single-queue", "--duration", "0.2", "--json", "--loss", "0.001")
    assert done.returncode == 0, done.stderr
    # 12.832 us a packet and 50 places lose a thousandth a little below 1 / 12.832 us.
    assert json.loads(done.stdout)["load_pps"] == pytest.approx(1e6 / 12.832, rel=0.06)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["run", "nothing"], 2, "nothing: no such file, and no built-in model"),
        (["run", "bsd-router", "--set", "cpu_mhz"], 2, "expected NAME=VALUE"),
        (["run", "bsd-router", "--load", "fast"], 2, "--load fast: expected a number above 0"),
        (["run", "bsd-router", "--set", "cpu_mhz=-5"], 2, "clock_mhz is -5"),
        (["run", "single-queue", "--set", "queue=0", "--load", "900mbps"], 2, "load of"),
        (["sweep", "bsd-router", "--over", "load_mbps=5:1:1"], 2, "a range needs"),
        (["figure", "9.9"], 2, "no figure '9.9'"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], status: int, text: str) -> None:
    done = parshall(*arguments)
    assert done.returncode == status, done.stderr
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("parshall: model: ")


def test_ctrl_c_ends_a_long_run_at_once() -> None:
    import signal

    process = subprocess.Popen(
        [sys.executable, "-m", "parshall", "model", "run", "bsd-router", "--duration", "100000", "--warm-up", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    # It computes once it has used a second of the processor.
    stat = Path(f"/proc/{process.pid}/stat")
    while sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) < 150:
        assert process.poll() is None
        time.sleep(0.02)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert time.monotonic() - begin < 5
