"""How fast and how exactly the generator sends, beside tcpreplay and trafgen on the same veth.

Run as root: ``python benches/generate.py [--repeats 3] [--seconds 2] [--archive]``. Prints one line of JSON: for each
case every repeat; ``--archive`` puts it into ``benches/archive/``. The cases are interleaved, because the speed of a
shared machine drifts.

flood_*
    As fast as it goes, from one CPU onto a veth whose peer drops in XDP; packets/s that the peer counted. ``thesis``
    follows the size distribution of the thesis; tcpreplay replays a file of the same packets from memory, trafgen
    sends one packet of 60 bytes again and again, since it follows no distribution. ``af-packet`` and ``af-xdp`` are
    Parshall's other ways of sending, with the sizes of the thesis. ``floor``: live frames from a program that does
    nothing but redirect them; nothing that sends by live frames can be faster on this machine at this moment.
replay_*
    A file of 20,000 packets of the thesis's distribution again and again, as fast as it goes, by tcpreplay and by each
    of Parshall's ways of sending. In the same rounds ``replay_floor`` and ``replay_generated``: as
    ``flood_floor`` and ``flood_parshall_thesis``.
cores_*
    One and two CPUs that send, on a veth with two queues: a flood with the sizes of the thesis, by each of Parshall's
    ways of sending; and 900,000 Poisson arrivals a second, as below.
poisson_*
    Poisson arrivals; Kolmogorov-Smirnov distance of the gaps from an exponential distribution by the generator's clock,
    and by the clock of an XDP program at the peer that does nothing but note the time: in ns, and in us, as most
    captures give them (there the distribution is rounded likewise). ``gap_p10_ns``: what the shortest tenth of
    the gaps is below.
receiver_floor
    The same program at the peer under a flood: it cannot separate packets that are closer than this.
fixed_*
    Equal gaps; error of the mean and of the gaps at 99 %, by the generator's clock and by that program's.
fixed_*_tcpdump
    The same by tcpdump's time stamps; its work is done on the sender's CPU.
"""

import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _floor
import numpy as np
from _arrivals import PLACES, SOURCE, read_arrivals_ns
from _object import compiled
from _record import finish, parser_for

from parshall import _native
from parshall.host import offloads
from parshall.instruments.generate import Generator
from parshall.testbed import Host, Link, Testbed

