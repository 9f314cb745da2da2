"""What a log with a budget costs by the kernel's account, and whether its estimates hold against a full log beside it.

Run as root: ``benches/run budget`` or ``.venv/bin/python benches/budget.py --minutes 60``. Four connections of iperf3
cross a link with losses; their rate goes from nothing to ten times and back, again and again, with bursts.
``parshall tcp --budget`` logs one end, and ``parshall tcp`` the same end whole. Twice a second the run times of all
programs of the first (of the kernel, ``bpf_stats_enabled``) and the CPU time of its reader (``/proc``) are read.
``--of path`` measures the cost of ``parshall path --budget`` instead. Prints one JSON object.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _record import finish, parser_for, version_of

import parshall
from parshall.testbed import Testbed

PARSHALL = Path(sys.executable).with_name("parshall")
STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")
CONNECTIONS = 4
LINK: dict[str, Any] = {"rate_bps": 120e6, "delay_ms": 3, "queue_packets": 60, "loss": 0.0005}
# Of each connection, bits per second, and seconds: nothing, some, ten times that, and back.
PHASES = ((0, 20), (2e6, 40), (20e6, 40), (2e6, 40), (30e6, 10), (1e6, 30))
# BPF_PROG_TYPE_SYSCALL
CALLED = re.compile(r"prog_type:\s+31\n")
SAMPLE_S = 0.5
SPAN_S = 10.0
WINDOW_S = 5.0
MEASURES = ("acked_bytes", "retransmitted", "rtt_p50_us", "rtt_p99_us")


@contextlib.contextmanager
def timed_programs() -> Iterator[None]:
    """Let the kernel time all programs, until the end of the block."""
    before = STATISTICS.read_text()
    STATISTICS.write_text("1")
    try:
        yield
    finally:
        STATISTICS.write_text(before)


def spent_s(pid: int, of: str) -> float:
    """Return the run time of a process's programs and the CPU time of its reader, seconds."""
    total_ns = 0
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            text = info.read_text()
            # What the reader calls as a program is in its own time.
            if (found := re.search(r"run_time_ns:\s+(\d+)", text)) and not CALLED.search(text):
                total_ns += int(found[1])
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == f"parshall-{of}":
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(directory: Path, of: str, share: str, minutes: float) -> dict[str, Any]:
    """Run the traffic and a log with a budget, of TCP beside a full one; return samples, and the JSON of the logs."""
    samples = []
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(Testbed())
        near, far = bed.host("near"), bed.host("far")
        link = bed.link(near, far, **LINK)
        server = far.popen(["iperf3", "-s", "-B", link.address(far)], stdout=subprocess.DEVNULL)
        stack.callback(server.terminate)
        stack.enter_context(timed_programs())
        logs = []
        all_options = {"full": [], "budget": ["--budget", share]}
        for name in ("full", "budget") if of == "tcp" else ("budget",):
            options = all_options[name]
            words = [PARSHALL, of, "-o", directory / f"{name}.arrow", "--netns", near.path, "--json", *options]
            log = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert log.stderr and "started" in log.stderr.readline()
            logs.append(log)
        began_s = time.monotonic()
        phase = 0
        while time.monotonic() < began_s + 60 * minutes:
            rate_bps, length_s = PHASES[phase % len(PHASES)]
            phase += 1
            client = None
            if rate_bps:
                words = ["iperf3", "-c", link.address(far), "-P", str(CONNECTIONS), "-b", str(int(rate_bps))]
                client = near.popen([*words, "-t", str(length_s)], stdout=subprocess.DEVNULL)
            until_s = time.monotonic() + length_s
            while time.monotonic() < until_s:
                time.sleep(SAMPLE_S)
                now_s = time.monotonic() - began_s
                samples.append((now_s, rate_bps, spent_s(logs[-1].pid, of), resident_bytes(logs[-1].pid)))
            if client:
                client.wait()
        said = []
        for log in logs:
            log.send_signal(signal.SIGINT)
            said.append(json.loads(log.communicate()[0]))
    return {"samples": samples, "logs": said}


def costs(samples: list[tuple[float, float, float, int]]) -> list[tuple[float, float]]:
    """Return the end of each ten seconds, s since the beginning, and their cost, as a share of one CPU."""
    found = []
    first = 0
    for at_s, _, spent, _ in samples:
        while samples[first + 1][0] <= at_s - SPAN_S:
            first += 1
        if samples[first][0] <= at_s - SPAN_S:
            found.append((at_s, (spent - samples[first][2]) / (at_s - samples[first][0])))
    return found


def coverage(directory: Path) -> dict[str, Any]:
    """Compare the estimates of the log with a budget with those of the full log."""
    logs = [parshall.read(directory / f"{name}.arrow") for name in ("full", "budget")]
    begin_ns = max(log.thinning["time_ns"][0].value if log.thinning.num_rows else 0 for log in logs) + 1_000_000_000
    full, thinned = (log.estimates(WINDOW_S, begin_ns) for log in logs)
    count = min(full.height, thinned.height) - 1
    found: dict[str, Any] = {"windows": count, "window_s": WINDOW_S}
    for name in MEASURES:
        inside = known = 0
        widths = []
        for true, row in zip(full[name][:count], thinned[:count].iter_rows(named=True), strict=True):
            if true is None:
                continue
            low, high = row[f"{name}_low"], row[f"{name}_high"]
            known += low is not None and high is not None
            inside += row[name] is not None and (low is None or low <= true) and (high is None or true <= high)
            if true and low is not None and high is not None:
                widths.append((high - low) / true)
        windows = sum(value is not None for value in full[name][:count])
        found[name] = {
            "windows": windows,
            "inside": inside,
            "with_both_ends": known,
            "median_width": statistics.median(widths) if widths else None,
        }
    found["observed_share_min"] = thinned["observed_share"].min()
    return found


def main() -> None:
    """Measure, and print what came."""
    parser: argparse.ArgumentParser = parser_for(__doc__)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--share", default="1%", metavar="SHARE", help="the budget")
    parser.add_argument("--of", choices=("tcp", "path"), default="tcp", help="whose budget")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measured = measure(Path(directory), options.of, options.share, options.minutes)
        found = coverage(Path(directory)) if options.of == "tcp" else measured["logs"][-1]["estimates"]
    budget = measured["logs"][-1]["budget"]
    ends = costs(measured["samples"])
    shares = [share for _, share in ends]
    over = [(at_s, share / budget["share"]) for at_s, share in ends if share > 1.2 * budget["share"]]
    # What was spent, and at which rate of traffic, around each span of too much: to find out why.
    near = [
        (at_s, rate_bps, spent)
        for at_s, rate_bps, spent, _ in measured["samples"]
        if any(end_s - 2 * SPAN_S <= at_s <= end_s for end_s, _ in over)
    ]
    memory = [sample[3] for sample in measured["samples"]]
    results = {
        "minutes": options.minutes,
        "budget": budget,
        "ten_seconds": len(shares),
        "largest_cost_of_budget": max(shares) / budget["share"],
        "median_cost_of_budget": statistics.median(shares) / budget["share"],
        "over_1_2": len(over),
        "over": over,
        "spent_near_over": near,
        "memory_bytes": [memory[len(memory) // 4], memory[-1]],
        "ledgers_complete": [log["ledger"]["complete"] for log in measured["logs"]],
        "ledger": measured["logs"][-1]["ledger"],
        "estimates": found,
    }
    finish(
        "budget" if options.of == "tcp" else "path-budget",
        results,
        {"iperf3": version_of("iperf3", "--version")},
        options.archive,
    )


if __name__ == "__main__":
    main()
