"""What metrics of a TCP log cost when they are scraped each second, with 10,000 connections.

Run as root: ``benches/run metrics``. 10,000 connections between two network namespaces say a byte in turn, 2,500 in a
second. ``parshall tcp`` logs one end: without metrics, with them, and scraped each second, in turns whose order is
random. The CPU time of the process comes from ``/proc``, of the reader and of all other threads. Prints one JSON
object.
"""

import argparse
import contextlib
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from _record import finish, parser_for

from parshall.testbed import Testbed

PARSHALL = Path(sys.executable).with_name("parshall")
CROWD = Path(__file__).with_name("_crowd.py")
READER = "parshall-tcp"
CONNECTIONS, RATE = 10_000, 2_500
PORT = 7001
MODES = ("none", "metrics", "scraped")
BEGIN_S, LENGTH_S = 6, 20


def cpu_s(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process's reader, and of its other threads, seconds."""
    reader = others = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            spent_ns = int((task / "schedstat").read_text().split()[0])
            if (task / "comm").read_text().strip() == READER:
                reader += spent_ns
            else:
                others += spent_ns
    return reader / 1e9, others / 1e9


def run(netns: Path, mode: str) -> dict[str, Any]:
    """Log for a while; return the shares of a CPU that the reader and all others took."""
    words = [PARSHALL, "tcp", "-o", "/dev/null", "--netns", netns, "--json"]
    if mode != "none":
        words += ["--metrics", "0"]
    log = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert log.stderr
    url = ""
    while "started" not in (line := log.stderr.readline()):
        assert line, f"it ended: {log.wait()}"
        url = next(iter(re.findall(r"http://\S+/metrics", line)), url)
    time.sleep(BEGIN_S)
    before, began_s, scraped_bytes = cpu_s(log.pid), time.monotonic(), 0
    for second in range(LENGTH_S):
        if mode == "scraped":
            with urllib.request.urlopen(url) as answer:
                scraped_bytes = len(answer.read())
        time.sleep(max(0.0, began_s + second + 1 - time.monotonic()))
    after, past_s = cpu_s(log.pid), time.monotonic() - began_s
    log.send_signal(signal.SIGINT)
    flows = json.loads(log.communicate()[0])["flows"]
    reader, others = ((now - then) / past_s for now, then in zip(after, before, strict=True))
    return {"mode": mode, "reader": reader, "others": others, "flows": flows, "scraped_bytes": scraped_bytes}


def main() -> None:
    """Measure, and print what came."""
    parser: argparse.ArgumentParser = parser_for(__doc__, rounds=4)
    options = parser.parse_args()
    order = random.Random(1)
    runs = []
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(Testbed())
        near, far = bed.host("near"), bed.host("far")
        link = bed.link(near, far)
        server = far.popen([sys.executable, CROWD, "serve", str(PORT)])
        stack.callback(server.kill)
        time.sleep(1)
        words = [sys.executable, CROWD, "talk", link.address(far), str(PORT), str(CONNECTIONS), str(RATE)]
        talker = near.popen(words, stdout=subprocess.PIPE, text=True)
        stack.callback(talker.kill)
        assert talker.stdout and talker.stdout.readline() == "connected\n"
        for _ in range(options.rounds):
            runs += [run(near.path, mode) for mode in order.sample(MODES, len(MODES))]
    medians = {
        mode: {key: statistics.median(one[key] for one in runs if one["mode"] == mode) for key in ("reader", "others")}
        for mode in MODES
    }
    finish("metrics", {"connections": CONNECTIONS, "medians": medians, "runs": runs}, {}, options.archive)


if __name__ == "__main__":
    main()
