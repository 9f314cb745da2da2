"""How fast and how exactly the generator sends, beside tcpreplay and trafgen on the same veth.

A study: ``benches/run generate``. The study ``generator`` holds the generator against the thesis; this one adds
the bound, replays, several CPUs, and how exact gaps are. One tool runs at once; their order is shuffled in each block.

traffic as fast as it goes, from one CPU onto a veth whose peer drops in XDP; packets a second that the peer counted
    thesis     the size distribution of the thesis; tcpreplay replays a file of such packets from memory
    46, 1500   packets of one size, bytes; trafgen sends one again and again
    replay     ``parshall gen --replay`` of 20,000 packets of the thesis's distribution, again and again
    floor      live frames from a program that does nothing but redirect them: nothing that sends by live frames can be
               faster on this machine at this moment
    two        a veth with two queues, for one CPU that sends and for two
gaps, noted by an XDP program at the peer, or by tcpdump's time stamps (its work is done on the sender's CPU)
    poisson    packets a second; ``distance``: Kolmogorov-Smirnov distance from an exponential distribution, by the
               generator's clock (``own_distance``) and by the peer's
    fixed      a gap; ``gap_error``: by how much the mean of the gaps is off
    flood      what the program at the peer can tell apart: ``gap_p10`` is what the shortest tenth of the gaps is below
"""

import os
import shutil
import sys
from pathlib import Path

import numpy as np

from parshall import _native
from parshall.lab import Figure, Host, Link, Measure, Program, Setting, Study, generate, tcpdump
from parshall.lab.study import INSTRUMENT, WORKLOAD

