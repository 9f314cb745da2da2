"""Bottleneck: how long packets wait while TCP fills a link, and how flows share it, by the discipline of the queue."""

from collections.abc import Callable

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
from parshall.lab.programs import iperf3_bps
from parshall.lab.run import Run

Check = Callable[[Table], Finding]
PLAIN, CODEL, FQ_CODEL, PIE = DISCIPLINES = ["drop-tail", "codel", "fq-codel", "pie"]
QUEUES = [100, 500]
RATE_BPS = 50e6
DELAY_MS = 10
FLOWS = 4
# What the cable takes, both ways.
EMPTY_MS = 2 * DELAY_MS
# Reference of PIE.
PIE_MS = 15
# Differences that matter, as shares of the value before.
MUCH, SMALL = 0.2, 0.1
# Of the throughput, and of Jain's index: what keeps a link full, and flows within some 10 % of each other.
FULL, EVEN = 0.03, 0.99
LONG = max(QUEUES)


def setting(level: dict, duration_s: float) -> Setting:
    """Return two hosts and a slow link; some TCP flows fill it, and sparse datagrams measure the way there and back."""
    return Setting(
        hosts=[Host("sender", cpu=0), Host("receiver", cpu=-1)],
        links=[
            Link(
                "sender",
                "receiver",
                rate_bps=RATE_BPS,
                delay_ms=DELAY_MS,
                queue_packets=level["queue"],
                discipline=level["discipline"],
                # All levels of a factor are played by the same backend.
                backend="relay",
            )
        ],
        programs=[
            *round_trips("sender", "receiver", duration_s),
            # The host's own may be BBR, which fills no queue.
            *iperf3("sender", "receiver", duration_s, "--congestion", "cubic", flows=FLOWS),
        ],
        duration_s=duration_s,
    )


def fairness(run: Run) -> float:
    """Return Jain's index of the flows: 1 when all get the same, 1 / n when one gets all."""
    shares = [each["receiver"]["bits_per_second"] for each in run.result("iperf3")["end"]["streams"]]
    # R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination, 1984, equation 1.
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def waiting(run: Run) -> float | None:
    """Return the mean waiting time of the sparse datagrams, milliseconds; None when none came back."""
    mean_ms = run.result("echo")["mean"]
    return None if mean_ms is None else max(0.0, mean_ms - EMPTY_MS)


def at(discipline: str, queue: int = LONG) -> dict:
    """Return a level."""
    return {"discipline": discipline, "queue": queue}


def changed(measure: str, before: str, after: str, wants: int, margin: float, what: str, reason: str) -> Check:
    """Return the check of a statement about one discipline in place of another."""

    def check(table: Table) -> Finding:
        words = f"{what}, {after} instead of {before}"
        return table.judge(measure, at(before), at(after), wants, margin=margin, form=",.1f", what=words, reason=reason)

    return check


def flows_share(table: Table) -> Finding:
    """FQ-CoDel: flows get equal shares."""
    return table.judge_mean(
        "fairness",
        at(FQ_CODEL),
        EVEN,
        1,
        text=f"Jain's index of {FLOWS} flows behind drop-tail is {table.mean('fairness', **at(PLAIN)):.3f}; "
        f"behind FQ-CoDel {table.mean('fairness', **at(FQ_CODEL)):.3f}",
        reason="flows share a queue of the 1,024, or end at different times",
    )


def pie_holds(table: Table) -> Finding:
    """PIE: the mean waiting time stays near the reference."""
    plain_ms, most_ms = table.mean("waiting", **at(PLAIN)), 2 * PIE_MS
    text = (
        f"sparse datagrams wait {table.mean('waiting', **at(PIE)):.1f} ms in the mean behind PIE, "
        f"{plain_ms:.1f} ms behind drop-tail; counted as held below {most_ms} ms"
    )
    if plain_ms < most_ms:
        return Finding(text, None, "the flows do not fill the plain queue here, so that nothing is held")
    reason = "slow start fills the queue before the probability of drops has grown"
    return table.judge_mean("waiting", at(PIE), most_ms, -1, text=text, reason=reason)


