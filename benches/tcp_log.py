"""What the TCP state log costs a saturated host: throughput kept, beside tcpdump and bpftrace.

A study: ``benches/run tcp_log``. Needs root, iperf3, tcpdump and bpftrace. Two
hosts in namespaces on one cable, segmentation offloads off, sender and receiver on a CPU each, the readers where the
scheduler puts them: everything competes for two CPUs. One transfer runs all the time, and instruments come and go.

none
    No instrument: the base, before and after each other one.
attached
    The log of a port that no flow has: its hooks run, and log nothing.
every 10th, every packet
    Every tenth packet of a flow, or every one, at both ends, to a file.
tcpdump
    ``tcpdump -s 96 -w FILE`` at both ends.
bpftrace
    Ten fields of the tracepoint tcp_probe (inbound packets only), printed to a file.
"""

from parshall.lab import Figure, Host, Link, Measure, Program, Setting, Study, grid, iperf3, tcp_log, tcpdump
from parshall.lab.programs import tcpdump_counts
from parshall.lab.study import INSTRUMENT

PORT = 5201
LOGS = {"attached": ["--port", 1], "every 10th": ["--ppl", 10], "every packet": ["--ppl", 1]}
INSTRUMENTS = ["none", *LOGS, "tcpdump", "bpftrace"]
SCRIPT = """BEGIN { system("echo begun >&2"); } tracepoint:tcp:tcp_probe { printf("%llu %d %d %u %u %u %u %u %u %u\\n",
nsecs, args->sport, args->dport, args->snd_nxt, args->snd_una, args->snd_cwnd, args->ssthresh, args->snd_wnd,
args->srtt, args->rcv_wnd); }"""
# bpftrace needs tracefs and debugfs, which are mounted for it alone.
BPFTRACE = """mount -t tracefs none /sys/kernel/tracing; mount -t debugfs none /sys/kernel/debug
exec bpftrace --unsafe -o "$1" -e "$0" """


def instruments(name):
    """Return the programs of an instrument, at both ends where it has two."""
    if name == "none":
        return []
    if name == "bpftrace":
        script = SCRIPT.replace("{", "{{").replace("}", "}}")
        command = ["unshare", "-m", "bash", "-c", BPFTRACE, script, "{directory}/bpftrace.txt"]
        return [Program(name, "receiver", command, INSTRUMENT, ready="begun", is_json=False, scratch=["bpftrace.txt"])]
    found = []
    for end in ("sender", "receiver"):
        if name == "tcpdump":
            options = {"name": f"log-{end}", "is_drained": False, "scratch": [f"{end}.pcap"]}
            words = ["-s", 96, "-B", 65536, "-w", f"{{directory}}/{end}.pcap", "tcp"]
            found.append(tcpdump(end, *words, **options))
        else:
            found.append(tcp_log(end, *LOGS[name], name=f"log-{end}", is_kept=True, scratch=[f"log-{end}.arrow"]))
    return found


def setting(level, duration_s):
    """Return two hosts on a cable, bulk transfers and an instrument."""
    return Setting(
        [Host("sender", cpu=0), Host("receiver", cpu=-1)],
        [Link("sender", "receiver", offloads=False, backend="veth")],
        [*instruments(level["instrument"]), *iperf3("sender", "receiver", duration_s, flows=level["flows"])],
        duration_s,
    )


def logs(run):
    """Return the names of the programs that count what they log."""
    return [name for name in run.record["programs"] if name.startswith("log-")]


def counted(run, name):
    """Return what a program logged and lost, and how long it ran, seconds."""
    if run.level["instrument"] == "tcpdump":
        found = tcpdump_counts(run.errors(name))
        # Longer than the stretch: it starts before, and ends after it.
        return found["captured"], found["dropped"], run.wall_s
    ledger = run.record["ledgers"][name]
    return ledger["logged"], ledger["lost"], ledger["cost"]["wall_s"]


def records(run):
    """Return the records a second of the log; tcpdump's time is not known."""
    if run.level["instrument"] not in LOGS:
        return 0.0
    return sum(logged / wall_s for logged, _, wall_s in (counted(run, name) for name in logs(run)))


def lost(run):
    """Return the packets that found no room, percent."""
    counts = [counted(run, name) for name in logs(run)]
    logged, missing = (sum(each[part] for each in counts) for part in (0, 1))
    return 100 * missing / max(1, logged + missing)


def cost(run):
    """Return the CPU time of the instruments, percent of one CPU; of Parshall with its hooks."""
    return 100 * sum(map(run.cost_s, run.record["programs"])) / run.wall_s


study = Study(
    name="tcp_log",
    title="What does the TCP state log cost a saturated host?",
    question="iperf3 sends as fast as TCP goes over a cable whose ends share two CPUs with what logs them.",
    setting=setting,
    levels=grid(instrument=INSTRUMENTS, flows=[1, 10, 100]),
    quick_levels=grid(instrument=["none", "attached", "every packet"], flows=[10]),
    switched=["instrument"],
    stretch_s=1.0,
    control_level={"instrument": "every packet", "flows": 10},
    has_controls=False,
    repeats=5,
    measures=[
        Measure("throughput", "Mbit/s", lambda run: 8e-6 * run.received("receiver", what="bytes") / run.wall_s),
        Measure("records", "1/s", records),
        Measure("lost", "%", lost, "records that found no room"),
        Measure("cost", "% of a CPU", cost, "CPU time of the instruments"),
    ],
    figures=[
        Figure("throughput", "Throughput with each instrument", "instrument", ["throughput"], panel="flows"),
        Figure("cost", "CPU time of each instrument", "instrument", ["cost"], panel="flows"),
        Figure("lost", "Records that found no room", "instrument", ["lost"], panel="flows"),
    ],
)