DROP = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int drop(struct xdp_md *context) { return XDP_DROP; }
char LICENSE[] SEC("license") = "Dual MIT/GPL";
"""
REPLAYED = 20_000
# Without a count a file is replayed once.
ENDLESS = 10**12
# Debian has trafgen where only root looks.
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin"
POISSON_PPS = 900e3
FIXED_GAPS_NS = (100_000, 10_000, 2_000, 1_000)


@contextmanager
def link_of(drop: Path | None, queues: int = 1) -> Iterator[tuple[Host, Host, Link]]:
    """Two hosts and a veth; the receiver drops in XDP, or has NAPI by GRO."""
    with Testbed() as bed:
        sender, receiver = bed.host("sender"), bed.host("receiver")
        link = bed.link(sender, receiver, backend="veth")
        # Before the program comes: a queue that is added later does not run it.
        for host in (receiver, sender) if queues > 1 else ():
            host.run(["ethtool", "-L", link.interface(host), "rx", str(queues), "tx", str(queues)])
        if drop is not None:
            receiver.run(
                ["ip", "link", "set", "dev", link.interface(receiver), "xdpdrv", "obj", str(drop), "sec", "xdp"]
            )
        else:
            with receiver.enter():
                offloads.switch(link.interface(receiver), True)
        yield sender, receiver, link


def received(receiver: Host, link: Link) -> int:
    """Packets that the receiving end has counted."""
    text = receiver.run(["ip", "-j", "-s", "link", "show", "dev", link.interface(receiver)]).stdout
    return int(json.loads(text)[0]["stats64"]["rx"]["packets"])


def run_generator(sender: Host, link: Link, seconds: float, cpu: int | list[int], **options: Any) -> dict[str, Any]:
    """Send for some seconds; return the account."""
    with Generator(link.interface(sender), netns=sender.path, cpu=cpu, **options) as generator:
        deadline = time.monotonic() + seconds
        while not generator.status()["has_ended"] and time.monotonic() < deadline:
            time.sleep(0.01)
    return generator.wait().account


def flood(
    drop: Path, seconds: float, cpu: int | list[int], backend: str = "xdp", queues: int = 1, **what: Any
) -> dict[str, float]:
    """Parshall as fast as it goes."""
    with link_of(drop, queues) as (sender, receiver, link):
        before = received(receiver, link)
        account = run_generator(sender, link, seconds, cpu, seed=1, backend=backend, **what)
        arrived = received(receiver, link) - before
        return {
            "pps": arrived / account["elapsed_ns"] * 1e9,
            "lost": account["sent"] - arrived,
            "ks_sizes": account["sizes"]["ks_distance"],
            "sender_cpu_s": account["sender_cpu_s"],
            "feeder_cpu_s": account["feeder_cpu_s"],
            "starved_runs": account["starved_runs"],
        }


def floor(drop: Path, passes_on: Path, cpu: int) -> dict[str, float]:
    """Live frames from a program that does nothing but redirect them."""
    with link_of(drop) as (sender, receiver, link):
        name = link.interface(sender)
        sender.run(["ip", "link", "set", "dev", name, "xdpdrv", "obj", str(passes_on), "sec", "xdp"])
        shown = json.loads(sender.run(["ip", "-j", "-d", "link", "show", "dev", name]).stdout)[0]
        before = received(receiver, link)
        elapsed_s = _floor.send(sender, shown, cpu)
        arrived = received(receiver, link) - before
        return {"pps": arrived / elapsed_s, "lost": _floor.FRAMES - arrived}


def arrivals_ns(receiver: Host, link: Link) -> np.ndarray:
    """Times that the program at the receiving end noted."""
    shown = receiver.run(["ip", "-j", "-d", "link", "show", "dev", link.interface(receiver)]).stdout
    return read_arrivals_ns(json.loads(shown)[0])


def receiver_floor(program: Path, cpu: int) -> dict[str, float]:
    """Gaps that the program at the peer sees when packets come as fast as they can."""
    with link_of(program) as (sender, receiver, link):
        options = {"netns": sender.path, "cpu": cpu, "sizes": "60", "count": PLACES // 2, "seed": 7}
        Generator(link.interface(sender), **options).wait()
        gaps = np.diff(arrivals_ns(receiver, link))
        return {f"gap_p{percent}_ns": float(np.percentile(gaps, percent)) for percent in (1, 50, 90)}


def written_trace(drop: Path, directory: Path) -> Path:
    """Write a file of packets of the thesis's distribution, a microsecond apart."""
    with link_of(drop) as (sender, _, link):
        run = Generator(link.interface(sender), netns=sender.path, sizes="thesis", count=1, seed=1)
        run.wait()
    trace = directory / "thesis.pcap"
    with trace.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, (_, frame) in enumerate(_native.planned_frames(json.dumps(run.request), [0] * REPLAYED)):
            file.write(struct.pack("<IIII", number // 10**6, number % 10**6, len(frame), len(frame)) + frame)
    return trace


def tcpreplay(drop: Path, seconds: float, cpu: int, trace: Path) -> dict[str, float]:
    """Replay a file from memory at top speed."""
    with link_of(drop) as (sender, receiver, link):
        before = received(receiver, link)
        command = [
            "taskset",
            "-c",
            str(cpu),
            "tcpreplay",
            "-q",
            "-t",
            "-K",
            "--loop=1000000",
            f"--duration={max(1, round(seconds))}",
        ]
        command += ["-i", link.interface(sender), str(trace)]
        text = sender.run(command, timeout_s=seconds + 60).stdout
        match = re.search(r"Actual: (\d+) packets .* in ([\d.]+) seconds", text)
        assert match, text
        arrived = received(receiver, link) - before
        return {"pps": arrived / float(match[2]), "lost": int(match[1]) - arrived}


def trafgen(drop: Path, seconds: float, cpu: int, directory: Path) -> dict[str, float]:
    """Send one packet of 60 bytes again and again."""
    with link_of(drop) as (sender, receiver, link):
        configuration = directory / "one.cfg"
        configuration.write_text("{ 0x02,0,0,0,0,2, 0x02,0,0,0,0,1, 0x08,0x00, fill(0x41, 46) }\n")
        command = [
            shutil.which("trafgen", path=SEARCH) or "trafgen",
            "-o",
            link.interface(sender),
            "-i",
            str(configuration),
            "-P",
            "1",
            "-q",
        ]
        before = received(receiver, link)
        program = sender.popen(["taskset", "-c", str(cpu), *command], stdout=subprocess.DEVNULL, start_new_session=True)
        began = time.monotonic()
        time.sleep(seconds)
        arrived, elapsed_s = received(receiver, link) - before, time.monotonic() - began
        # It forks, and ignores SIGINT while it sends.
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(timeout=60)
        return {"pps": arrived / elapsed_s}


def captured_gaps(
    sender: Host, receiver: Host, link: Link, cpu: int, directory: Path, **options: Any
) -> tuple[dict[str, Any], np.ndarray]:
    """Send, capture with tcpdump at the peer; return account and the gaps by its time stamps, ns."""
    trace = directory / "captured.pcap"
    other = str(max(os.sched_getaffinity(0) - {cpu}, default=cpu))
    command = ["tcpdump", "-i", link.interface(receiver), "--time-stamp-precision=nano", "-s", "64", "-B", "262144"]
    command += ["-w", str(trace), "udp and port 9"]
    program = receiver.popen(["taskset", "-c", other, *command], stderr=subprocess.PIPE, text=True)
    assert program.stderr is not None
    while "listening on" not in program.stderr.readline():
        assert program.poll() is None, "tcpdump ended"
    with Generator(link.interface(sender), netns=sender.path, cpu=cpu, **options) as generator:
        while not generator.status()["has_ended"]:
            time.sleep(0.01)
    account = generator.wait().account
    # tcpdump empties its buffer within a second of the last packet.
    time.sleep(1.5)
    program.send_signal(signal.SIGINT)
    account["tcpdump"] = " ".join(program.communicate(timeout=60)[1].split())
    gaps, _ = _native.read_trace_gaps(trace)
    account["captured"] = len(gaps) + 1
    return account, np.asarray(gaps)


def ks_exponential(gaps_ns: np.ndarray, mean_ns: float) -> float:
    """Distance of gaps from the exponential distribution, on both sides of each step."""
    ordered = np.sort(gaps_ns)
    distribution = -np.expm1(-ordered / mean_ns)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.abs(distribution - steps[:-1]).max(), np.abs(distribution - steps[1:]).max()))


