"""SIFTR: what logging TCP state at every packet costs the flows that are logged."""

from collections.abc import Callable
from dataclasses import replace

import polars as pl

from parshall.lab import (
    Figure,
    Finding,
    Host,
    Link,
    Measure,
    Published,
    Setting,
    Statement,
    Study,
    Table,
    grid,
    iperf3,
    tcp_log,
)
from parshall.lab.run import Run
from parshall.lab.table import BLOCK, verdict

PPL = FLOWS = [1, 2, 5, 10, 50, 100]
ENDS = ["sender", "receiver", "both"]
# Table IV, Mbit/s without SIFTR.
TESTBED_1 = [632.716, 626.039, 623.709, 624.716, 620.670, 614.400]
TESTBED_2 = [562.768, 560.848, 558.416, 556.940, 556.279, 553.566]


# Of 100 flows, every packet logged, Mbit/s at least.
TESTBED_1_LOGGED = 204.0

# A difference of throughput that nobody would notice, and one that everybody would, as shares.
SMALL, MUCH = 0.03, 0.1
# The document says 1.6 to 2.9 %.
LEAST = 0.01


def setting(level: dict, duration_s: float) -> Setting:
    """Return two hosts on a cable, each with its CPU; iperf3 from one to the other."""
    where = {"none": [], "attached": ["sender"], "both": ["sender", "receiver"]}.get(
        level["logging"], [level["logging"]]
    )
    # A port that no flow has: the hooks run, and log nothing.
    options = ["--port", 1] if level["logging"] == "attached" else ["--ppl", level.get("ppl", 1)]
    return Setting(
        hosts=[Host("sender", cpu=0), Host("receiver", cpu=-1)],
        links=[Link("sender", "receiver")],
        programs=[
            *(tcp_log(host, *options, name=f"log-{host}") for host in where),
            *iperf3("sender", "receiver", duration_s, flows=level["flows"]),
        ],
        duration_s=duration_s,
    )


def skipped(run: Run) -> float:
    """Return the packets that the logs lost in a minute, for each Mbit/s: a test of the document lasted 60 s."""
    ledgers = run.record["ledgers"].values()
    return 60 * sum(ledger["lost"] / ledger["cost"]["wall_s"] for ledger in ledgers) / throughput(run)


def throughput(run: Run) -> float:
    """Return what the receiver's interface took in, Mbit/s, with headers."""
    return 8e-6 * run.received("receiver", what="bytes") / run.wall_s


def records(run: Run) -> float:
    """Return how many records a second the logs have."""
    ledgers = run.record["ledgers"].values()
    # A log is attached for longer than the stretch that is measured.
    return sum(ledger["logged"] / ledger["cost"]["wall_s"] for ledger in ledgers)


def cost(run: Run) -> float:
    """Return the CPU time of the logs, with their hooks, percent of one CPU."""
    logs = [name for name in run.record["programs"] if name.startswith("log-")]
    return 100 * sum(map(run.cost_s, logs)) / run.wall_s


def kept(where: dict, x: str, line: str = "", panel: str = "") -> Callable[[Table], pl.DataFrame]:
    """Return rows of the throughput as a share of that without a log, of the same block of runs."""

    def rows(table: Table) -> pl.DataFrame:
        without = table.where(logging="none").select(*BLOCK, "cycle", "flows", without="throughput")
        frame = table.where(where).join(without, on=[*BLOCK, "cycle", "flows"])
        panels = pl.concat_str(pl.lit(f"{panel} "), pl.col(panel).cast(pl.String)) if panel else pl.lit("")
        return frame.select(
            "repeat",
            x=pl.col(x),
            y=100 * pl.col("throughput") / pl.col("without"),
            line=pl.col(line).cast(pl.String) if line else pl.lit(""),
            panel=panels,
            level=pl.concat_str("logging", "ppl", "flows", separator="/"),
        )

    return rows


OFF, EVERY = {"logging": "none", "flows": 1}, {"logging": "sender", "ppl": 1, "flows": 1}


def most_flows(table: Table, **levels: object) -> int:
    """Return the largest number of flows that ran at some levels."""
    return max(table.levels("flows", **levels), default=1)


