"""The capture evaluation of the thesis: the share of packets that applications get, and the CPU usage."""

from dataclasses import replace

from parshall.lab import Figure, Finding, Measure, Program, Published, Setting, Statement, Study, Table, grid
from parshall.lab import capture as captured_by
from parshall.lab.run import Run
from parshall.lab.study import WORKLOAD, Level
from parshall.statistics import mean_interval
from parshall.studies.thesis import (
    DOCUMENT,
    GAPS_NS,
    GIGABIT,
    SNIFFER,
    capturing_rates,
    filter_50,
    hosts,
    rate_kpps,
    rate_mbps,
    share_lost,
    sniffer_cpu,
    traffic,
)

# What an application captures with: a plain socket as in 2005, a memory-mapped one, Parshall's ring.
SOCKET, MAPPED, RING = "socket", "memory-mapped", "ring"
BACKENDS = {SOCKET: ["--backend", "af-packet"], MAPPED: ["--backend", "tpacket-v3"], RING: []}
SMALL, LARGE = "256K", "128M"
# Some 250 Mbit/s of the thesis's packets, and 5,000.
MODERATE, HIGH = 20_000, 1_000
# A ring has at least 1 MiB for each CPU.
BUFFERS_OF_RING = ["2M", "8M", "32M", "128M", "256M"]
BUFFERS = ["128K", "512K", "2M", "8M", "32M", "128M", "256M"]
# What differs from one application that counts what it gets; the number of applications where there are several.
PLAIN, FILTER, HEADERS, PIPE = "plain", "filter of 50 instructions", "headers to disk", "pipe to gzip"
LOADS = {"25 copies": "memcpy:25", "50 copies": "memcpy:50", "zlib 3": "zlib:3", "zlib 9": "zlib:9"}
APPLICATIONS = {"2 applications": 2, "4 applications": 4, "8 applications": 8}
HEADER_BYTES = 76
DISK = "disk alone"
# createDist's options -f, -c and -z at once. Not headers to disk: what is not captured is not copied or compressed.
ALL_WORK = "filter + 25 copies + zlib 3"
ALL_LOADS = ",".join((LOADS["25 copies"], LOADS["zlib 3"]))
WORK = [PLAIN, FILTER, *APPLICATIONS, *LOADS, PIPE, HEADERS, ALL_WORK]


def application(level: Level, number: int) -> Program:
    """Return one application; on a ring, the first creates it."""
    work, method = level["work"], level["method"]
    words: list[object] = [] if method == RING and number else [*BACKENDS[method], "--buffer", level["buffer"]]
    if method == RING:
        words += ["--join", "{ring}"] if number else ["--name", "{ring}"]
    if work in (FILTER, ALL_WORK):
        words += ["--filter", filter_50()]
    if work == HEADERS:
        words += ["-s", HEADER_BYTES, "-w", "{directory}/headers.pcap"]
    if work in LOADS or work == ALL_WORK:
        words += ["--load", LOADS.get(work, ALL_LOADS)]
    if work != PIPE:
        return captured_by(SNIFFER, *words, name=f"app-{number}", scratch=["headers.pcap"])
    # bash gives the pipe a name, and removes it.
    command = captured_by(SNIFFER, *words, "-w", "/dev/fd/3", name=f"app-{number}")
    script = 'exec 3> >(exec gzip -3 > /dev/null); exec "$@"'
    return Program(command.name, SNIFFER, ["bash", "-c", script, "bash", *command.command], ready=command.ready)


def setting(level: Level, duration_s: float) -> Setting:
    """Return a generator of the thesis's packets, and the applications on the sniffer."""
    at, links = hosts(level["cpus"])
    if level["work"] == DISK:
        # As much as a gigabit carries in this time.
        megabytes = max(1, round(125 * duration_s))
        words = ["dd", "if=/dev/zero", "of={directory}/disk", "bs=1M", f"count={megabytes}", "conv=fsync"]
        disk = Program("disk", SNIFFER, words, WORKLOAD, is_json=False, end_s=600, scratch=["disk"])
        return Setting(at, links, [disk], duration_s)
    count = APPLICATIONS.get(level["work"], 1)
    programs = [application(level, number) for number in range(count)]
    return Setting(at, links, [*programs, traffic(duration_s, level["gap"])], duration_s)


