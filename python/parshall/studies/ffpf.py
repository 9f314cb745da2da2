"""FFPF: one shared buffer and merged filters beside a socket for each application."""

from dataclasses import replace

import polars as pl

from parshall.lab import Figure, Finding, Measure, Published, Setting, Statement, Study, Table, capture, grid, tcpdump
from parshall.lab.programs import PARSHALL
from parshall.lab.run import Run
from parshall.lab.study import Level, Program
from parshall.lab.table import BLOCK, rule, verdict
from parshall.studies.thesis import (
    SENDER,
    SNIFFER,
    captured,
    capturing_rates,
    hosts,
    rate_kpps,
    rate_mbps,
    sniffer_cpu,
    traffic,
)

RING, SOCKETS, OURS, MMAP = "tcpdump on the ring", "tcpdump", "our readers", "TPACKET_V3"
METHODS = [RING, SOCKETS, OURS, MMAP]
SNAPLENS = [100, 800, 1500]
RATES = ["100M", "200M", "300M", "400M", "500M", "600M", "1G", "2G", "4G"]
FULL = "full speed"
BUFFER_MIB, FEW_SLOTS_MIB = 32, 2
# As many packets whatever their size, and so many that they take a part of a CPU worth comparing.
PPS, PACKETS = "300k", "300k packets/s"
OVERLAPPING = "overlapping"
# Levels that say nothing else have the large buffer, packets of 1500 bytes, and no filter.
USUAL = {"buffer_mib": None, "sizes": None, "filters": None}


# What the document says beside its figures.
MORE = [
    *grid(method=[RING], rate=[PACKETS], snaplen=[100], applications=[1], sizes=["64", "1500"]),
    {"method": RING, "rate": FULL, "snaplen": 100, "applications": 6, "buffer_mib": FEW_SLOTS_MIB},
    *grid(method=[RING, SOCKETS], rate=[FULL], snaplen=[100], applications=[6], filters=[OVERLAPPING]),
]


def applications(level: Level) -> list[Program]:
    """Return the applications of a level, with overlapping interests: all want every packet."""
    found = []
    mib = level.get("buffer_mib", BUFFER_MIB)
    buffer = f"{mib}M"
    for number in range(level["applications"]):
        name, snaplen = f"app-{number}", level["snaplen"]
        if level["method"] in (RING, SOCKETS):
            # All packets pass each of these filters.
            wanted = ["udp", "and", "not", "host", f"10.99.0.{number + 1}"] if "filters" in level else []
            program = tcpdump(SNIFFER, "-s", snaplen, "-B", mib << 10, *wanted, name=name)
            if level["method"] == RING:
                before = [*PARSHALL, "pcap", "--"]
                program = Program(
                    name, SNIFFER, [*before, *program.command], ready=program.ready, is_json=False, is_drained=True
                )
        elif level["method"] == MMAP:
            program = capture(SNIFFER, "--backend", "tpacket-v3", "--buffer", buffer, "-s", snaplen, name=name)
        elif number == 0:
            program = capture(SNIFFER, "--name", "{ring}", "--buffer", buffer, "-s", snaplen, name=name)
        else:
            program = capture(SNIFFER, "--join", "{ring}", "-s", snaplen, name=name)
        found.append(program)
    return found


def setting(level: Level, duration_s: float) -> Setting:
    """Return a generator, and the applications on the sniffer."""
    at, links = hosts()
    rate = {FULL: {}, PACKETS: {"pps": PPS}}.get(level["rate"], {"rate": level["rate"]})
    programs = [*applications(level), traffic(duration_s, sizes=level.get("sizes", "1500"), **rate)]
    return Setting(at, links, programs, duration_s)


def dropped(run) -> float:
    """Return the packets that the applications did not get, percent, the mean of all."""
    rates = capturing_rates(run)
    return 100 - sum(rates) / len(rates)


def switches(run: Run) -> float:
    """Return the context switches of all applications, for each 1,000 packets on the link."""
    apps = [name for name in run.record["programs"] if name.startswith("app-")]
    return 1e3 * sum(map(run.context_switches, apps)) / run.sent(SENDER)


def cpu_ns(run: Run) -> float | None:
    """Return the CPU time for each packet that the applications got, of all programs and of the kernel for them.

    The sender delivers to the sniffer: its time has the kernel's part.
    """
    apps = [outcome["cpu_s"] for name, outcome in run.record["programs"].items() if name.startswith("app-")]
    packets = sum(captured(run))
    # A time that was not measured is none, not nothing.
    if not packets or None in apps:
        return None
    return 1e9 * (run.result("gen")["sender_cpu_s"] + sum(apps)) / packets


def idle(run) -> float | None:
    """Return the idle time of the sniffer's CPU, percent."""
    busy = sniffer_cpu(run)
    return None if busy is None else 100 - busy


