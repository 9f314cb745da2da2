"""All instruments together at full rate for two hours: memory, descriptors, threads and kernel maps must be flat.

Run as root: ``benches/run soak`` or ``.venv/bin/python benches/soak.py [--minutes 120]``. Two hosts on one cable. The
first sends a TCP flow as fast as it goes, and generated packets beside it. On the second a TCP log, a capture ring
and a CPU profile run all the time, and what an administrator leaves on: a TCP log and a log of paths, each with a
budget of a hundredth of a CPU; the first in files that rotate and go to a store; metrics of both are scraped each
second. Readers join the ring, read for some seconds and leave, some of them by ``kill -9``. Every ten seconds it reads
what the processes hold. Prints one JSON object; fails when the second half of the run holds more than the first (1 MiB
of memory), a ledger does not balance, a scrape fails, or a file that was finished is not in the store.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from _record import finish, parser_for, version_of

from parshall.instruments.capture import rings
from parshall.testbed import Host, Testbed

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from ledgers import unbalanced

PARSHALL = Path(sys.executable).with_name("parshall")
INTERVAL_S = 10
# The first minutes fill rings and caches for the first time.
SETTLE_S = 60
# A reader that takes longer to end has failed.
END_S = 60
BUDGET = "1%"
ALWAYS_ON = ("tcp with a budget", "path with a budget")
MIB = 1 << 20


def held(pid: int) -> dict[str, int]:
    """Return what a process holds."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    descriptors = list((process / "fdinfo").iterdir())
    maps = 0
    for path in descriptors:
        try:
            maps += "map_id:" in path.read_text()
        except FileNotFoundError:
            continue
    return {
        "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "descriptors": len(descriptors),
        "threads": int(status["Threads"]),
        "maps": maps,
    }


class Comers:
    """Readers that join the ring, stay for some seconds, and leave or are killed."""

    def __init__(self, host: Host, ring: str) -> None:
        self._host, self._ring = host, ring
        self._random = random.Random(1)
        self._readers: list[tuple[float, Any]] = []
        self.came = self.killed = 0
        self.unbalanced: list[Any] = []

    def turn(self, now_s: float) -> None:
        """Start or end a reader, if it is time."""
        if len(self._readers) < 4 and self._random.random() < 0.3:
            command = [PARSHALL, "capture", "--join", self._ring, "-w", "/dev/null", "--json", "-q"]
            wants = self._random.choice([[], ["--filter", "udp"], ["--filter", "tcp and greater 1000"], ["-s", "64"]])
            reader = self._host.popen([*command, *wants], stdout=subprocess.PIPE, text=True)
            self._readers.append((now_s + self._random.uniform(0.2, 20), reader))
            self.came += 1
        for one in list(self._readers):
            until_s, reader = one
            if now_s >= until_s:
                self._readers.remove(one)
                self.end(reader)

    def end(self, reader: Any) -> None:
        """End a reader; one in three is killed."""
        if self._random.random() < 1 / 3:
            reader.kill()
            reader.communicate()
            self.killed += 1
            return
        reader.send_signal(signal.SIGINT)
        out, _ = reader.communicate(timeout=END_S)
        # A reader that was ended before it joined prints nothing.
        if out and any(unbalanced(json.loads(out)["ledger"])):
            self.unbalanced.append(json.loads(out)["ledger"])

    def end_all(self) -> None:
        """End the remaining readers."""
        for _, reader in self._readers:
            self.end(reader)


class Scrapes:
    """Reads metrics each second, as Prometheus does."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.count = 0
        self.failed: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._scrape)

    def port(self) -> int:
        """Return a free port, whose metrics are read."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.ports.append(server.getsockname()[1])
        return self.ports[-1]

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """End."""
        self._is_over.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._is_over.wait(1):
            for port in self.ports:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                        assert b"parshall_" in answer.read()
                        self.count += 1
                except (OSError, AssertionError) as error:
                    self.failed.append(f"{port}: {error}")


