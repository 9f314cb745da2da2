"""A store of many hosts: its report on the two workers of a cluster, of which one is killed, and in one process.

``benches/run fleet`` or ``.venv/bin/python benches/fleet.py [--hosts N] [--records N]``. Makes logs of bulk flows
(``crates/core/examples/write_long_log.rs``), four different ones, each of which is the log of a quarter of the hosts of
a store, reduces all of them on two workers of a Dask cluster on the loopback, one of which is killed when an eighth is
done and replaced, and again in this process. Measures wall time, and the peak resident memory of the workers when each
log was done.

Prints one JSON object; fails when the two pages differ, a report lacks records, or the memory of a worker was larger at
the end than in the middle of its logs by more than a quarter.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from _record import finish, parser_for, version_of

from parshall.fleet import Fleet
from parshall.report import Digest, digest_of_many, write_report

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = "write_long_log"
KINDS = 4
# Memory of a worker at the end over that in the middle of its logs.
GROWTH_MAX = 1.25


def made_store(directory: Path, hosts: int, records: int) -> Path:
    """Make a store; return its directory."""
    build = ["cargo", "build", "--quiet", "--release", "--workspace", "--example", EXAMPLE]
    subprocess.run(build, cwd=ROOT, check=True)
    logs = [directory / f"{kind}.arrow" for kind in range(KINDS)]
    for kind, log in enumerate(logs):
        flows = str(200 * (kind + 1))
        subprocess.run([ROOT / "target/release/examples" / EXAMPLE, log, str(records), flows], check=True)
    store = directory / "store"
    for host in range(hosts):
        place = store / f"logs/host=host{host:02}"
        place.mkdir(parents=True)
        os.link(logs[host % KINDS], place / "tcp.20261128000000000.arrow")
    return store


class Cluster:
    """A scheduler and two workers of one thread each, as processes."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._file = directory, directory / "scheduler.json"
        self.processes = [self._started("scheduler", "--host", "127.0.0.1", "--port", "0")]
        while not self._file.exists():
            time.sleep(0.05)
        self.address = json.loads(self._file.read_text())["address"]
        self.workers = [self.worker(), self.worker()]

    def _started(self, program: str, *words: str) -> "subprocess.Popen[bytes]":
        common = ["--scheduler-file", str(self._file), "--no-dashboard"]
        with (self._directory / "cluster.log").open("ab") as output:
            command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *words, *common]
            return subprocess.Popen(command, stdout=output, stderr=output)

    def worker(self) -> "subprocess.Popen[bytes]":
        """Start a worker."""
        process = self._started(
            "worker", "--nthreads", "1", "--no-nanny", "--memory-limit", "0", "--local-directory", str(self._directory)
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        """End all of them."""
        for process in self.processes:
            process.kill()
            process.wait()


def peak_bytes(pid: int) -> int:
    """Return the largest resident memory of a process so far; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def on_cluster(fleet: Fleet, directory: Path) -> tuple[list[Digest], dict[str, Any]]:
    """Reduce a store on two workers, one of which is killed; return the digests and what it took."""
    cluster = Cluster(directory)
    peaks: dict[int, list[int]] = {}
    killed = threading.Event()

    def progress(done: int, every: int) -> None:
        for process in cluster.workers:
            if process.poll() is None:
                peaks.setdefault(process.pid, []).append(peak_bytes(process.pid))
        if done >= every / 8 and not killed.is_set():
            killed.set()
            cluster.workers[0].kill()
            cluster.workers.append(cluster.worker())
        print(f"\r{done} of {every} logs on the cluster", end="", file=sys.stderr, flush=True)

    try:
        began_s = time.monotonic()
        digests = fleet.map(digest_of_many, cluster=cluster.address, progress=progress)
        wall_s = time.monotonic() - began_s
    finally:
        cluster.end()
        print(file=sys.stderr)
    # The one that was killed has no end.
    kept = [row for process in cluster.workers[1:] if (row := peaks.get(process.pid))]
    growth = [row[-1] / row[len(row) // 2] for row in kept]
    return digests, {
        "wall_s": wall_s,
        "was_killed": killed.is_set(),
        "peak_bytes": [row[-1] for row in kept],
        "peaks_bytes": kept,
        "growth": growth,
    }


def page_of(fleet: Fleet, digests: list[Digest], directory: Path) -> str:
    """Return the page of a report without the line that says when it was written."""
    page = write_report(dict(zip(fleet.names, digests, strict=True)), directory, "fleet", images=False)
    return "\n".join(line for line in page.read_text().split("\n") if "report written" not in line)


def main() -> int:
    """Make a store and its report twice; return 1 when they differ or memory has grown."""
    parser = parser_for(__doc__)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--directory", type=Path, help="where the logs go for the time being; /tmp by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        store = made_store(directory, arguments.hosts, arguments.records)
        fleet = Fleet(store)
        digests, cluster = on_cluster(fleet, directory)
        pages = [page_of(fleet, digests, directory / "cluster")]
        began_s = time.monotonic()
        digests = fleet.map(
            digest_of_many, progress=lambda done, every: print(f"\r{done} of {every}", end="", file=sys.stderr)
        )
        alone_s = time.monotonic() - began_s
        print(file=sys.stderr)
        pages.append(page_of(fleet, digests, directory / "alone"))
        log_bytes = sum(each.total_bytes for each in fleet.logs)
    records = sum(each.reduction.records for each in digests)
    results = {
        "hosts": arguments.hosts,
        "records": records,
        "log_bytes": log_bytes,
        "page_bytes": len(pages[0]),
        "cluster": cluster,
        "alone": {"wall_s": alone_s, "peak_bytes": peak_bytes(os.getpid())},
        "are_equal": pages[0] == pages[1],
    }
    versions = {"parshall": version_of("git", "-C", str(ROOT), "describe", "--always", "--dirty")}
    finish("fleet", results, versions, arguments.archive)
    is_constant = bool(cluster["growth"]) and max(cluster["growth"]) <= GROWTH_MAX
    is_whole = records == arguments.hosts * arguments.records
    return 0 if results["are_equal"] and is_constant and is_whole and cluster["was_killed"] else 1


if __name__ == "__main__":
    sys.exit(main())
