"""Time and memory of a report and of every conversion of a long log.

``benches/run long_log`` or ``.venv/bin/python benches/long_log.py [--records N] [--flows N]``. Makes two logs of bulk
flows, one of them a tenth of the other (``crates/core/examples/write_long_log.rs``; 100 million records are 4.5 GB
under ``--directory``), runs ``parshall report`` on the long one and ``parshall convert`` on both, into
``/dev/null``, and measures wall time, CPU time and peak resident memory of each process.

Prints one JSON object; fails when the report takes more than 1 GiB, or two minutes for 100 million records, or
reports another number of records, and when a conversion's memory grows with the log.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _record import finish, parser_for, version_of

from parshall.instruments.tcp_log import FORMATS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = "write_long_log"
GIB, MIB = 1 << 30, 1 << 20
RECORDS = 100_000_000
SECONDS_MAX = 120
# Ten times the records may move an allocator this far, and no further. The end of a Parquet file lists its groups.
GROWTH_MAX_BYTES = 4 * MIB
GROWTH_OF_PARQUET_MAX_BYTES = 32 * MIB


def measured(*command: str | Path) -> dict[str, float]:
    """Run a command; return its wall and CPU seconds and its largest resident memory."""
    begin_s = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(map(str, command))}: ended with status {os.waitstatus_to_exitcode(status)}")
    return {
        "wall_s": time.monotonic() - begin_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "resident_max_bytes": usage.ru_maxrss * 1024,
    }


def conversion(to: str, short: Path, log: Path) -> dict[str, Any]:
    """Convert both logs; return what the long one took, and by how much its memory exceeded the short one's."""
    convert = (sys.executable, "-m", "parshall", "convert", "--quiet", "--to", to, "-o", "/dev/null")
    before, taken = measured(*convert, short), measured(*convert, log)
    return {**taken, "growth_bytes": taken["resident_max_bytes"] - before["resident_max_bytes"]}


def main() -> int:
    """Make the logs, report and convert them; return 1 when that took too much."""
    parser = parser_for(__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--flows", type=int, default=1000)
    parser.add_argument("--directory", type=Path, help="where the logs go for the time being; /tmp by default")
    arguments = parser.parse_args()
    # All members, so that what other builds made is used again.
    build = ["cargo", "build", "--quiet", "--release", "--workspace", "--example", EXAMPLE]
    subprocess.run(build, cwd=ROOT, check=True)
    writer = ROOT / "target/release/examples" / EXAMPLE
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        log, short, page = (Path(directory) / name for name in ("long.arrow", "short.arrow", "report"))
        written = measured(writer, log, str(arguments.records), str(arguments.flows))
        measured(writer, short, str(arguments.records // 10), str(arguments.flows))
        reported = measured(sys.executable, "-m", "parshall", "report", log, "-o", page)
        output = f"{arguments.records:,} records of {arguments.flows:,} flows"
        is_right = output in (page / "report.html").read_text()
        conversions = {to: conversion(to, short, log) for to in FORMATS}
        log_bytes = log.stat().st_size
    results = {
        "records": arguments.records,
        "flows": arguments.flows,
        "log_bytes": log_bytes,
        "write": written,
        "report": reported,
        "records_per_s": arguments.records / reported["wall_s"],
        "says_all_records": is_right,
        "conversions": conversions,
    }
    versions = {"parshall": version_of("git", "-C", str(ROOT), "describe", "--always", "--dirty")}
    finish("long_log", results, versions, arguments.archive)
    seconds_max = SECONDS_MAX * max(1.0, arguments.records / RECORDS)
    is_small = reported["resident_max_bytes"] <= GIB and reported["wall_s"] <= seconds_max
    is_constant = all(
        taken["growth_bytes"] <= (GROWTH_OF_PARQUET_MAX_BYTES if to == "parquet" else GROWTH_MAX_BYTES)
        for to, taken in conversions.items()
    )
    return 0 if is_right and is_small and is_constant else 1


if __name__ == "__main__":
    sys.exit(main())