def table_iv(table: Table) -> Finding:
    """More flows: a little less throughput."""
    flows = most_flows(table, logging="none")
    return table.judge(
        "throughput",
        OFF,
        {**OFF, "flows": flows},
        -1,
        margin=LEAST,
        what=f"{flows} flows instead of 1",
        reason="not less with more flows",
    )


def table_v(table: Table) -> Finding:
    """Attached, but off: no difference."""
    return table.judge(
        "throughput",
        OFF,
        {"logging": "attached", "flows": 1},
        0,
        margin=SMALL,
        what="without a log, and with one whose port no flow has",
        reason="hooks that filter everything out still run at every packet",
    )


def granularity(table: Table) -> Finding:
    """Logging more often costs throughput."""
    found = table.judge(
        "throughput",
        OFF,
        EVERY,
        -1,
        margin=SMALL,
        what="every packet logged",
        reason="logging every packet costs less here",
    )
    last = table.levels("ppl", logging="sender")[-1]
    rare, _ = table.change("throughput", EVERY, {**EVERY, "ppl": last})
    alone, _ = table.change("throughput", {"logging": "attached", "flows": 1}, EVERY)
    text = f"{found.measured}; instead of hooks that log nothing: {alone}; every {last}th packet instead: {rare}"
    return replace(found, measured=text)


def knee(table: Table) -> Finding:
    """Logging more rarely than every 50th packet gains hardly anything, where logging every packet costs anything."""
    rare, rarer = ({**EVERY, "ppl": ppl} for ppl in (50, 100))
    cost = table.compare("throughput", EVERY, rare)
    found = table.judge(
        "throughput",
        rare,
        rarer,
        0,
        margin=SMALL,
        what="every 50th and every 100th packet logged",
        reason="they differ here",
        allows_fall=True,
    )
    if cost is None or found.low is None:
        return found if cost else table.not_often_enough(EVERY, rare)
    found = replace(
        found, measured=f"{found.measured}; every 50th instead of every packet: {table.words('throughput', cost)}"
    )
    if cost.low > SMALL:
        return found
    is_small = cost.high < SMALL
    why = (
        "logging every packet costs too little here to have a knee" if is_small else "it may cost too little for a knee"
    )
    if is_small:
        return found.without_verdict(why)
    # Both must be decided.
    both = [verdict(cost, 0, margin=SMALL, text="", allows_fall=True).needed, found.needed]
    needed = None if None in both else max(both)
    return replace(found, is_same=None, reason=why, is_open=True, needed=needed)


def many_flows(table: Table) -> Finding:
    """The throughput of as many flows as run, with every packet logged."""
    level = {**EVERY, "flows": most_flows(table, logging="sender", ppl=1)}
    text = f"{level['flows']} flows, every packet logged: {table.mean('throughput', **level):,.0f} Mbit/s"
    found = table.judge_mean("throughput", level, TESTBED_1_LOGGED, 1, text=text)
    why = "a bound that any machine of today keeps says nothing of the log: Figure 5 asks what it costs"
    return found.without_verdict(why)


def coupling(table: Table) -> Finding:
    """The throughput with every packet logged does not depend much on the flows."""
    many = most_flows(table, logging="sender", ppl=1)
    if many == 1:
        return table.not_often_enough(EVERY, {**EVERY, "flows": max(FLOWS)})
    found = table.judge(
        "throughput",
        EVERY,
        {**EVERY, "flows": many},
        0,
        margin=MUCH,
        what=f"every packet logged, {many} flows instead of 1",
        reason="it depends on the number of flows here",
    )
    kept = [
        table.beside("throughput", {"logging": "none", "flows": flows}, {**EVERY, "flows": flows})
        for flows in (1, many)
    ]
    if found.low is None or not kept[0] or not kept[1]:
        return found
    shares = (
        f"{1 + kept[0].change:.1%} of the throughput without a log with 1 flow, {1 + kept[1].change:.1%} with {many}"
    )
    return replace(found, measured=f"{found.measured}; it is {shares}")


