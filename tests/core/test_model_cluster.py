"""Sweeps on a Dask cluster: a real scheduler and two worker processes on the loopback."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import pytest
from distributed import Client

import in_process
from parshall.errors import ParshallError, UsageError
from parshall.model.cluster import map_in_order
from parshall.model.sweep import sweep

WORKERS = 2
OVER = {"cpu_mhz": [1000.0, 2000.0], "load_mbps": [100.0, 200.0, 300.0]}
OPTIONS = {"duration_s": 0.02, "warm_up_s": 0.01, "replications": 2, "seed": 7}


@dataclass
class Cluster:
    """A scheduler and its workers, each a process."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)


def dask(program: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments], stdout=output, stderr=output
        )


def started(directory: Path) -> Cluster:
    found = directory / "scheduler.json"
    common = ["--scheduler-file", str(found), "--no-dashboard"]
    log = directory / "log"
    cluster = Cluster("", dask("scheduler", "--host", "127.0.0.1", "--port", "0", *common, log=log))
    deadline = time.monotonic() + 60
    while not cluster.address:
        assert cluster.scheduler.poll() is None and time.monotonic() < deadline, log.read_text()
        try:
            cluster.address = json.loads(found.read_text())["address"]
        except (OSError, ValueError):
            time.sleep(0.02)
    return cluster


def complete(cluster: Cluster, directory: Path) -> None:
    """Start workers in the place of those that a test killed."""
    cluster.workers = [worker for worker in cluster.workers if worker.poll() is None]
    while len(cluster.workers) < WORKERS:
        own = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(directory)]
        cluster.workers.append(dask("worker", cluster.address, *own, log=directory / "log"))
    wait_for(cluster)


def wait_for(cluster: Cluster) -> None:
    """Wait until the scheduler knows the workers that live, and no others."""
    expected = {worker.pid for worker in cluster.workers if worker.poll() is None}
    deadline = time.monotonic() + 60
    with Client(cluster.address, timeout=60) as client:
        while set(client.run(os.getpid, on_error="return").values()) != expected:
            assert time.monotonic() < deadline, expected
            time.sleep(0.02)


def ended(cluster: Cluster) -> None:
    for process in (*cluster.workers, cluster.scheduler):
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def _clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Cluster, Path]]]:
    """The cluster of all tests, and those before it whose scheduler a test killed."""
    made: list[tuple[Cluster, Path]] = []
    yield made
    for cluster, _ in made:
        ended(cluster)


@pytest.fixture
def cluster(_clusters: list[tuple[Cluster, Path]], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A scheduler with all of its workers, which a test may kill."""
    if not _clusters or _clusters[-1][0].scheduler.poll() is not None:
        directory = tmp_path_factory.mktemp("cluster")
        _clusters.append((started(directory), directory))
    found, directory = _clusters[-1]
    complete(found, directory)
    return found


def nobody() -> str:
    """Return an address without a listener."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parshall", "model", "sweep", *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_cluster_has_the_same_results_as_this_machine(cluster: Cluster) -> None:
    seen: list[tuple[int, int]] = []
    there = sweep(
        "bsd-router", OVER, cluster=cluster.address, progress=lambda done, all_: seen.append((done, all_)), **OPTIONS
    )
    assert there.equals(sweep("bsd-router", OVER, **OPTIONS))
    assert seen[-1] == (6, 6)

    def point_and_worker(point: int) -> tuple[int, int]:
        return point, os.getpid()

    # Both workers computed points, and no other process.
    places = map_in_order(cluster.address, point_and_worker, range(40))
    assert [point for point, _ in places] == list(range(40))
    assert {where for _, where in places} == {worker.pid for worker in cluster.workers}

    arguments = ["single-queue", "--over", "load_mbps=50,100", "--duration", "0.01", "--json"]
    done = command(*arguments, "--cluster", cluster.address)
    assert done.returncode == 0 and not done.stderr, done.stderr
    here = in_process.parshall("model", "sweep", *arguments)
    assert json.loads(done.stdout) == json.loads(here.stdout)


def test_a_killed_worker_does_not_end_a_sweep(cluster: Cluster) -> None:
    over = {"load_mbps": [float(load) for load in range(100, 500, 40)]}
    options = {**OPTIONS, "duration_s": 0.2}

    def kill_one(done: int, _: int) -> None:
        victim = cluster.workers[0]
        if done >= 2 and victim.poll() is None:
            victim.send_signal(signal.SIGKILL)
            victim.wait()

    there = sweep("bsd-router", over, cluster=cluster.address, progress=kill_one, **options)
    assert cluster.workers[0].returncode == -signal.SIGKILL
    assert there.equals(sweep("bsd-router", over, **options))


def test_a_point_that_fails_on_a_worker_has_the_same_error(cluster: Cluster) -> None:
    def fails(point: int) -> int:
        if point == 2:
            raise ParshallError("the network holds too many packets")
        return point

    with pytest.raises(ParshallError, match=r"^the network holds too many packets$"):
        map_in_order(cluster.address, fails, range(4))
    with pytest.raises(ParshallError, match=r"a worker failed: ZeroDivisionError: .* by zero; it needs parshall"):
        map_in_order(cluster.address, lambda point: 1 // point, [1, 0])


def test_an_unreachable_cluster_is_one_line() -> None:
    address = nobody()
    done = command("single-queue", "--over", "load_mbps=50,100", "--cluster", address)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and address in done.stderr, done.stderr
    assert "cannot be reached" in done.stderr and "name a running scheduler" in done.stderr
    for wrong in ("nonsense://x:1", "tcp://127.0.0.1:notaport"):
        with pytest.raises(UsageError, match="cannot be reached") as caught:
            sweep("single-queue", OVER, cluster=wrong, **OPTIONS)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2p1\r\n", b"\xff" * 64, bytes(64), b"220 "])
def test_what_is_not_dask_is_one_line_and_no_memory(greeting: bytes) -> None:
    def greet() -> None:
        with listener.accept()[0] as connection:
            connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Thread(target=greet)
        server.start()
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UsageError, match="what answers there is not Dask; name a running scheduler"):
            map_in_order(address, abs, [1])
        server.join(timeout=10)


def test_no_client_is_left_half_initialised() -> None:
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(UsageError, match="cannot be reached"):
            sweep("single-queue", OVER, cluster="nonsense://x:1", **OPTIONS)
        assert not [each for each in gc.get_objects() if isinstance(each, Client)]
    finally:
        gc.enable()


def test_losing_all_workers_or_the_scheduler_is_reported(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parshall.model.cluster.WORKERLESS_S", 2.0)
    monkeypatch.setattr("parshall.model.cluster.POLL_INTERVAL_S", 0.2)
    over = {"load_mbps": [float(load) for load in range(100, 500, 20)]}
    options = {**OPTIONS, "duration_s": 0.3}

    def kill(*processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            process.kill()
            process.wait()

    with pytest.raises(ParshallError, match=r"has had no worker for 2 s, \d+ of 20 points are left; start workers"):
        sweep("bsd-router", over, cluster=cluster.address, progress=lambda *_: kill(*cluster.workers), **options)
    with pytest.raises(ParshallError, match="has no worker after 1 s; start one: dask worker"):
        from parshall.model.cluster import connected

        with connected(cluster.address, timeout_s=1):
            pass
    cluster.workers.append(
        dask("worker", cluster.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", log=Path(os.devnull))
    )
    wait_for(cluster)
    with pytest.raises(ParshallError, match="lost its scheduler; start it"):
        sweep("bsd-router", over, cluster=cluster.address, progress=lambda *_: kill(cluster.scheduler), **options)
