"""Validate: hold a calibrated network against what the router then does, beside the single queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow

from parshall.errors import ParshallError, UsageError
from parshall.router.calibrate import SEEDS_OF_A_REPEAT, TRIALS, Stretches, seeds_of, tried
from parshall.router.calibration import Calibration
from parshall.router.capacity import overload
from parshall.router.forecast import NAMES, STRETCHES_MIN, forecast_of
from parshall.router.measurement import Measurement, measure
from parshall.router.prediction import compare, predict, single_queue
from parshall.router.setup import Setup
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic

KINDS = TRIALS
# More overload than that says nothing else.
LOAD_MAX = 2.0
LOADS = (0.3, 0.6, 0.8)
_OVERLOAD_PACKETS = 300_000
_SEEDS_BETWEEN_REPEATS = 100
# Of a run of a stretch beside: as many as in a calibration.
_BESIDE_PACKETS = 25_000


@dataclass(frozen=True)
class Validation:
    """Predictions beside measurements.

    Attributes
    ----------
    runs : polars.DataFrame
        One row a run and quantile: ``repeat``, ``traffic``, ``load``, ``seed``, ``overload_pps``, ``offered_pps``,
        ``lost`` and ``network_lost`` (shares), ``quantile``, ``measured_us``, ``queue_us``; of the forecast of this run
        ``network_us`` (median), ``low_us`` and ``high_us`` (ends of its 90 % interval); with ``beside`` the same of
        the forecast from the stretches beside, ``beside_us``, ``beside_low_us`` and ``beside_high_us``.
    packets : tuple of (int, pyarrow.Table)
        Of each run its seed and `parshall.router.measurement.Measurement.table`, for forecasts of other calibrations.
    """

    runs: pl.DataFrame
    packets: tuple[tuple[int, pyarrow.Table], ...] = ()

    def table(self) -> pl.DataFrame:
        """Return one row a workload and quantile.

        Returns
        -------
        polars.DataFrame
            ``measured_us`` is the median of the repeats, ``spread`` the largest less the smallest over it. The
            errors are paired, of each run: medians, and for the network also the lowest and the highest. ``low_us`` and
            ``high_us`` are medians of the ends of the forecasts, ``inside`` the number of runs that lie between theirs.
            With ``beside`` also ``beside_error``, ``beside_low_us``, ``beside_high_us`` and ``beside_inside``.
        """
        network, queue = ((pl.col(name) / pl.col("measured_us") - 1) for name in ("network_us", "queue_us"))
        measured = pl.col("measured_us")
        is_inside = measured.is_between("low_us", "high_us")
        beside = (
            {
                "beside_error": (pl.col("beside_us") / measured - 1).median(),
                "beside_low_us": pl.col("beside_low_us").median(),
                "beside_high_us": pl.col("beside_high_us").median(),
                "beside_inside": measured.is_between("beside_low_us", "beside_high_us").sum(),
            }
            if "beside_us" in self.runs.columns
            else {}
        )
        return (
            self.runs.with_columns(network=network, queue=queue)
            .group_by("traffic", "load", "quantile", maintain_order=True)
            .agg(
                runs=pl.len(),
                measured_us=measured.median(),
                spread=(measured.max() - measured.min()) / measured.median(),
                low_us=pl.col("low_us").median(),
                high_us=pl.col("high_us").median(),
                inside=is_inside.sum(),
                network_error=pl.col("network").median(),
                network_low=pl.col("network").min(),
                network_high=pl.col("network").max(),
                queue_error=pl.col("queue").median(),
                lost=pl.col("lost").mean(),
                network_lost=pl.col("network_lost").mean(),
                **beside,
            )
        )

    def inside(self, prefix: str = "") -> tuple[int, int]:
        """Return how many measured values lie within the intervals of their forecasts, and of how many.

        `prefix` ``beside_`` takes the forecasts from the stretches beside.
        """
        inside = self.runs.filter(pl.col("measured_us").is_between(f"{prefix}low_us", f"{prefix}high_us"))
        return inside.height, self.runs.height

    @property
    def nearer(self) -> pl.DataFrame:
        """Return the rows in which the network is nearer than the single queue."""
        return self.table().filter(pl.col("network_error").abs() < pl.col("queue_error").abs())


@dataclass(frozen=True)
class _Run:
    """A workload that was measured."""

    repeat: int
    number: int
    load: float
    overload_pps: float
    traffic: Traffic
    found: Measurement

    def forecasts(self, calibration: Calibration, fresh: Calibration | None) -> list[dict[str, Any]]:
        """Return the rows of the run, one a quantile."""
        table = self.found.table
        queue = compare(table, predict(single_queue(1e9 / self.overload_pps), table))
        network = forecast_of(calibration, table, seed=self.traffic.seed)
        beside = forecast_of(fresh, table, seed=self.traffic.seed) if fresh else None
        rows = []
        for quantile in NAMES:
            low_us, network_us, high_us = network.interval(quantile)
            row = {
                "repeat": self.repeat,
                "traffic": self.traffic.kind,
                "load": self.load,
                "seed": self.traffic.seed,
                "overload_pps": self.overload_pps,
                "offered_pps": self.found.offered_pps,
                "lost": queue["lost_share"]["measured"],
                "network_lost": float(network.values["lost"].mean()),
                "quantile": quantile,
                "measured_us": queue[quantile]["measured_us"],
                "network_us": network_us,
                "low_us": low_us,
                "high_us": high_us,
                "queue_us": queue[quantile]["predicted_us"],
            }
            if beside:
                ends = zip(("low_us", "us", "high_us"), beside.interval(quantile), strict=True)
                row |= {f"beside_{name}": value for name, value in ends}
            rows.append(row)
        return rows


def validate(
    calibration: Calibration,
    *,
    kinds: Sequence[str] = KINDS,
    loads: Sequence[float] = LOADS,
    repeats: int = 3,
    count: int = 100_000,
    seed: int = 1,
    beside: bool = False,
    on_run: Callable[[int, int], None] | None = None,
) -> Validation:
    """Offer workloads to a router like the calibrated one, and predict each from its arrivals.

    Parameters
    ----------
    calibration : Calibration
        The parameters.
    kinds, loads : sequence
        Workloads; loads are shares of the rate under overload, which each repeat measures first and which the single
        queue gets.
    repeats : int
        Repeats of all workloads.
    count : int
        Packets of a run.
    seed : int
        Seed of the first run.
    beside : bool
        Whether each repeat also measures a stretch of a calibration, from which a second forecast comes: what the age
        of the calibration costs. Needs as many repeats as a calibration needs stretches.
    on_run : callable, optional
        Called with the number of steps done and of all: each run is measured, and later forecast.

    Raises
    ------
    UsageError
        A seed is one of the calibration's, or an argument is out of range.
    """
    if repeats < 1 or count < 100:
        raise UsageError(f"validate: {repeats} repeats of {count} packets: expected 1 or more, and 100 or more")
    if beside and repeats < STRETCHES_MIN:
        raise UsageError(f"--repeats {repeats}: expected {STRETCHES_MIN} or more with --beside: one is a stretch each")
    if wrong := [load for load in loads if not 0 < load <= LOAD_MAX]:
        raise UsageError(f"validate: load {wrong[0]:g}: expected a share of the capacity above 0, at most {LOAD_MAX:g}")
    fields = ("receive", "gro", "routes", "rules", "destinations")
    setup = Setup(**{name: calibration.setup[name] for name in fields})
    sizes, flows = calibration.traffic["sizes"], calibration.traffic["flows"]
    first_beside = seed + _SEEDS_BETWEEN_REPEATS * repeats
    own, theirs = range(seed, first_beside + SEEDS_OF_A_REPEAT * repeats), seeds_of(calibration)
    if own.start < theirs.stop and theirs.start < own.stop:
        raise UsageError(f"--seed {seed}: the calibration's seeds; choose others")
    rows: list[dict[str, Any]] = []
    runs: list[_Run] = []
    done, total = 0, 2 * repeats * len(kinds) * len(loads)

    def count_one() -> None:
        nonlocal done
        done += 1
        if on_run:
            on_run(done, total)

    with RouterTestbed(setup) as bed:
        stretches = Stretches(bed, Traffic("random", sizes=sizes, flows=flows, seed=first_beside), _BESIDE_PACKETS)
        for repeat in range(repeats):
            first = seed + _SEEDS_BETWEEN_REPEATS * repeat
            beyond = overload(bed, Traffic(sizes=sizes, flows=flows, seed=first), count=_OVERLOAD_PACKETS, repeats=1)
            if beside:
                stretches.measure()
            workloads = list(enumerate((kind, load) for kind in kinds for load in loads))
            # A machine that becomes slower is no property of a workload.
            for at in np.random.default_rng(first).permutation(len(workloads)).tolist():
                number, (kind, load) = workloads[at]
                traffic = Traffic(kind, load * beyond.pps, sizes, flows, first + 1 + number)
                runs.append(_Run(repeat, number, load, beyond.pps, traffic, measure(bed, traffic, count)))
                count_one()
        fresh = tried(replace(calibration, **stretches.parameters()), stretches) if beside else None
    # A forecast uses a CPU, and the calibration was measured without that.
    runs.sort(key=lambda each: (each.repeat, each.number))
    for each in runs:
        rows += each.forecasts(calibration, fresh)
        count_one()
    if not rows:
        raise ParshallError("validate: no workload; give at least one kind and one load")
    return Validation(pl.DataFrame(rows), tuple((each.traffic.seed, each.found.table) for each in runs))