def is_served(port: int) -> bool:
    """Whether metrics are served there yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10):
            return True
    except OSError:
        return False


def growth(samples: list[dict[str, int]], what: str) -> int:
    """Return how much more the second half held at most than the first."""
    half = len(samples) // 2
    return max(one[what] for one in samples[half:]) - max(one[what] for one in samples[:half])


def main() -> int:
    """Run the soak; return 1 when something grew or does not balance."""
    parser = parser_for(__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    arguments = parser.parse_args()
    # Behind `&` in a script it is ignored, and so it would be in all that is started here and ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seconds = arguments.minutes * 60
    ring = f"soak-{os.getpid()}"
    with Testbed() as bed, contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parshall-soak-")))
        scrapes = Scrapes()
        sender, receiver = bed.host("sender"), bed.host("receiver")
        link = bed.link(sender, receiver, backend="veth")
        # Redirected frames reach a veth only where its peer runs NAPI.
        receiver.run(["ethtool", "-K", link.interface(receiver), "gro", "on"])
        interface = link.interface(receiver)

        def start(host: Host, *words: object) -> Any:
            command = [PARSHALL, *map(str, words), "--json", "-q"]
            return host.popen(command, stdout=subprocess.PIPE, text=True)

        instruments = {
            # Of its own host alone: what else the machine does is not measured.
            "tcp": start(receiver, "tcp", "--netns", receiver.path, "-o", "/dev/null"),
            "capture": start(receiver, "capture", "-i", interface, "--name", ring, "-w", "/dev/null"),
            "cpu": receiver.popen([PARSHALL, "cpu", "-o", "/dev/null", "-q"], stdout=subprocess.DEVNULL),
        }
        rotated = ["-o", directory / "log/flows.arrow", "--rotate-size", "8M", "--rotate-files", "4"]
        sent = ["--ship", directory / "store", "--ship-as", "soak"]
        for directory_name in ("log", "store"):
            (directory / directory_name).mkdir()
        words = {ALWAYS_ON[0]: ["tcp", *rotated, *sent], ALWAYS_ON[1]: ["path", "-o", "/dev/null"]}
        for name, own in words.items():
            more = ["--netns", receiver.path, "--budget", BUDGET, "--metrics", scrapes.port(), "--json", "-q"]
            instruments[name] = subprocess.Popen(
                [PARSHALL, *map(str, [*own, *more])], stdout=subprocess.PIPE, text=True
            )
        while not any(one["name"] == ring and one["subscribers"] for one in rings()):
            time.sleep(0.1)
        (keeper,) = (one["keeper_pid"] for one in rings() if one["name"] == ring)
        others = ["--sizes", "imix", "--pps", "50k", "--dst-mac", "ff:ff:ff:ff:ff:ff"]
        instruments["gen"] = start(sender, "gen", "-i", link.interface(sender), *others)
        server = receiver.popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
        receiver.wait_for_listener(5201)
        client = sender.popen(
            ["iperf3", "-c", link.address(receiver), "-t", f"{seconds + 3600:g}"], stdout=subprocess.DEVNULL
        )
        pids = {name: process.pid for name, process in instruments.items()} | {"keeper": keeper}
        comers = Comers(receiver, ring)
        samples: dict[str, list[dict[str, int]]] = {name: [] for name in pids}
        began_s = time.monotonic()
        next_s = began_s + SETTLE_S
        while not all(is_served(port) for port in scrapes.ports):
            time.sleep(0.1)
        scrapes.start()
        while (now_s := time.monotonic()) < began_s + seconds:
            comers.turn(now_s)
            if now_s >= next_s:
                next_s += INTERVAL_S
                for name, pid in pids.items():
                    samples[name].append(held(pid))
            time.sleep(0.2)
        comers.end_all()
        scrapes.end()
        for name in ("gen", "tcp", "capture", "cpu", *ALWAYS_ON):
            instruments[name].send_signal(signal.SIGINT)
        outputs = {name: instruments[name].communicate()[0] for name in ("gen", "tcp", "capture", *ALWAYS_ON)}
        instruments["cpu"].wait()
        for program in (client, server):
            program.kill()
            program.wait()
    ledgers = {name: json.loads(outputs[name])["ledger"] for name in ("tcp", "capture", *ALWAYS_ON)}
    shipping = json.loads(outputs[ALWAYS_ON[0]])["shipping"] | {"url": "store"}
    grown = {
        name: {what: growth(of_one, what) for what in of_one[0]} for name, of_one in samples.items() if len(of_one) > 1
    }
    results = {
        "minutes": arguments.minutes,
        "readers_came": comers.came,
        "readers_killed": comers.killed,
        "unbalanced_readers": comers.unbalanced,
        "balances": {name: not any(unbalanced(ledger)) for name, ledger in ledgers.items()},
        "ledgers": ledgers,
        "scrapes": scrapes.count,
        "failed_scrapes": scrapes.failed,
        "shipping": shipping,
        "budgets": {name: json.loads(outputs[name]).get("budget") for name in ALWAYS_ON},
        "gen": json.loads(outputs["gen"]),
        "growth": grown,
        "last": {name: of_one[-1] for name, of_one in samples.items() if of_one},
        "resident_mib": {
            name: [round(one["resident_bytes"] / MIB, 2) for one in of_one[::6]] for name, of_one in samples.items()
        },
    }
    finish("soak", results, {"iperf3": version_of("iperf3", "--version")}, arguments.archive)
    is_flat = all(
        more <= (MIB if what == "resident_bytes" else 0) for of_one in grown.values() for what, more in of_one.items()
    )
    has_all = all(results["balances"].values()) and not (
        comers.unbalanced or scrapes.failed or shipping["files_waiting"] or shipping["failures"]
    )
    return 0 if is_flat and has_all else 1


if __name__ == "__main__":
    sys.exit(main())
