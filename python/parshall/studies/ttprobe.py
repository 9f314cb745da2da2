"""ttprobe: the state of TCP at every packet beside the state every millisecond."""

import sys
from collections.abc import Callable
from dataclasses import replace

import polars as pl

from parshall.instruments.tcp_log import read
from parshall.lab import (
    Figure,
    Finding,
    Host,
    Link,
    Measure,
    Program,
    Setting,
    Statement,
    Study,
    Table,
    flows,
    grid,
    iperf3,
    open_flows,
    parshall,
    tcp_log,
)
from parshall.lab.run import Run
from parshall.lab.table import BLOCK, rule, verdict

PORT = 5201
POLL = [sys.executable, "-P", "-m", "parshall.lab.poll", "--port", str(PORT), "--interval", "1ms"]
BEGINNING_MS = 30
SHAPED, FAST = "100 Mbit/s, 6 ms", "1 Gbit/s"
# On the same link as `FAST`, a tenth of its bytes: of one flow, or of some 250 flows a second.
SLOW, SHORT = "100 Mbit/s", "100 Mbit/s, short flows"
SIZES = ["--least", 10_000, "--most", 1_000_000]
BOTH = {"path": SHAPED, "method": "both"}
EVERY_PACKET, EVERY_MS = "at every packet", "every millisecond"


def setting(level: dict, duration_s: float) -> Setting:
    """Return two hosts; one flow or short ones, polled, logged at every packet, or both at once."""
    options = {"rate_bps": 100e6, "delay_ms": 3, "queue_packets": 100} if level["path"] == SHAPED else {}
    port = flows.PORT if level["path"] == SHORT else PORT
    instruments = {
        "events": [tcp_log("sender", "--port", port, name="events", is_kept=True)],
        "polled": [Program("polled", "sender", [*POLL, "-o", "{directory}/polled.csv"], ready="started")],
        "none": [],
    }
    chosen = (
        [*instruments["events"], *instruments["polled"]] if level["method"] == "both" else instruments[level["method"]]
    )
    rate = {FAST: ["--bitrate", "1G"], SLOW: ["--bitrate", "100M"]}.get(level["path"], [])
    sending = (
        open_flows("receiver", "sender", duration_s, 100e6, *SIZES)
        if level["path"] == SHORT
        else iperf3("sender", "receiver", duration_s, "--congestion", "cubic", *rate)
    )
    return Setting(
        hosts=[Host("sender", cpu=0), Host("receiver", cpu=-1)],
        links=[Link("sender", "receiver", **options)],
        programs=[
            *chosen,
            parshall("sender", "cpu", "--interval", "100ms", "--all"),
            *sending,
        ],
        duration_s=duration_s,
    )


def events(run: Run) -> pl.DataFrame:
    """Return ``time_ns`` and ``cwnd`` of the packets of the flow that carries the data."""
    run.result("events")
    log = read(run.directory / "events.arrow")
    frame = log.to_polars().filter(pl.col("event") == "packet")
    busiest = frame.group_by("flow").len().sort("len")["flow"][-1]
    return frame.filter(flow=busiest).sort("time_ns").select(pl.col("time_ns").cast(pl.Int64), cwnd="cwnd_segments")


def polled(run: Run) -> pl.DataFrame:
    """Return ``time_ns`` and ``cwnd`` of the samples of the flow that carries the data."""
    run.result("polled")
    frame = pl.read_csv(run.directory / "polled.csv")
    largest = frame.sort("cwnd_segments")["local_port"][-1]
    return frame.filter(local_port=largest).select("time_ns", cwnd="cwnd_segments")


def changes(frame: pl.DataFrame) -> int:
    """Return how often the window changed from one row to the next."""
    return int((frame["cwnd"].diff().drop_nulls() != 0).sum())


def missed(run: Run) -> float:
    """Return the share of the window's changes that polling did not see, percent."""
    return 100 * (1 - changes(polled(run)) / changes(events(run)))


def if_both(measure: Callable[[Run], float]) -> Callable[[Run], float | None]:
    """Return a measure of the runs in which both methods see the same flow."""
    return lambda run: measure(run) if run.level["method"] == "both" else None


def usages(run: Run) -> list[float]:
    """Return the CPU usage of every tenth of a second, percent of all CPUs."""
    profile = run.result("cpu")
    idle = profile["states"].index("idle")
    return [100 - line[idle] for line in profile["all"]]


