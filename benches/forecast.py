"""How often a forecast of the kernel's router holds what is then measured, and how wide it is.

Run as root on a machine with time: ``benches/run forecast``, or ``.venv/bin/python benches/forecast.py --add FILE
--archive`` for one session more beside those of an earlier file; sessions lie hours apart. In each, both set-ups (RPS
and a NAPI thread) are calibrated twice: on a quiet machine, and beside another program. After each calibration every
workload (four kinds of traffic, three loads) is measured once in the same surroundings, with a forecast of before and
one of the last session's calibration. Then the largest load at which nine of ten stretches of 0.1 s lose at most
0.1 % is planned, and tried in a few of them. Beside the forecasts stand the single queue, which gives no interval, and
the calibration's own latencies at half load: the range of its stretches. Prints one JSON object: the sessions, and over
all of them how many values lay within the intervals, how wide these were, and how often the planned load held.
"""

import argparse
import contextlib
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from _record import finish, parser_for, version_of

from parshall.errors import UsageError
from parshall.model.plan import Limits
from parshall.router.calibrate import calibration_of, measured_stretches
from parshall.router.calibration import Calibration
from parshall.router.forecast import CONFIDENCE, NAMES, forecast_of
from parshall.router.measurement import measure
from parshall.router.plan import largest_load
from parshall.router.prediction import QUANTILES, latencies_ns
from parshall.router.setup import Setup
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic
from parshall.router.validation import LOADS, validate
from parshall.statistics.summary import mean_interval

ROOT = Path(__file__).resolve().parent.parent
RECEIVE = ("rps", "threaded")
STRETCHES, STRETCH_PACKETS = 12, 25_000
# What is planned, and how often it is tried.
PLANNED_LOSS, PLANNED_S, TRIALS = 1e-3, 0.1, 5
# Seeds of a session do not overlap with those of another one.
SEEDS_OF_A_SESSION, FIRST_SEED_OF_CALIBRATIONS, FIRST_SEED_OF_PLANS = 1_000, 1_000_001, 2_000_001
# The other program computes for a part of the time, as one that serves requests; in step with no measurement.
BUSY_S, IDLE_S = 0.020, 0.030
OTHER = f"""
import random, time
while True:
    until = time.monotonic() + random.expovariate(1 / {BUSY_S})
    while time.monotonic() < until: pass
    time.sleep(random.expovariate(1 / {IDLE_S}))
"""


@contextlib.contextmanager
def other_program() -> Iterator[None]:
    """Let another program run until the end of the block."""
    with subprocess.Popen([sys.executable, "-c", OTHER]) as process:
        try:
            yield
        finally:
            process.kill()


def calibrated(
    receive: str, seed: int, spread_s: float, keep: Path | None
) -> tuple[Calibration, dict[str, list[float]]]:
    """Return a calibration, and the quantiles of the latencies at half load of each of its stretches, us."""
    with RouterTestbed(Setup(receive=receive)) as bed:
        base = Traffic("random", seed=seed)
        stretches = measured_stretches(bed, base, STRETCH_PACKETS, repeats=STRETCHES, spread_s=spread_s)
        found = [np.quantile(latencies_ns(run.table), QUANTILES) / 1e3 for run in stretches.half_load]
        own = {name: [float(values[at]) for values in found] for at, name in enumerate(NAMES)}
        for kind, runs in stretches.runs.items() if keep else ():
            for number, run in enumerate(runs):
                run.write(keep / f"stretch-{number:02}-{kind}.parquet")
        return calibration_of(bed, stretches), own


def text_of(calibration: Calibration) -> str:
    """Return the file of a calibration."""
    with tempfile.TemporaryDirectory() as directory:
        calibration.write(Path(directory) / "calibration.toml")
        return (Path(directory) / "calibration.toml").read_text()


