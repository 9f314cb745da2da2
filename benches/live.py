"""What the live page costs beside a log: its CPU time, its frames a second, and the throughput that it takes.

Run as root: ``benches/run live`` or ``.venv/bin/python benches/live.py``. 5,000 connections of two hosts on one cable,
of which each end is a flow, say a byte in turn, and iperf3 sends as fast as it goes, segmentation offloads off;
``parshall tcp`` logs both ends.
In turns, ``parshall live`` follows that log and one client asks for each new frame, four times a second at most, or
nothing does. Prints one JSON object.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from _record import finish, parser_for, version_of

from parshall.testbed import Testbed

PARSHALL = Path(sys.executable).with_name("parshall")
CROWD = Path(__file__).with_name("_crowd.py")
# Each is a flow at both ends, and both are logged.
CONNECTIONS = 5_000
SETTLE_S = 3.0
FRAME_S = 0.25
_TICKS_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


class Page:
    """The live page of a log, with one client."""

    def __init__(self, log: Path) -> None:
        command = [PARSHALL, "live", log, "--json", "-q", "-o", log.parent]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        url, _, self._token = json.loads(self.process.stdout.readline())["url"].partition("#")
        self._url = f"{url}api/frame?count=60&after="
        self._version = 0
        self.frames: list[dict[str, Any]] = []

    def look(self, until_s: float) -> None:
        """Ask for what is new, until a time."""
        while time.monotonic() < until_s:
            next_s = time.monotonic() + FRAME_S
            request = urllib.request.Request(f"{self._url}{self._version}", headers={"X-Parshall-Token": self._token})
            with urllib.request.urlopen(request) as answer:
                frame = json.load(answer)
            self._version = frame["version"]
            self.frames.append({"lines": frame["lines"], "flows_open": frame["now"]["flows_open"]})
            time.sleep(max(next_s - time.monotonic(), 0))

    def end(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate()


def main() -> int:
    """Run the turns."""
    parser = parser_for(__doc__, rounds=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    turns: dict[str, list[dict[str, Any]]] = {"log": [], "log and page": []}
    with Testbed() as bed, tempfile.TemporaryDirectory() as name:
        left, right = bed.host("left"), bed.host("right")
        link = bed.link(left, right, backend="veth", offloads=False)
        address, interface = link.address(right), link.interface(right)

        def received() -> tuple[int, int]:
            """Bytes and packets so far."""
            (shown,) = json.loads(right.run(["ip", "-s", "-j", "link", "show", interface]).stdout)
            return shown["stats64"]["rx"]["bytes"], shown["stats64"]["rx"]["packets"]

        log = Path(name) / "live.arrow"
        words = ["-o", log, "--rotate-size", "64M", "--rotate-files", "8", "-q", "--json"]
        logger = subprocess.Popen([PARSHALL, "tcp", *words], stdout=subprocess.PIPE, text=True)
        programs = [
            right.popen([sys.executable, CROWD, "serve", "7000"]),
            right.popen(["iperf3", "-s"], stdout=subprocess.DEVNULL),
        ]
        right.wait_for_listener(7000)
        right.wait_for_listener(5201)
        talker = left.popen(
            [sys.executable, CROWD, "talk", address, "7000", str(CONNECTIONS)], stdout=subprocess.PIPE, text=True
        )
        assert talker.stdout is not None
        talker.stdout.readline()
        programs += [
            talker,
            left.popen(["iperf3", "-c", address, "-t", "86400"], stdout=subprocess.DEVNULL),
        ]
        for number in range(2 * arguments.rounds):
            # A-B-B-A: what drifts meets both.
            kind = list(turns)[(number + 1) // 2 % 2]
            page = Page(log) if kind == "log and page" else None
            if page:
                page.look(time.monotonic() + SETTLE_S)
                page.frames.clear()
            else:
                time.sleep(SETTLE_S)
            counted = received()
            began_s, spent_s = time.monotonic(), cpu_s(page.process.pid) if page else 0.0
            if page:
                page.look(began_s + arguments.seconds)
            else:
                time.sleep(arguments.seconds)
            wall_s = time.monotonic() - began_s
            now = received()
            turn: dict[str, Any] = {
                "throughput_Mbps": 8e-6 * (now[0] - counted[0]) / wall_s,
                "received_pps": (now[1] - counted[1]) / wall_s,
            }
            if page:
                turn |= {
                    "page_cpu_share": (cpu_s(page.process.pid) - spent_s) / wall_s,
                    "frames_per_s": len(page.frames) / wall_s,
                    "flows_open": page.frames[-1]["flows_open"],
                }
                page.end()
            turns[kind].append(turn)
            print(f"{kind}: {turn}", file=sys.stderr)
        logger.send_signal(signal.SIGINT)
        ledger = json.loads(logger.communicate()[0])["ledger"]
        for program in programs:
            program.kill()
            program.wait()

    def median(kind: str, what: str) -> float:
        return statistics.median(turn[what] for turn in turns[kind])

    results = {
        "seconds": arguments.seconds,
        "turns": turns,
        "page_cpu_share": median("log and page", "page_cpu_share"),
        "frames_per_s": median("log and page", "frames_per_s"),
        "throughput_ratio": median("log and page", "throughput_Mbps") / median("log", "throughput_Mbps"),
        "ledger": ledger,
    }
    finish("live", results, {"iperf3": version_of("iperf3", "--version")}, arguments.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