def disk_mbps(run: Run) -> float | None:
    """Return how fast the disk takes bytes, Mbit/s, as dd says."""
    if run.level["work"] != DISK:
        return None
    last = run.errors("disk").strip().splitlines()[-1]
    megabytes = int(last.split(" bytes", 1)[0]) / 1e6
    return 8 * megabytes / float(last.rsplit(", ", 2)[1].split(" ")[0])


def of_apps(choose):
    """Return a measure of the capturing rates of all applications; none for the disk alone."""

    def measure(run: Run) -> float | None:
        return None if run.level["work"] == DISK else choose(capturing_rates(run))

    return measure


def unless_disk(function):
    """Return a measure that the disk alone does not have."""
    return lambda run: None if run.level["work"] == DISK else function(run)


def mean(rates: list[float]) -> float | None:
    """Return the mean; None without applications."""
    return sum(rates) / len(rates) if rates else None


def level_of(work: str, method: str = RING, buffer: str = LARGE, cpus: int = 2, gap: int = 0) -> Level:
    """Return a level."""
    return {"work": work, "method": method, "buffer": buffer, "cpus": cpus, "gap": gap}


def sweep(gaps: list[int], cpus: list[int]) -> list[Level]:
    """Return the levels over the gaps: every method plain, with small and large buffers; all work on the ring."""
    common = {"cpus": cpus, "gap": gaps}
    return [
        *grid(work=[PLAIN], method=[SOCKET], buffer=[SMALL], **common),
        *grid(work=[PLAIN], method=[SOCKET, MAPPED, RING], buffer=[LARGE], **common),
        *grid(work=[*WORK[1:]], method=[MAPPED, RING], buffer=[LARGE], **common),
        *grid(work=[*APPLICATIONS], method=[SOCKET], buffer=[LARGE], **common),
    ]


# Percent that are all packets, but for some of the beginning or end of a run.
ALL = 99.9
# Differences that matter, in points: of the capturing rate, and of the time in which the sniffer's CPU is busy.
MARGINS = {"captured": 10.0, "cpu": 5.0}


def words_of(before: Level, after: Level) -> str:
    """Return in words what differs between two levels, and with which method both capture."""
    changed = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name])
    return changed if before["method"] != after["method"] else f"{changed}, method {before['method']}"


def with_rates(found: Finding, table: Table, before: Level, after: Level) -> Finding:
    """Add what gets through: the generator shares the CPUs, so work for packets may slow it in place of losing them."""
    if found.low is None:
        return found
    rates = " and ".join(
        f"{table.mean('captured_kpps', **level):,.0f} of {table.mean('offered_kpps', **level):,.0f}"
        for level in (before, after)
    )
    return replace(found, measured=f"{found.measured}; {rates} kpps captured")


def compared(measure: str, before: Level, after: Level, wants: int, reason: str = "", allows_fall: bool = False):
    """Return the check that a measure changes in a direction: 1 up, -1 down, 0 hardly; see `Table.judge`."""

    def check(table: Table) -> Finding:
        words = {"what": words_of(before, after), "form": ".1f", "reason": reason}
        found = table.judge(measure, before, after, wants, margin=MARGINS[measure], allows_fall=allows_fall, **words)
        return with_rates(found, table, before, after)

    return check


def by_as_much(before: Level, after: Level, low: float, high: float, reason: str = ""):
    """Return the check that the capturing rate changes by as much as the thesis says, in points."""

    def check(table: Table) -> Finding:
        what = words_of(before, after)
        found = table.judge_range("captured", before, after, low, high, form=".1f", what=what, reason=reason)
        return with_rates(found, table, before, after)

    return check


def nearly_nothing(work: str, method: str = RING, reason: str = "more is captured here"):
    """Return the check that hardly anything is captured: a tenth at most."""

    def check(table: Table) -> Finding:
        level = level_of(work, method)
        share, rate = (table.mean(name, **level) for name in ("captured", "captured_kpps"))
        text = f"{share:.0f} % captured with {work}, method {method}: {rate:,.0f} kpps"
        if min(table.values("captured", **level), default=0.0) > ALL:
            # What the document says is of overload.
            return Finding(text, None, "not measurable here: nothing is lost, so that there is no overload")
        return table.judge_mean("captured", level, 10.0, -1, text=text, reason=reason)

    return check