ONE = {"snaplen": 100, "applications": 1, **USUAL}
MANY = {"snaplen": 100, "rate": FULL, **USUAL}
# The document has numbers for six.
SIX = {**MANY, "applications": 6}


def efficiency(table: Table) -> Finding:
    """What a packet costs one application at full speed."""
    level = {**MANY, "applications": 1}
    return table.judge(
        "cpu_ns",
        {**level, "method": SOCKETS},
        {**level, "method": RING},
        -1,
        margin=0.1,
        what="CPU time for each packet of one application at full speed, tcpdump on its socket and on the ring",
        reason="the ring takes as much time",
    )


def drops_of_one(table: Table) -> Finding:
    """Drops of one application at the document's highest rate."""
    level = {**ONE, "rate": "600M"}
    return table.judge(
        "dropped",
        {**level, "method": RING},
        {**level, "method": SOCKETS},
        1,
        margin=1.0,
        form=".2f",
        what="dropped at 600 Mbit/s, tcpdump on the ring and on its socket",
        reason="this machine is fast enough for both at this rate",
    )


def scaling(table: Table) -> Finding:
    """Drops of many applications at full speed, and what each gets.

    The generator shares the machine, and offers more where less is done for each packet: where nothing is dropped, the
    rates show what the applications cost.
    """
    found = table.judge(
        "dropped",
        {**SIX, "method": RING},
        {**SIX, "method": SOCKETS},
        1,
        margin=5.0,
        what=f"dropped by {SIX['applications']} at full speed, on the ring and on sockets",
        reason="as much is dropped on the ring",
    )
    if found.low is None:
        return found
    rates = {method: table.mean("delivered", method=method, **SIX) for method in METHODS}
    gets = ", ".join(f"{method} {rate:,.0f} kpps" for method, rate in rates.items())
    return replace(found, measured=f"{found.measured}; each gets: {gets}")


def filtered(table: Table) -> Finding:
    """Which part of what many applications get remains when each filters, on the ring beside sockets."""
    kept = []
    for method in (SOCKETS, RING):
        levels = [{**SIX, "method": method, **chosen} for chosen in ({}, {"filters": OVERLAPPING})]
        frame, _ = table.blocks("delivered", *levels)
        table.decisive += levels
        kept.append(frame.select(*BLOCK, kept=pl.col("after") / pl.col("before")))
    pairs = kept[0].join(kept[1], on=BLOCK, suffix="_on_ring").sort(BLOCK)
    found = table.compare_values("delivered", pairs["kept"].to_list(), pairs["kept_on_ring"].to_list())
    if found is None:
        return table.not_often_enough(*levels)
    change, low, high = (f"{100 * each:+.1f}" for each in (found.change, found.low, found.high))
    text = (
        f"with a filter each, {SIX['applications']} applications get {found.before:.1%} of what they get without on "
        f"sockets, and {found.after:.1%} on the ring: {change} % ({table.interval} {low} to {high} %); "
        f"{rule('10 %', 1)}"
    )
    return verdict(found, 1, margin=0.1, text=text, reason="filters cost the ring as much as sockets")


def slots(table: Table) -> Finding:
    """A larger ring, for many applications."""
    return table.judge(
        "dropped",
        {**SIX, "method": RING, "buffer_mib": FEW_SLOTS_MIB},
        {**SIX, "method": RING},
        -1,
        margin=2.0,
        form=".1f",
        what=f"dropped by {SIX['applications']} on a ring of {FEW_SLOTS_MIB} and of {BUFFER_MIB} MiB",
        reason="the readers keep up with a small ring, or with none",
    )


def context_switches(table: Table) -> Finding:
    """Context switches of many applications that get as many packets by either method."""
    level = {**SIX, "rate": "600M"}
    return table.judge(
        "switches",
        {**level, "method": SOCKETS},
        {**level, "method": RING},
        -1,
        margin=0.1,
        form=",.2f",
        what=f"context switches of {SIX['applications']} at 600 Mbit/s, on sockets and on the ring",
        reason="libpcap's sockets of today wake a reader once a block of packets, the ring more often",
    )


def packet_size(table: Table) -> Finding:
    """Packets of other sizes, as many a second."""
    level = {**ONE, "method": RING, "rate": PACKETS}
    return table.judge(
        "idle",
        {**level, "sizes": "1500"},
        {**level, "sizes": "64"},
        0,
        margin=5.0,
        form=".1f",
        what="idle time of the reader's CPU with 300,000 packets/s of 1500 and of 64 bytes",
        reason="the copies of a longer packet take more time",
    )


