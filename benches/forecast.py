"""How often a forecast of the kernel's router holds what is then measured, and how wide it is.

Run as root on a machine with time: ``benches/run forecast``, or ``.venv/bin/python benches/forecast.py --add FILE
--archive`` for one session more beside those of an earlier file; sessions lie hours apart. In each, both set-ups (RPS
and a NAPI thread) are calibrated twice: on a quiet machine, and beside another program. After each calibration every
workload (four kinds of traffic, three loads) is measured once in the same surroundings, with a forecast of before and
one of the last session's calibration. Beside the forecasts stand the single queue, which gives no interval, and the
calibration's own latencies at half load: the range of its stretches. Prints one JSON object: the sessions, and over all
of them how many values lay within the intervals and how wide these were.
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
from _record import finish, parser_for, version_of

from parshall.errors import UsageError
from parshall.router.calibrate import calibration_of, measured_stretches
from parshall.router.calibration import Calibration
from parshall.router.forecast import CONFIDENCE, NAMES, forecast_of
from parshall.router.prediction import QUANTILES, latencies_ns
from parshall.router.setup import Setup
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic
from parshall.router.validation import LOADS, validate

ROOT = Path(__file__).resolve().parent.parent
RECEIVE = ("rps", "threaded")
STRETCHES, STRETCH_PACKETS = 12, 25_000
# Seeds of a session do not overlap with those of another one.
SEEDS_OF_A_SESSION, FIRST_SEED_OF_CALIBRATIONS = 1_000, 1_000_001
# The other program computes for a part of the time, as one that serves requests.
BUSY_MS, IDLE_MS = 20, 30
OTHER = (
    "import time\n"
    "while True:\n"
    f"    until = time.monotonic() + {BUSY_MS / 1e3}\n"
    "    while time.monotonic() < until: pass\n"
    f"    time.sleep({IDLE_MS / 1e3})\n"
)


@contextlib.contextmanager
def other_program() -> Iterator[None]:
    """Let another program run until the end of the block."""
    with subprocess.Popen([sys.executable, "-c", OTHER]) as process:
        try:
            yield
        finally:
            process.kill()


def calibrated(receive: str, seed: int, spread_s: float) -> tuple[Calibration, dict[str, list[float]]]:
    """Return a calibration, and the quantiles of the latencies at half load of each of its stretches, us."""
    with RouterTestbed(Setup(receive=receive)) as bed:
        base = Traffic("random", seed=seed)
        stretches = measured_stretches(bed, base, STRETCH_PACKETS, repeats=STRETCHES, spread_s=spread_s)
        found = [np.quantile(latencies_ns(run.table), QUANTILES) / 1e3 for run in stretches.half_load]
        own = {name: [float(values[at]) for values in found] for at, name in enumerate(NAMES)}
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


def session(number: int, arguments: argparse.Namespace, last: dict[str, Any] | None) -> dict[str, Any]:
    """Return the measured values of a session, each with what was forecast, and its calibrations."""
    began = datetime.now(UTC)
    rows: list[dict[str, Any]] = []
    calibrations: dict[str, str] = {}
    for at, (receive, is_busy) in enumerate(itertools.product(RECEIVE, (False, True))):
        surroundings = f"{receive}, {'busy' if is_busy else 'quiet'}"
        first_seed = SEEDS_OF_A_SESSION * (len(RECEIVE) * 2 * number + at)
        with other_program() if is_busy else contextlib.nullcontext():
            print(f"session {number}, {surroundings}: calibrates for {arguments.spread:g} s", file=sys.stderr)
            calibration, own = calibrated(receive, FIRST_SEED_OF_CALIBRATIONS + first_seed, arguments.spread)
            calibrations[surroundings] = text_of(calibration)
            print(f"session {number}, {surroundings}: measures", file=sys.stderr)
            validation = validate(calibration, repeats=1, count=arguments.count, seed=1 + first_seed)
        found = validation.runs.to_dicts()
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
        rows += found
    return {"began": began.isoformat(timespec="seconds"), "calibrations": calibrations, "rows": rows}


def width(low: float, high: float) -> float:
    """Return the width of an interval as a factor; infinite where an end is."""
    return high / low if low > 0 and math.isfinite(high) else math.inf


def coverage(rows: list[dict[str, Any]], prefix: str = "") -> dict[str, Any]:
    """Return how many measured values lie within the intervals, also of each session, and how wide these are.

    Values of a session are not independent: they have one calibration, and three quantiles are of one run.
    """
    if not rows:
        return {"values": 0}
    inside = [row[f"{prefix}low_us"] <= row["measured_us"] <= row[f"{prefix}high_us"] for row in rows]
    of_sessions: dict[int, list[bool]] = {}
    for row, is_inside in zip(rows, inside, strict=True):
        of_sessions.setdefault(row["session"], []).append(is_inside)
    factors = [width(row[f"{prefix}low_us"], row[f"{prefix}high_us"]) for row in rows]
    return {
        "values": len(rows),
        "inside": sum(inside),
        "share": statistics.mean(inside),
        "shares_of_sessions": [statistics.mean(of) for of in of_sessions.values()],
        "median_width": statistics.median(factors),
    }


def spread(rows: list[dict[str, Any]]) -> float | None:
    """Return the largest over the smallest of repeated measurements, the median of all workloads; None without any."""
    repeated: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("receive", "busy", "traffic", "load", "quantile"))
        repeated.setdefault(key, []).append(row["measured_us"])
    factors = [max(values) / min(values) for values in repeated.values() if len(values) > 1]
    return statistics.median(factors) if factors else None


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
    parser.add_argument("--spread", type=float, default=90.0, help="seconds over which a calibration is spread")
    arguments = parser.parse_args()
    sessions: list[dict[str, Any]] = []
    if arguments.add:
        sessions = json.loads(arguments.add.read_text())["sessions"]
    try:
        sessions.append(session(len(sessions), arguments, sessions[-1] if sessions else None))
    except UsageError as error:
        parser.error(str(error))
    every = [row | {"session": number} for number, one in enumerate(sessions) for row in one["rows"]]
    results = {"confidence": CONFIDENCE, "summary": summary(every), "sessions": sessions}
    versions = {"parshall": version_of("git", "-C", str(ROOT), "describe", "--always", "--dirty")}
    finish("forecast", results, versions, arguments.archive)


if __name__ == "__main__":
    main()
