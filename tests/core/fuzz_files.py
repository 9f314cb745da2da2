"""Mutated files of the kinds that others may hand over: logs, histograms, studies, calibrations, profiles, tables.

``python tests/core/fuzz_files.py SEED COUNT`` mutates COUNT of them and runs the commands that read them, in this
process; it prints what came of them as `fuzz_inputs.py` does, whose limits hold, and keeps those that failed.
"""

import collections
import faulthandler
import gzip
import json
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

# This file also runs as a program.
sys.path.append(str(Path(__file__).resolve().parents[1]))
from fuzz_inputs import HANG_S, MEMORY_MAX_KIB, TIME_MAX_S, called, check_refusal, dispatched, mutate
from mutated_models import BYTES, peak_memory_kib
from test_foreign_directories import bundle
from test_path_histograms import places_of, summary_of
from test_path_log_damage import compressed
from test_router_calibration import arrivals, known
from written_path_log import frame_of, packet, pcap_of, pcapng_of, read_of, write_path_log

from parshall import _native
from parshall.instruments.path import PathHistograms, PathLog
from parshall.instruments.path.histograms import as_object
from parshall.instruments.tcp_log import read
from parshall.lab.report import write_report as write_study_report
from parshall.lab.sites import read_hosts
from parshall.report import write_report
from parshall.report.path import write_report as write_path_report
from parshall.router.calibration import Calibration
from parshall.router.network import calibrated
from parshall.router.prediction import predict

DATA = Path(__file__).parents[1] / "data"
FORMATS = ("siftr-1.3", "siftr-1.2", "siftr2", "ttprobe", "ttprobe-binary", "web10g", "csv", "parquet")
# Drawing takes long, so few of the files are drawn.
DRAWN = 0.05
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1.5, 10**30, -(2**63), 2**64, float("nan"), float("inf"), "", "x", "<b>",
    "\x1b[2J\n\u202e", "9" * 5000, [], {}, [[1]], {"x": 1}, [None], "../../etc", "2026-01-01",
)  # fmt: skip

# A command line to run, or a function to call.
Step = list[str] | Callable[[], object]


@dataclass
class Kind:
    """Files that are right, by name, of which one is mutated; and how they are read.

    Attributes
    ----------
    files : dict
        Contents by path in the directory; those that end in ``.json`` are mutated by their structure, too.
    read : callable
        Gets the path of the mutated file, a directory for results and random numbers; returns command lines to run,
        and functions to call.
    mutated : str
        What the names of the files that may be mutated end with.
    """

    files: dict[str, bytes]
    read: Callable[[Path, Path, random.Random], list[Step]]
    mutated: tuple[str, ...]


