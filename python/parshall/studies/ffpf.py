"""FFPF: one shared buffer and merged filters beside a socket for each application."""

from dataclasses import replace

from parshall.lab import Figure, Finding, Measure, Published, Setting, Statement, Study, Table, capture, grid, tcpdump
from parshall.lab.programs import PARSHALL
from parshall.lab.run import Run
from parshall.lab.study import Level, Program
from parshall.studies.thesis import SENDER, SNIFFER, capturing_rates, hosts, rate_kpps, rate_mbps, sniffer_cpu, traffic

RING, SOCKETS, OURS, MMAP = "tcpdump on the ring", "tcpdump", "our readers", "TPACKET_V3"
METHODS = [RING, SOCKETS, OURS, MMAP]
SNAPLENS = [100, 800, 1500]
RATES = ["100M", "200M", "300M", "400M", "500M", "600M", "1G", "2G", "4G"]
FULL = "full speed"
BUFFER_MIB, FEW_SLOTS_MIB = 32, 2
# Packets a second of 1500 bytes at 600 Mbit/s.
PPS_OF_600M = "50k"
OVERLAPPING = "overlapping"
# Levels that say nothing else have the large buffer, packets of 1500 bytes, and no filter.
USUAL = {"buffer_mib": None, "sizes": None, "filters": None}


# What the document says beside its figures.
MORE = [
    {"method": RING, "rate": "600M", "snaplen": 100, "applications": 1, "sizes": "64"},
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
    rate = {} if level["rate"] == FULL else {"rate": level["rate"]}
    if "sizes" in level:
        rate = {"pps": PPS_OF_600M}
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


def idle(run) -> float | None:
    """Return the idle time of the sniffer's CPU, percent."""
    busy = sniffer_cpu(run)
    return None if busy is None else 100 - busy


ONE = {"snaplen": 100, "applications": 1, **USUAL}
MANY = {"snaplen": 100, "rate": FULL, **USUAL}
# The document has numbers for six.
SIX = {**MANY, "applications": 6}


def idle_time(table: Table) -> Finding:
    """One application at the highest rate below full speed."""
    rate = max(table.levels("rate", applications=1), key=lambda text: RATES.index(text) if text in RATES else -1)
    level = {**ONE, "rate": rate}
    return table.judge(
        "idle",
        {**level, "method": SOCKETS},
        {**level, "method": RING},
        1,
        margin=2.0,
        form=".1f",
        what=f"idle time at {rate}bit/s, tcpdump on its socket and on the ring",
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
    """What many applications get on the ring that filter, each by its own expression, beside what they get all of."""
    filters = {}, {"filters": OVERLAPPING}
    levels = [{**SIX, "method": method, **chosen} for method in (RING, SOCKETS) for chosen in filters]
    found = table.judge(
        "delivered",
        levels[0],
        levels[1],
        0,
        margin=0.1,
        what=f"delivered to each of {SIX['applications']} on the ring, without filters and with one each",
        reason="their filters cost packets on the ring",
    )
    if found.low is None:
        return found
    on_sockets = [table.mean("delivered", **level) for level in levels[2:]]
    return replace(found, measured=f"{found.measured}; on sockets {on_sockets[0]:,.0f} and {on_sockets[1]:,.0f} kpps")


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
    """Context switches of many applications."""
    return table.judge(
        "switches",
        {**SIX, "method": SOCKETS},
        {**SIX, "method": RING},
        -1,
        margin=0.1,
        form=",.2f",
        what=f"context switches of {SIX['applications']}, on sockets and on the ring",
    )


def packet_size(table: Table) -> Finding:
    """Packets of other sizes, as many a second."""
    level = {**ONE, "method": RING, "rate": "600M"}
    return table.judge(
        "idle",
        level,
        {**level, "sizes": "64"},
        0,
        margin=5.0,
        form=".1f",
        what="idle time with 50,000 packets/s of 1500 and of 64 bytes",
        reason="the generator and the copies of a longer packet take more time",
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
            finding=idle_time,
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
    statements=[
        Statement(
            "Figure 11",
            "idle time of FFPF up to twice that of LSF at high rates, depending on the capture length",
            idle_time,
        ),
        Statement("Figure 11, text", "at 600 Mbit/s LSF drops 2 % to 3 %, FFPF a negligible part", drops_of_one),
        Statement("Figure 11, packet size", "packet size plays no role, only the packet rate", packet_size),
        Statement("Figure 12", "6 tcpdumps: LSF drops 64 % to 75 %, FFPF 10 % to 15 %", scaling),
        Statement("Figure 12, filters", "filters are merged in the kernel: little work is duplicated", filtered),
        Statement("Figure 12, slots", "more slots in the buffer decrease what 6 applications drop", slots),
        Statement("Figure 12, switches", "a shared buffer reduces context switching", context_switches),
    ],
)