HERE = Path(__file__).parent
# Debian has trafgen where only root looks.
TRAFGEN = shutil.which("trafgen", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
OURS = {"gen": "xdp", "gen by AF_PACKET": "af-packet", "gen by AF_XDP": "af-xdp"}
FLOOR, TCPREPLAY, TCPDUMP = "floor", "tcpreplay", "tcpdump"
REPLAYS = [TCPREPLAY] if shutil.which(TCPREPLAY) else []
TRAFGENS = ["trafgen"] if TRAFGEN else []
POISSON = {f"poisson {rate}": pps for rate, pps in (("900k", 9e5), ("400k", 4e5), ("100k", 1e5), ("40k", 4e4))}
FIXED = {f"fixed {gap_ns} ns": gap_ns for gap_ns in (100_000, 10_000, 2_000, 1_000)}
FLOOD = "flood"
# Places that the program at the peer has for times, and what fits into them.
GAPS_S, GAPS_MOST = 1.0, 1_000_000
FILE = "{directory}/sizes.pcap"
# Of one packet, as tcpreplay and trafgen send it.
ONE = "{{ 0x02,0,0,0,0,2, 0x02,0,0,0,0,1, 0x08,0x00, fill(0x41, 46) }}"


def is_of_gaps(level):
    """Whether a level is of gaps, not of speed."""
    return level["clock"] != "none"


def sender(level, duration_s):
    """Return what sends."""
    tool, traffic = level["tool"], level["traffic"]
    if tool == FLOOR:
        words = [sys.executable, HERE / "_floor.py", "{sender.interface}", duration_s]
        return Program("gen", "sender", list(map(str, words)), WORKLOAD, cpu=0, end_s=duration_s + 60)
    if tool == TCPREPLAY:
        words = [sys.executable, "-P", "-m", "parshall.lab.replay", "-i", "{sender.interface}"]
        words += ["--sizes", traffic, "-d", f"{duration_s:g}s"]
        return Program("gen", "sender", words, WORKLOAD, cpu=0, end_s=duration_s + 60)
    if tool in TRAFGENS:
        # It forks, and ignores SIGINT while it sends; the shell is the leader of its group.
        words = [
            "setsid",
            "-w",
            "sh",
            "-c",
            f"echo '{ONE}' > $0/one.cfg; timeout -s KILL $1 $2 -o $3 -i $0/one.cfg -P 1 -q",
        ]
        words += ["{directory}", f"{duration_s:g}", TRAFGEN, "{sender.interface}"]
        return Program("gen", "sender", words, WORKLOAD, is_json=False, cpu=0, statuses=(0, 137), end_s=duration_s + 60)
    # The threads that send have their CPU; what draws the packets has any.
    options = ["--backend", OURS[tool], "--seed", 7 if is_of_gaps(level) else 1]
    options += ["--cpu", ",".join(map(str, sorted(os.sched_getaffinity(0))[: level["cpus"]]))]
    if traffic in POISSON:
        options += ["--sizes", 60, "--gap", "poisson", "--pps", f"{POISSON[traffic]:.0f}"]
        options += ["--count", min(GAPS_MOST, round(GAPS_S * POISSON[traffic]))]
    elif traffic in FIXED:
        options += ["--sizes", 60, "--gap", f"fixed:mean={FIXED[traffic]}ns"]
        options += ["--count", max(1000, round(GAPS_S * 1e9 / FIXED[traffic]))]
    elif traffic == FLOOD:
        options += ["--sizes", 60, "--count", GAPS_MOST]
    elif traffic == "replay":
        options += ["--replay", FILE, "--gap", "none", "--count", 10**12, "-d", f"{duration_s:g}s"]
    else:
        options += ["--sizes", traffic, "-d", f"{duration_s:g}s"]
    return generate("sender", duration_s, *options)


def receiver(level):
    """Return what the peer does with the packets."""
    if level["clock"] == TCPDUMP:
        words = ["--time-stamp-precision=nano", "-s", 64, "-B", 262144, "-w", "{directory}/gaps.pcap", "udp and port 9"]
        return tcpdump("receiver", *words)
    what = ["arrivals"] if is_of_gaps(level) else ["drop"]
    words = [sys.executable, str(HERE / "_xdp.py"), *what, "{receiver.interface}"]
    words += ["{directory}/arrivals.npy"] if is_of_gaps(level) else []
    return Program("peer", "receiver", words, INSTRUMENT, ready="started", is_json=False)


def setting(level, duration_s):
    """Return a tool that sends, and its peer."""
    queues = level["queues"]
    both = [
        ["ethtool", "-L", f"{{{name}.interface}}", "rx", str(queues), "tx", str(queues)]
        for name in ("sender", "receiver")
    ]
    # Before the program comes: a queue that is added later does not run it.
    more = [[command] if queues > 1 else [] for command in both]
    before = []
    if level["tool"] == FLOOR:
        words = [sys.executable, str(HERE / "_xdp.py"), "pass", "{sender.interface}"]
        before = [Program("pass", "sender", words, INSTRUMENT, ready="started", is_json=False)]
    if level["traffic"] == "replay":
        words = [sys.executable, "-c", WRITE, FILE]
        before = [Program("file", "sender", words, INSTRUMENT, ready="started", is_json=False, scratch=["sizes.pcap"])]
    return Setting(
        [Host("sender", commands=more[0]), Host("receiver", cpu=-1, commands=more[1])],
        [Link("sender", "receiver", napi=True, backend="veth")],
        [receiver(level), *before, sender(level, duration_s)],
        duration_s,
    )


# Writes the packets that tcpreplay sends, for the generator's replay.
WRITE = """import sys, time
from parshall.lab.replay import COUNT, ip_sizes, records
with open(sys.argv[1], "wb") as file:
    file.writelines(records(ip_sizes("thesis", COUNT, seed=1)))
print("started", file=sys.stderr, flush=True)
try:
    time.sleep(86400)
except KeyboardInterrupt:
    pass
"""


def elapsed_s(run):
    """Return how long was sent."""
    return run.wall_s if run.level["tool"] in TRAFGENS else run.result("gen")["elapsed_ns"] / 1e9


def gaps_ns(run):
    """Return the gaps between the packets that arrived."""
    if run.level["clock"] == TCPDUMP:
        return np.asarray(_native.read_trace_gaps(run.directory / "gaps.pcap")[0])
    return np.diff(np.load(run.directory / "arrivals.npy"))


def distance(run):
    """Return the distance of the gaps from the exponential distribution, on both sides of each step, percent."""
    if run.level["traffic"] not in POISSON or not is_of_gaps(run.level):
        return None
    ordered = np.sort(gaps_ns(run))
    distribution = -np.expm1(-ordered * POISSON[run.level["traffic"]] / 1e9)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return 100 * float(max(np.abs(distribution - steps[:-1]).max(), np.abs(distribution - steps[1:]).max()))


def own_distance(run):
    """Return the same distance by the generator's clock, percent."""
    found = run.result("gen")["gaps"] if run.level["traffic"] in POISSON else None
    return None if found is None else 100 * found["ks_distance"]


def gap_error(run):
    """Return by how much the mean of fixed gaps is off at the peer, percent."""
    if run.level["traffic"] not in FIXED:
        return None
    return 100 * abs(float(gaps_ns(run).mean()) / FIXED[run.level["traffic"]] - 1)


def gap_p10(run):
    """Return what the shortest tenth of the gaps is below."""
    return float(np.quantile(gaps_ns(run), 0.1)) if is_of_gaps(run.level) else None


def level(tool="gen", traffic="thesis", queues=1, cpus=1, clock="none"):
    """Return a level."""
    return {"tool": tool, "traffic": traffic, "queues": queues, "cpus": cpus, "clock": clock}


SPEED = [
    level(FLOOR, "46"),
    *(level("gen", sizes) for sizes in ("thesis", "46", "1500")),
    *(level(tool, "thesis") for tool in (*list(OURS)[1:], *REPLAYS)),
    *(level(tool, "46") for tool in TRAFGENS),
    *(level(tool, "replay") for tool in OURS),
]
CORES = [
    level(tool, traffic, 2, cpus, clock)
    for cpus in (1, 2)
    for tool, traffic, clock in (*((tool, "thesis", "none") for tool in OURS), ("gen", "poisson 900k", "program"))
]
GAPS = [
    *(level("gen", traffic, clock="program") for traffic in (*POISSON, *FIXED, FLOOD)),
    *(level(tool, "poisson 100k", clock="program") for tool in list(OURS)[1:]),
    *(level("gen", traffic, clock=TCPDUMP) for traffic in ("fixed 10000 ns", "fixed 2000 ns")),
]

study = Study(
    name="generate",
    title="How fast and how exactly does the generator send?",
    question="One tool sends over a cable whose other end drops, or notes the time of each packet and drops.",
    setting=setting,
    levels=[*SPEED, *(CORES if len(os.sched_getaffinity(0)) > 1 else []), *GAPS],
    quick_levels=[
        level(FLOOR, "46"),
        level("gen", "46"),
        level("gen", "thesis"),
        level("gen", "poisson 100k", clock="program"),
    ],
    control_level=level(),
    has_controls=False,
    duration_s=2.0,
    repeats=3,
    measures=[
        Measure("rate", "kpps", lambda run: run.received("receiver") / elapsed_s(run) / 1e3, "packets that arrived"),
        Measure("distance", "%", distance, "distance of the gaps from the exponential distribution"),
        Measure("own_distance", "%", own_distance, "the same by the generator's clock"),
        Measure("gap_error", "%", gap_error, "error of the mean of equal gaps"),
        Measure("gap_p10", "ns", gap_p10, "what the shortest tenth of the gaps is below"),
    ],
    figures=[
        Figure(
            "rate", "Packets that arrived", "tool", ["rate"], colour="traffic", where={"queues": 1, "clock": "none"}
        ),
        Figure("cores", "With one CPU that sends, and with two", "cpus", ["rate"], colour="tool", where={"queues": 2}),
        Figure(
            "distance",
            "Distance from the exponential distribution",
            "traffic",
            ["distance", "own_distance"],
            where={"traffic": list(POISSON), "clock": "program", "queues": 1},
        ),
    ],
)