def saturation(method: str, buffer: str):
    """Return the data rate from which an application surely loses more than 1 %, Mbit/s, and a sentence."""

    def find(table: Table) -> tuple[float | None, str]:
        where = {"work": PLAIN, "method": method, "buffer": buffer, "cpus": 2}
        below: list[float] = []
        for gap in sorted(table.levels("gap", **where), reverse=True):
            rate = table.mean("offered", **where, gap=gap)
            _, high = mean_interval(table.values("captured", **where, gap=gap))
            if high < 99:
                # The first of the rates that ran, which may be few.
                before = f" and none at {max(below):,.0f}" if below else ""
                return rate, f"{method}, {buffer}: first loss above 1 % at {rate:,.0f} Mbit/s{before}"
            below.append(rate)
        return None, f"{method}, {buffer}: not surely above 1 % up to {max(below, default=float('nan')):,.0f} Mbit/s"

    return find


def losses_begin(table: Table) -> Finding:
    """Where each method begins to lose, and whether the larger buffer gets more below full speed.

    At full speed the thesis saw no gain either (section 6.3.1).
    """
    found = [saturation(*each)(table) for each in ((SOCKET, SMALL), (SOCKET, LARGE), (MAPPED, LARGE), (RING, LARGE))]
    levels = [level_of(PLAIN, SOCKET, buffer, gap=HIGH) for buffer in (SMALL, LARGE)]
    finding = table.judge(
        "captured",
        *levels,
        1,
        margin=1.0,
        form=".1f",
        what=f"captured with a gap of {HIGH:,} ns, socket, {SMALL} -> {LARGE}",
        reason="the larger buffer does not help at this rate",
    )
    finding = with_rates(finding, table, *levels)
    return replace(finding, measured="; ".join([*(text for _, text in found), finding.measured]))


def disk_alone(table: Table) -> Finding:
    """Whether the disk takes what a gigabit carries."""
    return table.judge_mean(
        "disk",
        {"work": DISK},
        GIGABIT,
        -1,
        text=f"the disk takes {table.mean('disk', work=DISK):,.0f} Mbit/s",
        reason="disks have become faster: it takes more than a gigabit carries",
    )


def mapped(table: Table) -> Finding:
    """Memory-mapped beside plain sockets, at full speed."""
    return compared("captured", level_of(PLAIN, SOCKET), level_of(PLAIN, MAPPED), 1)(table)


def figure(name: str, title: str, **where: object) -> list[Figure]:
    """Return capturing rate and CPU usage against the data rate."""
    works = where["work"]
    colour = "method" if works == [PLAIN] else "work"
    common = {"where": {"buffer": [LARGE], **where}, "colour": colour, "panel": "cpus"}
    if colour == "work":
        common["where"]["method"] = [RING]
    return [
        Figure(f"{name}-rate", f"{title}: capturing rate", "offered", ["captured"], **common),
        Figure(f"{name}-cpu", f"{title}: CPU usage", "offered", ["cpu"], **common),
    ]


filtering = compared(
    "captured", level_of(PLAIN), level_of(FILTER), 0, "at full speed the filter's time is the packets'"
)
eight = nearly_nothing("8 applications", reason="the ring has one copy of a packet for all applications")
eight_sockets = nearly_nothing("8 applications", SOCKET)
level_9 = nearly_nothing("zlib 9")
buffers = compared(
    "captured",
    level_of(PLAIN, SOCKET, "512K"),
    level_of(PLAIN, SOCKET, LARGE),
    0,
    "more packets arrive in the same time here",
    allows_fall=True,
)
# A minor reduction, and a massive one.
two, four = (
    by_as_much(
        level_of(PLAIN, SOCKET), level_of(f"{count} applications", SOCKET), low, high, "it is another share here"
    )
    for count, low, high in ((2, -15, 1), (4, -100, -30))
)


def pipe(table: Table) -> Finding:
    """A pipe to gzip beside zlib, which nothing here can judge."""
    found = compared("captured", level_of("zlib 3"), level_of(PIPE), 0)(table)
    why = "gzip and the capture share the CPU of the sniffer here; the thesis had a second processor for gzip"
    return found if found.low is None else found.without_verdict(why)


fewer_copies = compared("cpu", level_of("25 copies"), level_of("50 copies"), 1, "as much of the CPU is taken")
zlib_alone = compared("captured", level_of(PLAIN), level_of("zlib 3"), -1)
copies = compared("captured", level_of(PLAIN, cpus=1), level_of("50 copies", cpus=1), -1, "as much is captured")
zlib = compared("captured", level_of("zlib 9"), level_of("zlib 3"), 1)
headers = by_as_much(level_of(PLAIN), level_of(HEADERS), -15, -5, "it is another share here")

