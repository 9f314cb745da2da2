"""Compare measured latencies with those of models that get the same arrivals."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from parshall.errors import ParshallError, UsageError
from parshall.figures.panels import Panel, draw
from parshall.host.input_file import brief
from parshall.host.table_file import read_table
from parshall.host.whole_file import write_whole
from parshall.model.network import Model
from parshall.model.simulation import Results, run
from parshall.model.variation import BACKGROUND, main_sink
from parshall.report.figure_file import save

_READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".csv": pl.read_csv,
    ".parquet": read_table,
    ".arrow": read_table,
    ".feather": read_table,
}
_GAP = re.compile(r"(?:\w+:(?:\w+=)?)?(?P<number>[\d.]+(?:[eE][+-]?\d+)?)(?P<unit>ns|us|ms|s)?")
_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
MEASURED = "measured"
QUANTILES = (0.1, 0.5, 0.9, 0.99, 0.999)


def read_trace(path: Path) -> pl.DataFrame:
    """Read a measurement: one row per packet, in the order of arrivals.

    Returns
    -------
    polars.DataFrame
        Shape (packets, 3): ``arrival_ns``, ``departure_ns`` (null: lost), both since the first arrival; ``bytes`` (0 if
        unknown).

    Raises
    ------
    UsageError
        There is no such file, or its suffix is unknown.
    ParshallError
        It cannot be read, a column is missing, or a time is not a number or decreases.
    """
    if path.suffix not in _READERS:
        raise UsageError(
            f"{path}: has {f'the suffix {path.suffix}' if path.suffix else 'no suffix'}; expected {', '.join(_READERS)}"
        )
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give a table of arrival_ns, departure_ns and bytes")
    try:
        frame = _READERS[path.suffix](path)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = brief(str(error).partition("\n")[0])
        raise ParshallError(
            f"{path}: cannot be read: {reason}; give a table of arrival_ns, departure_ns and bytes"
        ) from None
    for column in ("arrival_ns", "departure_ns"):
        if column not in frame.columns:
            there = brief(", ".join(frame.columns))
            raise ParshallError(f"{path}: has no column {column!r}, only {there}; rename or add it")
        if not frame.schema[column].is_numeric():
            raise ParshallError(f"{path}: {column} is {frame.schema[column]}; expected numbers of nanoseconds")
    if frame.is_empty():
        raise ParshallError(f"{path}: has no packet; give a measurement")
    arrived = frame["arrival_ns"].cast(pl.Float64)
    broken = arrived.is_null() | ~arrived.is_finite() | (arrived.diff().fill_null(0) < 0)
    if broken.any():
        row = broken.arg_max() or 0
        raise ParshallError(f"{path}: arrival_ns of row {row} is {arrived[row]}; expected numbers that never decrease")
    left = frame["departure_ns"].cast(pl.Float64)
    if not left.drop_nulls().is_finite().all():
        raise ParshallError(
            f"{path}: departure_ns has a value that is not finite; leave it empty where a packet was lost"
        )
    # Times since 1970 have steps of 256 ns in floating point; whole numbers have none.
    first = _exact(frame, "arrival_ns").first()
    since = frame.select((_exact(frame, name) - first).cast(pl.Float64) for name in ("arrival_ns", "departure_ns"))
    early = since["departure_ns"] < since["arrival_ns"]
    if early.any():
        row = early.arg_max() or 0
        raise ParshallError(
            f"{path}: row {row} left at {frame['departure_ns'][row]}, before it arrived at {frame['arrival_ns'][row]}; "
            "use the same clock for both times"
        )
    return since.with_columns(bytes=_lengths(frame, path))


def _exact(frame: pl.DataFrame, name: str) -> pl.Expr:
    """Return a column of times; whole numbers have a sign, so that differences are right."""
    return pl.col(name).cast(pl.Int64) if frame.schema[name].is_integer() else pl.col(name)


def _lengths(frame: pl.DataFrame, path: Path) -> pl.Series:
    """Return the bytes of each packet, 0 where they are unknown."""
    if "bytes" not in frame.columns:
        return pl.repeat(0.0, frame.height, eager=True)
    if not frame.schema["bytes"].is_numeric():
        raise ParshallError(f"{path}: bytes is {frame.schema['bytes']}; expected numbers, or leave the column out")
    lengths = frame["bytes"].cast(pl.Float64).fill_null(0.0)
    wrong = ~(lengths.is_finite() & (lengths >= 0))
    if wrong.any():
        row = wrong.arg_max() or 0
        raise ParshallError(f"{path}: bytes of row {row} is {lengths[row]:g}; expected 0 or more, or nothing")
    return lengths


def with_arrivals(model: Model, trace: pl.DataFrame) -> tuple[Model, dict[str, list[float]]]:
    """Return a model with the arrivals of a measurement as traffic, and the recorded values that it refers to.

    All packets take the route of the model's first flow.
    """
    traffic = [source for source in model.sources if source["name"] not in BACKGROUND]
    if not traffic:
        raise UsageError(f"{model.name}: has no source of packets; give a model with one")
    first = {**traffic[0], "gap_ns": {"trace": "gaps_ns"}, "size_bytes": {"trace": "bytes"}}
    # Background sources must end, too: after as many packets as fit into the measurement.
    arrived = trace["arrival_ns"].to_numpy()
    span_ns = float(arrived[-1] - arrived[0]) + 1.0
    background = [source for source in model.sources if source["name"] in BACKGROUND]
    own = [{**source, "packets": _packet_count(source, span_ns)} for source in background]
    own_flows = {source["class"] for source in traffic[1:]}
    queues = [queue for queue in model.queues if not _serves_only(queue, own_flows, model, first)]
    replaced = Model(
        model.name,
        [name for name in model.classes if name not in own_flows],
        [first, *own],
        model.stations,
        queues,
        model.sinks,
    )
    gaps = np.diff(arrived, prepend=arrived[0])
    return replaced, {"gaps_ns": gaps.tolist(), "bytes": trace["bytes"].to_list()}


def _packet_count(source: Mapping[str, Any], span_ns: float) -> int:
    """Return how many packets a source with a constant or mean gap sends in a time span."""
    match = _GAP.fullmatch(str(source["gap_ns"]))
    if not match or not float(match["number"]) > 0:
        raise UsageError(
            f'source "{source["name"]}": gap_ns is {source["gap_ns"]!r}; to compare with a measurement, '
            "background sources need a number above 0, or a distribution with one time, such as constant:value=4ms"
        )
    return int(span_ns / (float(match["number"]) * _UNITS_NS[match["unit"] or "ns"])) + 1


def _serves_only(queue: Mapping[str, Any], flows: set[str], model: Model, first: Mapping[str, Any]) -> bool:
    """Whether only the given flows, which have been removed, reach a queue."""
    reached: set[str] = set()
    pending = [
        choice["place"]
        for source in (first, *model.sources)
        if source["class"] not in flows
        for transition in source["to"]
        for choice in transition["to"]
    ]
    by_name = {each["name"]: each for each in model.queues}
    while pending:
        place = pending.pop()
        if place in reached or place not in by_name:
            continue
        reached.add(place)
        for transition in by_name[place]["to"]:
            if not transition.get("classes") or not set(transition["classes"]) <= flows:
                pending += [choice["place"] for choice in transition["to"]]
    return queue["name"] not in reached


def measurement(results: Results, sink: str | None = None, background: frozenset[str] = BACKGROUND) -> pl.DataFrame:
    """Return the traced packets of a run as a measurement, including lost ones.

    Parameters
    ----------
    results
        A run with ``trace=True``. Packets that are inside at its end are left out; a run without a duration, whose
        sources end, has none.
    sink
        Sink of the packets that got through; None is "forwarded", or the only sink.
    background
        Classes of background packets, which are left out.

    Returns
    -------
    polars.DataFrame
        As from `read_trace`: shape (packets, 3), in the order of arrivals.

    Raises
    ------
    ParshallError
        The run was not traced.
    """
    if results.packets is None:
        raise ParshallError("results: have no packets; run the model with trace=True")
    sink = main_sink(results.sinks, sink, results.data["model"])
    own = results.packets.filter(~pl.col("clone") & ~pl.col("class").cast(pl.String).is_in(list(background)))
    counted = own.filter(pl.col("lost") | (pl.col("place") == sink)).sort("born_ps", "packet")
    departure_ns = pl.when(pl.col("lost")).then(None).otherwise(pl.col("left_ps") / 1e3)
    return counted.select(
        arrival_ns=pl.col("born_ps") / 1e3, departure_ns=departure_ns, bytes=pl.col("bytes").cast(pl.Float64)
    )


@dataclass(frozen=True)
class Comparison:
    """Latencies and losses of a measurement and of models with the same arrivals.

    Latencies are those of packets that got through. If models lose different packets, their latencies are those of
    different packets, so compare the losses first.

    Attributes
    ----------
    offered : int
        Packets of the measurement.
    latencies_ns : dict
        For the measurement and each model ("measured" first): shape (packets that got through,), ns.
    lost : dict
        Number of lost packets for each.
    """

    offered: int
    latencies_ns: dict[str, np.ndarray[Any, Any]]
    lost: dict[str, int]

    def table(self) -> pl.DataFrame:
        """Return the comparison as a table.

        Returns
        -------
        polars.DataFrame
            Shape (1 + models, 10 + 1 + models): ``model``, ``packets`` that got through, ``lost`` packets, ``loss``
            (fraction of all packets); for packets that got through ``mean_us``, ``p10_us`` to ``p99.9_us`` and
            ``distance.NAME``: the Kolmogorov-Smirnov distance of the latencies from those of NAME.
        """
        rows = [self._row(name, latencies) for name, latencies in self.latencies_ns.items()]
        return pl.DataFrame(rows, infer_schema_length=None)

    def _row(self, name: str, latencies_ns: np.ndarray[Any, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {
            "model": name,
            "packets": latencies_ns.size,
            "lost": self.lost[name],
            "loss": self.lost[name] / self.offered,
        }
        some = latencies_ns.size > 0
        row["mean_us"] = float(latencies_ns.mean()) / 1e3 if some else None
        for part in QUANTILES:
            row[f"p{100 * part:g}_us"] = float(np.quantile(latencies_ns, part)) / 1e3 if some else None
        for other, latencies in self.latencies_ns.items():
            row[f"distance.{other}"] = distance(latencies_ns, latencies) if some and latencies.size else None
        return row

    def warning(self) -> str | None:
        """Return a warning if packets were lost, since latencies are then those of different packets."""
        if not any(self.lost.values()):
            return None
        parts = ", ".join(f"{name} {lost / self.offered:.2%}" for name, lost in self.lost.items())
        return f"latencies are those of packets that got through; lost: {parts}"

    def ccdfs(self) -> pl.DataFrame:
        """Return the distributions of latency: ``model`` and the columns of `ccdf`."""
        named = (
            ccdf(latencies / 1e3).select(pl.lit(name).alias("model"), "latency_us", "ccdf")
            for name, latencies in self.latencies_ns.items()
        )
        return pl.concat(named)

    def write(self, directory: Path) -> list[Path]:
        """Write the table, the distributions, and a figure of them; return the files."""
        directory.mkdir(parents=True, exist_ok=True)
        paths = [Path(name) for name in ("comparison.csv", "ccdf.csv", "ccdf.html", "ccdf.png", "ccdf.svg")]
        write_whole(paths[0], self.table().write_csv(), below=directory)
        write_whole(paths[1], self.ccdfs().write_csv(), below=directory)
        panel = ccdf_panel("latency of the packets that got through")
        chart = draw(self.ccdfs(), "Latency, measured and modelled", (panel,))
        for path in paths[2:]:
            save(chart, path, below=directory)
        return [directory / path for path in paths]


def compare(trace: pl.DataFrame, models: Mapping[str, Model], *, sink: str | None = None, seed: int = 1) -> Comparison:
    """Run models with the arrivals of a measurement, including those of lost packets.

    Parameters
    ----------
    trace
        The measurement: `read_trace`, or `measurement` of a run.
    models
        The models by name.
    sink
        Sink of the packets that got through; None is "forwarded", or the only sink.
    seed
        Seed of the models' random numbers.

    Raises
    ------
    UsageError
        A model has several sinks, and `sink` is not given.
    ParshallError
        No packet of the measurement got through.
    """
    measured = (trace["departure_ns"] - trace["arrival_ns"]).drop_nulls().to_numpy()
    if measured.size == 0:
        raise ParshallError("measurement: departure_ns is empty everywhere; give one with packets that got through")
    found = {MEASURED: measured}
    lost = {MEASURED: trace["departure_ns"].null_count()}
    for name, model in models.items():
        network, recorded = with_arrivals(model, trace)
        own_sink = main_sink(network.as_dict()["sinks"], sink, name)
        results = run(network, seed=seed, replications=1, trace=True, traces=recorded, allow_unstable=True)
        background = frozenset(source["class"] for source in network.sources if source["name"] in BACKGROUND)
        through = measurement(results, own_sink, background)
        # Lost clones do not count as packets.
        lost[name] = through["departure_ns"].null_count()
        found[name] = (through["departure_ns"] - through["arrival_ns"]).drop_nulls().to_numpy()
    return Comparison(trace.height, found, lost)


def ccdf_panel(title: str, where: Mapping[str, str] | None = None) -> Panel:
    """Return the panel that compares latencies of several models, from the rows of `Comparison.ccdfs`."""
    axes = ("latency_us", "latency (us)", "ccdf", "P(latency >= x)")
    return Panel(title, *axes, "model", where=where or {}, mark="steps-before", logarithmic=True)


def ccdf(latencies_us: np.ndarray[Any, Any]) -> pl.DataFrame:
    """Return the complementary distribution function of latencies.

    It is P(latency >= x), which is above 0 at every observed latency, so that a logarithmic axis can show them all.
    It begins with 1 at 0.

    Returns
    -------
    polars.DataFrame
        Shape (1 + distinct latencies, 2): ``latency_us``, ascending, and ``ccdf``: the fraction at or above it.
    """
    values, counts = np.unique(latencies_us, return_counts=True)
    shorter = np.concatenate([[0], counts.cumsum()[:-1]]) if values.size else counts
    at_least = 1 - shorter / max(latencies_us.size, 1)
    return pl.DataFrame({"latency_us": np.concatenate([[0.0], values]), "ccdf": np.concatenate([[1.0], at_least])})


def distance(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples."""
    both = np.concatenate([first, second])
    ranks = [np.searchsorted(np.sort(sample), both, side="right") / sample.size for sample in (first, second)]
    return float(np.abs(ranks[0] - ranks[1]).max())
