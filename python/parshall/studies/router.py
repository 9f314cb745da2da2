"""A router of this kernel: latency and loss of each packet against load, beside predictions for the same arrivals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet

from parshall.lab import Figure, Finding, Host, Measure, Program, Setting, Statement, Study, Table, grid
from parshall.lab.programs import PARSHALL
from parshall.lab.run import Run
from parshall.lab.study import WORKLOAD, Level
from parshall.router.prediction import Prediction, ccdf, compare, latencies_ns, predict, single_queue

PACKETS = "packets.parquet"
KINDS = ["constant", "poisson", "bursts", "onoff"]
LOADS = [0.3, 0.6, 0.8]
DEFAULT: Level = {
    "receive": "rps",
    "traffic": "poisson",
    "load": 0.6,
    "routes": 4,
    "rules": 0,
    "gro": True,
    "flows": 1,
    "sizes": "64",
    "tunnel": "none",
}
# Packets of a run, and of a quick one.
_COUNT, _QUICK_COUNT = 100_000, 20_000
_QUICK_S = 1.0
# A search and a measurement.
_RUN_S = 7.0
_END_S = 300.0
_TRACE_PACKETS = 3_000


def setting(level: Level, duration_s: float) -> Setting:
    """Return one measurement: the capacity first, then the load, in the same testbed."""
    words = ["--receive", level["receive"], "--traffic", level["traffic"], "--load", level["load"]]
    words += ["--routes", level["routes"], "--rules", level["rules"], "--flows", level["flows"]]
    words += ["--sizes", level["sizes"]]
    words += [] if level["gro"] else ["--no-gro"]
    words += [] if level["tunnel"] == "none" else ["--tunnel", level["tunnel"]]
    words += ["--count", _QUICK_COUNT if duration_s < _QUICK_S else _COUNT, "-o", "{directory}/" + PACKETS, "--json"]
    program = Program("router", "here", [*PARSHALL, "router", "measure", *map(str, words)], WORKLOAD, end_s=_END_S)
    return Setting([Host("here")], [], [program], _RUN_S)


def levels_with(**factors: list[Any]) -> list[Level]:
    """Return the default level with every combination of the values of some factors."""
    return [DEFAULT | level for level in grid(**factors)]


def distinct(levels: list[Level]) -> list[Level]:
    """Return levels without repetition, in their order."""
    return [level for number, level in enumerate(levels) if level not in levels[:number]]


def single_queue_of(run: Run) -> Prediction:
    """Return the single queue with the highest rate of the router that the same run found.

    Under overload a gateway forwards less than without loss: the softirq leaves it no time.
    """
    found = run.result("router")
    return single_queue(1e9 / max(found["capacity"]["pps"], found["overload"]["pps"]))


# Models to hold against the measurement: each returns its prediction for a run.
MODELS: dict[str, Callable[[Run], Prediction]] = {"single queue": single_queue_of}


def packets(run: Run) -> pyarrow.Table:
    """Return the packets of a run: when each arrived and left."""
    return pyarrow.parquet.read_table(run.directory / PACKETS)


def sides(run: Run) -> dict[str, pyarrow.Table]:
    """Return what was measured, and what each model predicts for the same arrivals."""
    measured = packets(run)
    return {"measured": measured} | {name: predict(of(run), measured) for name, of in MODELS.items()}


def latency(name: str) -> Callable[[Run], float]:
    """Return the function for a quantile of the latency, us."""
    return lambda run: float(run.result("router")["latency_us"][name])


def error(model: str, quantile: str) -> Callable[[Run], float]:
    """Return the function for a model's relative error at a quantile, percent."""

    def of(run: Run) -> float:
        measured = packets(run)
        return float(100 * compare(measured, predict(MODELS[model](run), measured))[quantile]["error"])

    return of


def offered_share(run: Run) -> float:
    """Return the offered rate over the rate without loss, percent."""
    found = run.result("router")
    return float(100 * found["offered_pps"] / found["capacity"]["pps"])


def first_runs(table: Table, **levels: Any) -> list[Run]:
    """Return the first run of each load."""
    by_load: dict[float, Run] = {}
    for run in table.runs_where(**levels):
        by_load.setdefault(run.level["load"], run)
    return [by_load[load] for load in sorted(by_load)]


def distributions(receive: str, traffic: str) -> Callable[[Table], pl.DataFrame]:
    """Return the function for the rows of the latency's complementary distribution."""

    def rows(table: Table) -> pl.DataFrame:
        frames = []
        for run in first_runs(table, **DEFAULT | {"receive": receive, "traffic": traffic, "load": LOADS}):
            for name, side in sides(run).items():
                latency_us, share = ccdf(latencies_ns(side))
                panel = f"load {run.level['load']:.0%}"
                frames.append(
                    pl.DataFrame({"x": latency_us, "y": share}).with_columns(line=pl.lit(name), panel=pl.lit(panel))
                )
        return pl.concat(frames) if frames else pl.DataFrame()

    return rows