def _tcp_log(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    to = numbers.choice(FORMATS)
    found: list[Step] = [["convert", str(path), "--to", to, "-o", str(results / to), "-q"]]
    if numbers.random() < DRAWN:
        found.append(lambda: write_report({"log": read(path)}, results / "report", "A log", images=False))
    return found


def _path_log(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    captures = [each for each in sorted(path.parent.iterdir()) if each.suffix in (".pcap", ".pcapng")]
    capture = path if path in captures else numbers.choice([None, *captures])
    others = [path.with_name("path.arrow"), DATA / "small.arrow", *([capture] if capture else [])]
    to = results / f"joined{numbers.choice(['.arrow', '.parquet', *(['.pcapng'] if capture else [])])}"
    words = ["path", *(word for each in others for word in ("--join", str(each))), "-q"]
    found: list[Step] = [[*words, *numbers.choice([[], ["-o", str(to)], ["--json"]])]]
    if path.suffix == ".arrow" and numbers.random() < DRAWN:
        found.append(lambda: write_path_report({"log": PathLog(path)}, results / "report", "A log", images=False))
    return found


def _packed(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    return [["sizes", "--from", "trace", str(path), "-o", "/dev/null"], lambda: _native.read_trace_gaps(path)]


def _histograms(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    return [lambda: write_path_report({"x": PathHistograms(path)}, results / "report", "A log", images=False)]


def _study(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    directory = next(each for each in path.parents if (each / "study.py").exists())
    found: list[Step] = [["lab", "published", str(directory)]]
    if numbers.random() < 0.5:
        found.append(lambda: write_study_report([directory], results / "report"))
    return found


def _calibration(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    def predicted() -> object:
        return predict(calibrated(Calibration.read(path), 1), arrivals(100e3, count=500))

    words = "-d 1ms --warm-up 0 --replications 1 --threads 1 --events-max 1M --jobs-max 100k --allow-unstable"
    return [["model", "run", "linux-napi", "--calibration", str(path), *words.split()], predicted]


def _hosts(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    return [lambda: read_hosts(path)]


def _profile(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    return [["cpu", "trim", str(path)]]


def _table(path: Path, results: Path, numbers: random.Random) -> list[Step]:
    return [["model", "compare", str(path), "single-queue" if numbers.random() < 0.5 else "linux-napi"]]


def kinds(directory: Path) -> dict[str, Kind]:
    """Return the kinds of files; the directory is for what makes them."""
    paths = [packet(number, "forwarded", "receive", number, 100, xmit_ns=900, consume_ns=950) for number in range(40)]
    paths += [packet(50 + number, "dropped", "receive", number, 10, drop_reason=8, drop_ns=40) for number in range(9)]
    paths += [read_of(90, 95, 100, 7)]
    write_path_log(directory / "path.arrow", paths)
    path_log = (directory / "path.arrow").read_bytes()
    frames = [(float(number), frame_of(number, 100)) for number in range(20)]
    captures = {"capture.pcapng": pcapng_of(frames), "capture.pcap": pcap_of(frames)}
    packed = {f"{name}.gz": gzip.compress(content) for name, content in captures.items()}
    packed |= {f"{name}.zst": pa.compress(content, "zstd", asbytes=True) for name, content in captures.items()}
    histograms = json.dumps(as_object(summary_of(np.full((60, 3), 700)), {"kernel": "6.18"})).encode()
    bundle(directory / "study")
    study = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in (directory / "study").rglob("*")
        if path.is_file()
    }
    known().write(directory / "here.toml")
    hosts = "\n".join(
        [
            'scheduler = "tcp://10.0.0.9:8786"',
            *(f'[hosts.{name}]\nworker = "{name}"\ninterfaces = ["eth1"]\naddresses = ["10.0.0.1"]' for name in "ab"),
        ]
    )
    profile = "user: 35.2%, nice: 0.0%, system: 1%, idle: 10.0%, iowait: 3%, irq: 1.0%, softirq: 2.0%,\n" * 9
    profile += "---Summary----\nMin:35.2:0.0:1.0:10.0:3.0:1.0:2.0\n"
    rows = (f"{number * 900},{number * 900 + 700 if number % 7 else ''},64\n" for number in range(99))
    return {
        "TCP log": Kind({"small.arrow": (DATA / "small.arrow").read_bytes()}, _tcp_log, (".arrow",)),
        "older TCP log": Kind({"1.0.arrow": (DATA / "tcp-log-1.0.arrow").read_bytes()}, _tcp_log, (".arrow",)),
        "path log": Kind({"path.arrow": path_log, **captures}, _path_log, (".arrow",)),
        "compressed path log": Kind({"path.arrow": compressed(path_log, "zstd")}, _path_log, (".arrow",)),
        "joined capture": Kind({"path.arrow": path_log, **captures}, _path_log, (".pcap", ".pcapng")),
        "compressed capture": Kind(packed, _packed, (".gz", ".zst")),
        "histograms": Kind({"path.json": histograms}, _histograms, (".json",)),
        "study": Kind(study, _study, ("bundle.json", "evaluation.json", "results.parquet", "run.json")),
        "calibration": Kind({"here.toml": (directory / "here.toml").read_bytes()}, _calibration, (".toml",)),
        "hosts": Kind({"hosts.toml": hosts.encode()}, _hosts, (".toml",)),
        "profile": Kind({"cpu": profile.encode(), "machine": b"1.0:2.0:3.0:94.0:0.0\n" * 9}, _profile, ("",)),
        "table": Kind({"trace.csv": f"arrival_ns,departure_ns,bytes\n{''.join(rows)}".encode()}, _table, (".csv",)),
    }


def with_another_value(content: bytes, numbers: random.Random) -> bytes:
    """Return JSON with one value replaced, removed or moved."""
    found = json.loads(content)
    *above, last = numbers.choice(list(places_of(found)))
    place = found
    for key in above:
        place = place[key]
    if numbers.random() < 0.2:
        del place[last]
    else:
        place[last] = numbers.choice(VALUES)
    return json.dumps(found).encode()


def outcome(steps: list[Step]) -> str:
    """Run what reads a mutated file; return what came of it, or raise what must not be."""
    came_to = set()
    for step in steps:
        if callable(step):
            came_to.add(called(step))
            continue
        status, _, messages = dispatched(step)
        if status:
            check_refusal(messages.splitlines(keepends=True)[-1])
        assert status in (0, 1, 2), status
        came_to.add("refused" if status else "read")
    return " and ".join(sorted(came_to))


def main(seed: int, count: int) -> int:
    """Run mutated files; return how many failed."""
    numbers = random.Random(f"files {seed}")
    came_to: collections.Counter[str] = collections.Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        made, work = Path(temporary) / "made", Path(temporary) / "work"
        made.mkdir()
        all_kinds = kinds(made)
        for number in range(-len(all_kinds), count):
            # Each kind is read as it is first: what is imported then is no mutated file's time.
            name = list(all_kinds)[number] if number < 0 else numbers.choice(list(all_kinds))
            kind = all_kinds[name]
            shutil.rmtree(work, ignore_errors=True)
            for file, content in kind.files.items():
                (work / file).parent.mkdir(parents=True, exist_ok=True)
                (work / file).write_bytes(content)
            path = work / numbers.choice([file for file in kind.files if file.endswith(kind.mutated)])
            content = path.read_bytes()
            if number >= 0:
                is_json = path.suffix == ".json"
                if is_json and numbers.random() < 0.6:
                    content = with_another_value(content, numbers)
                else:
                    content = mutate(content, numbers, is_text=is_json or path.suffix in ("", ".toml", ".csv"))
                if numbers.random() < 0.1:
                    # Nesting and digits without end, where a number stands.
                    place = numbers.choice([found.start() for found in re.finditer(rb"\d|$", content)])
                    content = content[:place] + numbers.choice(BYTES) + content[place:]
                path.write_bytes(content)
            (work / "results").mkdir()
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            began_s = time.process_time()
            try:
                result = outcome(kind.read(path, work / "results", numbers))
                took_s, peak_kib = time.process_time() - began_s, peak_memory_kib()
                assert number >= 0 or result == "read", result
                assert number < 0 or took_s < TIME_MAX_S, f"{took_s} s"
                assert peak_kib < MEMORY_MAX_KIB, f"{peak_kib} KiB"
            except BaseException:
                failed += 1
                result = "failed"
                kept = Path(tempfile.gettempdir()) / f"parshall-fuzz-files-{seed}-{number}-{path.name}"
                kept.write_bytes(content)
                print(f"{kept}: {name}", traceback.format_exc(limit=-6), sep="\n", file=sys.stderr, flush=True)
            faulthandler.cancel_dump_traceback_later()
            if number >= 0:
                came_to[f"{name}: {result}"] += 1
    print(json.dumps({"files": count, "peak_kib": peak_kib, "came_to": came_to}))
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])) > 0)
