"""How often a forecast of the kernel's router holds what is then measured, and how wide it is.

Run as root on a machine with time: ``benches/run forecast``, or ``.venv/bin/python benches/forecast.py --add FILE
--archive`` for one session more beside those of an earlier file; sessions lie hours apart. In each, both set-ups (RPS
and a NAPI thread) are calibrated, and then every workload (four kinds of traffic, three loads) is measured once on a
quiet machine and once beside another program, each with a forecast of before. Beside the forecast stand the single
queue, which gives no interval, and the calibration's own latencies at half load: the range of its stretches. Prints one
JSON object: the sessions, and over all of them how many values lay within the intervals and how wide these were.
"""

import contextlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from _record import finish, parser_for, version_of

from parshall.errors import UsageError
from parshall.router.calibrate import Stretches, calibration_of
from parshall.router.calibration import Calibration
from parshall.router.forecast import CONFIDENCE, NAMES
from parshall.router.prediction import QUANTILES, latencies_ns
from parshall.router.setup import Setup
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic
from parshall.router.validation import LOADS, validate

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


def calibrated(receive: str, seed: int) -> tuple[Calibration, dict[str, list[float]]]:
    """Return a calibration, and the quantiles of the latencies at half load of each of its stretches, us."""
    with RouterTestbed(Setup(receive=receive)) as bed:
        stretches = Stretches(bed, Traffic("random", seed=seed), STRETCH_PACKETS)
        for _ in range(STRETCHES):
            stretches.measure()
        found = [np.quantile(latencies_ns(run.table), QUANTILES) / 1e3 for run in stretches.half_load]
        own = {name: [float(values[at]) for values in found] for at, name in enumerate(NAMES)}
        return calibration_of(bed, stretches), own


def session(number: int, count: int) -> list[dict[str, Any]]:
    """Return the measured values of a session, each with what was forecast."""
    rows: list[dict[str, Any]] = []
    for at, receive in enumerate(RECEIVE):
        calibration, own = calibrated(receive, FIRST_SEED_OF_CALIBRATIONS + SEEDS_OF_A_SESSION * (2 * number + at))
        calibrated_s = time.monotonic()
        for is_busy in (False, True):
            seed = 1 + SEEDS_OF_A_SESSION * (4 * number + 2 * at + is_busy)
            with other_program() if is_busy else contextlib.nullcontext():
                runs = validate(calibration, repeats=1, count=count, seed=seed).runs
            about = {"receive": receive, "busy": is_busy, "age_s": time.monotonic() - calibrated_s}
            rows += [
                about | row | {"own_low_us": min(own[row["quantile"]]), "own_high_us": max(own[row["quantile"]])}
                for row in runs.to_dicts()
            ]
            print(f"session {number}, {receive}, {'busy' if is_busy else 'quiet'}: done", file=sys.stderr)
    return rows


def width(low: float, high: float) -> float:
    """Return the width of an interval as a factor; infinite where an end is."""
    return high / low if low > 0 and math.isfinite(high) else math.inf


def coverage(rows: list[dict[str, Any]], prefix: str = "") -> dict[str, Any]:
    """Return how many measured values lie within the intervals, also of each session, and how wide these are.

    Values of a session are not independent: they have one calibration, and three quantiles are of one run.
    """
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
    arguments = parser.parse_args()
    sessions: list[dict[str, Any]] = []
    if arguments.add:
        sessions = json.loads(arguments.add.read_text())["sessions"]
    began = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        rows = session(len(sessions), arguments.count)
    except UsageError as error:
        parser.error(str(error))
    sessions.append({"began": began, "rows": rows})
    every = [row | {"session": number} for number, one in enumerate(sessions) for row in one["rows"]]
    results = {"confidence": CONFIDENCE, "summary": summary(every), "sessions": sessions}
    finish("forecast", results, {"parshall": version_of("parshall", "--version")}, arguments.archive)


if __name__ == "__main__":
    main()
