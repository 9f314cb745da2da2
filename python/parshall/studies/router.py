"""A router of this kernel: latency and loss of each packet against load, beside predictions for the same workload."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet

from parshall.lab import Figure, Finding, Host, Measure, Program, Setting, Statement, Study, Table, grid
from parshall.lab.programs import PARSHALL
from parshall.lab.run import Run
from parshall.lab.study import WORKLOAD, Level
from parshall.lab.table import BLOCK, rule, times_as_many, verdict
from parshall.router.calibration import Calibration
from parshall.router.gateway_network import gateway, services
from parshall.router.network import calibrated
from parshall.router.prediction import QUANTILES, Prediction, ccdf, compare, latencies_ns, predict, single_queue
from parshall.statistics import share_interval

PACKETS, CALIBRATION = "packets.parquet", "here.toml"
NETWORK, QUEUE, GATEWAY = "calibrated network", "single queue", "network of the gateway"
KINDS = ["constant", "poisson", "bursts", "onoff"]
LOADS = [0.3, 0.6, 0.8]
# Of the length of bursts, and of two sources at once; and the load at which packets hardly meet (3.5.6).
BURSTS = ["poisson", "bursts:size=4", "bursts", "bursts:size=64", "mixed"]
ALONE: Level = {"traffic": "random", "load": 0.17}
DEFAULT: Level = {
    "receive": "rps",
    "traffic": "poisson",
    "load": 0.6,
    "routes": 4,
    "destinations": 1,
    "rules": 0,
    "gro": True,
    "flows": 1,
    "sizes": "64",
    "tunnel": "none",
}
# Packets of a run, and of a quick one.
_COUNT, _QUICK_COUNT = 100_000, 20_000
_QUICK_S = 1.0
# A search, a calibration and a measurement.
_RUN_S = 11.0
# Numbers of the random numbers that a model draws differ from those of the workload.
_MODEL_SEED = 1_000
_END_S = 300.0
_TRACE_PACKETS = 3_000
# Of histograms over the logarithm.
_LOG_BIN = 0.1


def setting(level: Level, duration_s: float) -> Setting:
    """Return one measurement: the capacity first, then a calibration, then the load, in the same testbed."""
    words = ["--receive", level["receive"], "--traffic", level["traffic"], "--load", level["load"]]
    words += ["--routes", level["routes"], "--destinations", level["destinations"], "--rules", level["rules"]]
    words += ["--flows", level["flows"]]
    words += ["--sizes", level["sizes"]]
    words += [] if level["gro"] else ["--no-gro"]
    words += [] if level["tunnel"] == "none" else ["--tunnel", level["tunnel"]]
    # A NAPI thread loses packets at the loads of a calibration, and the model of a gateway needs none.
    if level["receive"] == "rps" and level["tunnel"] == "none":
        words += ["--calibrate", "{directory}/" + CALIBRATION]
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


def network_of(run: Run) -> Prediction | None:
    """Return the network that the same run calibrated, or that of its gateway; None when it did not, or was refused."""
    if run.level["tunnel"] != "none":
        found = run.result("router")
        known = services(found["capacity"], found["overload"])
        return gateway(known) if known else None
    path = run.directory / CALIBRATION
    if not path.is_file():
        return None
    return calibrated(Calibration.read(path), _MODEL_SEED + int(run.result("router")["traffic"]["seed"]))


# Models to hold against the measurement: each returns its prediction for a run, or None where it has none.
MODELS: dict[str, Callable[[Run], Prediction | None]] = {NETWORK: network_of, QUEUE: single_queue_of}


def packets(run: Run) -> pyarrow.Table:
    """Return the packets of a run: when each arrived and left."""
    return pyarrow.parquet.read_table(run.directory / PACKETS)


def sides(run: Run) -> dict[str, pyarrow.Table]:
    """Return what was measured, and what each model predicts: the network predicts the arrivals, too."""
    measured = packets(run)
    predictions = {name: of(run) for name, of in MODELS.items()}
    predicted = {name: predict(model, measured) for name, model in predictions.items() if model is not None}
    return {"measured": measured} | predicted


# Those of the last run: a run is asked for one measure after the other.
_last: dict[Path, dict[str, dict[str, Any]]] = {}


def comparisons(run: Run) -> dict[str, dict[str, Any]]:
    """Return `compare` of each model that a run has."""
    if run.directory not in _last:
        _last.clear()
        found = sides(run)
        _last[run.directory] = {
            name: compare(found["measured"], side) for name, side in found.items() if name in MODELS
        }
    return _last[run.directory]


def latency(name: str) -> Callable[[Run], float]:
    """Return the function for a quantile of the latency, us."""
    return lambda run: float(run.result("router")["latency_us"][name])


def predicted(model: str, quantile: str) -> Callable[[Run], float | None]:
    """Return the function for a model's quantile of the latency, us."""

    def of(run: Run) -> float | None:
        found = comparisons(run).get(model)
        return float(found[quantile]["predicted_us"]) if found else None

    return of


