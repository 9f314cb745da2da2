"""The generator: how well it follows a distribution of packet sizes, and how fast it is."""

from itertools import pairwise

import polars as pl

from parshall.instruments.sizes import Counts
from parshall.lab import Figure, Finding, Measure, Program, Published, Setting, Statement, Study, Table, grid
from parshall.lab.programs import PARSHALL
from parshall.lab.run import Run
from parshall.lab.study import Level
from parshall.studies.thesis import DOCUMENT, GAPS_NS, SNIFFER, hosts, rate_kpps, rate_mbps, traffic

KINDS = {"46": "smallest frames", "thesis": "distribution of the thesis", "1500": "largest frames"}
FASTEST = {"gap": 0}


def setting(level: Level, duration_s: float) -> Setting:
    """Return a generator, and a counter of the sizes that arrive."""
    at, links = hosts()
    where = ["--from", "live", "-i", f"{{{SNIFFER}.interface}}", "--to", "dist", "-o", "{directory}/sizes.dist"]
    # Status 1: no packet arrived, as in a run without traffic.
    counter = Program("sizes", SNIFFER, [*PARSHALL, "sizes", *where], ready="started", is_json=False, statuses=(0, 1))
    size = next(size for size, kind in KINDS.items() if kind == level["sizes"])
    return Setting(at, links, [counter, traffic(duration_s, level["gap"], size)], duration_s)


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
    three, twenty = frame["y"][:3].sum(), frame["y"][:20].sum()
    text = f"the three most frequent sizes, {most} bytes, are {three:.0f} % of the generated packets, 20 {twenty:.0f} %"
    return Finding(text, three > 55 and twenty > 75)


def follows(table: Table) -> Finding:
    """Hold the generated sizes against the original ones."""
    found = table.summary("distance", sizes=KINDS["thesis"], **FASTEST)
    if found is None:
        return Finding("not measured", None)
    return Finding(f"the cumulative distributions differ by at most {found.maximum:.2f} points", found.maximum < 1)


def speeds(table: Table) -> Finding:
    """Rates at full speed for the three kinds of sizes."""
    found = {
        kind: (table.mean("kpps", sizes=kind, **FASTEST), table.mean("mbps", sizes=kind, **FASTEST))
        for kind in KINDS.values()
    }
    text = "; ".join(f"{kind}: {kpps:,.0f} kpps, {mbps:,.0f} Mbit/s" for kind, (kpps, mbps) in found.items())
    small, mixed, large = found.values()
    return Finding(text, small[0] > mixed[0] > large[0] and small[1] < mixed[1] < large[1])


def gaps(table: Table) -> Finding:
    """Rates against gaps."""
    listed = table.levels("gap", sizes=KINDS["thesis"])
    rates = [table.mean("kpps", sizes=KINDS["thesis"], gap=gap) for gap in listed]
    text = f"{rates[-1]:,.1f} kpps at {listed[-1]:,} ns, {rates[0]:,.0f} kpps without a gap"
    # Where a gap is longer than the sender needs for a packet, it decides.
    kept = [gap for gap, rate in zip(listed, rates, strict=True) if gap and abs(rate * gap / 1e6 - 1) < 0.02]
    reason = f"gaps from {min(kept):,} ns on are kept to within 2 %" if kept else "no gap is kept"
    return Finding(f"{text}; {reason}", all(left >= 0.95 * right for left, right in pairwise(rates)))


study = Study(
    name="generator",
    title="Does the generator follow a distribution of packet sizes, and how fast?",
    question=(
        "The generator sends packets whose sizes follow the thesis's trace, the smallest and the largest ones, at full "
        "speed and with 26 gaps. A counter at the other end has the sizes that arrive; the link's counters the rates."
    ),
    document=DOCUMENT,
    setting=setting,
    levels=[*grid(sizes=[*KINDS.values()], gap=[0]), *grid(sizes=[KINDS["thesis"]], gap=GAPS_NS[:-1])],
    quick_levels=[
        *grid(sizes=[*KINDS.values()], gap=[0]),
        *grid(sizes=[KINDS["thesis"]], gap=[100_000, 10_000, 5_000, 1_000]),
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
            where={"sizes": KINDS["thesis"]},
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
            where={"sizes": KINDS["thesis"]},
            is_log_x=True,
            is_log_y=True,
            published=[Published("Figure 6.1", [(100_000, 50), (3_000, 920)])],
        ),
    ],
    statements=[
        Statement(
            "Figures 4.1, 4.2", "40, 52 and 1500 bytes are more than 55 % of all packets, 20 sizes over 75 %", common
        ),
        Statement("Figure 4.4", "the generated sizes follow the captured ones", follows),
        Statement(
            "Figure 4.5",
            "180 kpps and 915 Mbit/s with the distribution; largest packets give more bits, smallest more packets",
            speeds,
        ),
        Statement("Figure 6.1", "10 kpps at 100,000 ns; rising until 3,000 ns, then 180 kpps", gaps),
    ],
)