study = Study(
    name="ffpf",
    title="One shared buffer, or a socket for each application?",
    question=(
        "Packets of 1500 bytes arrive at a sniffer. Unmodified tcpdumps read them from Parshall's shared ring, as in "
        "FFPF's experiment, or from a packet socket each (Linux Socket Filter); beside them Parshall's own readers and "
        "memory-mapped sockets (TPACKET_V3). How idle is the CPU, and what is dropped?"
    ),
    document="H. Bos et al.: FFPF: Fairly Fast Packet Filters, OSDI 2004, packet sniffing performance",
    setting=setting,
    levels=[
        *grid(method=[RING, SOCKETS], rate=RATES, snaplen=SNAPLENS, applications=[1]),
        *grid(method=METHODS, rate=["600M", FULL], snaplen=[100, 800], applications=[1, 2, 3, 4, 5, 6, 7, 8]),
        *MORE,
    ],
    quick_levels=[
        *grid(method=[RING, SOCKETS], rate=["600M", "4G"], snaplen=[100], applications=[1]),
        *grid(method=METHODS, rate=[FULL], snaplen=[100], applications=[1, 6]),
        *grid(method=[RING, SOCKETS], rate=["600M"], snaplen=[100], applications=[6]),
        *MORE,
    ],
    units={"rate": "bit/s", "snaplen": "bytes", "buffer_mib": "MiB", "sizes": "bytes"},
    duration_s=5,
    control_level={"method": RING, "rate": "600M", "snaplen": 100, "applications": 1},
    measures=[
        Measure("offered", "kpps", rate_kpps, "packets on the link"),
        Measure("offered_mbps", "Mbit/s", rate_mbps, "frames on the link"),
        Measure("idle", "%", idle, "idle time of the sniffer's CPU"),
        Measure("dropped", "%", dropped, "dropped, mean of the applications"),
        Measure("worst", "%", lambda run: 100 - min(capturing_rates(run), default=100), "dropped, worst application"),
        Measure("switches", "per 1,000 packets", switches, "context switches of the applications"),
        Measure("cpu_ns", "ns", cpu_ns, "CPU time for each packet that the applications got"),
        Measure("delivered", "kpps", lambda run: rate_kpps(run) * (100 - dropped(run)) / 100, "delivered to each"),
    ],
    figures=[
        Figure(
            "idle",
            "Idle time against data rate (Figure 11)",
            "offered_mbps",
            ["idle"],
            "method",
            "snaplen",
            where={"applications": 1, "method": [RING, SOCKETS], **USUAL},
            finding=efficiency,
        ),
        Figure(
            "applications-idle",
            "Idle time against applications (Figure 12)",
            "applications",
            ["idle"],
            "method",
            "snaplen",
            where={"rate": ["600M", FULL], "method": METHODS, **USUAL},
        ),
        Figure(
            "applications-dropped",
            "Drops against applications at full speed (Figure 12, text)",
            "applications",
            ["dropped"],
            "method",
            "snaplen",
            where={"rate": FULL, **USUAL},
            published=[
                Published("LSF, 100 bytes", [(6, 64)]),
                Published("LSF, 800 bytes", [(6, 75)]),
                Published("FFPF, 100 bytes", [(6, 10)]),
                Published("FFPF, 800 bytes", [(6, 15)]),
            ],
            finding=scaling,
        ),
        Figure(
            "applications-delivered",
            "What each application gets at full speed",
            "applications",
            ["delivered"],
            "method",
            "snaplen",
            where={"rate": FULL, **USUAL},
        ),
    ],
    omitted={
        "text of Figure 11, capture length": (
            "FFPF becomes slower with longer captures: drawn in the full form, without a verdict"
        ),
        "text of Figure 12, two applications": "sockets reach the maximum load with two: of processors of 2004",
        "text of Figure 12, the load of FFPF": (
            "it is never full there; here the kernel's part is done by the sender's CPU, not by that of the readers"
        ),
        "text of Figure 12, more slots raise the load": "by the caches of 2004: no statement is about the load",
    },
    statements=[
        Statement(
            "Figure 11",
            "FFPF makes more efficient use of the system: up to twice the idle time of LSF at high rates (judged by "
            "the CPU time for each packet: the sender's CPU, which is never idle, does the kernel's part here)",
            efficiency,
        ),
        Statement("Figure 11, text", "at 600 Mbit/s LSF drops 2 % to 3 %, FFPF a negligible part", drops_of_one),
        Statement(
            "Figure 11, packet size",
            "packet size plays no role, only the packet rate (here with a capture length of 100 bytes)",
            packet_size,
        ),
        Statement("Figure 12", "6 tcpdumps: LSF drops 64 % to 75 %, FFPF 10 % to 15 %", scaling),
        Statement("Figure 12, filters", "filters are merged in the kernel: little work is duplicated", filtered),
        Statement("Figure 12, slots", "more slots in the buffer decrease what 6 applications drop", slots),
        Statement("Figure 12, switches", "a shared buffer reduces context switching", context_switches),
    ],
)
