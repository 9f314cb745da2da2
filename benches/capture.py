"""What N applications that capture cost the kernel: one ring of ours beside N x tcpdump.

A study: ``benches/run capture``, long. The study ``ffpf`` compares unmodified tcpdumps on the ring and on packet
sockets; here is the kernel's part. Frames are sent over a cable as fast as they go, from one CPU, on which the
receiving side runs, too; the readers have the other CPU, and come and go. Each writes to ``/dev/null``, and has a
buffer of 128 MiB.

instruments whose packets go on to the stack, which drops them
    none       no capture: the base, before and after each other one
    xdp        ``parshall capture --hook xdp``, and N - 1 that join
    tcx        ``parshall capture --hook tcx``, and N - 1 that join
    tcpdump    N x ``tcpdump -w /dev/null`` (TPACKET_V3)
instruments that drop the packets at the hook, as at a mirror port
    drop       no capture: XDP drops all; the base of these
    discard    ``parshall capture --hook xdp --discard``, and N - 1 that join
    filter     as discard, each reader with the filter of Schneider's thesis (Figure 6.5), which accepts all
"""

import sys
from pathlib import Path

from parshall.lab import Figure, Host, Link, Measure, Program, Setting, Study, capture, grid, tcpdump
from parshall.lab.programs import tcpdump_counts
from parshall.lab.study import INSTRUMENT, SERVER, WORKLOAD
from parshall.studies.thesis import filter_50

NONE, DROP, TCPDUMP, FILTER = "none", "drop", "tcpdump", "filter"
HOOKS = {"xdp": ["--hook", "xdp"], "tcx": ["--hook", "tcx"], "discard": ["--hook", "xdp", "--discard"]}
HOOKS[FILTER] = HOOKS["discard"]
# Bytes.
FRAMES = [64, 645, 1500]
# What becomes of the frames, and their kind (see _floor.py).
STACK, MIRROR = "to the stack", "as at a mirror port"
KINDS = {STACK: "unknown", MIRROR: "thesis"}
MIB = 128
HERE = Path(__file__).parent


def instruments(level):
    """Return the programs that capture."""
    name, readers = level["instrument"], level["readers"]
    if name == NONE:
        return []
    if name == DROP:
        words = [sys.executable, HERE / "_xdp.py", "drop", "{receiver.interface}"]
        return [Program(DROP, "receiver", list(map(str, words)), INSTRUMENT, ready="started", is_json=False)]
    apps = [f"app-{number}" for number in range(readers)]
    if name == TCPDUMP:
        return [tcpdump("receiver", "-B", MIB << 10, name=app) for app in apps]
    wants = ["--filter", filter_50()] if name == FILTER else []
    first = ["--name", "{ring}", "--direction", "in", "--buffer", f"{MIB}M", *HOOKS[name], *wants]
    joined = [capture("receiver", "--join", "{ring}", *wants, name=app) for app in apps[1:]]
    return [capture("receiver", *first, name=apps[0]), *joined]


def setting(level, duration_s):
    """Return what sends, and what captures at the other end of its cable."""
    send = [
        sys.executable,
        HERE / "_floor.py",
        "{sender.interface}",
        duration_s,
        KINDS[level["frames"]],
        level["bytes"],
    ]
    redirect = [sys.executable, str(HERE / "_xdp.py"), "pass", "{sender.interface}"]
    return Setting(
        [Host("sender", cpu=0), Host("receiver", cpu=-1)],
        [Link("sender", "receiver", napi=True, backend="veth")],
        [
            *instruments(level),
            Program("redirect", "sender", redirect, SERVER, ready="started", is_json=False),
            Program("flood", "sender", list(map(str, send)), WORKLOAD, end_s=duration_s + 60),
        ],
        duration_s,
    )


def apps(run):
    """Return the names of the programs that capture."""
    return [name for name in run.record["programs"] if name.startswith("app-")]


def account(run, name):
    """Return what an application had, and what it lost."""
    if run.level["instrument"] == TCPDUMP:
        found = tcpdump_counts(run.errors(name))
        return found["captured"], found["dropped"]
    accounts = [each for one in run.result(name)["ledger"]["subscribers"] for each in one["interfaces"]]
    return sum(each["logged"] for each in accounts), sum(sum(each["lost"].values()) for each in accounts)


def lost(run):
    """Return what the reader lost that lost most, percent."""
    accounts = [account(run, name) for name in apps(run)]
    return max((100 * missing / max(1, logged + missing) for logged, missing in accounts), default=0.0)


def hook_ns(run):
    """Return the mean time of the hook's program; 0 where the program is not ours."""
    if run.level["instrument"] not in HOOKS:
        return 0.0
    return run.result("app-0")["ledger"]["cost"]["programs"][0]["ns_per_run"]


def cost(run):
    """Return the CPU time of the readers, percent of one CPU."""
    return 100 * sum(run.record["programs"][name]["cpu_s"] for name in apps(run)) / run.wall_s


def levels(frames, instruments, readers, sizes):
    """Return the instruments with each number of readers; the first is the base."""
    base, *others = instruments
    return [
        *grid(frames=[frames], instrument=[base], readers=[0], bytes=sizes),
        *grid(frames=[frames], instrument=others, readers=readers, bytes=sizes),
    ]


study = Study(
    name="capture",
    title="What does capturing cost the kernel, with one application and with several?",
    question="Frames come as fast as they go, from the CPU that receives them; the other CPU has the applications.",
    setting=setting,
    levels=[
        *levels(STACK, [NONE, "xdp", "tcx", TCPDUMP], [1, 2, 4, 6, 8], FRAMES),
        *levels(MIRROR, [DROP, "discard", FILTER], [1, 2, 4, 6, 8], FRAMES),
    ],
    quick_levels=levels(STACK, [NONE, "xdp", TCPDUMP], [1, 4], [645]),
    switched=["instrument", "readers"],
    stretch_s=1.0,
    control_level={"frames": STACK, "instrument": "xdp", "readers": 1, "bytes": 645},
    has_controls=False,
    repeats=3,
    measures=[
        Measure("rate", "kpps", lambda run: run.received("receiver") / run.wall_s / 1e3, "frames that came"),
        Measure("lost", "%", lost, "lost by the reader that lost most"),
        Measure("cost", "% of a CPU", cost, "CPU time of the readers"),
        Measure("hook", "ns", hook_ns, "time of the hook's program"),
    ],
    figures=[
        Figure("rate", "Frames that came", "readers", ["rate"], colour="instrument", panel="bytes"),
        Figure("lost", "Lost by the reader that lost most", "readers", ["lost"], colour="instrument", panel="bytes"),
        Figure("cost", "CPU time of the readers", "readers", ["cost"], colour="instrument", panel="bytes"),
    ],
)
