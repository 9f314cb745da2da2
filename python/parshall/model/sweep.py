"""Run a model at many points of a parameter grid, on all cores or a cluster."""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from parshall.errors import UsageError
from parshall.model.network import Model
from parshall.model.simulation import Results, run
from parshall.model.variation import build, main_sink, resolve, title

# Maximum number of points; more are a typing error.
POINTS_MAX = 100_000


def parse_values(text: str) -> list[str | float]:
    """Parse the values of a parameter: ``1,2,3``, ``0:1400:50`` (first, last and step), or a word.

    Raises
    ------
    UsageError
        A range is not numeric, or does not end.
    """
    if ":" not in text:
        return [_number(part) for part in text.split(",")]
    try:
        first, last, step = (float(part) for part in text.split(":"))
    except ValueError:
        raise UsageError(f"{text}: is not a range; expected FIRST:LAST:STEP, such as 100:1400:50") from None
    if not step > 0:
        raise UsageError(f"{text}: the step is {step:g}; expected a step above 0, as in 100:1400:50")
    if not last >= first:
        raise UsageError(f"{text}: ends at {last:g}, before it begins; expected FIRST:LAST:STEP, such as 100:1400:50")
    if not (last - first) / step <= POINTS_MAX:
        raise UsageError(f"{text}: has more than {POINTS_MAX:,} points; expected a larger step")
    return [round(first + number * step, 9) for number in range(int((last - first) / step + 1e-9) + 1)]


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def sweep(
    model: str | Path | Model,
    over: Mapping[str, Sequence[str | float]],
    *,
    settings: Mapping[str, str | float] | None = None,
    sink: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    cluster: str | None = None,
    **options: Any,
) -> pl.DataFrame:
    """Run a model at every point of a grid.

    Parameters
    ----------
    model
        A built-in model, a file, or a network.
    over
        The values of each swept parameter; for a file or network, see `parshall.model.variation.build`.
    settings
        Values of other parameters.
    sink
        Sink of the packets that got through; None is "forwarded", or the only sink.
    progress
        Called with the number of finished points, and of all points.
    cluster
        Address of a Dask scheduler whose workers run the points. Default: one thread for each core of this machine.
        The results are the same.
    **options
        Options of `run`.

    Returns
    -------
    polars.DataFrame
        Shape (points x classes that arrive, ...): the parameters, and the columns of `summary_rows`.

    Raises
    ------
    UsageError, ParshallError
        As for `parshall.model.variation.build` and `run`, for the first wrong point, before any point runs; or errors
        of the cluster.
    """
    base = resolve(model)
    # The last parameter changes fastest.
    points = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    for point in points:
        network = build(base, {**(settings or {}), **point})
        network.check(allow_unstable=options.get("allow_unstable", False))
        main_sink(network.as_dict()["sinks"], sink, title(base))
    one = partial(point_rows, base, dict(settings or {}), options, sink)
    if cluster is not None:
        from parshall.model.cluster import map_in_order

        found = map_in_order(cluster, one, points, progress)
    else:
        found = _map_on_threads(one, points, progress)
    return pl.DataFrame([row for rows in found for row in rows], infer_schema_length=None)


def point_rows(
    model: str | Model,
    settings: Mapping[str, str | float],
    options: Mapping[str, Any],
    sink: str | None,
    point: Mapping[str, str | float],
) -> list[dict[str, Any]]:
    """Run a model at one point; return its parameters with each row of `summary_rows`."""
    # One thread for each point: a single point is too short to parallelise.
    results = run(build(model, {**settings, **point}), **{"threads": 1, **options})
    return [{**point, **row} for row in summary_rows(results, sink)]


def _map_on_threads(
    function: Callable[..., Any], points: Sequence[Any], progress: Callable[[int, int], None] | None
) -> list[Any]:
    done: list[Any] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for result in pool.map(function, points):
                done.append(result)
                if progress:
                    progress(len(done), len(points))
        except BaseException:
            # On Ctrl-C, cancel the points that have not started.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done


def summary_rows(results: Results, sink: str | None = None) -> list[dict[str, Any]]:
    """Return one row per class that left by a sink, and one (class "") for all of them.

    Columns: ``class``, ``throughput_mbps``, ``throughput_pps``, ``share`` (of the bits), ``latency_us``, ``p99_us``,
    ``loss`` (fraction of all packets), ``lost_in`` (the queue that loses most), ``utilisation.STATION``.
    """
    sink = main_sink(results.sinks, sink, results.data["model"])
    flows = results.estimates.filter(kind="sink", place=sink)
    rates = {
        measure: dict(flows.filter(measure=measure).select("class", "mean").iter_rows())
        for measure in ("throughput_bps", "throughput_pps", "latency_ns")
    }
    stations = results.estimates.filter(kind="station", measure="utilisation")
    busy = {f"utilisation.{place}": mean for place, mean in stations.select("place", "mean").iter_rows()}
    total_bps = sum(rates["throughput_bps"].values())
    lost = results.lost()
    rows = []
    for name in ["", *(flow for flow, rate in rates["throughput_bps"].items() if rate > 0)]:
        at = [name] if name else list(rates["throughput_bps"])
        bps = sum(rates["throughput_bps"][flow] for flow in at)
        is_seen = bool(bps > 0)
        rows.append(
            {
                "class": name,
                "throughput_mbps": bps / 1e6,
                "throughput_pps": sum(rates["throughput_pps"][flow] for flow in at),
                "share": bps / total_bps if total_bps else 0.0,
                "latency_us": _mean_latency_us(rates, at) if is_seen else None,
                "p99_us": _p99_us(results, sink, name) if is_seen else None,
                "loss": sum(lost.values(), 0.0),
                "lost_in": max(lost, key=lambda queue: lost[queue]) if lost else "",
                **busy,
            }
        )
    return rows


def _mean_latency_us(rates: Mapping[str, Mapping[str, float]], at: Sequence[str]) -> float:
    packets = {flow: rates["throughput_pps"][flow] for flow in at if rates["throughput_pps"][flow] > 0}
    latency = sum(packets[flow] * rates["latency_ns"][flow] for flow in packets)
    return latency / sum(packets.values()) / 1e3


def _p99_us(results: Results, sink: str, name: str) -> float:
    quantiles = dict(map(tuple, results.latency(sink, name or None)["quantiles"]))
    return float(quantiles[0.99]) / 1e3