def losses(table: Table) -> Finding:
    """Packets that are not logged, of the ledger."""
    frame = table.where(logging=ENDS)
    # The cycles of a run are no runs of their own.
    worst, runs = frame["skipped"].max(), frame["run"].n_unique()
    if worst is None:
        return Finding("not measured", None)
    if worst == 0:
        # With this confidence: of runs that skip with a higher probability, one of so many would have.
        most = 1 - (1 - table.confidence) ** (1 / runs)
        text = f"0 packets in {runs} run{'s' * (runs > 1)}, so that fewer than {most:.0%} of all runs skip any"
        if most >= 0.5:
            return Finding(text, None, "too few runs to say that most skip none", is_open=True)
        return Finding(text, False, "the ring of each CPU has no lock that flows could contend for")
    few, many = ({**EVERY, "flows": flows} for flows in (1, most_flows(table, logging="sender", ppl=1)))
    text = f"at most {worst:.2f} packets a minute for each Mbit/s, in {runs} runs; more flows"
    return table.judge("skipped", few, many, 1, margin=1.0, form=",.2f", what=text, reason="not more with more flows")


def ends(table: Table) -> Finding:
    """Which end bears the cost."""
    text = "; ".join(
        f"{flows} flow{'s' * (flows > 1)}: "
        + ", ".join(f"{table.mean('throughput', logging=end, ppl=1, flows=flows):,.0f} at {end}" for end in ENDS)
        for flows in dict.fromkeys((1, most_flows(table, logging="both")))
    )
    levels = EVERY, {"logging": "receiver", "ppl": 1, "flows": 1}
    found = table.compare("throughput", *levels)
    if found is None:
        return table.not_often_enough(*levels)
    compared = f"receiver instead of sender, one flow: {table.words('throughput', found)}"
    text = f"logging every packet, Mbit/s: {text}; {compared}"
    finding = verdict(found, 1, margin=SMALL, text=text)
    # Whatever is cheaper here, one of them agrees.
    why = "the two testbeds contradict each other: no end is the cheaper one of the document"
    return finding.without_verdict(why)


