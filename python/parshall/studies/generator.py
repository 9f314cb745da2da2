"""The generator: how well it follows a distribution of packet sizes, and how fast it is."""

import shutil
import sys
from collections.abc import Callable

import polars as pl

from parshall.instruments.sizes import Counts
from parshall.lab import Figure, Finding, Measure, Program, Published, Setting, Statement, Study, Table, grid
from parshall.lab.programs import PARSHALL
from parshall.lab.run import Run
from parshall.lab.study import WORKLOAD, Level
from parshall.studies.thesis import DOCUMENT, GAPS_NS, GIGABIT, SENDER, SNIFFER, hosts, rate_kpps, rate_mbps, traffic

KINDS = {"46": "smallest frames", "thesis": "distribution of the thesis", "1500": "largest frames"}
# What sends: the generator, by live frames in XDP and as other programs send, and the replay of a file.
OURS, REPLAY = "parshall gen", "tcpreplay"
BACKENDS = {"gen by AF_PACKET": "af-packet", "gen by AF_XDP": "af-xdp"}
# A study that a machine cannot run says so once, not in each block.
REPLAYS = [REPLAY] if shutil.which(REPLAY) else []
# Below this gap the thesis's generator sends no faster.
FLAT_NS = 3_000
FASTEST = {"tool": OURS, "gap": 0}


def setting(level: Level, duration_s: float) -> Setting:
    """Return a generator, and a counter of the sizes that arrive."""
    at, links = hosts()
    where = ["--from", "live", "-i", f"{{{SNIFFER}.interface}}", "--to", "dist", "-o", "{directory}/sizes.dist"]
    # Status 1: no packet arrived, as in a run without traffic.
    counter = Program("sizes", SNIFFER, [*PARSHALL, "sizes", *where], ready="started", is_json=False, statuses=(0, 1))
    size = next(size for size, kind in KINDS.items() if kind == level["sizes"])
    return Setting(at, links, [counter, sender(level, size, duration_s)], duration_s)


def sender(level: Level, size: str, duration_s: float) -> Program:
    """Return what sends at a level."""
    tool = level["tool"]
    if tool == REPLAY:
        words = [sys.executable, "-P", "-m", "parshall.lab.replay", "-i", f"{{{SENDER}.interface}}", "--sizes", size]
        # The name of the generator's result: both say how long they sent.
        return Program("gen", SENDER, [*words, "-d", f"{duration_s:g}s"], WORKLOAD, end_s=duration_s + 60)
    backend = {"backend": BACKENDS[tool]} if tool in BACKENDS else {}
    return traffic(duration_s, level["gap"], size, **backend)


def arrived(run: Run) -> pl.DataFrame:
    """Return the sizes that arrived: ``size``, ``packets``."""
    run.text("sizes")
    sizes, packets = zip(*Counts.from_dist(run.directory / "sizes.dist").pairs, strict=True)
    return pl.DataFrame({"size": sizes, "packets": packets})


def shares(frame: pl.DataFrame, line: str) -> pl.DataFrame:
    """Return rows of a figure: the share of each size, percent."""
    share = 100 * pl.col("packets") / pl.col("packets").sum()
    return frame.select(x=pl.col("size").cast(pl.Float64), y=share, line=pl.lit(line))


def original() -> pl.DataFrame:
    """Return the sizes of the thesis's trace."""
    sizes, packets = zip(*Counts.built_in("thesis").pairs, strict=True)
    return pl.DataFrame({"size": sizes, "packets": packets})


def both(table: Table) -> pl.DataFrame:
    """Return the original and the generated sizes, of all runs at full speed."""
    runs = table.runs_where(sizes=KINDS["thesis"], **FASTEST)
    generated = pl.concat(arrived(run) for run in runs).group_by("size").agg(pl.col("packets").sum()).sort("size")
    return pl.concat([shares(original(), "original"), shares(generated, "generated")])


def distance(run: Run) -> float | None:
    """Return the largest difference of the cumulative distributions (Kolmogorov-Smirnov), percent."""
    if run.level["sizes"] != KINDS["thesis"]:
        return None
    joined = original().join(arrived(run), on="size", how="full", coalesce=True).sort("size").fill_null(0)
    difference = [pl.col(name).cum_sum() / pl.col(name).sum() for name in ("packets", "packets_right")]
    return float(100 * joined.select((difference[0] - difference[1]).abs().max()).item())


