"""A study on real hosts: Dask workers in namespaces of their own, joined to the controlling one by a control link."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from test_lab_runs import FLOWS, PARSHALL, finished

from parshall.testbed import Host, Testbed

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]

SCHEDULER_PORT = 8786
# The cable is there already, without a rate; each worker measures its own clock.
STUDY = FLOWS.replace(
    'Link("sender", "receiver", rate_bps=level["rate"] * 1e6, delay_ms=1, queue_packets=50)', ""
).replace(
    'iperf3("sender", "receiver", duration_s)',
    'iperf3("sender", "receiver", duration_s, "--bitrate", f"{level[\'rate\']}M")',
)

# Of each repeat: one level and two controls.
RUNS = 3


@dataclass
class Hosts:
    """Three hosts: one controls, two run programs."""

    control: Host
    directory: Path
    workers: dict[str, "subprocess.Popen[bytes]"]
    start_worker: Callable[[str], None]

    def lab(self, *arguments: object) -> "subprocess.Popen[str]":
        """Start a command of the laboratory on the controlling host."""
        command = [PARSHALL, "lab", *map(str, arguments), "--hosts", str(self.directory / "hosts.toml"), "--json"]
        return self.control.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with Testbed() as bed:
        control, sender, receiver = (bed.host(name) for name in ("control", "sender", "receiver"))
        controls = {"sender": bed.link(control, sender), "receiver": bed.link(control, receiver)}
        cable = bed.link(sender, receiver)
        dask = [sys.executable, "-m"]
        scheduler = [
            "distributed.cli.dask_scheduler",
            "--host",
            "0.0.0.0",
            "--port",
            str(SCHEDULER_PORT),
            "--no-dashboard",
        ]
        with (tmp_path / "log").open("ab") as log:
            control.popen([*dask, *scheduler], stdout=log, stderr=log)
            control.wait_for_listener(SCHEDULER_PORT, 60)
            workers: dict[str, subprocess.Popen[bytes]] = {}

            def start_worker(name: str) -> None:
                host = {"sender": sender, "receiver": receiver}[name]
                words = [
                    *("distributed.cli.dask_worker", f"tcp://{controls[name].address(control)}:{SCHEDULER_PORT}"),
                    *("--host", controls[name].address(host), "--name", f"worker-{name}", "--no-nanny"),
                    *("--no-dashboard", "--local-directory", str(tmp_path)),
                ]
                workers[name] = host.popen([*dask, *words], stdout=log, stderr=log)

            ends = {"sender": sender, "receiver": receiver}
            tables = [
                f'[hosts.{name}]\nworker = "worker-{name}"\ninterfaces = ["{cable.interface(host)}"]\n'
                f'addresses = ["{cable.address(host)}"]\n'
                for name, host in ends.items()
            ]
            (tmp_path / "hosts.toml").write_text(
                f'scheduler = "tcp://{controls["sender"].address(control)}:{SCHEDULER_PORT}"\n' + "".join(tables)
            )
            (tmp_path / "flows.py").write_text(STUDY)
            for name in ends:
                start_worker(name)
            yield Hosts(control, tmp_path, workers, start_worker)


@pytest.mark.long
def test_a_study_runs_on_named_workers(hosts: Hosts, tmp_path: Path) -> None:
    process = hosts.lab("run", tmp_path / "flows.py", "-o", tmp_path / "out", "--repeats", "1")
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    result: dict[str, Any] = json.loads(out)
    assert (result["failed"], result["unbalanced"], result["runs"]) == (0, 0, RUNS)
    frame = pl.read_parquet(tmp_path / "out/results.parquet").filter(control="")
    for row in frame.to_dicts():
        assert row["throughput"] == pytest.approx(row["rate"], rel=0.1)
        # The log has the worker's own connections, too.
        assert 500 < row["captured"] <= row["logged"] + 60
    record = json.loads((tmp_path / "out/runs/00000/run.json").read_text())
    # All namespaces share the machine's clock.
    assert all(abs(offset_ns) < 50_000_000 for offset_ns in record["testbed"]["clock_offsets_ns"].values())
    assert (tmp_path / "out/runs/00000/tcpdump.err").exists() or record["control"] == "no instruments"


@pytest.mark.long
def test_a_host_that_dies_ends_its_run_and_the_study_goes_on_when_it_is_back(
    hosts: Hosts, tmp_path: Path, until: Callable[..., None]
) -> None:
    out = tmp_path / "out"
    process = hosts.lab("run", tmp_path / "flows.py", "-o", out, "--repeats", "2", "--on-failure", "stop")
    until("two runs are done", lambda: len(finished(out)) >= 2 or process.poll() is not None, 120)
    # A run that fails ends it: then its own words say why.
    assert process.poll() is None, process.communicate()
    hosts.workers["receiver"].send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "host receiver: " in errors.splitlines()[-1] and "parshall lab resume" in errors.splitlines()[-1]
    done = finished(out)
    assert 2 <= len(done) < 2 * RUNS
    failures = [json.loads((out / f"runs/{number:05}/run.json").read_text())["failure"] for number in done]
    assert [bool(failure) for failure in failures].count(True) == 1
    hosts.start_worker("receiver")
    process = hosts.lab("resume", out)
    text, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert json.loads(text)["failed"] == 0 and len(finished(out)) == 2 * RUNS