def ks_rounded(gaps_ns: np.ndarray, mean_ns: float, unit_ns: float) -> float:
    """Distance when the times of packets are rounded down to a unit, and the distribution likewise.

    The first packet lies anywhere in its unit, so that the rounded gap is at most k units with the mean over u in
    (0, 1) of F((k + 1 - u) units).
    """
    times = np.floor(np.cumsum(gaps_ns) / unit_ns)
    counts = np.bincount(np.diff(times).astype(int))
    found = np.cumsum(counts) / counts.sum()
    rate = unit_ns / mean_ns
    k = np.arange(len(found))
    expected = 1 - np.exp(-rate * k) * -math.expm1(-rate) / rate
    return float(np.abs(found - expected).max())


def poisson(
    program: Path, cpu: int | list[int], seconds: float, pps: float, backend: str = "xdp", queues: int = 1
) -> dict[str, Any]:
    """Poisson arrivals, seen by the generator and by an XDP program at the peer."""
    with link_of(program, queues) as (sender, receiver, link):
        with Generator(
            link.interface(sender),
            netns=sender.path,
            cpu=cpu,
            sizes="60",
            gap="poisson",
            pps=pps,
            count=int(min(pps * seconds, PLACES)),
            seed=7,
            backend=backend,
        ) as generator:
            while not generator.status()["has_ended"]:
                time.sleep(0.01)
        account = generator.wait().account
        gaps = np.diff(arrivals_ns(receiver, link))
        return {
            "sent": account["sent"],
            "captured": len(gaps) + 1,
            "pps": account["rate_pps"],
            "ks_own": account["gaps"]["ks_distance"],
            "ks_arrived_ns": ks_exponential(gaps, 1e9 / pps),
            "ks_arrived_us": ks_rounded(gaps, 1e9 / pps, 1000.0),
            "gap_p10_ns": float(np.quantile(gaps, 0.1)),
            "late_mean_ns": account["gaps"]["late_mean_ns"],
        }


def fixed(program: Path, cpu: int, gap_ns: int, seconds: float) -> dict[str, Any]:
    """Equal gaps, seen by the generator and by an XDP program at the peer."""
    with link_of(program) as (sender, receiver, link):
        options = fixed_options(gap_ns, seconds)
        with Generator(link.interface(sender), netns=sender.path, cpu=cpu, **options) as generator:
            while not generator.status()["has_ended"]:
                time.sleep(0.01)
        return fixed_result(generator.wait().account, np.diff(arrivals_ns(receiver, link)), gap_ns)


def fixed_tcpdump(cpu: int, directory: Path, gap_ns: int, seconds: float) -> dict[str, Any]:
    """Equal gaps, seen by the generator and by tcpdump."""
    with link_of(None) as (sender, receiver, link):
        options = fixed_options(gap_ns, seconds)
        account, gaps = captured_gaps(sender, receiver, link, cpu, directory, **options)
        return fixed_result(account, gaps, gap_ns) | {"tcpdump": account["tcpdump"]}