def common(table: Table) -> Finding:
    """The shares of the most frequent sizes among the generated packets."""
    frame = both(table).filter(line="generated").sort("y", descending=True)
    most = ", ".join(f"{size:.0f}" for size in frame["x"][:3])
    level = {"sizes": KINDS["thesis"], **FASTEST}
    twenty = table.mean("most_frequent_20", **level)
    text = f"the three most frequent sizes are {most} bytes; 20 are {twenty:.0f} % of the generated packets, three"
    text = f"{text} {table.mean('most_frequent_3', **level):.0f} %"
    found = table.judge_mean("most_frequent_3", level, 55.0, 1, text=text)
    why = "the generator draws from these shares, so that it holds by construction"
    return found.without_verdict(why)


def most_frequent(count: int) -> Callable[[Run], float | None]:
    """Return the measure of the share of the most frequent sizes among the packets that arrived."""

    def measure(run: Run) -> float | None:
        if run.level["sizes"] != KINDS["thesis"]:
            return None
        packets = arrived(run)["packets"].sort(descending=True)
        return float(100 * packets[:count].sum() / packets.sum())

    return measure


def follows(table: Table) -> Finding:
    """Hold the generated sizes against the original ones."""
    level = {"sizes": KINDS["thesis"], **FASTEST}
    text = f"the cumulative distributions differ by at most {table.mean('distance', **level):.2f} points"
    return table.judge_mean("distance", level, 1.0, -1, text=text, reason="they differ by a point and more")


def speeds(table: Table) -> Finding:
    """Rates at full speed for the three kinds of sizes."""
    small, _, large = KINDS.values()
    text = "; ".join(
        f"{kind}: {table.mean('kpps', sizes=kind, **FASTEST):,.0f} kpps, "
        f"{table.mean('mbps', sizes=kind, **FASTEST):,.0f} Mbit/s"
        for kind in KINDS.values()
    )
    levels = {"sizes": small, **FASTEST}, {"sizes": large, **FASTEST}
    bits, _ = table.change("mbps", *levels)
    return table.judge(
        "kpps",
        *levels,
        -1,
        margin=0.05,
        what=f"{text}; smallest -> largest: {bits}; packets",
        reason="the time for a packet does not depend on its size here",
    )


def replayed(table: Table) -> Finding:
    """How fast a file is replayed, beside packets that are made."""
    level = {"sizes": KINDS["thesis"], **FASTEST}
    if not REPLAYS and not table.levels("gap", tool=REPLAY):
        return Finding("not measured", None, "tcpreplay is not installed here; install it: apt install tcpreplay")
    ours, theirs = (table.mean("mbps", **{**level, "tool": tool}) for tool in (OURS, REPLAY))
    text = f"tcpreplay sends packets of the thesis's sizes with {theirs:,.0f} Mbit/s, the generator with {ours:,.0f}"
    reason = "it is faster than a gigabit here"
    return table.judge_mean("mbps", level | {"tool": REPLAY}, GIGABIT, -1, text=text, reason=reason)


def gaps(table: Table) -> Finding:
    """Rates against gaps."""
    ours = {"tool": OURS, "sizes": KINDS["thesis"]}
    listed = table.levels("gap", **ours)
    rates = [table.mean("kpps", **ours, gap=gap) for gap in listed]
    # Where a gap is longer than the sender needs for a packet, it decides.
    missed = [gap for gap, rate in zip(listed, rates, strict=True) if not gap or abs(rate * gap / 1e6 - 1) >= 0.02]
    kept = [gap for gap in listed if gap > max(missed, default=0)]
    reason = f"gaps from {min(kept):,} ns on are kept to within 2 %" if kept else "not even the longest gap is kept"
    # That a gap of 100,000 ns gives 10 kpps at most is arithmetic; that shorter gaps than 3,000 ns give no more packets
    # is a limit of the thesis's generator.
    short, none = (ours | {"gap": gap} for gap in (FLAT_NS, 0))
    what = f"{reason}; with a gap of {FLAT_NS:,} ns, and without one"
    faster = f"a packet takes less than {FLAT_NS:,} ns here, so that the rate still rises"
    return table.judge("kpps", short, none, 0, margin=0.1, form=",.1f", what=what, reason=faster)