def error(model: str, quantile: str) -> Callable[[Run], float | None]:
    """Return the function for a model's relative error at a quantile, percent."""

    def of(run: Run) -> float | None:
        found = comparisons(run).get(model)
        return float(100 * found[quantile]["error"]) if found else None

    return of


def model_measures() -> list[Measure]:
    """Return what is measured and predicted of the latency, side by side, and the errors."""
    names = [f"p{100 * quantile:g}" for quantile in QUANTILES]
    titles = dict(zip(names, ("median latency", "90th percentile", "99th percentile"), strict=True))
    models = {"network": NETWORK, "queue": QUEUE}
    found = []
    for name, title in titles.items():
        found.append(Measure(name, "us", latency(name), title))
        found += [
            Measure(f"{short}_{name}", "us", predicted(model, name), f"{title}, {model}")
            for short, model in models.items()
        ]
    return found + [
        Measure(f"{short}_{name}_error", "%", error(model, name), f"error of the {model}, {title}", ends=())
        for short, model in models.items()
        for name, title in titles.items()
    ]


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


def distribution(run: Run, panel: str) -> Iterator[pl.DataFrame]:
    """Return the rows of the latency's complementary distribution of a run, measured and of each model."""
    for name, side in sides(run).items():
        latency_us, share = ccdf(latencies_ns(side))
        yield pl.DataFrame({"x": latency_us, "y": share}).with_columns(line=pl.lit(name), panel=pl.lit(panel))


def distributions(receive: str, traffic: str) -> Callable[[Table], pl.DataFrame]:
    """Return the function for the rows of the latency's complementary distribution."""

    def rows(table: Table) -> pl.DataFrame:
        runs = first_runs(table, **DEFAULT | {"receive": receive, "traffic": traffic, "load": LOADS})
        frames = [frame for run in runs for frame in distribution(run, f"load {run.level['load']:.0%}")]
        return pl.concat(frames) if frames else pl.DataFrame()

    return rows


def gateways(table: Table) -> pl.DataFrame:
    """Return the rows of the same of security gateways, for the longest packets."""
    frames = []
    for tunnel in ("aes-gcm", "chacha20"):
        for run in table.runs_where(**DEFAULT | {"tunnel": tunnel, "sizes": "1386"})[:1]:
            # Its parameters come from two rates, and from no calibration.
            frames += [
                frame.with_columns(pl.col("line").replace(NETWORK, GATEWAY)) for frame in distribution(run, tunnel)
            ]
    return pl.concat(frames) if frames else pl.DataFrame()


def found_gateways(table: Table) -> str:
    """Return the finding of both models of a gateway: the errors at each quantile."""
    texts = []
    for tunnel in table.levels("tunnel", **DEFAULT | {"tunnel": ["aes-gcm", "chacha20"], "sizes": "1386"}):
        texts += errors_of(table, DEFAULT | {"tunnel": tunnel, "sizes": "1386"}, tunnel)
    return f"Errors of the gateway's network and of the single queue, %: {'; '.join(texts)}." if texts else ""