def shape(table: Table) -> str:
    """Say how the round-trip time follows the queue."""
    queues = table.levels("queue", discipline=PLAIN)
    found = {
        name: " and ".join(f"{table.mean('round_trip', **at(name, queue)):.0f}" for queue in queues)
        for name in DISCIPLINES
    }
    text = "; ".join(f"{name} {values}" for name, values in found.items())
    lengths = " and ".join(map(str, queues))
    return f"Round-trip times with a queue of {lengths} packets, ms: {text}. An empty link: {EMPTY_MS}."


def unanswered(run: Run) -> float:
    """Return the datagrams that did not come back, percent: the round-trip times are of the others."""
    counted = run.result("echo")
    return 100 * (1 - counted["received"] / counted["sent"])


study = Study(
    name="bottleneck",
    title="What does the queue of a bottleneck do to latency, throughput and fairness?",
    question=(
        f"{FLOWS} TCP flows (CUBIC) fill a link of {RATE_BPS / 1e6:.0f} Mbit/s with {EMPTY_MS} ms there and back. "
        "Meanwhile datagrams 50 times a second measure the round-trip time that other traffic would have. The queue "
        "drops the newest packet when it is full, or is managed by CoDel, FQ-CoDel or PIE, all of the testbed's relay."
    ),
    document="RFC 8289 (CoDel), RFC 8290 and tc-fq_codel(8) (FQ-CoDel), RFC 8033 (PIE)",
    setting=setting,
    levels=grid(discipline=DISCIPLINES, queue=QUEUES),
    quick_levels=grid(discipline=DISCIPLINES, queue=[LONG]),
    units={"queue": "packets"},
    control_level=at(PLAIN),
    duration_s=10,
    quick_duration_s=5,
    repeats=5,
    measures=[
        Measure("round_trip", "ms", lambda run: run.result("echo")["median"], "median round-trip time"),
        Measure("round_trip_p99", "ms", lambda run: run.result("echo")["p99"], "99th percentile"),
        Measure("waiting", "ms", waiting, "mean waiting time"),
        Measure("unanswered", "%", unanswered, "datagrams without an answer"),
        Measure("throughput", "Mbit/s", lambda run: iperf3_bps(run.result("iperf3")) / 1e6, "throughput of all flows"),
        Measure("fairness", "", fairness, "Jain's index", ends=(0.0, 1.0)),
    ],
    figures=[
        Figure(
            "round-trip",
            "Round-trip time of other traffic while TCP fills the link",
            "discipline",
            ["round_trip"],
            "queue",
            finding=shape,
        ),
        Figure("throughput", "Throughput of all flows", "discipline", ["throughput"], "queue"),
        Figure("fairness", "How evenly the flows share the link", "discipline", ["fairness"], "queue"),
    ],
    omitted={
        "RFC 8289, pseudocode": (
            "a rule, not a result: a test holds each drop of the relay to within 2 ms of interval/sqrt(n), and another "
            "the relay beside the kernel's CoDel"
        ),
        "RFC 8290, scheduler": (
            "a rule, not a result: tests hold that a sparse flow passes, and that the longest queue loses; another the "
            "relay beside the kernel's FQ-CoDel"
        ),
        "RFC 8033, controller": (
            "a rule, not a result: a test holds the share of drops and the waiting time at 1.2 times the rate; the "
            "kernel's PIE holds a shorter one, for a reason that is not known"
        ),
    },
    statements=[
        Statement(
            "RFC 8289, abstract",
            "CoDel controls the excess delay of large buffers",
            changed(
                "round_trip",
                PLAIN,
                CODEL,
                -1,
                MUCH,
                f"a queue of {LONG} packets",
                "the flows do not fill the plain queue here",
            ),
        ),
        Statement(
            "RFC 8033, abstract",
            "PIE has a high utilisation of the link",
            changed(
                "throughput",
                PLAIN,
                PIE,
                0,
                FULL,
                "a link that a plain queue keeps full",
                "drops leave the link idle, or save repetitions",
            ),
        ),
        Statement(
            "RFC 8290, abstract",
            "FQ-CoDel isolates low-rate traffic from the flows that fill the link",
            changed(
                "round_trip_p99",
                CODEL,
                FQ_CODEL,
                -1,
                SMALL,
                "99th percentile of sparse datagrams",
                "the queue of CoDel is as short",
            ),
        ),
        Statement("tc-fq_codel(8)", "FQ-CoDel gives each flow a fair share of the bandwidth", flows_share),
        Statement("RFC 8033, target", "PIE controls the mean waiting time to a target, 15 ms", pie_holds),
    ],
)