study = Study(
    name="generator",
    title="Does the generator follow a distribution of packet sizes, and how fast?",
    question=(
        "The generator sends packets whose sizes follow the thesis's trace, the smallest and the largest ones, at full "
        "speed and with 26 gaps; beside it, tcpreplay sends a file of such packets. A counter at the other end has the "
        "sizes that arrive; the link's counters the rates."
    ),
    document=DOCUMENT,
    setting=setting,
    levels=[
        *grid(tool=[OURS, *REPLAYS], sizes=[*KINDS.values()], gap=[0]),
        *grid(tool=[OURS], sizes=[KINDS["thesis"]], gap=GAPS_NS[:-1]),
        *grid(tool=[*BACKENDS], sizes=[KINDS["thesis"]], gap=[0]),
    ],
    quick_levels=[
        *grid(tool=[OURS], sizes=[*KINDS.values()], gap=[0]),
        *grid(tool=[OURS], sizes=[KINDS["thesis"]], gap=[100_000, 10_000, 5_000, FLAT_NS]),
        *grid(tool=REPLAYS, sizes=[KINDS["thesis"]], gap=[0]),
    ],
    units={"gap": "ns"},
    omitted={
        "Figures 4.3, A.1": "flow diagrams of createDist",
        "Figure 5.1": "a sample of what cpusage prints; parshall cpu prints it, too",
    },
    measures=[
        Measure("kpps", "kpps", rate_kpps, "packet rate"),
        Measure("mbps", "Mbit/s", rate_mbps, "data rate"),
        Measure("distance", "%", distance, "distance of the sizes from the original"),
        Measure("most_frequent_3", "%", most_frequent(3), "the three most frequent sizes"),
        Measure("most_frequent_20", "%", most_frequent(20), "the 20 most frequent sizes"),
        Measure("cpu", "%", lambda run: run.cpu_percent(cpu=0), "CPU of the generator busy"),
    ],
    figures=[
        Figure(
            "sizes",
            "Sizes of the original and of the generated packets (Figure 4.4)",
            rows=both,
            x_title="packet size (bytes)",
            y_title="packets (%)",
            is_log_y=True,
            is_scatter=True,
            finding=follows,
        ),
        Figure(
            "tools",
            "Packet rate at full speed, sizes of the thesis, by what sends (section 4.1.1)",
            "tool",
            ["kpps"],
            where={"sizes": KINDS["thesis"], "gap": 0},
            finding=replayed,
        ),
        Figure(
            "speed",
            "Packet rate at full speed (Figure 4.5)",
            "sizes",
            ["kpps"],
            where=FASTEST,
            published=[Published("thesis: 180 kpps on a gigabit link", [(KINDS["thesis"], 180)])],
            finding=speeds,
        ),
        Figure(
            "speed-bits",
            "Data rate at full speed (Figure 4.5)",
            "sizes",
            ["mbps"],
            where=FASTEST,
            published=[Published("thesis: 915 Mbit/s on a gigabit link", [(KINDS["thesis"], 915)])],
        ),
        Figure(
            "gaps",
            "Packet rate against the gap between packets (Figure 6.1)",
            "gap",
            ["kpps"],
            where={"tool": OURS, "sizes": KINDS["thesis"]},
            is_log_x=True,
            is_log_y=True,
            published=[Published("Figure 6.1", [(100_000, 10), (3_000, 180)])],
            finding=gaps,
        ),
        Figure(
            "gaps-bits",
            "Data rate against the gap between packets (Figure 6.1)",
            "gap",
            ["mbps"],
            where={"tool": OURS, "sizes": KINDS["thesis"]},
            is_log_x=True,
            is_log_y=True,
            published=[Published("Figure 6.1", [(100_000, 50), (3_000, 920)])],
        ),
    ],
    statements=[
        Statement(
            "Figures 4.1, 4.2",
            "40, 52 and 1500 bytes are more than 55 % of all packets, 20 sizes over 75 %",
            common,
        ),
        Statement("Figure 4.4", "the generated sizes follow the captured ones", follows),
        Statement(
            "Figure 4.5",
            "180 kpps and 915 Mbit/s with the distribution; largest packets give more bits, smallest more packets",
            speeds,
        ),
        Statement(
            "section 4.1.1",
            "tcpreplay is too slow for a gigabit: at most 480 Mbit/s, and that only with the largest packets",
            replayed,
        ),
        Statement("Figure 6.1", "10 kpps at 100,000 ns; rising until 3,000 ns, then 180 kpps", gaps),
    ],
)
