"""The laboratory on this kernel: studies run, their numbers agree with other counts, faults leave nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import in_process
from parshall.cli.doctor import remove_leftovers
from parshall.lab import Bundle, load
from parshall.lab.demo import offers
from parshall.lab.evaluation import EVALUATION, evaluate, table_of
from parshall.lab.laboratory import run, study_of
from parshall.studies import path_of
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]

PARSHALL = Path(sys.executable).with_name("parshall")
# Short flows of iperf3 with a log, and tcpdump as a witness of the packets.
FLOWS = """
from parshall.lab import *
from parshall.lab.programs import iperf3_bps, tcpdump_counts

def setting(level, duration_s):
    return Setting(
        [Host("sender", cpu=0), Host("receiver", cpu=-1)],
        [Link("sender", "receiver", rate_bps=level["rate"] * 1e6, delay_ms=1, queue_packets=50)],
        [tcpdump("receiver", "-B", 65536, "tcp"), tcp_log("receiver"), *iperf3("sender", "receiver", duration_s)],
        duration_s,
    )

def logged(run):
    hooks = run.result("log")["ledger"]["hooks"]
    return sum(hook["logged"] for hook in hooks if hook["hook"] in ("tcp_ingress", "tcp_egress"))

def finding(table):
    return f"{table.mean('throughput', rate=20):.1f} Mbit/s."

study = Study(
    "flows", "Flows", "Which rate do flows get?", setting, levels=grid(rate=[20]), repeats=1, duration_s=1,
    measures=[
        Measure("throughput", "Mbit/s", lambda run: iperf3_bps(run.result("iperf3")) / 1e6),
        Measure("moved", "MB", lambda run: run.result("iperf3")["end"]["sum_received"]["bytes"] / 1e6),
        Measure("link", "MB", lambda run: run.received("receiver", what="bytes") / 1e6),
        Measure("logged", "packets", logged),
        Measure("captured", "packets", lambda run: tcpdump_counts(run.errors("tcpdump"))["captured"]),
    ],
    figures=[Figure("rate", "Throughput", "rate", ["throughput"], finding=finding)],
)
"""
# A study that needs no tool; its instrument fails when a file is there, and takes the file away.
PLAIN = """
import sys
from parshall.lab import *

SEND = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('{{b.address}}', 9))"

def setting(level, duration_s):
    script = "if rm {fault} 2>/dev/null; then echo 'it broke' >&2; exit 3; fi; echo started >&2; exec sleep 1000"
    return Setting(
        [Host("a"), Host("b")],
        [Link("a", "b")],
        [
            Program("meter", "a", ["sh", "-c", script], ready="started", is_json=False, statuses=(-2,)),
            Program("send", "a", [sys.executable, "-c", SEND], "workload", is_json=False),
        ],
        duration_s,
    )

study = Study(
    "plain", "Plain", "Does it run?", setting, levels=grid(n=[1, 2, 3]), repeats={repeats}, duration_s=0,
    measures=[Measure("received", "packets", lambda run: run.received("b"))],
)
"""


# Three levels and two controls.
PLAIN_RUNS = 5


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The plain study; the file `fault` beside it makes its next run fail."""
    path = tmp_path / "plain.py"
    path.write_text(
        PLAIN.replace("{fault}", str(tmp_path / "fault"))
        .replace("{repeats}", "1")
        .replace("{{", "{")
        .replace("}}", "}")
    )
    return path


