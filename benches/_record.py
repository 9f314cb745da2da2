"""The record of a benchmark's run: command, versions, machine and raw numbers."""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).resolve().parent / "archive"


def parser_for(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark: ``--rounds``, and ``--archive [NAME]``, which is for :func:`finish`."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--archive",
        nargs="?",
        const="",
        metavar="NAME",
        help="keep the numbers in benches/archive/, under this name",
    )
    return parser


def version_of(*command: str) -> str:
    """Return the first line of a program's version output, or that there is none: numbers of an hour stay."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return "not found"
    return ((done.stdout or done.stderr).splitlines() or ["?"])[0]


def processor() -> str:
    """Return the name of the processor, or the machine's where the kernel gives none."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.machine())


def finish(benchmark: str, results: dict[str, Any], versions: dict[str, str | None], archive: str | None) -> None:
    """Print one JSON object that says what was measured, on what and by which command; keep it if asked to.

    Parameters
    ----------
    results : dict of str to Any
        Raw numbers, and what follows from them.
    archive : str, optional
        When given, a file in ``benches/archive/`` gets the object, this behind its date if not empty.
    """
    now = datetime.now(UTC)
    record = {
        "benchmark": benchmark,
        "command": " ".join([str(Path(sys.argv[0]).resolve().relative_to(ARCHIVE.parents[1])), *sys.argv[1:]]),
        "date": now.isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "versions": {"python": platform.python_version(), **versions},
        **results,
    }
    if archive is not None:
        path = ARCHIVE / f"{'-'.join(filter(None, [benchmark, f'{now:%Y-%m-%d}', archive]))}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"archived: {path}", file=sys.stderr)
    print(json.dumps(record))