def fixed_options(gap_ns: int, seconds: float) -> dict[str, Any]:
    """Return the request to the generator."""
    return {"sizes": "60", "gap": f"fixed:mean={gap_ns}ns", "count": max(1000, int(seconds * 1e9 / gap_ns)), "seed": 7}


def fixed_result(account: dict[str, Any], gaps: np.ndarray, gap_ns: int) -> dict[str, Any]:
    """Errors of equal gaps by both clocks."""
    return {
        "sent": account["sent"],
        "captured": len(gaps) + 1,
        "mean_error": account["gaps"]["mean_ns"] / gap_ns - 1,
        "error_p99": account["gaps"]["error_p99"],
        "late_max_ns": account["gaps"]["late_max_ns"],
        "mean_error_arrived": float(gaps.mean()) / gap_ns - 1,
        "error_p50_arrived": float(np.median(np.abs(gaps - gap_ns))) / gap_ns,
        "error_p99_arrived": float(np.quantile(np.abs(gaps - gap_ns), 0.99)) / gap_ns,
    }


def main() -> int:
    """Measure, print, archive."""
    parser = parser_for(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    cpu = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        drop = compiled(directory, DROP, "drop")
        cases: dict[str, Any] = {}
        if drop is not None:
            passes_on = compiled(directory, _floor.SOURCE, "floor")
            cases["flood_floor"] = lambda: floor(drop, passes_on, cpu)
            for sizes in ("thesis", "46", "1500"):
                cases[f"flood_parshall_{sizes}"] = lambda s=sizes: flood(drop, arguments.seconds, cpu, sizes=s)
            trace = written_trace(drop, directory)
            if shutil.which("tcpreplay"):
                cases["flood_tcpreplay_thesis"] = lambda: tcpreplay(drop, arguments.seconds, cpu, trace)
            if shutil.which("trafgen", path=SEARCH):
                cases["flood_trafgen_46"] = lambda: trafgen(drop, arguments.seconds, cpu, directory)
            for backend in ("af-packet", "af-xdp"):
                cases[f"flood_{backend}_thesis"] = lambda b=backend: flood(
                    drop, arguments.seconds, cpu, b, sizes="thesis"
                )
            for name, same in (("floor", "floor"), ("generated", "parshall_thesis"), ("tcpreplay", "tcpreplay_thesis")):
                if f"flood_{same}" in cases:
                    cases[f"replay_{name}"] = cases[f"flood_{same}"]
            for backend in ("xdp", "af-packet", "af-xdp"):
                cases[f"replay_{backend}"] = lambda b=backend: flood(
                    drop, arguments.seconds, cpu, b, replay=trace, gap="none", count=ENDLESS
                )
            arrivals = compiled(directory, SOURCE, "arrivals")
            two = sorted(os.sched_getaffinity(0))[:2]
            for cpus in (two[:1], two) if len(two) == 2 else ():
                for backend in ("xdp", "af-packet", "af-xdp"):
                    cases[f"cores_{len(cpus)}_flood_{backend}"] = lambda c=cpus, b=backend: flood(
                        drop, arguments.seconds, c, b, queues=2, sizes="thesis"
                    )
                cases[f"cores_{len(cpus)}_poisson_900k"] = lambda c=cpus: poisson(
                    arrivals, c, 1.0, POISSON_PPS, queues=2
                )
            cases["receiver_floor"] = lambda: receiver_floor(arrivals, cpu)
            for name, pps in (("900k", POISSON_PPS), ("400k", 400e3), ("100k", 100e3), ("40k", 40e3)):
                cases[f"poisson_{name}"] = lambda p=pps: poisson(arrivals, cpu, 1.0, p)
            for backend in ("af-packet", "af-xdp"):
                cases[f"poisson_100k_{backend}"] = lambda b=backend: poisson(arrivals, cpu, 1.0, 100e3, b)
            for gap_ns in FIXED_GAPS_NS:
                cases[f"fixed_{gap_ns}"] = lambda g=gap_ns: fixed(arrivals, cpu, g, 1.0)
        for gap_ns in (10_000, 2_000):
            cases[f"fixed_{gap_ns}_tcpdump"] = lambda g=gap_ns: fixed_tcpdump(cpu, directory, g, 1.0)
        cases = {case: run for case, run in cases.items() if arguments.only in case}
        results: dict[str, list[dict[str, Any]]] = {case: [] for case in cases}
        for _ in range(arguments.repeats):
            for case, run in cases.items():
                results[case].append(run())
    finish("generate", {"cpu": cpu, "results": results}, {}, arguments.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
