"""What merged filters cost in the kernel: nanoseconds a packet, without traffic.

Run as root: ``benches/run filters`` or ``.venv/bin/python benches/filters.py [--archive [NAME]]``. Builds and runs the
example ``filter_cost``, which gives every filter one frame, 200,000 times in each of 21 rounds, by
``BPF_PROG_TEST_RUN``: the filter alone, with the map that it counts in, but neither a copy nor a ring. Among them
are the filter of Schneider's thesis (figure 6.5) and six filters that overlap, beside one of these.
"""

import re
import subprocess
import sys

from _object import ROOT
from _record import finish, parser_for

LINE = re.compile(r"\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+(\S.*)")
COLUMNS = ("median_ns", "least_ns", "most_ns", "instructions", "merge_ms", "load_ms")


def main() -> int:
    """Measure, print, archive."""
    parser = parser_for(__doc__)
    arguments = parser.parse_args()
    build = ["cargo", "build", "--release", "--workspace", "--example", "filter_cost"]
    subprocess.run(build, cwd=ROOT, check=True)
    example = ROOT / "target/release/examples/filter_cost"
    output = subprocess.run([example], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(output, file=sys.stderr)
    costs: dict[str, dict[str, dict[str, float]]] = {}
    for line in output.splitlines():
        if line.endswith("runs"):
            hook = costs.setdefault("xdp" if line.startswith("Xdp") else "tcx", {})
        elif found := LINE.fullmatch(line):
            *numbers, name = found.groups()
            hook[name] = dict(zip(COLUMNS, map(float, numbers), strict=True))
    finish("filters", {"costs": costs}, {}, arguments.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