def calibration_from(text: str) -> Calibration:
    """Return the calibration of a file's text."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "calibration.toml").write_text(text)
        return Calibration.read(Path(directory) / "calibration.toml")


def rounded(value: Any) -> Any:
    """Return a number with four digits: thousands of them are kept."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def tried(calibration: Calibration, receive: str, seed: int) -> dict[str, Any]:
    """Return the largest load of a calibration, and what stretches at that load lost."""
    limits = Limits(PLANNED_LOSS, None)
    load_pps, low_pps, high_pps = largest_load(calibration, limits, duration_s=PLANNED_S, seed=seed)
    with RouterTestbed(Setup(receive=receive)) as bed:
        found = [
            measure(bed, Traffic("poisson", pps=load_pps, seed=seed + trial), round(PLANNED_S * load_pps))
            for trial in range(TRIALS)
        ]
    return {
        "load_pps": load_pps,
        "low_pps": low_pps,
        "high_pps": high_pps,
        "offered_pps": [each.offered_pps for each in found],
        "lost": [each.lost_share for each in found],
        "held": sum(each.lost_share <= PLANNED_LOSS for each in found),
    }


def session(number: int, arguments: argparse.Namespace, last: dict[str, Any] | None) -> dict[str, Any]:
    """Return the measured values of a session, each with what was forecast, and its calibrations."""
    began = datetime.now(UTC)
    rows: list[dict[str, Any]] = []
    plans: list[dict[str, Any]] = []
    calibrations: dict[str, str] = {}
    for at, (receive, is_busy) in enumerate(itertools.product(RECEIVE, (False, True))):
        surroundings = f"{receive}, {'busy' if is_busy else 'quiet'}"
        first_seed = SEEDS_OF_A_SESSION * (len(RECEIVE) * 2 * number + at)
        with other_program() if is_busy else contextlib.nullcontext():
            print(f"session {number}, {surroundings}: calibrates for {arguments.spread:g} s", file=sys.stderr)
            keep = arguments.keep / f"{number}-{receive}-{'busy' if is_busy else 'quiet'}" if arguments.keep else None
            if keep:
                keep.mkdir(parents=True)
            calibration, own = calibrated(receive, FIRST_SEED_OF_CALIBRATIONS + first_seed, arguments.spread, keep)
            calibrations[surroundings] = text_of(calibration)
            print(f"session {number}, {surroundings}: measures", file=sys.stderr)
            validation = validate(calibration, repeats=1, count=arguments.count, seed=1 + first_seed)
            print(f"session {number}, {surroundings}: plans", file=sys.stderr)
            about = {"receive": receive, "busy": is_busy}
            plans.append(about | tried(calibration, receive, FIRST_SEED_OF_PLANS + first_seed))
        found = validation.runs.to_dicts()
        for seed, table in validation.packets if keep else ():
            pyarrow.parquet.write_table(table, keep / f"run-{seed}.parquet", compression="zstd")
        for row in found:
            row |= {"receive": receive, "busy": is_busy}
            row |= {"own_low_us": min(own[row["quantile"]]), "own_high_us": max(own[row["quantile"]])}
        if last:
            age_s = (began - datetime.fromisoformat(last["began"])).total_seconds()
            aged = calibration_from(last["calibrations"][surroundings])
            for place, (seed, table) in enumerate(validation.packets):
                forecast = forecast_of(aged, table, seed=seed)
                for row in found[place * len(NAMES) : (place + 1) * len(NAMES)]:
                    low_us, middle_us, high_us = forecast.interval(row["quantile"])
                    row |= {"age_s": age_s, "aged_low_us": low_us, "aged_us": middle_us, "aged_high_us": high_us}
        rows += [{key: rounded(value) for key, value in row.items()} for row in found]
    return {"began": began.isoformat(timespec="seconds"), "calibrations": calibrations, "rows": rows, "plans": plans}


def width(low: float, high: float) -> float:
    """Return the width of an interval as a factor; infinite where an end is."""
    return high / low if low > 0 and math.isfinite(high) else math.inf


def score(value: float, low: float, high: float) -> float:
    """Return the interval score of logarithms: width, and 20 of what is missed (Gneiting, Raftery, JASA 102, 2007)."""
    if low <= 0 or not math.isfinite(high):
        return math.inf
    missed = max(0.0, math.log(low / value), math.log(value / high))
    return math.log(high / low) + 2 / (1 - CONFIDENCE) * missed


