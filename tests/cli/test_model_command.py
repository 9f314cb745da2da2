"""``parshall model`` as a user runs it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import in_process


def parshall(*arguments: str) -> subprocess.CompletedProcess[str]:
    return in_process.parshall("model", *arguments)


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


@pytest.mark.parametrize("number", ["300", " 0.5"])
def test_a_latency_needs_its_unit(number: str) -> None:
    done = parshall("plan", "single-queue", "--p99", number)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"expected a unit: {number.strip()}us, {number.strip()}ms or {number.strip()}s")


def test_plan_finds_the_smallest_clock_and_queue() -> None:
    common = ("--load", "8500pps", "--duration", "0.5", "--json")
    done = parshall("plan", "single-queue", "--find", "cpu_mhz", "--loss", "1", "--p99", "1ms", *common)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["p99_us"] <= 1000
    slower = parshall("run", "single-queue", "--set", f"cpu_mhz={0.98 * found['cpu_mhz']}", *common, "--warm-up", "0.2")
    assert dict(map(tuple, json.loads(slower.stdout)["latencies"][-1]["quantiles"]))[0.99] > 1e6

    done = parshall("plan", "single-queue", "--find", "queue", "--loss", "0.01", "--set", "cpu_mhz=130", *common)
    assert done.returncode == 0, done.stderr
    places = json.loads(done.stdout)["queue"]
    at = ("--over", "load_pps=8500", "--set", "cpu_mhz=130")
    losses = [
        json.loads(parshall("sweep", "single-queue", "--over", f"queue={size}", *at, "--json").stdout)[0]["loss"]
        for size in (places - 3, places + 3)
    ]
    assert losses[0] > 0.01 > losses[1]


def test_an_end_that_the_search_leaves_open_is_unknown() -> None:
    done = parshall("plan", "single-queue", "--loss", "0", "--duration", "0.1")
    assert done.returncode == 0, done.stderr
    ends = [line.split() for line in done.stdout.splitlines() if line.startswith(("low", "high"))]
    assert len(ends) == 2 and ["unknown"] in (end[1:] for end in ends), ends


def test_one_long_run_in_batches() -> None:
    done = parshall("run", "single-queue", "--duration", "10", "--batches", "20", "--warm-up", "0.1", "--json")
    assert done.returncode == 0 and not done.stderr, done.stderr
    data = json.loads(done.stdout)
    assert data["is_uncorrelated"] is True and len(data["replications"]) == 20
    done = parshall(
        "run", "single-queue", "--load", "235mbps", "--duration", "0.02", "--batches", "40", "--warm-up", "0"
    )
    assert "intervals are too narrow" in done.stderr and done.returncode == 0
    assert "replications are too short to know the interval of the 99th percentile" in done.stderr


def lossy_queue(tmp_path: Path) -> str:
    """Write a model whose queue loses packets at any load.

    A plan warms up for a fifth of a second, in which a slow model has few packets.
    """
    path = tmp_path / "model.json"
    source = {**GOOD["sources"][0], "gap_ns": "poisson:mean=100us"}
    queue = {**GOOD["queues"][0], "service_ns": "exponential:mean=50us", "capacity_packets": 9}
    path.write_text(json.dumps({**GOOD, "sources": [source], "queues": [queue]}))
    return str(path)


def test_a_wide_interval_of_a_plan_gives_a_warning(tmp_path: Path) -> None:
    done = parshall("plan", lossy_queue(tmp_path), "--loss", "0.001", "--duration", "0.05")
    assert done.returncode == 0, done.stderr
    assert "load_factor" in done.stdout and "low" in done.stdout and "high" in done.stdout
    assert "load_factor lies between" in done.stderr and "wide" in done.stderr


def test_a_narrow_interval_of_a_plan_gives_none(tmp_path: Path) -> None:
    done = parshall("plan", lossy_queue(tmp_path), "--loss", "0.01", "--duration", "5", "--json")
    row = json.loads(done.stdout)
    assert not done.stderr and row["low"] <= row["load_factor"] <= row["high"] and row["confidence"] == 0.95


def test_a_plan_without_loss_says_what_it_cannot_prove(tmp_path: Path) -> None:
    done = parshall("plan", lossy_queue(tmp_path), "--loss", "0", "--duration", "0.05")
    assert done.returncode == 0 and "packets was lost at" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_file_is_swept_and_run_under_settings(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(GOOD))
    swept = parshall("sweep", str(path), "--over", "load_factor=0.5,1,1.5", "--duration", "0.01", "--json")
    assert swept.returncode == 0, swept.stderr
    rates = [row["throughput_pps"] for row in json.loads(swept.stdout) if row["class"] == ""]
    assert rates == pytest.approx([2.5e5, 5e5, 7.5e5], rel=0.05)
    done = parshall("run", str(path), "--set", "queues.q.service.0.time_ns=500", "--duration", "0.01", "--json")
    assert done.returncode == 0, done.stderr
    (load,) = [row["mean"] for row in json.loads(done.stdout)["estimates"] if row["kind"] == "station"]
    assert load == pytest.approx(0.25, rel=0.05)
    refused = parshall("run", str(path), "--load", "5kpps")
    assert refused.returncode == 2 and "load_factor" in refused.stderr


def test_a_comparison_says_that_packets_were_lost(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{number * 1000},{'' if number % 4 == 0 else number * 1000 + 500}" for number in range(400)]
    path.write_text("\n".join(["arrival_ns,departure_ns", *rows]))
    done = parshall("compare", str(path), "single-queue", "--json")
    assert done.returncode == 0, done.stderr
    assert "latencies are those of packets that got through" in done.stderr and "measured 25.00%" in done.stderr
    assert json.loads(done.stdout)[0]["lost"] == 100


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html"])
def test_a_model_is_drawn(suffix: str, tmp_path: Path) -> None:
    picture = tmp_path / f"model{suffix}"
    done = parshall("draw", "bsd-router", "-o", str(picture))
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 5000
    if suffix == ".svg":
        for name in ("ipintrq", "flow3", "50 packets, priority 5", "forwarded", "cpu", "bus"):
            assert name in picture.read_text(), name


GOOD = {
    "name": "file",
    "sources": [{"name": "c", "gap_ns": "poisson:mean=2us", "to": "q"}],
    "stations": [{"name": "s"}],
    "queues": [{"name": "q", "station": "s", "service_ns": 1000, "to": "out"}],
}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"queues": [{**GOOD["queues"][0], "station": "cpv"}]}, ["queue", "no station", "cpv", "there are s"]),
        ({"sources": [{**GOOD["sources"][0], "gap_ns": "poisson:mean=-2us"}]}, ["source", "mean", "-2"]),
        ({"queues": [{**GOOD["queues"][0], "service_ns": -5}]}, ["queue", "time_ns", "-5", "from 0 to"]),
        (
            {"queues": [{**GOOD["queues"][0], "service_ns": {"bounds": [0, 1, 2], "counts": [0, 0]}}]},
            ["queue", "time_ns", "sum of 0"],
        ),
        (
            {"queues": [{**GOOD["queues"][0], "service_ns": 2500}]},
            ["station", "load of 1.250", "allow unstable"],
        ),
        ({"queues": [{**GOOD["queues"][0], "service_ns": "nan"}]}, ["queue", "time_ns", "nan"]),
    ],
)
def test_mistakes_in_a_model_file_are_one_line(change: dict[str, object], parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(GOOD))
    run = ("run", str(path), "--duration", "0.001", "--warm-up", "0")
    assert parshall(*run).returncode == 0
    path.write_text(json.dumps({**GOOD, **change}))
    done = parshall(*run)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


def test_a_nan_in_a_measurement_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_ns,departure_ns\n5,6\nNaN,7\n")
    done = parshall("compare", str(path), "single-queue")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "row 1 is nan" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["run", "nothing"], 2, "nothing: no such file or built-in model"),
        (["run", "bsd-router", "--set", "cpu_mhz"], 2, "expected NAME=VALUE"),
        (["run", "bsd-router", "--load", "fast"], 2, "--load fast: expected a number above 0"),
        (["run", "bsd-router", "--set", "cpu_mhz=-5"], 2, "clock_mhz is -5"),
        (["run", "single-queue", "--set", "queue=0", "--load", "900mbps"], 2, "load of"),
        (["run", "bsd-router", "--set", "link_mbps=0"], 2, "link_mbps is 0; expected a number above 0"),
        (["run", "bsd-router", "--set", "bus_bits=0"], 2, "bus_bits is 0; expected a number above 0"),
        (["run", "bsd-router", "--set", "bus_mhz=-1"], 2, "bus_mhz is -1; expected a number above 0"),
        (["run", "linux-napi", "--set", "rings=0"], 2, "rings is 0; expected a number above 0"),
        (["run", "bsd-router-functions", "--set", "link_mbps=0"], 2, "link_mbps is 0"),
        (["run", "bsd-router", "--set", "rx_ring=inf"], 2, "rx_ring is 'inf'; expected a whole number"),
        (["run", "bsd-router", "--set", "load_mbps=nan"], 2, "load_mbps is 'nan'; expected a finite number"),
        (["run", "bsd-router", "--set", "noise_us=inf"], 2, "noise_us is 'inf'; expected a finite number"),
        (["sweep", "bsd-router", "--over", "load_mbps=5:1:1"], 2, "5:1:1: ends at 1, before it begins"),
        (["figure", "9.9"], 2, "no figure '9.9'"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], status: int, text: str) -> None:
    done = parshall(*arguments)
    assert done.returncode == status, done.stderr
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("parshall: model: ")


def test_ctrl_c_ends_a_long_run_at_once(until: Callable[..., None]) -> None:
    import signal

    process = subprocess.Popen(
        [sys.executable, "-m", "parshall", "model", "run", "bsd-router", "--duration", "3000", "--warm-up", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # It has begun to simulate once it has used 1.5 s of CPU time.
        stat = Path(f"/proc/{process.pid}/stat")
        until(
            "it simulates",
            lambda: sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) >= 150,
            timeout_s=60,
        )
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        # The run itself would take hours.
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()
        process.communicate()
