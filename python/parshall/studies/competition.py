"""Competition: how BBR and CUBIC share a bottleneck as its queue grows."""

from parshall.lab import (
    Figure,
    Finding,
    Host,
    Link,
    Measure,
    Setting,
    Statement,
    Study,
    Table,
    grid,
    iperf3,
    round_trips,
)
from parshall.lab.programs import PORT, iperf3_bps
from parshall.lab.run import Run

RATE_BPS = 50e6
DELAY_MS = 20
# Frames of 1,514 bytes that the link has under way.
BDP_PACKETS = round(RATE_BPS * 2 * DELAY_MS / 1e3 / 8 / 1514)
QUEUES = SHORT, MIDDLE, LONG = [BDP_PACKETS // 4, BDP_PACKETS, 8 * BDP_PACKETS]
MIXED, SAME = PAIRS = ["bbr, cubic", "cubic, cubic"]
# Difference of shares that matters, points.
MUCH = 10
FIRST, SECOND = "first", "second"


def setting(level: dict, duration_s: float) -> Setting:
    """Return two hosts and a slow link that two TCP flows share; sparse datagrams measure the way there and back."""
    controls = level["pair"].split(", ")
    return Setting(
        hosts=[Host("sender", cpu=0), Host("receiver", cpu=-1)],
        links=[
            Link(
                "sender",
                "receiver",
                rate_bps=RATE_BPS,
                delay_ms=DELAY_MS,
                queue_packets=level["queue"],
                # All levels of a factor are played by the same backend.
                backend="relay",
            )
        ],
        programs=[
            *round_trips("sender", "receiver", duration_s),
            *(
                program
                for number, (name, control) in enumerate(zip((FIRST, SECOND), controls, strict=True))
                for program in iperf3(
                    "sender", "receiver", duration_s, "--congestion", control, port=PORT + number, name=name
                )
            ),
        ],
        duration_s=duration_s,
    )


def mbps(run: Run, name: str) -> float:
    """Return the payload of a flow, Mbit/s."""
    return iperf3_bps(run.result(name)) / 1e6


def share(run: Run) -> float:
    """Return the first flow's share of what both moved, percent."""
    first = mbps(run, FIRST)
    return 100 * first / (first + mbps(run, SECOND))


def at(queue: int, pair: str = MIXED) -> dict:
    """Return a level."""
    return {"pair": pair, "queue": queue}


def yields(table: Table) -> Finding:
    """BBR has at most two bandwidth-delay products under way, and CUBIC fills the queue."""
    return table.judge(
        "share",
        at(SHORT),
        at(LONG),
        -1,
        margin=MUCH,
        form=",.0f",
        what=f"share of BBR, a queue of {LONG} packets instead of {SHORT}",
        reason="one of the two does not fill the link here",
    )


def starves(table: Table) -> Finding:
    """BBR does not react to losses of a short queue, and CUBIC does."""
    found = table.mean("share", **at(SHORT))
    return table.judge_mean(
        "share",
        at(SHORT),
        60,
        1,
        text=f"BBR has {found:.0f} % of what both move with a queue of {SHORT} packets; counted as more from 60 % on",
        reason="the queue loses no packet of CUBIC, or as many of BBR",
    )


def is_even(table: Table) -> Finding:
    """Two equal flows: neither has more."""
    found = table.mean("larger", **at(MIDDLE, SAME))
    return table.judge_mean(
        "larger",
        at(MIDDLE, SAME),
        65,
        -1,
        text=f"the larger of two flows of CUBIC has {found:.0f} % of what both move; counted as even below 65 %",
        reason="a run is too short for two flows to come to equal windows",
    )


def shape(table: Table) -> str:
    """Say how the share follows the queue."""
    queues = table.levels("queue", pair=MIXED)
    shares = [f"{table.mean('share', **at(queue)):.0f} % with {queue} packets" for queue in queues]
    return f"BBR beside CUBIC moves {', '.join(shares)}. The link alone holds {BDP_PACKETS} packets."


study = Study(
    name="competition",
    title="How do BBR and CUBIC share a bottleneck as its queue grows?",
    question=(
        f"One flow of each shares a link of {RATE_BPS / 1e6:.0f} Mbit/s with {2 * DELAY_MS} ms there and back, which "
        f"drops the newest packet when its queue is full: a quarter of the bandwidth-delay product of {BDP_PACKETS} "
        "packets, all of it, and eight times as much. Two flows of CUBIC show what the link itself does."
    ),
    document="N. Cardwell et al., BBR: Congestion-Based Congestion Control, 2016; RFC 9438 (CUBIC)",
    setting=setting,
    levels=grid(pair=PAIRS, queue=QUEUES),
    quick_levels=[at(SHORT), at(LONG), at(MIDDLE, SAME)],
    units={"queue": "packets"},
    control_level=at(SHORT),
    duration_s=20,
    quick_duration_s=12,
    repeats=5,
    measures=[
        Measure("share", "%", share, "the first flow's share of what both moved"),
        Measure("larger", "%", lambda run: max(share(run), 100 - share(run)), "the larger flow's share"),
        Measure("first", "Mbit/s", lambda run: mbps(run, FIRST), "first flow"),
        Measure("second", "Mbit/s", lambda run: mbps(run, SECOND), "second flow"),
        Measure("round_trip", "ms", lambda run: run.result("echo")["median"], "median round-trip time"),
    ],
    figures=[
        Figure("share", "Share of the first flow", "queue", ["share"], "pair", is_log_x=True, finding=shape),
        Figure("throughput", "Throughput of each flow", "queue", ["first", "second"], "pair", is_log_x=True),
        Figure("round-trip", "Round-trip time of other traffic", "queue", ["round_trip"], "pair", is_log_x=True),
    ],
    statements=[
        Statement(
            "Cardwell 2016, congestion window",
            "BBR has at most two bandwidth-delay products under way (from which follows here: it has less where CUBIC "
            "fills a long queue)",
            yields,
        ),
        Statement(
            "Cardwell 2016, loss",
            "BBR does not take a lost packet for congestion (from which follows here: it has more where a short queue "
            "loses packets)",
            starves,
        ),
        Statement("RFC 9438, fairness", "Flows of CUBIC that share a bottleneck have equal parts of it", is_even),
    ],
)