def lab(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return in_process.parshall("lab", *arguments)


def finished(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in (directory / "runs").glob("[0-9]*") if not path.suffix)


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("flows")
    (directory / "flows.py").write_text(FLOWS)
    done = lab("run", directory / "flows.py", "-o", directory / "out", "--json")
    assert done.returncode == 0, done.stderr
    yield directory / "out", json.loads(done.stdout)


def test_a_study_of_a_user_gives_a_bundle_with_table_and_report(flows: tuple[Path, dict[str, Any]]) -> None:
    directory, result = flows
    # A level and two controls.
    assert (result["runs"], result["planned"], result["failed"], result["unbalanced"]) == (3, 3, 0, 0)
    assert Path(result["report"]) == directory / "report.html"
    frame = pl.read_parquet(directory / "results.parquet")
    assert frame.height == 3 and frame.filter(pl.col("status") != "done").is_empty()
    for name in ("study.py", "bundle.json", EVALUATION, "report.html", "runs/00000/run.json"):
        assert (directory / name).stat().st_size > 0
    # One level is no picture.
    assert not list((directory / "figures").glob("*"))


def test_its_numbers_agree_with_link_tcpdump_and_iperf3(flows: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = flows
    frame = pl.read_parquet(directory / "results.parquet").filter(control="")
    for row in frame.to_dicts():
        assert 0 < row["throughput"] <= row["rate"]
        # The link carries headers, too: 1514 bytes for 1448 of payload; what is queued at the end; what is sent again.
        assert row["moved"] * 1514 / 1448 <= row["link"] < row["moved"] * 1.2 + 0.1
        # Both see the receiver's packets in both directions. What the queue of the link (50 packets) still holds when
        # iperf3 closes its socket has no owner, and is not of interest to the log.
        assert row["logged"] <= row["captured"] <= row["logged"] + 60
    for path in sorted((directory / "runs").iterdir()):
        record = json.loads((path / "run.json").read_text())
        if record["control"]:
            continue
        said = json.loads((path / "iperf3.out").read_text())["end"]["sum_received"]["bits_per_second"]
        assert frame.filter(run=record["run"])["throughput"].item() == pytest.approx(said / 1e6)


def test_its_report_says_what_the_table_has(flows: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = flows
    frame = pl.read_parquet(directory / "results.parquet")
    mean = frame.filter(control="", rate=20)["throughput"].mean()
    assert f"{mean:.1f} Mbit/s." in (directory / "report.html").read_text()


def test_its_controls_measure_the_laboratory_itself(flows: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = flows
    records = [json.loads((path / "run.json").read_text()) for path in sorted((directory / "runs").iterdir())]
    names = {record["control"]: set(record["programs"]) for record in records}
    assert names["no traffic"] == {"log", "tcpdump", "pause"}
    assert names["no instruments"] == {"iperf3", "iperf3-server"}
    assert names[""] == {"log", "tcpdump", "iperf3", "iperf3-server"}
    evaluation = json.loads((directory / EVALUATION).read_text())
    assert {row["control"] for row in evaluation["controls"]} == {"no traffic", "no instruments"}
    quiet = [record for record in records if record["control"] == "no traffic"]
    assert all(record["ledgers"]["log"]["logged"] == 0 for record in quiet)


def test_an_instrument_that_fails_marks_its_run_and_the_study_goes_on(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "fault").write_text("")
    done = lab("run", plain, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failed"] == 1
    frame = pl.read_parquet(tmp_path / "out/results.parquet")
    failed = frame.filter(pl.col("status") == "failed")
    assert failed.height == 1 and "meter: ended with status 3: it broke" in failed["failure"].item()
    assert "it broke" in (tmp_path / "out/report.html").read_text()
    # Once more: the failed run is repeated, and remembers.
    assert lab("resume", tmp_path / "out").returncode == 0
    frame = pl.read_parquet(tmp_path / "out/results.parquet")
    assert frame.filter(pl.col("status") == "failed").is_empty()
    record = json.loads((tmp_path / f"out/runs/{failed['run'].item():05}/run.json").read_text())
    assert len(record["earlier_failures"]) == 1


def test_a_failure_stops_the_study_when_asked(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "fault").write_text("")
    done = lab("run", plain, "-o", tmp_path / "out", "--on-failure", "stop")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("parshall: lab: run ") and "it broke" in done.stderr
    assert len(finished(tmp_path / "out")) == 1


@pytest.mark.parametrize("number", long_except([signal.SIGKILL], [signal.SIGINT, signal.SIGKILL]))
def test_a_study_that_is_stopped_continues_where_it_was(
    plain: Path, tmp_path: Path, number: signal.Signals, until: Callable[..., None]
) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [PARSHALL, "lab", "run", plain, "-o", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )
    until("some runs are done", lambda: len(finished(out)) >= 2, 60)
    # As a terminal does: to the whole foreground process group.
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    before = {n: (out / f"runs/{n:05}/run.json").read_bytes() for n in finished(out)}
    assert all(json.loads(record)["status"] == "done" for record in before.values())
    assert len(before) < PLAIN_RUNS
    done = lab("resume", out, "--json")
    assert done.returncode == 0, done.stderr
    # What it goes on with is said at once.
    assert f": run {len(before) + 1} of {PLAIN_RUNS}, " in done.stderr.splitlines()[0]
    assert json.loads(done.stdout)["runs"] == PLAIN_RUNS
    assert {n: (out / f"runs/{n:05}/run.json").read_bytes() for n in before} == before
    # What `doctor --clean` calls before it tries each feature, which takes seconds.
    remove_leftovers()


def test_equal_levels_are_compared_and_the_rate_of_false_verdicts_is_said(plain: Path, tmp_path: Path) -> None:
    done = lab("check", plain, "-o", tmp_path / "out", "--copies", "2", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    # One packet is sent in each run: what was received is the same always, with the resolution of a count.
    assert (
        "of 1 comparison of 1 pair of equal levels 0 are called different (0.0%, 95 % interval 0.0% to 97.5%"
        in done.stdout
    )
    assert (tmp_path / "out/report.html").exists()
    assert lab("check", plain, "--copies", "3").stderr.startswith("parshall: lab: --copies 3: expected an even number")


@pytest.mark.long
def test_a_full_disk_ends_a_study_with_a_remedy_and_it_continues(plain: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=36k", "tmpfs", disk], check=True)
    try:
        done = lab("run", plain, "-o", disk / "out")
        assert done.returncode == 1
        assert "No space left on device" in done.stderr.splitlines()[-1]
        assert "parshall lab resume" in done.stderr.splitlines()[-1]
        kept = finished(disk / "out")
        subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
        assert lab("resume", disk / "out").returncode == 0
        assert len(finished(disk / "out")) == PLAIN_RUNS > len(kept) > 0
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.long
def test_a_study_runs_on_a_machine_with_one_cpu(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)
    done = subprocess.run(
        ["taskset", "-c", "0", PARSHALL, "lab", "run", tmp_path / "flows.py", "-o", tmp_path / "out", "--repeats", "1"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "out/results.parquet").filter(control="")["throughput"].null_count() == 0


ROUTED = """
import sys
import polars
from parshall.lab import *

CONNECT = '''
import socket, sys, time
address, count, file = sys.argv[1:]
for _ in range(int(count)):
    began_s = time.monotonic()
    socket.create_connection((address, 8000)).close()
    print(1e3 * (time.monotonic() - began_s), file=open(file, "a"))
'''.replace("{", "{{").replace("}", "}}")

def setting(level, duration_s):
    connect = [sys.executable, "-c", CONNECT, "{b.address}", level["count"], "{directory}/times.txt"]
    server = [sys.executable, "-m", "http.server", "8000"]
    return Setting(
        [
            Host("a", commands=[["ip", "route", "add", "{b.address}", "via", "{r.address}"]]),
            Host("r", sysctl={"net.ipv4.ip_forward": 1}),
            Host("b", commands=[["ip", "route", "add", "{a.address}", "via", "{r.addresses[1]}"]]),
        ],
        [Link("a", "r"), Link("r", "b")],
        [
            Program("server", "b", server, "server", ready="tcp:8000", is_json=False),
            Program("connect", "a", connect, "workload", is_json=False),
        ],
        duration_s,
    )

def times_ms(run):
    return [float(line) for line in (run.directory / "times.txt").read_text().splitlines()]

def times(table):
    values = [value for run in table.runs for value in times_ms(run)]
    return polars.DataFrame({"x": range(len(values)), "y": values})

study = Study(
    "routed", "Routed", "How long does a connection through a router take?", setting,
    levels=grid(count=[2, 3]), repeats=1, duration_s=0,
    measures=[
        Measure("connections", "", lambda run: len(times_ms(run))),
        Measure("forwarded", "packets", lambda run: run.sent("r", 1)),
    ],
    figures=[Figure("times", "Times", rows=times, x_title="connection", y_title="time (ms)", is_scatter=True)],
    has_controls=False,
)
"""


@pytest.mark.long
def test_a_study_of_a_router_has_files_and_figures_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "routed.py").write_text(ROUTED)
    done = lab("run", tmp_path / "routed.py", "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    frame = pl.read_parquet(tmp_path / "out/results.parquet")
    # A SYN, an ACK and a FIN of each connection at least.
    assert all(row["connections"] == row["count"] <= row["forwarded"] / 3 for row in frame.to_dicts())
    assert len(json.loads((tmp_path / "out" / EVALUATION).read_text())["figures"][0]["points"]) == 5
    assert (tmp_path / "out/figures/times.png").stat().st_size > 0


# Some levels of every built-in study that needs traffic: each kind of program once.
LEVELS: dict[str, list[dict[str, Any]]] = {
    "siftr": [{"logging": "both", "ppl": 10, "flows": 2}, {"logging": "attached", "flows": 1}],
    "ttprobe": [{"path": "100 Mbit/s, 6 ms", "method": "both"}, {"path": "1 Gbit/s", "method": "polled"},
        {"path": "100 Mbit/s", "method": "events"}, {"path": "100 Mbit/s, short flows", "method": "events"}],
    "ffpf": [
        {"method": method, "rate": "100M", "snaplen": 100, "applications": 2}
        for method in ("tcpdump on the ring", "tcpdump", "our readers", "TPACKET_V3")
    ]
    + [
        {"method": "tcpdump on the ring", "rate": "600M", "snaplen": 100, "applications": 2, **more}
        for more in ({"sizes": "64"}, {"filters": "overlapping"}, {"buffer_mib": 2})
    ],
    "capture": [
        {"work": work, "method": method, "buffer": "8M", "cpus": cpus, "gap": 20_000}
        for work, method, cpus in (
            ("plain", "socket", 1),
            ("2 applications", "ring", 2),
            ("filter of 50 instructions", "memory-mapped", 2),
            ("25 copies", "ring", 2),
            ("zlib 3", "ring", 2),
            ("pipe to gzip", "ring", 2),
            ("headers to disk", "ring", 2),
            ("filter + 25 copies + zlib 3", "ring", 2),
        )
    ],
    "generator": [
        {"tool": "parshall gen", "sizes": "distribution of the thesis", "gap": 20_000},
        {"tool": "tcpreplay", "sizes": "distribution of the thesis", "gap": 0},
        {"tool": "gen by AF_PACKET", "sizes": "distribution of the thesis", "gap": 0},
    ],
    "bottleneck": [{"discipline": discipline, "queue": 100} for discipline in ("fq-codel", "pie")],
    "completion": [{"discipline": "fq-codel", "load": 10}],
    "competition": [{"pair": pair, "queue": 41} for pair in ("bbr, cubic", "cubic, cubic")],
    "router": [
        {
            "receive": "rps", "traffic": "poisson", "load": 0.3, "routes": 4, "rules": 0, "gro": True, "flows": 1,
            "sizes": "64", "tunnel": tunnel,
        }
        for tunnel in ("none", "aes-gcm")
    ],
}  # fmt: skip


CASES = [
    pytest.param(
        name,
        level,
        id=f"{name} {number}",
        marks=[pytest.mark.long] if (number and level.get("tool") != "tcpreplay") or name == "router" else [],
    )
    for name, levels in LEVELS.items()
    for number, level in enumerate(levels)
]


def test_a_workload_that_ends_well_with_an_error_in_its_result_fails_its_run(tmp_path: Path) -> None:
    """As iperf3 does with a congestion control that this host does not have."""
    # Braces are places of a study.
    says = "import json; print(json.dumps(dict(end=None, error='unable to set TCP_CONGESTION')))"
    text = PLAIN.format(fault="x", repeats=1).replace('"workload", is_json=False', '"workload"')
    (tmp_path / "study.py").write_text(
        text.replace('[sys.executable, "-c", SEND]', f"[sys.executable, '-c', {says!r}]")
    )
    done = lab("run", tmp_path / "study.py", "-o", tmp_path / "out", "--json")
    assert done.returncode == 1
    assert "send: unable to set TCP_CONGESTION" in done.stderr, done


@pytest.mark.parametrize(("name", "level"), CASES)
def test_a_built_in_study_measures_at_every_kind_of_level(name: str, level: dict[str, Any], tmp_path: Path) -> None:
    if level.get("tool") == "tcpreplay" and shutil.which("tcpreplay") is None:
        pytest.skip("tcpreplay is not installed")
    whole = load(path_of(name))
    # With its base, where it is a state of a run of stretches.
    states = whole.runs_of([level])[0] if whole.switched else [level]
    study = replace(
        whole,
        levels=states,
        switched=[factor for factor in whole.switched if any(factor in state for state in states)],
        quick_levels=(),
        cycles=1,
        has_controls=False,
        duration_s=1,
        figures=(),
        statements=(),
    )
    bundle = run(study, path_of(name).read_text(), tmp_path / "out", repeats=1, stops_on_failure=True)
    evaluation = evaluate(bundle, study)
    assert not evaluation["failures"] and not any(row["unbalanced"] for row in evaluation["ledgers"])
    rows = table_of(bundle, study).frame.to_dicts()
    row = rows[-1]
    assert len(rows) == len(states) and all(row[factor] == value for factor, value in level.items())
    if name in ("ffpf", "capture"):
        assert 0 <= row["worst"] <= 100
    if name == "ffpf":
        assert row["switches"] > 0
    if name == "generator":
        assert row["kpps"] > 10 and row["distance"] < 2.5
    if name == "bottleneck":
        assert 20 <= row["round_trip"] <= row["round_trip_p99"] and 5 < row["throughput"] < 50
        assert 0.25 <= row["fairness"] <= 1 and 0 <= row["unanswered"] < 50
    if name == "completion":
        # A handshake, and a question with its answer, at 20 ms there and back each.
        assert 40 <= row["short"] <= row["short_p90"] and 5 < row["throughput"] < 50 and row["late"] < 500
    if name == "competition":
        assert 0 < row["share"] < 100 and 5 < row["first"] + row["second"] < 50 and row["round_trip"] >= 40
    if name == "siftr":
        # Half a second of iperf3 over a cable, with a log at each end, or none that logs.
        assert row["throughput"] > 50 and (row["records"] > 100) == ("ppl" in level) and 0 < row["cost"] < 200
    if level.get("method") == "both":
        # How often the poller comes to its turn, the machine decides.
        assert row["events"] > row["samples"] / 2 > 0 and 0 <= row["missed"] <= 100


def test_a_bundle_can_be_evaluated_by_its_own_text(flows: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = flows
    bundle = Bundle.open(directory)
    study = study_of(bundle)
    assert study.name == "flows" and study.measures[0].name == "throughput"
    table = table_of(bundle, study)
    assert table.levels("rate") == [20]


@pytest.mark.long
def test_the_study_of_the_manual_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/studies.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    if not offers("bbr"):
        example = example.replace('"bbr")', '"reno")').replace('mbps(run, "bbr")', 'mbps(run, "reno")')
    (tmp_path / "mine.py").write_text(example)
    done = lab("run", tmp_path / "mine.py", "--quick", "--repeats", "1", "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    frame = pl.read_parquet(tmp_path / "out/results.parquet").filter(control="")
    assert frame.height == 2
    # Both flows share a link of 100 Mbit/s, of which 95.6 are payload.
    for row in frame.to_dicts():
        assert 60 < row["bbr"] + row["cubic"] < 97
