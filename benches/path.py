"""What following packets costs a router: what it forwards with and without the probes.

A study: ``benches/run path``. Source, router and sink are hosts on two cables; the generator offers more than the
router can forward, all the time, on a CPU of its own; instruments come and go. Needs root; with bpftrace, one of its
scripts is beside them.

none
    No instrument: the base, before and after each other one.
h2, h5, h9
    Histograms of 2, 5 and 9 stages that forwarded packets pass.
h9_share
    Histograms of 9 stages, attached 5 % of the time.
h5_connection
    Histograms of 5 stages for each connection.
log9
    A row of 9 stages for each packet, into a file.
log9_16
    The same of every 16th packet.
e2, e5, e9
    Programs that do nothing at the places of these stages: the bound.
bpftrace5
    A bpftrace script with the same 5 tracepoints, a time for each packet and histograms.
"""

import shutil
import sys
from pathlib import Path

from parshall.lab import Figure, Host, Link, Measure, Program, Setting, Study, generate, grid
from parshall.lab.programs import parshall
from parshall.lab.study import INSTRUMENT, SERVER

HERE = Path(__file__).parent
TWO = ["receive", "start_xmit"]
FIVE = ["gro", "receive", "queue", "start_xmit", "xmit"]
NINE = [*FIVE, "tcx_ingress", "pre_routing", "forward", "post_routing"]
INGRESS, EGRESS = "{router.interfaces[0]}", "{router.interfaces[1]}"
# Histograms of two and of five stages need no filter; a log, and stages of one namespace, do.
HISTOGRAMS = {"h2": TWO, "h5": FIVE}
FILTERED = {
    "h9": ["--netns", "/proc/self/ns/net"],
    "h9_share": ["--share", 0.05],
    "h5_connection": ["--by", "connection"],
    "log9": ["-o", "{directory}/path.arrow"],
    "log9_16": ["-o", "{directory}/path.arrow", "--every", 16],
}
EMPTY = {"e2": TWO, "e5": FIVE, "e9": NINE}
NONE, BPFTRACE = "none", "bpftrace5"
OURS = [*HISTOGRAMS, *FILTERED]
INSTRUMENTS = [NONE, *OURS, *EMPTY, *([BPFTRACE] if shutil.which("bpftrace") else [])]
# Packets of the generator: 4 flows, so that there are connections to tell apart.
FLOWS = 4
SINK_MAC, ROUTER_MAC = "02:00:00:00:00:03", "02:00:00:00:00:02"
# The same as FIVE does: the time of each stage since the stage before, by packet.
LATER = (
    "tracepoint:net:{point} {{ $s = @at[args->skbaddr]; "
    "if ($s) {{ @{point} = hist(nsecs - $s); @at[args->skbaddr] = nsecs; }} }}\n"
)
SCRIPT = (
    "tracepoint:net:napi_gro_receive_entry { @at[args->skbaddr] = nsecs; }\n"
    + "".join(LATER.format(point=point) for point in ("netif_receive_skb", "net_dev_queue", "net_dev_start_xmit"))
    + LATER.format(point="net_dev_xmit").replace("@at[args->skbaddr] = nsecs;", "delete(@at[args->skbaddr]);")
    + 'BEGIN { system("echo begun >&2"); }\n'
)
# bpftrace needs tracefs and debugfs, which are mounted for it alone.
WITH_TRACEFS = """mount -t tracefs none /sys/kernel/tracing; mount -t debugfs none /sys/kernel/debug
exec bpftrace --unsafe -o "$1" -e "$0" """
# The router's packets are processed on its CPU, not on the generator's: receive packet steering.
STEER = (
    'mount -t sysfs sysfs /sys && printf %x $((1 << ($(nproc --all) - 1))) > "/sys/class/net/$0/queues/rx-0/rps_cpus"'
)


def stages_of(name):
    """Return the stages that an instrument has."""
    return TWO if "2" in name else FIVE if "5" in name else NINE


