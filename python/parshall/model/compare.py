"""Measured latencies beside those of models that were fed the same arrivals."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from parshall.errors import ParshallError, UsageError
from parshall.figures.file import save
from parshall.figures.panels import Panel, draw
from parshall.model.builtin import FORWARDED
from parshall.model.builtin.hardware import NOISE
from parshall.model.network import Model
from parshall.model.simulation import run

_READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".csv": pl.read_csv,
    ".parquet": pl.read_parquet,
    ".arrow": pl.read_ipc,
    ".feather": pl.read_ipc,
}
# Sources that are no traffic: what the processor does besides.
_BESIDES = {NOISE, "interrupts", "tasks"}
_GAP = re.compile(r"(?:\w+:(?:\w+=)?)?(?P<number>[\d.]+(?:[eE][+-]?\d+)?)(?P<unit>ns|us|ms|s)?")
_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
MEASURED = "measured"
QUANTILES = (0.1, 0.5, 0.9, 0.99, 0.999)


def read_trace(path: Path) -> pl.DataFrame:
    """Read a measurement: one row a packet, in the order of arrivals.

    Returns
    -------
    polars.DataFrame
        Shape (packets, 3): ``arrived_ns``, ``left_ns`` (null: lost), ``bytes`` (0 where it is not known).

    Raises
    ------
    UsageError
        There is no such file, or its name tells no format.
    ParshallError
        It cannot be read, a column is missing, or a time is no number or goes back.
    """
    if path.suffix not in _READERS:
        raise UsageError(f"{path}: is called {path.suffix or 'without a suffix'}; expected {', '.join(_READERS)}")
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give a table of arrived_ns, left_ns and bytes")
    try:
        frame = _READERS[path.suffix](path)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ParshallError(
            f"{path}: cannot be read: {reason}; give a table of arrived_ns, left_ns and bytes"
        ) from None
    for column in ("arrived_ns", "left_ns"):
        if column not in frame.columns:
            raise ParshallError(f"{path}: has no column {column!r}, only {', '.join(frame.columns)}; rename or add it")
        if not frame.schema[column].is_numeric():
            raise ParshallError(f"{path}: {column} is {frame.schema[column]}; expected numbers of nanoseconds")
    if frame.is_empty():
        raise ParshallError(f"{path}: holds no packet; give a measurement")
    arrived = frame["arrived_ns"].cast(pl.Float64)
    broken = arrived.is_null() | arrived.is_nan() | (arrived.diff().fill_null(0) < 0)
    if broken.any():
        row = broken.arg_max() or 0
        raise ParshallError(f"{path}: arrived_ns of row {row} is {arrived[row]}; expected numbers that never go back")
    left = frame["left_ns"].cast(pl.Float64)
    if left.is_nan().any():
        raise ParshallError(f"{path}: left_ns has a NaN; leave it empty where a packet was lost")
    if (left < arrived).any():
        row = (left < arrived).arg_max() or 0
        raise ParshallError(
            f"{path}: row {row} left at {left[row]:g}, before it arrived at {arrived[row]:g}; "
            "take both times by one clock"
        )
    length = pl.col("bytes").cast(pl.Float64) if "bytes" in frame.columns else pl.lit(0.0)
    return frame.select(pl.col("arrived_ns", "left_ns").cast(pl.Float64), bytes=length)


def fed(model: Model, trace: pl.DataFrame) -> tuple[Model, dict[str, list[float]]]:
    """Return a model whose traffic is that of a measurement, and the recorded values that it names.

    All packets go where the model's first flow goes.
    """
    traffic = [source for source in model.sources if source["name"] not in _BESIDES]
    if not traffic:
        raise UsageError(f"{model.name}: has no source of packets; give a model with one")
    first = {**traffic[0], "gap_ns": {"trace": "gaps_ns"}, "size_bytes": {"trace": "bytes"}}
    # What happens besides must end, too: after as many times as fit into the measurement.
    arrived = trace["arrived_ns"].to_numpy()
    span_ns = float(arrived[-1] - arrived[0]) + 1.0
    besides = [source for source in model.sources if source["name"] in _BESIDES]
    own = [{**source, "packets": _times(source, span_ns)} for source in besides]
    own_flows = {source["class"] for source in traffic[1:]}
    queues = [queue for queue in model.queues if not _is_only_of(queue, own_flows, model, first)]
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


def _times(source: Mapping[str, Any], span_ns: float) -> int:
    """Return how often a source that has one time between its packets, perhaps in the mean, sends in a span."""
    match = _GAP.fullmatch(str(source["gap_ns"]))
    if not match or not float(match["number"]) > 0:
        raise UsageError(
            f'source "{source["name"]}": gap_ns is {source["gap_ns"]!r}; to be compared with a measurement, what '
            "happens besides needs a number above 0, or a law with one time, such as constant:value=4ms"
        )
    return int(span_ns / (float(match["number"]) * _UNITS_NS[match["unit"] or "ns"])) + 1


def _is_only_of(queue: Mapping[str, Any], flows: set[str], model: Model, first: Mapping[str, Any]) -> bool:
    """Whether a queue is reached by flows alone that are no longer there."""
    reached: set[str] = set()
    open_ = [
        choice["place"]
        for source in (first, *model.sources)
        if source["class"] not in flows
        for way in source["to"]
        for choice in way["to"]
    ]
    by_name = {each["name"]: each for each in model.queues}
    while open_:
        place = open_.pop()
        if place in reached or place not in by_name:
            continue
        reached.add(place)
        for way in by_name[place]["to"]:
            if not way.get("classes") or not set(way["classes"]) <= flows:
                open_ += [choice["place"] for choice in way["to"]]
    return queue["name"] not in reached


@dataclass(frozen=True)
class Comparison:
    """Latencies of a measurement and of models that were fed its arrivals.

    Attributes
    ----------
    offered : int
        Packets of the measurement.
    latencies_ns : dict
        Of each ("measured" first): shape (packets that got through,), in the order in which they came out.
    """

    offered: int
    latencies_ns: dict[str, np.ndarray[Any, Any]]

    def table(self) -> pl.DataFrame:
        """Lay them side by side.

        Returns
        -------
        polars.DataFrame
            Shape (1 + models, 9 + 1 + models): ``model``, ``packets`` that got through, ``loss``, ``mean_us``,
            ``p10_us`` to ``p99.9_us``, and ``distance.NAME``: the greatest difference of the distribution functions
            of latency from that of each of them (Kolmogorov and Smirnov's).
        """
        rows = [self._row(name, latencies) for name, latencies in self.latencies_ns.items()]
        return pl.DataFrame(rows, infer_schema_length=None)

    def _row(self, name: str, latencies_ns: np.ndarray[Any, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {
            "model": name,
            "packets": latencies_ns.size,
            "loss": 1 - latencies_ns.size / self.offered,
        }
        some = latencies_ns.size > 0
        row["mean_us"] = float(latencies_ns.mean()) / 1e3 if some else None
        for part in QUANTILES:
            row[f"p{100 * part:g}_us"] = float(np.quantile(latencies_ns, part)) / 1e3 if some else None
        for other, latencies in self.latencies_ns.items():
            row[f"distance.{other}"] = distance(latencies_ns, latencies) if some and latencies.size else None
        return row

    def ccdfs(self) -> pl.DataFrame:
        """Return the distributions: ``model`` before the columns of `ccdf`, for each of them."""
        named = (
            ccdf(latencies / 1e3).select(pl.lit(name).alias("model"), "latency_us", "ccdf")
            for name, latencies in self.latencies_ns.items()
        )
        return pl.concat(named)

    def write(self, directory: Path) -> list[Path]:
        """Write the table, the distributions, and a figure of them; return the files."""
        directory.mkdir(parents=True, exist_ok=True)
        names = ("comparison.csv", "ccdf.csv", "ccdf.html", "ccdf.png", "ccdf.svg")
        paths = [directory / name for name in names]
        self.table().write_csv(paths[0])
        self.ccdfs().write_csv(paths[1])
        panel = Panel(
            "distribution of latency",
            "latency_us",
            "latency (us)",
            "ccdf",
            "P(latency >= x)",
            "model",
            mark="steps-before",
            logarithmic=True,
        )
        chart = draw(self.ccdfs(), "Latency, measured and modelled", (panel,))
        for path in paths[2:]:
            save(chart, path)
        return paths


def compare(trace: pl.DataFrame, models: Mapping[str, Model], *, seed: int = 1) -> Comparison:
    """Run models on the arrivals of a measurement.

    Raises
    ------
    ParshallError
        No packet of the measurement got through.
    """
    measured = (trace["left_ns"] - trace["arrived_ns"]).drop_nulls().to_numpy()
    if measured.size == 0:
        raise ParshallError("the measurement holds no packet that got through; left_ns is empty everywhere")
    found = {MEASURED: measured}
    for name, model in models.items():
        network, recorded = fed(model, trace)
        results = run(network, seed=seed, replications=1, trace=True, traces=recorded, allow_unstable=True)
        if results.packets is None:
            raise ParshallError(f"{name}: the run gave no trace")
        sink = FORWARDED if FORWARDED in network.as_dict()["sinks"] else network.as_dict()["sinks"][0]
        forwarded = results.packets.filter((pl.col("place") == sink) & ~pl.col("clone") & ~pl.col("lost"))
        found[name] = ((forwarded["left_ps"] - forwarded["born_ps"]) / 1000).to_numpy()
    return Comparison(trace.height, found)


def ccdf(latencies_us: np.ndarray[Any, Any]) -> pl.DataFrame:
    """Return the complementary distribution of latencies.

    It is that of "at least", which is above 0 at every latency that there was, so that a logarithmic axis has a place
    for all of them, and for a latency that is always the same; it begins with 1 at 0.

    Returns
    -------
    polars.DataFrame
        Shape (1 + distinct latencies, 2): ``latency_us``, rising, and ``ccdf``: the part that took at least so long.
    """
    values, counts = np.unique(latencies_us, return_counts=True)
    shorter = np.concatenate([[0], counts.cumsum()[:-1]]) if values.size else counts
    at_least = 1 - shorter / max(latencies_us.size, 1)
    return pl.DataFrame({"latency_us": np.concatenate([[0.0], values]), "ccdf": np.concatenate([[1.0], at_least])})


def distance(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    """Return the greatest difference between two samples' distribution functions."""
    both = np.concatenate([first, second])
    ranks = [np.searchsorted(np.sort(sample), both, side="right") / sample.size for sample in (first, second)]
    return float(np.abs(ranks[0] - ranks[1]).max())