study = Study(
    name="siftr",
    title="What does a log of TCP state at every packet cost?",
    question=(
        "iperf3 sends over a cable between two hosts as fast as TCP goes, while the TCP state of the sender, the "
        "receiver or both is logged at every n-th packet (ppl: packets per log). The throughput that is lost is the "
        "cost of logging; the ledger has the packets that were not logged."
    ),
    document="L. Stewart, G. Armitage, J. Healy: Characterising the Behaviour and Performance of SIFTR v1.1.0, 2007",
    setting=setting,
    levels=[
        *grid(logging=["none"], flows=FLOWS),
        *grid(logging=["attached"], flows=[1]),
        *grid(logging=["sender"], ppl=PPL, flows=FLOWS),
        *grid(logging=["receiver", "both"], ppl=PPL, flows=[1]),
        *grid(logging=["receiver", "both"], ppl=[1, 10, 100], flows=FLOWS[1:]),
    ],
    quick_levels=[
        *grid(logging=["none"], flows=[1, 100]),
        *grid(logging=["attached"], flows=[1]),
        *grid(logging=["sender"], ppl=[1, 10, 100], flows=[1, 100]),
        *grid(logging=["sender"], ppl=[50], flows=[1]),
        *grid(logging=["receiver", "both"], ppl=[1], flows=[1, 100]),
    ],
    units={"ppl": "packets"},
    # Logs come and go while the flows run.
    switched=["logging", "ppl"],
    control_level=EVERY,
    duration_s=60,
    repeats=10,
    measures=[
        Measure("throughput", "Mbit/s", throughput, "throughput"),
        Measure("skipped", "packets/min per Mbit/s", skipped, "packets not logged", is_ratio=False),
        Measure("records", "1/s", records, "records"),
        Measure("cost", "% of a CPU", cost, "CPU time of logs and hooks"),
        Measure("cpu", "%", lambda run: run.cpu_percent(), "CPUs busy"),
    ],
    figures=[
        Figure(
            "throughput-ppl",
            "Throughput with the sender logged, one flow (Figures 5 and 6)",
            rows=kept({"logging": "sender", "flows": 1}, "ppl"),
            x_title="packets per log",
            y_title="throughput (% of that without a log)",
            is_log_x=True,
            published=[
                Published("Figure 5: testbed 1", [(1, 100 * 205 / TESTBED_1[0])]),
                Published("Figure 6: testbed 2", [(1, 100 * 574 / TESTBED_2[0])]),
            ],
            finding=granularity,
        ),
        Figure(
            "throughput-flows",
            "Throughput with the sender logged, many flows (Figures 7 and 8)",
            colour="ppl",
            rows=kept({"logging": "sender"}, "flows", "ppl"),
            x_title="flows",
            y_title="throughput (% of that without a log)",
            is_log_x=True,
            finding=coupling,
        ),
        Figure(
            "baseline",
            "Throughput without a log (Table IV)",
            "flows",
            ["throughput"],
            where={"logging": "none"},
            is_log_x=True,
            published=[
                Published("Table IV: testbed 1", list(zip(FLOWS, TESTBED_1, strict=True))),
                Published("Table IV: testbed 2", list(zip(FLOWS, TESTBED_2, strict=True))),
            ],
            finding=table_iv,
        ),
        Figure(
            "skipped",
            "Packets that were not logged, a minute and Mbit/s (Figures 9 and 10)",
            "flows",
            ["skipped"],
            "ppl",
            where={"logging": "sender"},
            is_log_x=True,
            published=[
                Published("ppl 1: testbed 2", [(1, 25.7), (100, 31.1)]),
                Published("ppl 1: testbed 1", [(1, 2.1), (100, 16.2)]),
            ],
            finding=lambda table: f"Not logged: {losses(table).measured}.",
        ),
        Figure(
            "ends",
            "Logging on sender, receiver or both, one flow (Figures 11 and 12)",
            colour="logging",
            rows=kept({"logging": ENDS, "flows": 1}, "ppl", "logging"),
            x_title="packets per log",
            y_title="throughput (% of that without a log)",
            is_log_x=True,
            finding=ends,
        ),
        Figure(
            "ends-flows",
            "Logging on sender, receiver or both, many flows (Figures 11 and 12)",
            rows=kept({"logging": ENDS, "ppl": [1, 10, 100]}, "flows", "logging", "ppl"),
            x_title="flows",
            y_title="throughput (% of that without a log)",
            is_log_x=True,
        ),
    ],
    omitted={
        "Figures 1-4": "diagrams of the stack, of SIFTR and of the testbed",
        "Figure 6": "testbed 2 was faster with SIFTR: see the next line",
        "section V-B, a hook that waits": (
            "testbed 2 was faster with SIFTR, and with a hook that only waited; the document did not find which "
            "bottleneck gained by it, so there is nothing to rebuild"
        ),
        "Figure 8": "on testbed 2 throughput falls with the flows: the opposite of Figure 7, which is judged",
        "section V-C, lock contention": "99 % of the skips; the ring of each CPU has no lock that flows share",
        "text of Figure 11": "both ends converge from ppl 10 on: read from the figure here, without a verdict",
        "Tables I-III": "hardware and settings of the testbeds; the report has those of this machine",
    },
    statements=[
        Statement("Table IV", "100 flows instead of 1 cost 2.9 % (testbed 1) and 1.6 % (testbed 2)", table_iv),
        Statement(
            "Table V",
            "loaded and off: no significant difference (632.7 and 632.6 Mbit/s; here the hooks run, and log nothing)",
            table_v,
        ),
        Statement("Figure 5", "logging every packet costs throughput: 205 of 633 Mbit/s are left", granularity),
        Statement("Figure 5, text", "beyond 50 packets per log there is a negligible gain", knee),
        Statement("Figure 7", "throughput is not overly coupled with the number of flows", coupling),
        Statement(
            "Figures 9, 10",
            "skipped packets per Mbit/s at ppl 1 (in the 60 s of a test, as it is read here): 2.1 (1 flow) to 16.2 "
            "(100) on testbed 1, 25.7 to 31.1 on testbed 2; 68.8 there at ppl 2",
            losses,
        ),
        Statement("Figures 11, 12", "cheaper at the receiver on testbed 1, at the sender on testbed 2", ends),
        Statement("section VI", "100 flows, ppl 1: at least 204 Mbit/s on testbed 1, 565 on testbed 2", many_flows),
    ],
)