def traces(receive: str, traffic: str) -> Callable[[Table], pl.DataFrame]:
    """Return the function for the rows of the latency of the first packets, against time."""

    def rows(table: Table) -> pl.DataFrame:
        runs = first_runs(table, **DEFAULT | {"receive": receive, "traffic": traffic, "load": LOADS})
        frames = []
        for run in runs[len(runs) // 2 : len(runs) // 2 + 1]:
            for name, side in sides(run).items():
                left = side.slice(0, _TRACE_PACKETS).drop_null()
                arrival_ns = left.column("arrival_ns").to_numpy()
                x = (arrival_ns - arrival_ns[:1]) / 1e6 if len(arrival_ns) else np.empty(0)
                frame = pl.DataFrame({"x": x, "y": latencies_ns(left) / 1e3})
                frames.append(frame.with_columns(line=pl.lit(name), panel=pl.lit(name)))
        return pl.concat(frames) if frames else pl.DataFrame()

    return rows


def found_latency(receive: str, traffic: str) -> Callable[[Table], str]:
    """Return the function for the finding of a distribution."""

    def finding(table: Table) -> str:
        levels = DEFAULT | {"receive": receive, "traffic": traffic}
        texts = []
        for load in table.levels("load", **levels | {"load": LOADS}):
            quantiles = [table.mean(name, **levels | {"load": load}) for name in ("p50", "p99")]
            texts.append(f"{load:.0%}: {quantiles[0]:,.1f} and {quantiles[1]:,.1f}")
        return f"Median and 99th percentile at each load, us: {'; '.join(texts)}."

    return finding


def found_capacity(table: Table) -> str:
    """Return the finding of the losses."""
    texts = []
    for receive in table.levels("receive"):
        zero = table.summary("capacity", receive=receive)
        beyond = table.summary("overload", receive=receive)
        if zero and beyond:
            texts.append(
                f"{receive}: {zero.median:,.0f} kpps without loss ({zero.minimum:,.0f} to {zero.maximum:,.0f}), "
                f"{beyond.median:,.0f} under overload"
            )
    return "; ".join(texts) + "."


def figures() -> list[Figure]:
    """Return the figures: distributions and traces of each kind of traffic, losses, factors."""
    kinds = [(receive, traffic) for receive in ("rps", "threaded") for traffic in KINDS]
    drawn = [
        Figure(
            f"ccdf-{receive}-{traffic}",
            f"Latency, {receive}, {traffic} gaps",
            rows=distributions(receive, traffic),
            x_title="latency (us)",
            y_title="share of packets above",
            is_log_x=True,
            is_log_y=True,
            is_stepped=True,
            finding=found_latency(receive, traffic),
        )
        for receive, traffic in kinds
    ]
    drawn += [
        Figure(
            f"trace-{receive}-{traffic}",
            f"Latency of {_TRACE_PACKETS:,} packets, {receive}, {traffic} gaps",
            rows=traces(receive, traffic),
            x_title="time of arrival (ms)",
            y_title="latency (us)",
            is_log_y=True,
            is_scatter=True,
        )
        for receive, traffic in kinds
        if receive == "rps"
    ]
    plain = DEFAULT | {"load": [0.3, 0.6, 0.8, 1.0, 1.2, 1.5], "receive": ["rps", "threaded"], "traffic": "poisson"}
    others = {name: value for name, value in DEFAULT.items() if name not in ("routes", "rules", "load")}
    return [
        *drawn,
        Figure("loss", "Loss against load", "offered", ["lost"], "receive", where=plain, finding=found_capacity),
        Figure(
            "routes",
            "Latency against the size of the routing table",
            "routes",
            ["p50", "p90"],
            where=others | {"rules": 0, "load": 0.6},
            is_log_x=True,
        ),
        Figure(
            "rules",
            "Latency against the number of nftables rules",
            "rules",
            ["p50", "p90"],
            where=others | {"routes": 4, "load": 0.6},
        ),
        Figure(
            "tunnel",
            "Capacity through a security gateway",
            "sizes",
            ["overload"],
            "tunnel",
            where={"receive": "rps", "traffic": "poisson", "load": 0.6, "rules": 0, "routes": 4, "flows": 1},
        ),
    ]


def by_size(tunnel: str) -> Callable[[Table], Finding]:
    """Return the check of how the rate under overload, or without loss, depends on the packets' size."""
    measure = "overload" if tunnel == "none" else "capacity"

    def check(table: Table) -> Finding:
        small, large = (DEFAULT | {"tunnel": tunnel, "sizes": size} for size in ("64", "1386"))
        text, sign = table.change(measure, small, large)
        share = table.mean(measure, **large) / table.mean(measure, **small)
        if not np.isfinite(share):
            return Finding("not measured", None)
        is_same = abs(share - 1) < 0.1 if tunnel == "none" else (sign < 0 if sign else None)
        return Finding(f"from 64 to 1386 bytes: {text}", is_same)

    return check


def by_routes(table: Table) -> Finding:
    """Hold the rate against the size of the routing table."""
    text, _ = table.change("overload", DEFAULT, DEFAULT | {"routes": 100_000})
    share = table.mean("overload", **DEFAULT | {"routes": 100_000}) / table.mean("overload", **DEFAULT)
    if not np.isfinite(share):
        return Finding("not measured", None)
    return Finding(f"from 4 to 100,000 routes the rate under overload goes from {text}", 0.8 < share < 1.05)


def by_single_queue(table: Table) -> Finding:
    """Hold the single queue against what was measured."""
    errors = [table.mean(name, **DEFAULT | {"load": LOADS}) for name in ("queue_p50", "queue_p99")]
    if not np.isfinite(errors).all():
        return Finding("not measured", None)
    text = f"its median is wrong by {errors[0]:+.0f} %, its 99th percentile by {errors[1]:+.0f} %"
    return Finding(text, all(each < -10 for each in errors))


def by_overload(table: Table) -> Finding:
    """Hold a gateway's rate under overload against its rate without loss."""
    level = DEFAULT | {"tunnel": "aes-gcm", "sizes": "1386"}
    rates = [table.mean(name, **level) for name in ("capacity", "overload")]
    if not np.isfinite(rates).all():
        return Finding("not measured", None)
    return Finding(f"{rates[0]:,.1f} kpps without loss, {rates[1]:,.1f} under overload", rates[1] < 0.5 * rates[0])


study = Study(
    name="router",
    title="What does a router of this kernel do to each packet?",
    question=(
        "Source, router and sink are network namespaces on this machine. Each run measures the router's capacity, then "
        "offers a share of it, and records when each packet arrives and leaves. Models get the same arrivals."
    ),
    document="O. I. Lepe-Aldama: Modeling TCP/IP software implementation performance, UPC 2002, chapter 3",
    setting=setting,
    levels=distinct(
        [
            *levels_with(receive=["rps", "threaded"], traffic=KINDS, load=LOADS),
            *levels_with(receive=["rps", "threaded"], load=[1.0, 1.2, 1.5]),
            *levels_with(routes=[4, 64, 1024, 16_384, 100_000]),
            *levels_with(rules=[0, 10, 100]),
            *levels_with(gro=[False], receive=["rps", "threaded"]),
            *levels_with(flows=[3], load=LOADS),
            *levels_with(tunnel=["none", "aes-gcm", "chacha20"], sizes=["64", "512", "1386"]),
        ]
    ),
    quick_levels=distinct(
        [
            *levels_with(receive=["rps", "threaded"], load=LOADS),
            *levels_with(traffic=["bursts"]),
            *levels_with(rules=[100]),
            *levels_with(tunnel=["none", "aes-gcm"], sizes=["1386"]),
        ]
    ),
    units={"load": "share of the capacity"},
    measures=[
        Measure("p50", "us", latency("p50"), "median latency"),
        Measure("p90", "us", latency("p90"), "90th percentile"),
        Measure("p99", "us", latency("p99"), "99th percentile"),
        Measure("lost", "%", lambda run: 100 * run.result("router")["lost_share"], "packets lost"),
        Measure("offered", "%", offered_share, "offered, of the rate without loss"),
        Measure("capacity", "kpps", lambda run: run.result("router")["capacity"]["pps"] / 1e3, "rate without loss"),
        Measure("overload", "kpps", lambda run: run.result("router")["overload"]["pps"] / 1e3, "rate under overload"),
        Measure("queue_p50", "%", error("single queue", "p50"), "error of the single queue, median"),
        Measure("queue_p99", "%", error("single queue", "p99"), "error of the single queue, 99th percentile"),
    ],
    figures=figures(),
    statements=[
        Statement("section 3.6.3", "a single queue underestimates latencies, for it lacks noise", by_single_queue),
        Statement("section 3.7.3", "forwarding does not depend on the packet's size", by_size("none")),
        Statement("section 3.7.3", "encryption takes longer for larger packets", by_size("aes-gcm")),
        Statement("section 3.7.4", "4 to 1024 routes: 15.44 to 17.41 us, 13 % longer", by_routes),
        Statement("section 3.8.2", "overload starves what runs behind reception: live-lock", by_overload),
    ],
    has_controls=False,
    duration_s=2,
    quick_duration_s=0.5,
    repeats=5,
    quick_repeats=1,
)