def coverage(rows: list[dict[str, Any]], prefix: str = "") -> dict[str, Any]:
    """Return how many measured values lie within the intervals, and how wide these are.

    Values of one calibration are not independent, so the 95 % interval of the share is of the shares of calibrations.
    """
    if not rows:
        return {"values": 0}
    ends = [(row["measured_us"], row[f"{prefix}low_us"], row[f"{prefix}high_us"]) for row in rows]
    inside = [low <= value <= high for value, low, high in ends]
    of_calibrations: dict[tuple[Any, ...], list[bool]] = {}
    for row, is_inside in zip(rows, inside, strict=True):
        of_calibrations.setdefault((row["session"], row["receive"], row["busy"]), []).append(is_inside)
    shares = [statistics.mean(of) for of in of_calibrations.values()]
    return {
        "values": len(rows),
        "inside": sum(inside),
        "share": statistics.mean(inside),
        "share_interval": mean_interval(shares, 0.95) if len(shares) > 2 else None,
        "below": sum(value < low for value, low, _ in ends),
        "above": sum(value > high for value, _, high in ends),
        "median_width": statistics.median(width(low, high) for _, low, high in ends),
        "median_score": statistics.median(score(*each) for each in ends),
    }


def spread(rows: list[dict[str, Any]]) -> float | None:
    """Return the width, as a factor, of what nine of ten repeated measurements lie in; None without any."""
    repeated: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("receive", "busy", "traffic", "load", "quantile"))
        repeated.setdefault(key, []).append(math.log(row["measured_us"]))
    found = [values for values in repeated.values() if len(values) > 1]
    if not found:
        return None
    variance = sum(statistics.variance(values) * (len(values) - 1) for values in found)
    freedom = sum(len(values) - 1 for values in found)
    return math.exp(2 * statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(variance / freedom))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one object for each load and quantile, and one for each load."""
    found = []
    for load in LOADS:
        for quantile in (*NAMES, "all"):
            chosen = [row for row in rows if row["load"] == load and quantile in (row["quantile"], "all")]
            errors = [abs(math.log(row["network_us"] / row["measured_us"])) for row in chosen]
            of_queue = [abs(math.log(max(row["queue_us"], 1e-3) / row["measured_us"])) for row in chosen]
            found.append(
                {
                    "load": load,
                    "quantile": quantile,
                    **coverage(chosen),
                    "spread": spread(chosen),
                    "own_latencies": coverage(chosen, "own_"),
                    "aged": coverage([row for row in chosen if "aged_low_us" in row], "aged_"),
                    "median_error": math.exp(statistics.median(errors)) - 1,
                    "nearer_than_queue": sum(a < b for a, b in zip(errors, of_queue, strict=True)),
                }
            )
    return found


def main() -> None:
    """Measure a session and sum up all."""
    parser = parser_for(__doc__)
    parser.add_argument("--add", type=Path, metavar="FILE", help="an earlier result, whose sessions are kept")
    parser.add_argument("--count", type=int, default=60_000, help="packets of a measurement")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the packets of all runs there, for other models")
    parser.add_argument("--spread", type=float, default=90.0, help="seconds over which a calibration is spread")
    arguments = parser.parse_args()
    sessions: list[dict[str, Any]] = []
    if arguments.add:
        sessions = json.loads(arguments.add.read_text())["sessions"]
    try:
        sessions.append(session(len(sessions), arguments, sessions[-1] if sessions else None))
    except UsageError as error:
        parser.error(str(error))
    for one in sessions[:-1]:
        # The next session needs the last ones only.
        one.pop("calibrations", None)
    every = [row | {"session": number} for number, one in enumerate(sessions) for row in one["rows"]]
    plans = [plan for one in sessions for plan in one.get("plans", ())]
    trials = {"tried": TRIALS * len(plans), "held": sum(plan["held"] for plan in plans)}
    results = {"confidence": CONFIDENCE, "summary": summary(every), "plans": trials, "sessions": sessions}
    versions = {"parshall": version_of("git", "-C", str(ROOT), "describe", "--always", "--dirty")}
    finish("forecast", results, versions, arguments.archive)


if __name__ == "__main__":
    main()
