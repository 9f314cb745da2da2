"""Completion: how long short flows take beside one that fills the link, by the discipline of its queue."""

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
    open_flows,
)
from parshall.lab.flows import SHORT_BYTES_MAX
from parshall.lab.programs import iperf3_bps
from parshall.lab.run import AbsentError, Run

PLAIN, FQ_CODEL = DISCIPLINES = ["drop-tail", "fq-codel"]
LOADS = [10, 40]
RATE_BPS = 50e6
DELAY_MS = 10
QUEUE_PACKETS = 300
# A handshake, and a question with its answer.
EMPTY_MS = 2 * 2 * DELAY_MS
# Difference that matters, as a share of the value before.
MUCH = 0.2


def setting(level: dict, duration_s: float) -> Setting:
    """Return two hosts and a slow link; short flows ask for something at random times while another one fills it."""
    load_bps = level["load"] / 100 * RATE_BPS
    return Setting(
        hosts=[Host("server", cpu=0), Host("client", cpu=-1)],
        links=[
            Link(
                "server",
                "client",
                rate_bps=RATE_BPS,
                delay_ms=DELAY_MS,
                queue_packets=QUEUE_PACKETS,
                discipline=level["discipline"],
                # All levels of a factor are played by the same backend.
                backend="relay",
            )
        ],
        programs=[
            *iperf3("server", "client", duration_s, "--congestion", "cubic"),
            *open_flows("client", "server", duration_s, load_bps, congestion="cubic"),
        ],
        duration_s=duration_s,
    )


def took_ms(run: Run, kind: str, quantile: str) -> float:
    """Return a quantile of completion times, milliseconds."""
    found = run.result("flows")[kind][quantile]
    if found is None:
        raise AbsentError(f"more {kind} flows than that had not ended")
    return float(found)


def at(discipline: str, load: int = LOADS[0]) -> dict:
    """Return a level."""
    return {"discipline": discipline, "load": load}


def isolates(measure: str, what: str, reason: str) -> Callable[[Table], Finding]:
    """Return the check that short flows, as web pages, do not wait behind the flow that fills the link."""
    words = f"{what} of flows up to {SHORT_BYTES_MAX:,} bytes, {FQ_CODEL} instead of {PLAIN}"

    def check(table: Table) -> Finding:
        return table.judge(measure, at(PLAIN), at(FQ_CODEL), -1, margin=MUCH, form=",.0f", what=words, reason=reason)

    return check


def shape(table: Table) -> str:
    """Say how long short flows take."""
    found = {
        name: " and ".join(f"{table.mean('short', **at(name, load)):.0f}" for load in table.levels("load"))
        for name in DISCIPLINES
    }
    loads = " and ".join(f"{load} %" for load in table.levels("load"))
    text = "; ".join(f"{name} {values} ms" for name, values in found.items())
    return f"Medians of short flows, which have {loads} of the link: {text}. On an empty link: {EMPTY_MS} ms and more."


study = Study(
    name="completion",
    title="How long do short flows take beside one that fills the link?",
    question=(
        f"Flows of 1 kB to 1 MB begin at random times (Poisson, sizes with a heavy tail) on a link of "
        f"{RATE_BPS / 1e6:.0f} Mbit/s with {2 * DELAY_MS} ms there and back, while one flow (CUBIC) fills it. The "
        "queue drops the newest packet when it is full, or is managed by FQ-CoDel. A flow's time is from its SYN to "
        "its last byte; a slow one does not delay the next."
    ),
    document="RFC 8290 (FQ-CoDel)",
    setting=setting,
    levels=grid(discipline=DISCIPLINES, load=LOADS),
    quick_levels=grid(discipline=DISCIPLINES, load=LOADS[:1]),
    units={"load": "%"},
    control_level=at(PLAIN),
    duration_s=10,
    quick_duration_s=5,
    repeats=5,
    measures=[
        Measure("short", "ms", lambda run: took_ms(run, "short", "p50"), "median of short flows"),
        Measure("short_p90", "ms", lambda run: took_ms(run, "short", "p90"), "90th percentile of short flows"),
        Measure("long", "ms", lambda run: took_ms(run, "long", "p50"), "median of longer flows"),
        Measure("unfinished", "flows", lambda run: run.result("flows")["unfinished"], "flows that had not ended"),
        Measure("late", "ms", lambda run: run.result("flows")["late_p99_ms"], "99th percentile of late beginnings"),
        Measure("throughput", "Mbit/s", lambda run: iperf3_bps(run.result("iperf3")) / 1e6, "the flow that fills"),
    ],
    figures=[
        Figure(
            "short",
            "Completion time of short flows while another one fills the link",
            "load",
            ["short", "short_p90"],
            "discipline",
            finding=shape,
        ),
        Figure("throughput", "Throughput of the flow that fills the link", "load", ["throughput"], "discipline"),
    ],
    statements=[
        Statement(
            "RFC 8290, abstract",
            "FQ-CoDel isolates low-rate traffic, such as web traffic, from a flow that fills the link",
            isolates("short", "median", "the other flow does not fill the plain queue here"),
        ),
        Statement(
            "RFC 8290, abstract, tail",
            "FQ-CoDel reduces the impact of bursts of other flows (read here: also for the slowest tenth of them)",
            isolates("short_p90", "90th percentile", "short flows lose packets behind both"),
        ),
    ],
)
