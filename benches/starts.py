"""How long commands take until they have started: to their first line, or to their end.

Run as root: ``.venv/bin/python benches/starts.py [--rounds 7] [--archive]``. The commands take turns. Prints one line
of JSON: for each command the times of all rounds, s.
"""

import statistics
import subprocess
import sys
import time

from _record import finish, parser_for

PARSHALL = [sys.executable, "-m", "parshall"]
# Each with the text of the line that says that it has started; without, until it has ended.
STARTS = {
    "doctor": (["doctor"], ""),
    "path": (["path", "-d", "1"], "started, "),
    "path_log": (["path", "-d", "1", "-o", "/dev/null", "--reads"], "started, "),
}


def start_s(command: str) -> float:
    """Return how long a command takes until it has started."""
    words, started = STARTS[command]
    began = time.monotonic()
    process = subprocess.Popen(
        [*PARSHALL, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    assert process.stderr is not None
    if started and not any(started in line for line in process.stderr):
        raise RuntimeError(f"parshall {command} did not start")
    took_s = time.monotonic() - began
    process.communicate()
    return took_s if started else time.monotonic() - began


def main() -> int:
    """Measure, print, archive."""
    parser = parser_for(__doc__, rounds=7)
    arguments = parser.parse_args()
    starts: dict[str, list[float]] = {command: [] for command in STARTS}
    for _ in range(arguments.rounds):
        for command, times_s in starts.items():
            times_s.append(start_s(command))
    for command, times_s in starts.items():
        print(f"{command:15} started after {statistics.median(times_s):.2f} s", file=sys.stderr)
    finish("starts", {"starts_s": starts}, {}, arguments.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