def begin(run: Run) -> pl.DataFrame:
    """Return the window in the first 30 ms of a run, by packets and by samples: ``x`` (ms), ``cwnd``, ``line``."""
    series = {EVERY_PACKET: events(run), EVERY_MS: polled(run)}
    began_ns = series[EVERY_PACKET]["time_ns"][0]
    frames = [
        frame.select(x=(pl.col("time_ns") - began_ns) / 1e6, cwnd=pl.col("cwnd").cast(pl.Float64), line=pl.lit(name))
        for name, frame in series.items()
    ]
    return pl.concat(frames).filter(pl.col("x").is_between(0, BEGINNING_MS))


def beginning(table: Table) -> pl.DataFrame:
    """Return the window in the first 30 ms of the first run."""
    runs = table.runs_where(**BOTH)
    return begin(runs[0]).rename({"cwnd": "y"}) if runs else pl.DataFrame()


def changes_at_the_beginning(line: str) -> Callable[[Run], float]:
    """Return the measure of how often the window changed in the first 30 ms, by one method."""
    return lambda run: changes(begin(run).filter(line=line))


def usage_cdf(table: Table) -> pl.DataFrame:
    """Return the distribution of the CPU usage on the fast path, of all runs of a method together."""
    frames = []
    for method, name in (("none", "no instrument"), ("polled", "polled"), ("events", "events")):
        values = sorted(value for run in table.runs_where(path=FAST, method=method) for value in usages(run))
        shares = [(number + 1) / len(values) for number in range(len(values))]
        frames.append(
            pl.DataFrame({"x": values, "y": shares}, schema={"x": pl.Float64, "y": pl.Float64}).with_columns(
                line=pl.lit(name)
            )
        )
    return pl.concat(frames)


def samples(table: Table) -> Finding:
    """How many samples each method has of the same flow."""
    runs = table.where(BOTH).sort(BLOCK)
    found = table.compare_values("samples", runs["samples"].to_list(), runs["events"].to_list())
    if found is None:
        return table.not_often_enough(BOTH)
    times = [1 + each for each in (found.change, found.low, found.high)]
    text = (
        f"{found.after:,.0f} records at every packet, {found.before:,.0f} samples at 1 ms of the same flow "
        f"({times[0]:.1f} times as many, {table.interval} {times[1]:.1f} to {times[2]:.1f}); polling missed "
        f"{table.mean('missed', **BOTH):.0f} % of the changes of the window"
    )
    why = "packets come more often than every millisecond, so that it holds by construction"
    return verdict(found, 1, margin=0.1, text=text).without_verdict(why)


def first_ms(table: Table) -> Finding:
    """What polling shows of the first 30 ms."""
    runs = table.where(BOTH).sort(BLOCK)
    found = table.compare_values("beginning_polled", runs["beginning_polled"].to_list(), runs["beginning"].to_list())
    if found is None:
        return table.not_often_enough(BOTH)
    least, most = 100 * found.low, 100 * found.high
    text = (
        f"the window changed {found.after:,.1f} times in the first {BEGINNING_MS} ms; polling shows "
        f"{found.before:,.1f} ({100 * found.change:+.0f} %, {table.interval} {least:+.0f} to {most:+.0f} %; samples "
        f"hardly can show more); {rule('10 %', 1)}"
    )
    return verdict(found, 1, margin=0.1, text=text, reason="polling shows as many")


def instruments_cost(run: Run) -> float:
    """Return the CPU time of the poller, or of the log with its hooks, percent of one CPU."""
    return 100 * sum(run.cost_s(name) for name in ("events", "polled") if name in run.record["programs"]) / run.wall_s


def cost(table: Table) -> Finding:
    """CPU of both methods at 1 Gbit/s."""
    base = {"path": FAST, "method": "none"}
    texts = [table.change("cpu", base, {**base, "method": name}, ".1f")[0] for name in ("polled", "events")]
    found = table.judge(
        "cost",
        {**base, "method": "polled"},
        {**base, "method": "events"},
        1,
        margin=0.1,
        form=",.1f",
        what="CPU time of the poller, and of the log with its hooks",
    )
    text = f"{found.measured}; all CPUs, without and with polling: {texts[0]}; without and with events: {texts[1]}"
    # What a poller costs depends on how it is written.
    return replace(found, measured=text).without_verdict(
        "the slide gives no number, and Web10G's poller was in C, while this one is a Python program: the two logs "
        "are not those of the slides"
    )