QUICK = [0, MODERATE]
study = Study(
    name="capture",
    title="How many packets do capturing applications get?",
    question=(
        "Packets whose sizes follow the thesis's trace arrive with 26 gaps. Which share do applications get, and how "
        "busy is their CPU: with small and large buffers, a filter, several applications, work on each packet, and "
        "headers to disk; with plain and memory-mapped sockets and on Parshall's ring; with one CPU for all, or one "
        "for the generator and one for the sniffer?"
    ),
    document=DOCUMENT,
    setting=setting,
    levels=[
        *sweep(GAPS_NS, [1, 2]),
        *grid(work=[PLAIN], method=[SOCKET, MAPPED], buffer=BUFFERS, cpus=[1, 2], gap=[0]),
        *grid(work=[PLAIN], method=[RING], buffer=BUFFERS_OF_RING, cpus=[1, 2], gap=[0]),
        *grid(work=[DISK], method=[""], buffer=[""], cpus=[2], gap=[0]),
    ],
    quick_levels=[
        *grid(work=[PLAIN], method=[SOCKET], buffer=[SMALL], cpus=[2], gap=[*QUICK, HIGH]),
        *grid(work=[PLAIN], method=[*BACKENDS], buffer=[LARGE], cpus=[2], gap=QUICK),
        *grid(work=[PLAIN], method=[SOCKET], buffer=[LARGE], cpus=[2], gap=[HIGH]),
        *grid(work=[PLAIN, "50 copies"], method=[RING], buffer=[LARGE], cpus=[1], gap=[0]),
        *grid(
            work=[FILTER, "8 applications", "25 copies", "50 copies", "zlib 3", "zlib 9", PIPE, HEADERS, ALL_WORK],
            method=[RING],
            buffer=[LARGE],
            cpus=[2],
            gap=[0],
        ),
        *grid(work=[*APPLICATIONS], method=[SOCKET], buffer=[LARGE], cpus=[2], gap=[0]),
        *grid(work=[PLAIN], method=[SOCKET], buffer=["512K"], cpus=[2], gap=[0]),
        *grid(work=[DISK], method=[""], buffer=[""], cpus=[2], gap=[0]),
    ],
    omitted={
        "Figures 2.1-2.5, 3.1, 3.2": "diagrams of kernels, processors, testbed and measurement cycle",
        "section 2.2.1": "interrupt moderation, and what it does to time stamps, is of cards: a veth has none",
        "section 4.1": "tools that generate packets are compared by reading; the study generator measures tcpreplay",
        "Figure 6.2": "needs a third CPU: with two, the generator takes one of the sniffer's",
        "section 6.3, Linux drops before its CPU is full": (
            "the figures have both; what the kernel does for the sniffer is done by the CPU of the generator here"
        ),
        "section 6.3.5, whole packets": "the thesis has no number to compare with: its disks were too slow",
        "Figure 6.16": "needs a processor of which /sys/devices/system/cpu/smt/control switches the second threads",
        "section 7.1, the best system": (
            "FreeBSD and Linux on Opteron and Xeon need four machines behind a splitter: `splitter`, with --hosts"
        ),
        "Figure B.1": "versions of FreeBSD; what is said of that kernel alone is left out",
    },
    duration_s=3,
    units={"gap": "ns", "buffer": "bytes"},
    control_level=level_of(PLAIN, gap=MODERATE),
    measures=[
        Measure("offered", "Mbit/s", unless_disk(rate_mbps), "data rate"),
        Measure("offered_kpps", "kpps", unless_disk(rate_kpps), "packet rate"),
        Measure("captured", "%", of_apps(mean), "capturing rate"),
        Measure("worst", "%", of_apps(lambda rates: min(rates, default=None)), "worst application"),
        Measure("best", "%", of_apps(lambda rates: max(rates, default=None)), "best application"),
        Measure(
            "captured_kpps",
            "kpps",
            lambda run: unless_disk(rate_kpps)(run) and rate_kpps(run) * (mean(capturing_rates(run)) or 0) / 100,
            "packets captured",
        ),
        Measure("lost", "%", unless_disk(share_lost), "lost, of the ledgers"),
        Measure("cpu", "%", sniffer_cpu, "CPU of the sniffer busy"),
        Measure("disk", "Mbit/s", disk_mbps, "writing to disk"),
    ],
    figures=[
        Figure(
            "base-rate",
            "Small buffers and large ones, plain sockets (Figures 6.2, 6.3): capturing rate",
            "offered",
            ["captured"],
            "buffer",
            "cpus",
            where={"work": PLAIN, "method": SOCKET, "buffer": [SMALL, LARGE]},
            finding=losses_begin,
        ),
        Figure(
            "base-cpu",
            "Small buffers and large ones, plain sockets (Figures 6.2, 6.3): CPU usage",
            "offered",
            ["cpu"],
            "buffer",
            "cpus",
            where={"work": PLAIN, "method": SOCKET, "buffer": [SMALL, LARGE]},
        ),
        Figure(
            "buffers",
            "Buffers at full speed (Figure 6.4)",
            "buffer",
            ["captured"],
            "method",
            "cpus",
            where={"work": PLAIN, "gap": 0, "buffer": BUFFERS},
        ),
        *figure("filter", "A filter of 50 instructions (Figure 6.6)", work=[PLAIN, FILTER]),
        *(
            Figure(
                f"applications-{count}",
                f"{count} applications (Figure {number}): worst, mean and best",
                "offered",
                ["worst", "captured", "best"],
                "method",
                "cpus",
                where={"work": f"{count} applications"},
                y_title="capturing rate (%)",
                finding=eight if count == 8 else None,
            )
            for count, number in ((2, "6.7"), (4, "6.8"), (8, "6.9"))
        ),
        *figure("copies", "Copies of each packet (Figures 6.10, B.2)", work=[PLAIN, "25 copies", "50 copies"]),
        *figure(
            "compression",
            "Compression of each packet (Figures 6.11, 6.12, B.3)",
            work=[PLAIN, "zlib 3", "zlib 9", PIPE],
        ),
        Figure(
            "disk",
            "Writing to disk (Figure 6.13)",
            "work",
            ["disk"],
            where={"work": DISK},
            published=[
                Published("all packets of a gigabit link", [(DISK, GIGABIT)]),
                Published("their headers: 13.56 MB/s", [(DISK, 8 * 13.56)]),
            ],
        ),
        *figure("headers", "Headers to disk (Figure 6.14)", work=[PLAIN, HEADERS]),
        *figure(
            "all-work",
            "A filter, 25 copies and compression, alone and at once",
            work=[FILTER, "25 copies", "zlib 3", ALL_WORK],
        ),
        *figure("mapped", "Memory-mapped or not, and the ring (Figure 6.15)", work=[PLAIN], method=[*BACKENDS]),
    ],
    statements=[
        Statement(
            "Figure 6.3",
            "section 7.1: larger buffers raise the rate where packet drops begin from about 225 to 650 Mbit/s",
            losses_begin,
        ),
        Statement("Figure 6.4", "two processors: no noticeable improvement beyond buffers of 512 kByte", buffers),
        Statement(
            "Figures 6.5, 6.6", "a filter of 50 instructions costs at most 10 points at the highest rates", filtering
        ),
        Statement("Figure 6.7", "two applications: a minor reduction of the capturing rate on all systems", two),
        Statement("Figure 6.8", "four applications: Linux begins to lose packets massively", four),
        Statement("Figure 6.9", "eight applications: Linux's capturing rate drops to nearly 0", eight_sockets),
        Statement("Figure 6.9, on the ring", "eight applications: Linux's capturing rate drops to nearly 0", eight),
        Statement(
            "Figure 6.10",
            "one processor: 50 copies of each packet take all of it at moderate rates, and packets are dropped when "
            "the rate rises further (judged at full speed; the generator has the same processor)",
            copies,
        ),
        Statement(
            "Figure B.2",
            "25 copies take less of the CPU than 50 (read from the plots; so until it is full)",
            fewer_copies,
        ),
        Statement("Figure 6.11", "compression at level 3 makes all systems lose packets", zlib_alone),
        Statement(
            "Figure 6.12",
            "through a pipe to gzip, moorhen (FreeBSD) captures as much as with zlib, and the others improve or worsen "
            "in its direction",
            pipe,
        ),
        Statement("Figure 6.13", "no system writes to disk at line speed", disk_alone),
        Statement(
            "section 6.3.4, Figure B.3", "compression at level 9 makes all systems drop nearly everything", level_9
        ),
        Statement("Figure B.3, the lower level", "compression at level 3 drops less than at level 9", zlib),
        Statement("Figure 6.14", "headers to disk: Linux loses about 10 points in dual processor mode", headers),
        Statement("Figure 6.15", "memory-mapped sockets outperform plain ones", mapped),
    ],
)
