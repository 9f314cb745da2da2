"""How often the laboratory calls equal systems different, and how soon it finds a difference that is there.

Run as root: ``.venv/bin/python benches/laboratory.py equal|turns|delay``, long; ``--archive`` keeps the numbers.

equal
    `parshall lab check`: copies of one level of a study, two by two.
turns
    A study with the installed parshall in turns with itself (`lab run --against`).
delay
    Tries of a study whose transfer is slower by a hook that keeps the sender for ``--delay`` ns at each packet: in how
    many the laboratory finds it within ``--budget`` seconds, and after how many.

With ``--loaded`` both CPUs get a loop each in the middle.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _delay
from _object import compiled
from _record import finish, parser_for

from parshall.lab import evaluate, laboratory
from parshall.lab.evaluation import table_of
from parshall.lab.sides import described, equal, false_verdicts, text_of_equal
from parshall.lab.study import Study, load
from parshall.studies import path_of

HOOK = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
static long is_over(__u64 step, void *until_ns) { return bpf_ktime_get_ns() > *(__u64 *)until_ns; }
SEC("tc") int delay(struct __sk_buff *skb)
{
	__u64 until_ns = bpf_ktime_get_ns() + DELAY_NS;

	bpf_loop(1 << 14, is_over, &until_ns, 0);
	return -1; /* TC_ACT_UNSPEC */
}
char LICENSE[] SEC("license") = "Dual MIT/GPL";
"""


@contextlib.contextmanager
def load_after(seconds: float | None) -> Iterator[None]:
    """Keep both CPUs busy from so many seconds on."""
    processes: list[subprocess.Popen[bytes]] = []
    ended = threading.Event()

    def start() -> None:
        if not ended.wait(seconds):
            processes.extend(subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in os.sched_getaffinity(0))

    thread = threading.Thread(target=start)
    if seconds is not None:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if seconds is not None:
            thread.join()
        for process in processes:
            process.kill()
            process.wait()


def equal_levels(name: str, copies: int, repeats: int, loaded: bool, directory: Path) -> dict[str, Any]:
    """Compare copies of one level of a study."""
    path = path_of(name)
    made = equal(load(path), copies)
    planned = laboratory.plan(made, is_quick=True, repeats=repeats, seed=1)
    about_s = laboratory.estimate_s(made, planned, is_quick=True)
    with load_after(about_s / 2 if loaded else None):
        text = text_of_equal(path.read_text(), copies)
        bundle = laboratory.run(made, text, directory / "equal", is_quick=True, repeats=repeats)
    rows = evaluate(bundle, made)["equal"]
    return {"study": name, "copies": copies, "repeats": repeats, "loaded": loaded, **false_verdicts(rows), "rows": rows}


def in_turns(name: str, repeats: int, loaded: bool, directory: Path) -> dict[str, Any]:
    """Compare a study with itself, by the same parshall."""
    path = path_of(name)
    study = load(path)
    against = Path(sys.executable).with_name("parshall")
    described(against)
    planned = laboratory.plan(study, is_quick=True, repeats=repeats, seed=1, has_sides=True)
    about_s = laboratory.estimate_s(study, planned, is_quick=True)
    with load_after(about_s / 2 if loaded else None):
        bundle = laboratory.run(
            study, path.read_text(), directory / "turns", is_quick=True, repeats=repeats, against=against
        )
    rows = [row for row in evaluate(bundle, study)["comparison"]["rows"] if row["low"] is not None and not row["end"]]
    # Each by itself; the verdicts of the report allow for their number.
    false = sum(row["low"] > 0 or row["high"] < 0 for row in rows)
    return {"study": name, "repeats": repeats, "loaded": loaded, "compared": len(rows), "false": false, "rows": rows}


def try_once(study: Study, delay_ns: int, seed: int, budget_s: float, directory: Path) -> dict[str, Any]:
    """Run the study of the delay once; return its statement and how long it took."""
    began_s = time.monotonic()
    text, at = Path(_delay.__file__).read_text(), {"delay": ["0", str(delay_ns)]}
    bundle = laboratory.run(study, text, directory, at=at, seed=seed, budget_s=budget_s)
    took_s = time.monotonic() - began_s
    statement = evaluate(bundle, study)["statements"][0]
    row = {name: statement[name] for name in ("is_same", "measured", "low", "high", "reason")}
    return row | {"took_s": took_s, "blocks": statement.get("blocks"), "rows": table_of(bundle, study).frame.height}


def main() -> int:
    """Measure, print, archive."""
    parser = parser_for(__doc__)
    parser.add_argument("what", choices=["equal", "turns", "delay"])
    parser.add_argument("--study", default="siftr")
    parser.add_argument("--copies", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loaded", action="store_true")
    parser.add_argument("--delay", type=int, default=8_000, choices=_delay.DELAYS_NS[1:])
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--budget", type=float, default=300.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if arguments.what == "equal":
            found = equal_levels(arguments.study, arguments.copies, arguments.repeats, arguments.loaded, directory)
        elif arguments.what == "turns":
            found = in_turns(arguments.study, arguments.repeats, arguments.loaded, directory)
        else:
            hook = f"delay-{arguments.delay}"
            if compiled(directory, HOOK.replace("DELAY_NS", f"{arguments.delay}ULL"), hook) is None:
                sys.exit("clang or the headers of libbpf are missing: make build")
            os.environ["DELAYS"] = name
            study = load(Path(_delay.__file__))
            tries = []
            for number in range(arguments.tries):
                own = directory / str(number)
                tries.append(try_once(study, arguments.delay, number + 1, arguments.budget, own))
                print(f"try {number + 1}: {tries[-1]}", file=sys.stderr)
            right = [each for each in tries if each["is_same"]]
            found = {"delay_ns": arguments.delay, "budget_s": arguments.budget, "found": len(right), "tries": tries}
    finish("laboratory", {"what": arguments.what, **found}, {}, arguments.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