def traffic(table: Table) -> Finding:
    """What a log costs with the same bytes in one flow and in short ones; that more packets cost more is arithmetic."""
    slow, short, fast = ({"path": path, "method": "events"} for path in (SLOW, SHORT, FAST))
    what = f"CPU time of the log with its hooks, {SLOW} in one flow -> in short ones"
    found = table.judge("cost", slow, short, 0, margin=0.1, form=",.1f", what=what)
    if found.low is None:
        return found
    more = table.change("cost", slow, fast, ",.1f")[0]
    found = replace(found, measured=f"{found.measured}; {SLOW} -> {FAST}: {more}")
    if found.is_same is None:
        return found
    # That the cost does not change is the opposite of what the slide says.
    reason = "short flows cost as much as a long one of the same bytes" if found.is_same else ""
    return replace(found, is_same=not found.is_same, reason=reason)


study = Study(
    name="ttprobe",
    title="What does polling TCP state miss, and what does recording every packet cost?",
    question=(
        "One CUBIC flow at 100 Mbit/s and 6 ms round-trip time is polled every millisecond and logged at every packet "
        "at once: how many samples does each have, and which changes of the congestion window does polling miss? At "
        "1 Gbit/s, the CPU usage of each is compared, and that of events with a tenth of the bytes, in one flow and in "
        "short ones."
    ),
    document="R. Al-Saadi: ttprobe v0.1, packet-driven TCP stack statistics gathering for TEACUP, 2015",
    setting=setting,
    # On the fast path, methods come and go while the flow runs.
    switched=["method"],
    levels=[
        BOTH,
        *grid(path=[FAST], method=["none", "polled", "events"]),
        *grid(path=[SLOW, SHORT], method=["none", "events"]),
    ],
    control_level=BOTH,
    duration_s=60,
    quick_duration_s=2,
    repeats=10,
    omitted={
        "slide 'Challenges of using Web10g'": "Web10g is a patch for kernels up to 3.17; polled samples stand for it",
        "slides 'TEACUP', 'Kprobes mechanism', 'Design'": "diagrams",
    },
    measures=[
        Measure("events", "", if_both(lambda run: events(run).height), "records, one a packet"),
        Measure("samples", "", if_both(lambda run: polled(run).height), "samples, one a millisecond"),
        Measure("missed", "%", if_both(missed), "changes of the window that polling missed"),
        Measure(
            "beginning",
            "",
            if_both(changes_at_the_beginning(EVERY_PACKET)),
            "changes of the window in 30 ms, by packets",
        ),
        Measure(
            "beginning_polled",
            "",
            if_both(changes_at_the_beginning(EVERY_MS)),
            "changes of the window in 30 ms, by samples",
        ),
        Measure("cost", "% of a CPU", instruments_cost, "CPU time of the instruments"),
        Measure("cpu", "%", lambda run: run.cpu_percent(), "CPUs busy"),
        Measure("throughput", "Mbit/s", lambda run: 8e-6 * run.received("receiver", what="bytes") / run.wall_s),
    ],
    figures=[
        Figure(
            "beginning",
            "Congestion window in the first 30 ms",
            rows=beginning,
            x_title="time since the first packet (ms)",
            y_title="congestion window (segments)",
            is_stepped=True,
            finding=first_ms,
        ),
        Figure(
            "cpu",
            "CPU usage at 1 Gbit/s: cumulative distribution over all runs",
            rows=usage_cdf,
            x_title="CPU usage in a tenth of a second (% of all CPUs)",
            y_title="share of the time",
            is_stepped=True,
            finding=cost,
        ),
        Figure(
            "traffic",
            "CPU time of the log with its hooks, by what it logs",
            "path",
            ["cost"],
            where={"method": "events"},
            finding=traffic,
        ),
    ],
    statements=[
        Statement(
            "slides 'Sampling'",
            "ttprobe captures more samples of the same flow than 1 ms polling (where a packet comes more often than "
            "every millisecond, as here, it must)",
            samples,
        ),
        Statement("slide 'CWND of the first 30 ms'", "polling misses changes that events show", first_ms),
        Statement(
            "slide 'CPU usage'",
            "CPU usage at 1 Gbit/s, drawn without numbers; the summary calls that of events reasonable",
            cost,
        ),
        Statement("slide 'Summary'", "the CPU overhead of event-driven loggers depends on the traffic", traffic),
    ],
)