def traces(receive: str, traffic: str) -> Callable[[Table], pl.DataFrame]:
    """Return the function for the rows of the latency of the first packets, against time."""

    def rows(table: Table) -> pl.DataFrame:
        runs = first_runs(table, **DEFAULT | {"receive": receive, "traffic": traffic, "load": LOADS})
        frames = []
        for run in runs[len(runs) // 2 : len(runs) // 2 + 1]:
            for letter, (name, side) in zip("abc", sides(run).items(), strict=False):
                left = side.slice(0, _TRACE_PACKETS).drop_null()
                arrival_ns = left.column("arrival_ns").to_numpy()
                x = (arrival_ns - arrival_ns[:1]) / 1e6 if len(arrival_ns) else np.empty(0)
                frame = pl.DataFrame({"x": x, "y": latencies_ns(left) / 1e3})
                frames.append(frame.with_columns(line=pl.lit(name), panel=pl.lit(f"{letter}) {name}")))
        return pl.concat(frames) if frames else pl.DataFrame()

    return rows


def alone(table: Table) -> np.ndarray:
    """Return the latencies of a run whose packets hardly meet, us, in the order of sending."""
    runs = table.runs_where(**DEFAULT | ALONE)
    return latencies_ns(packets(runs[0])) / 1e3 if runs else np.empty(0)


def alone_trace(table: Table) -> pl.DataFrame:
    """Return the rows of their trace."""
    latency_us = alone(table)[:_TRACE_PACKETS]
    return pl.DataFrame({"x": np.arange(len(latency_us), dtype=float), "y": latency_us})


def alone_histogram(table: Table) -> pl.DataFrame:
    """Return the rows of their histogram, each of whose bins is about a tenth longer than the one before."""
    latency_us = alone(table)
    if not len(latency_us):
        return pl.DataFrame()
    bins = np.floor(np.log(np.maximum(latency_us, 1e-3)) / _LOG_BIN)
    first = int(bins.min())
    counts = np.bincount((bins - first).astype(int))
    begins_us = np.exp(_LOG_BIN * (first + np.arange(len(counts) + 1)))
    return pl.DataFrame({"x": begins_us, "y": np.append(100 * counts / len(latency_us), 0.0)})


def found_alone(table: Table) -> str:
    """Return what most packets take, and how many take much longer."""
    latency_us = alone(table)
    if not len(latency_us):
        return ""
    low, median, high = np.quantile(latency_us, [0.05, 0.5, 0.95])
    late = 100 * float((latency_us > 4 * median).mean())
    return (
        f"Nine of ten packets take {low:,.1f} to {high:,.1f} us, half of them at most {median:,.1f}; {late:.2g} % take "
        "more than four times as long as that."
    )


def found_latency(receive: str, traffic: str) -> Callable[[Table], str]:
    """Return the function for the finding of a distribution."""

    def finding(table: Table) -> str:
        levels = DEFAULT | {"receive": receive, "traffic": traffic}
        texts = []
        for load in table.levels("load", **levels | {"load": LOADS}):
            quantiles = [table.mean(name, **levels | {"load": load}) for name in ("p50", "p99")]
            texts.append(f"{load:.0%}: {quantiles[0]:,.1f} and {quantiles[1]:,.1f}")
        measured = f"Median and 99th percentile at each load, us: {'; '.join(texts)}." if texts else ""
        return f"{measured} {nearer_sentence(table, receive=receive, traffic=traffic)}".strip()

    return finding


def nearer(table: Table, **levels: Any) -> tuple[int, int]:
    """Return in how many cases the network is nearer than the single queue, and of how many; the errors are medians."""
    found = total = 0
    for load in table.levels("load", **DEFAULT | levels | {"load": LOADS}):
        for quantile in QUANTILES:
            chosen = DEFAULT | levels | {"load": load}
            errors = [table.values(f"{short}_p{100 * quantile:g}_error", **chosen) for short in ("network", "queue")]
            if all(errors):
                own, other = (abs(float(np.median(values))) for values in errors)
                found, total = found + (own < other), total + 1
    return found, total


def errors_of(table: Table, level: Level, name: str) -> list[str]:
    """Return the text of the median errors of both models at a level; none where one of them has no prediction."""
    pairs = []
    for quantile in QUANTILES:
        names = [f"{short}_p{100 * quantile:g}_error" for short in ("network", "queue")]
        values = [table.values(each, **level) for each in names]
        if all(values):
            own, other = (float(np.median(each)) for each in values)
            pairs.append(f"p{100 * quantile:g} {own:+.0f} and {other:+.0f}")
    return [f"{name}: {', '.join(pairs)}"] if pairs else []


def nearer_sentence(table: Table, **levels: Any) -> str:
    """Return the sentence of the errors of both models; empty without a calibrated network."""
    found, total = nearer(table, **levels)
    if not total:
        return ""
    texts = []
    for load in table.levels("load", **DEFAULT | levels | {"load": LOADS}):
        texts += errors_of(table, DEFAULT | levels | {"load": load}, f"{load:.0%}")
    return (
        f"The calibrated network is nearer than the single queue in {found} of {total} quantiles; "
        f"errors of both, %: {'; '.join(texts)}."
    )


def found_trace(receive: str, traffic: str) -> Callable[[Table], str]:
    """Return the function for the finding of a trace: the share of late packets, measured and of each model."""

    def finding(table: Table) -> str:
        rows = traces(receive, traffic)(table)
        if rows.is_empty():
            return ""
        median = float(np.median(rows.filter(line="measured")["y"].to_numpy()))
        texts = [
            f"{line} {100 * float((rows.filter(line=line)['y'] > 10 * median).mean()):.1f} %"
            for line in dict.fromkeys(rows["line"])
        ]
        return f"Packets above ten times the measured median ({median:,.1f} us): {', '.join(texts)}."

    return finding


def found_capacity(table: Table) -> str:
    """Return the finding of the losses."""
    texts = []
    others = {name: value for name, value in DEFAULT.items() if name not in ("receive", "load", "traffic")}
    for receive in table.levels("receive"):
        zero = table.summary("capacity", receive=receive, **others)
        beyond = table.summary("overload", receive=receive, **others)
        if zero and beyond:
            texts.append(
                f"{receive}: {zero.median:,.0f} kpps without loss ({zero.minimum:,.0f} to {zero.maximum:,.0f}), "
                f"{beyond.median:,.0f} under overload"
            )
    return f"{'; '.join(texts)}." if texts else ""


def figures() -> list[Figure]:
    """Return the figures: distributions and traces of each kind of traffic, losses, factors."""
    kinds = [(receive, traffic) for receive in ("rps", "threaded") for traffic in KINDS] + [("rps", "mixed")]
    drawn = [
        Figure(
            f"ccdf-{receive}-{traffic}",
            f"Latency, {receive}, {traffic} gaps" + (" (after Figure 3.11)" if receive == "rps" else ""),
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
            f"Latency of {_TRACE_PACKETS:,} packets, {receive}, {traffic} gaps (after Figure 3.11)",
            rows=traces(receive, traffic),
            x_title="time of arrival (ms)",
            y_title="latency (us)",
            is_log_y=True,
            is_scatter=True,
            finding=found_trace(receive, traffic),
        )
        for receive, traffic in kinds
        if receive == "rps"
    ]
    plain = DEFAULT | {"load": [0.3, 0.6, 0.8, 1.0, 1.2, 1.5], "receive": ["rps", "threaded"], "traffic": "poisson"}
    others = {name: value for name, value in DEFAULT.items() if name not in ("routes", "rules", "load")}
    return [
        *drawn,
        Figure(
            "alone-trace",
            f"Latency of {_TRACE_PACKETS:,} packets that hardly meet (after Figures 3.7 and 3.8)",
            rows=alone_trace,
            x_title="packet, in the order of sending",
            y_title="latency (us)",
            is_log_y=True,
            is_scatter=True,
            finding=found_alone,
        ),
        Figure(
            "alone-histogram",
            "The same as a histogram (after Figures 3.7 and 3.8)",
            rows=alone_histogram,
            x_title="latency (us)",
            y_title="packets (%)",
            is_log_x=True,
            is_stepped=True,
        ),
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
            "destinations",
            "Rate under overload against the entries of a table of 100,000 routes that packets go to",
            "destinations",
            ["overload"],
            where=others | {"rules": 0, "load": 0.6, "routes": 100_000, "destinations": [1, 1024, 65_536]},
            is_log_x=True,
        ),
        Figure(
            "bursts",
            "Latency against the length of bursts",
            "traffic",
            ["p50", "p90"],
            where=DEFAULT | {"traffic": BURSTS},
            is_log_y=True,
        ),
        Figure(
            "rules",
            "Latency against the number of nftables rules",
            "rules",
            ["p50", "p90"],
            where=others | {"routes": 4, "load": 0.6},
        ),
        Figure(
            "ccdf-gateway",
            "Latency through a security gateway, Poisson gaps, load 60 %",
            rows=gateways,
            x_title="latency (us)",
            y_title="share of packets above",
            is_log_x=True,
            is_log_y=True,
            is_stepped=True,
            finding=found_gateways,
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


def compared(
    measure: str, after: Level, low: float, high: float, reason: str, **base: Any
) -> Callable[[Table], Finding]:
    """Return the check that a measure at a level over that at the default level, with `base`, lies within bounds."""
    what = ", ".join(f"{name} {(DEFAULT | base)[name]} -> {value}" for name, value in after.items())
    levels = DEFAULT | base, DEFAULT | base | after

    def check(table: Table) -> Finding:
        text = f"{table.study.measure(measure).title}, {what}"
        return table.judge_range(measure, *levels, low - 1, high - 1, what=text, reason=reason)

    return check


def is_minor(table: Table) -> Finding:
    """Hold the calibrated network's error against a tenth."""
    level = DEFAULT | {"traffic": KINDS, "load": LOADS}
    if not table.values("network_error", **level):
        return Finding("not calibrated", None)
    error = table.mean("network_error", **level)
    text = f"the network's error is {error:.0f} % in the mean of three quantiles; counted as minor below 10 %"
    return table.judge_mean("network_error", level, 10.0, -1, text=text, reason="it is more than a tenth")


def by_network(table: Table) -> Finding:
    """Hold the calibrated network beside the single queue."""
    counts = [nearer(table, traffic=traffic) for traffic in KINDS]
    found, total = (sum(each) for each in zip(*counts, strict=True))
    if not total:
        return Finding("not calibrated", None)
    text = f"the calibrated network is nearer than the single queue in {found} of {total} quantiles"
    frame = table.where(DEFAULT | {"traffic": KINDS, "load": LOADS}).drop_nulls(["network_error", "queue_error"])
    blocks = frame.group_by(BLOCK).agg(pl.col("network_error", "queue_error").log().mean().exp()).sort(BLOCK)
    errors = table.compare_values("queue_error", blocks["queue_error"].to_list(), blocks["network_error"].to_list())
    if errors is None:
        return Finding(text, None, "one run does not decide", is_open=True)
    text += f"; its error instead of the single queue's: {table.words('queue_error', errors, ',.0f')}"
    text = f"{text}; {rule('10 %', -1)}"
    return verdict(errors, -1, margin=0.1, text=text, reason="its errors are not smaller")


def mean_error(model: str) -> Callable[[Run], float | None]:
    """Return the function for the geometric mean of a model's errors, without their signs, at all quantiles."""

    def of(run: Run) -> float | None:
        found = comparisons(run).get(model)
        if not found:
            return None
        errors = [abs(100 * found[f"p{100 * quantile:g}"]["error"]) for quantile in QUANTILES]
        # An error below a hundredth of a percent is none.
        return float(np.exp(np.mean(np.log(np.maximum(errors, 0.01)))))

    return of


def overload_share(run: Run) -> float:
    """Return the rate under overload, percent of that without loss."""
    found = run.result("router")
    return float(100 * found["overload"]["pps"] / found["capacity"]["pps"])


def by_overload(table: Table) -> Finding:
    """Hold a gateway's rate under overload against its rate without loss, of the same run."""
    level = DEFAULT | {"tunnel": ["aes-gcm", "chacha20"], "sizes": ["64", "512", "1386"]}
    shares = table.values("overload_share", **level)
    if not shares:
        return Finding("not measured", None)
    table.decisive.append(level)
    span = " to ".join(dict.fromkeys(f"{share:.0f}" for share in (min(shares), max(shares))))
    # A router starves, or it does not: their mean says nothing of either. The levels are given, so that the number of
    # runs that starve varies at most as that of as many draws with one probability (Hoeffding, 1956).
    starved = sum(share < 50 for share in shares)
    low, high = (100 * end for end in share_interval(starved, len(shares), table.confidence))
    text = (
        f"under overload a gateway forwards {span} % of its rate without loss, less than half of it in {starved} of "
        f"{len(shares)} runs ({table.interval} {low:.0f} to {high:.0f} % of runs at these levels)"
    )
    is_same = True if low > 50 else False if high < 50 else None
    why = "" if is_same else "most runs do not starve" if is_same is False else "it cannot be said yet whether most do"
    finding = Finding(text, is_same, why, is_open=is_same is None)
    needed = times_as_many(low, high, abs(100 * starved / len(shares) - 50))
    return replace(finding, low=low, high=high, limit=50.0, unit="% of runs", needed=needed)


study = Study(
    name="router",
    title="What does a router of this kernel do to each packet?",
    question=(
        "Source, router and sink are network namespaces on this machine. Each run measures the router's capacity, then "
        "offers a share of it, and records when each packet arrives and leaves. The single queue gets the measured "
        "arrivals, the calibrated network the times at which packets were due."
    ),
    document="O. I. Lepe-Aldama: Modeling TCP/IP software implementation performance, UPC 2002, chapter 3",
    setting=setting,
    levels=distinct(
        [
            *levels_with(receive=["rps", "threaded"], traffic=KINDS, load=LOADS),
            *levels_with(receive=["rps", "threaded"], load=[1.0, 1.2, 1.5]),
            *levels_with(traffic=BURSTS),
            *levels_with(traffic=["mixed"], load=LOADS),
            *levels_with(**{name: [value] for name, value in ALONE.items()}),
            *levels_with(routes=[4, 64, 1024, 16_384, 100_000]),
            *levels_with(routes=[100_000], destinations=[1024, 65_536]),
            *levels_with(destinations=[4]),
            *levels_with(routes=[1024], destinations=[1024]),
            *levels_with(sizes=["imix"]),
            *levels_with(rules=[0, 10, 100]),
            *levels_with(gro=[False], receive=["rps", "threaded"]),
            *levels_with(flows=[3], load=LOADS),
            *levels_with(tunnel=["none", "aes-gcm", "chacha20"], sizes=["64", "512", "1386"]),
        ]
    ),
    quick_levels=distinct(
        [
            *levels_with(load=LOADS),
            *levels_with(receive=["threaded"]),
            *levels_with(traffic=["bursts"]),
            *levels_with(tunnel=["none", "aes-gcm"], sizes=["64", "1386"]),
            *levels_with(destinations=[4]),
            *levels_with(routes=[1024], destinations=[1024]),
        ]
    ),
    units={"load": "share of the capacity"},
    measures=[
        *model_measures(),
        Measure("lost", "%", lambda run: 100 * run.result("router")["lost_share"], "packets lost"),
        Measure("offered", "%", offered_share, "offered, of the rate without loss", ends=()),
        Measure("capacity", "kpps", lambda run: run.result("router")["capacity"]["pps"] / 1e3, "rate without loss"),
        Measure(
            "network_error", "%", mean_error(NETWORK), "error of the network, mean of the quantiles", is_ratio=True
        ),
        Measure(
            "queue_error", "%", mean_error(QUEUE), "error of the single queue, mean of the quantiles", is_ratio=True
        ),
        Measure("overload_share", "%", overload_share, "rate under overload, of that without loss", ends=()),
        Measure("overload", "kpps", lambda run: run.result("router")["overload"]["pps"] / 1e3, "rate under overload"),
    ],
    figures=figures(),
    statements=[
        Statement("section 3.6.3", "the queueing network suits better than a single queue", by_network),
        Statement("Figure 3.11", "the quantitative error of the network is minor", is_minor),
        Statement(
            "section 3.7.3",
            "forwarding does not depend on the packet's size",
            compared("overload", {"sizes": "1386"}, 0.9, 1.1, "it depends on the size here"),
        ),
        Statement(
            "section 3.7.3",
            "encryption takes longer for larger packets",
            compared("capacity", {"sizes": "1386"}, 0.0, 0.9, "it takes as long here", tunnel="aes-gcm"),
        ),
        Statement(
            "Table 3-I",
            "4 to 1024 routes, packets to random ones: no significant variation (15.44 to 17.41 us)",
            compared(
                "overload",
                {"routes": 1024, "destinations": 1024},
                15.44 / 17.41,
                1.1,
                "it varies by more here",
                destinations=4,
            ),
        ),
        Statement(
            "section 3.8.2",
            "overload starves what runs behind reception: live-lock (there of the basic router, here of a gateway)",
            by_overload,
        ),
    ],
    has_controls=False,
    duration_s=2,
    quick_duration_s=0.5,
    repeats=5,
    quick_repeats=1,
)