def instrument(name):
    """Return the programs of an instrument."""
    if name == NONE:
        return []
    if name == BPFTRACE:
        words = ["unshare", "-m", "bash", "-c", WITH_TRACEFS, SCRIPT.replace("{", "{{").replace("}", "}}")]
        words.append("{directory}/bpftrace.txt")
        options = {"ready": "begun", "is_json": False, "scratch": ["bpftrace.txt"]}
        return [Program(name, "router", words, INSTRUMENT, **options)]
    if name in EMPTY:
        words = [sys.executable, str(HERE / "_empty.py"), ",".join(EMPTY[name]), INGRESS]
        return [Program(name, "router", words, INSTRUMENT, ready="started", is_json=False)]
    words = ["--stages", ",".join(stages_of(name)), *FILTERED.get(name, [])]
    words += ["-i", INGRESS] if name in FILTERED and name not in ("h9", "h5_connection") else []
    return [parshall("router", "path", *words, name="path", scratch=["path.arrow"])]


def setting(level, duration_s):
    """Return source, router and sink, and an instrument at the router."""
    forwards = {
        "net.ipv4.ip_forward": 1,
        # Packets come from addresses to which there is no route.
        "net.ipv4.conf.all.rp_filter": 0,
        "net.ipv4.conf.default.rp_filter": 0,
        "net.ipv4.conf.all.send_redirects": 0,
    }
    router = [
        ["ip", "link", "set", "dev", INGRESS, "address", ROUTER_MAC],
        ["sysctl", "-q", f"net.ipv4.conf.{INGRESS}.rp_filter=0"],
        ["ip", "neighbour", "replace", "{sink.address}", "lladdr", SINK_MAC, "dev", EGRESS],
        ["ip", "route", "add", "198.18.1.0/24", "via", "{sink.address}"],
        ["unshare", "--mount", "sh", "-c", STEER, INGRESS],
    ]
    sources = ["--src", f"198.18.0.1-198.18.0.{FLOWS}", "--dst-mac", ROUTER_MAC, "-d", f"{duration_s:g}s"]
    drop = [sys.executable, str(HERE / "_xdp.py"), "drop", "{sink.interface}"]
    return Setting(
        [
            Host("source", cpu=0),
            Host("router", cpu=-1, sysctl=forwards, commands=router),
            Host("sink", cpu=0, commands=[["ip", "link", "set", "dev", "{sink.interface}", "address", SINK_MAC]]),
        ],
        [Link("source", "router", napi=True, backend="veth"), Link("router", "sink", backend="veth")],
        [
            *instrument(level["instrument"]),
            Program("drop", "sink", drop, SERVER, ready="started", is_json=False),
            generate("source", duration_s, *sources),
        ],
        duration_s,
    )


def forwarded(run):
    """Return the packets that the sink got, thousands a second."""
    return run.received("sink") / run.wall_s / 1e3


def lost(run):
    """Return the packets that the instrument saw and lost, percent."""
    if run.level["instrument"] not in OURS:
        return 0.0
    account = run.ledger("path")
    return 100 * account["lost"] / max(1, account["seen"])


study = Study(
    name="path",
    title="What does following packets cost a router?",
    question="A router gets more packets than it can forward, all the time; what follows them takes time of its CPU.",
    setting=setting,
    levels=grid(instrument=INSTRUMENTS),
    quick_levels=grid(instrument=[NONE, "h5", "e5"]),
    switched=["instrument"],
    # The programs of a share of 5 % are attached for half a second each ten.
    stretch_s=1.0,
    control_level={"instrument": "h5"},
    has_controls=False,
    repeats=5,
    measures=[
        Measure("forwarded", "kpps", forwarded, "packets that were forwarded"),
        Measure("packet", "ns", lambda run: 1e6 / forwarded(run), "time for each packet", is_ratio=False),
        Measure("lost", "%", lost, "packets that the instrument lost"),
    ],
    figures=[
        Figure("forwarded", "Packets that were forwarded", "instrument", ["forwarded"]),
        Figure("packet", "Time for each packet", "instrument", ["packet"]),
    ],
)
