"""What following packets costs a router: its capacity with and without the probes.

Run as root: ``python benches/path.py [--rounds 7] [--count 600000] [--receive rps]``. Source, router and sink are
network namespaces; the generator offers more than the router can forward, and the sink counts what arrives. In every
round each mode is measured once, in shuffled order, and compared with the mean of the two bare runs around it: the
speed of a shared machine drifts. So is how long the commands take to start. Prints one line of JSON: for each mode the
share of the capacity that is kept, median and quartiles, what a forwarded packet cost more, ns, and how many times the
cost of empty programs at the same places that is; for each command the median time to its first line, s.

h2, h5, h9
    Histograms of 2, 5 and 9 stages that forwarded packets pass.
h9_share
    Histograms of 9 stages, attached 5 % of the time.
h5_connection
    Histograms of 5 stages for each connection.
log9
    A row of 9 stages for each packet, into a file.
log9_16
    The same of every 16th packet.
e2, e5, e9
    Programs that do nothing at the places of these stages: the bound.
bpftrace5
    A bpftrace script with the same 5 tracepoints, a time for each packet and histograms.
"""

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _empty import empty_programs
from _record import finish, parser_for, version_of

from parshall.instruments.path import PathProfile
from parshall.router.offer import offer
from parshall.router.setup import Setup
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic

TWO = ["receive", "start_xmit"]
FIVE = ["gro", "receive", "queue", "start_xmit", "xmit"]
NINE = [*FIVE, "tcx_ingress", "pre_routing", "forward", "post_routing"]
PARSHALL = [sys.executable, "-m", "parshall"]
# Each with the text of the line that says that it has started; without, until it has ended.
STARTS = {
    "doctor": (["doctor"], ""),
    "path": (["path", "-d", "1"], "started, "),
    "path_log": (["path", "-d", "1", "-o", "/dev/null", "--reads"], "started, "),
}
EMPTY = ("e2", "e5", "e9")
SHARE_LENGTH = 10
# Packets of the generator: 4 flows, so that there are connections to tell apart.
FLOWS = 4
# The same as FIVE does: the time of each stage since the stage before, by packet.
_LATER = (
    "tracepoint:net:{point} {{ $s = @at[args->skbaddr]; "
    "if ($s) {{ @{point} = hist(nsecs - $s); @at[args->skbaddr] = nsecs; }} }}\n"
)
_SCRIPT_END = "delete(@at[args->skbaddr]);"
SCRIPT = (
    "tracepoint:net:napi_gro_receive_entry { @at[args->skbaddr] = nsecs; }\n"
    + "".join(_LATER.format(point=point) for point in ("netif_receive_skb", "net_dev_queue", "net_dev_start_xmit"))
    + _LATER.format(point="net_dev_xmit").replace("@at[args->skbaddr] = nsecs;", _SCRIPT_END)
    + 'BEGIN { printf("attached\\n"); }\n'
)
# bpftrace wants tracefs and debugfs, which not every host has mounted: they are, for it alone.
WITH_TRACEFS = """mount -t tracefs none /sys/kernel/tracing; mount -t debugfs none /sys/kernel/debug
exec bpftrace -e "$0" """


@contextmanager
def bpftrace() -> Iterator[None]:
    """Run the script."""
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", WITH_TRACEFS, SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        if not any("attached" in line for line in lines):
            raise RuntimeError("bpftrace did not attach")
        yield
    finally:
        process.terminate()
        process.communicate()


def stages_of(mode: str) -> list[str]:
    """Return the stages that a mode has."""
    return TWO if "2" in mode else FIVE if "5" in mode else NINE


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


@contextmanager
def measuring(mode: str, bed: RouterTestbed, directory: str, found: dict[str, Any]) -> Iterator[None]:
    """Follow the router's packets while the block runs."""
    if mode == "bare":
        yield
        return
    if mode == "bpftrace5":
        with bpftrace():
            yield
        return
    stages = stages_of(mode)
    if mode in EMPTY:
        with empty_programs(stages, bed.router, bed.ingress):
            yield
        return
    options: dict[str, Any] = {"interface": bed.ingress, "netns": bed.router.namespace}
    log = Path(directory) / "path.arrow" if mode.startswith("log") else None
    if mode == "h9_share":
        options |= {"share": 0.05, "seed": random.getrandbits(32)}
    if mode == "h5_connection":
        options |= {"by": "connection"}
    if mode == "log9_16":
        options |= {"every": 16}
    if not mode.startswith("log") and mode != "h9_share" and "tcx_ingress" not in stages:
        # Histograms of a whole host need no filter.
        options = {key: value for key, value in options.items() if key not in ("interface", "netns")}
        if any(stage in stages for stage in ("pre_routing", "forward", "post_routing")):
            options["netns"] = bed.router.namespace
    with PathProfile(log, stages=stages, **options) as profile:
        yield
    summary = profile.summary
    assert summary is not None
    account = summary.ledger["hooks"][0]
    lost = sum(account["lost"].values())
    assert account["seen"] == account["filtered"] + account["thinned"] + account["logged"] + lost, account
    entry = found.setdefault(mode, {"packets": 0, "lost": 0})
    entry["packets"] += account["seen"]
    entry["lost"] += lost


def main() -> None:
    """Measure all modes in turns."""
    parser = parser_for(__doc__, rounds=7)
    parser.add_argument("--count", type=int, default=600_000)
    parser.add_argument("--receive", default="rps", choices=["rps", "threaded"])
    parser.add_argument("--modes", default="h2,h5,h9,h9_share,h5_connection,log9,log9_16,e2,e5,e9,bpftrace5")
    arguments = parser.parse_args()
    modes = arguments.modes.split(",")
    rates: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
    ledgers: dict[str, Any] = {}
    starts: dict[str, list[float]] = {command: [] for command in STARTS}
    with RouterTestbed(Setup(receive=arguments.receive)) as bed, tempfile.TemporaryDirectory() as directory:

        def run(mode: str, seed: int) -> float:
            with measuring(mode, bed, directory, ledgers):
                # Windows of half a second at random times need more of it.
                count = arguments.count * (SHARE_LENGTH if mode == "h9_share" else 1)
                return offer(bed, Traffic("none", flows=FLOWS, seed=seed), count).received_pps

        seed = 0
        for number in range(arguments.rounds):
            random.shuffle(modes)
            before = run("bare", seed)
            for mode in modes:
                seed += 1
                with_probes = run(mode, seed)
                after = run("bare", seed)
                rates[mode].append((with_probes, (before + after) / 2))
                before = after
            for command, times_s in starts.items():
                times_s.append(start_s(command))
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    results = {}
    for mode, pairs in rates.items():
        kept = [probed / bare for probed, bare in pairs]
        cost = [1e9 / probed - 1e9 / bare for probed, bare in pairs]
        results[mode] = {
            "kept": statistics.median(kept),
            "kept_quartiles": statistics.quantiles(kept, n=4) if len(kept) > 1 else kept,
            "cost_ns": statistics.median(cost),
            "rates_pps": pairs,
            **ledgers.get(mode, {}),
        }
    for mode, result in sorted(results.items()):
        bound = results.get(next((one for one in EMPTY if stages_of(one) == stages_of(mode)), ""))
        if bound and bound["cost_ns"] > 0:
            result["times_empty"] = result["cost_ns"] / bound["cost_ns"]
        ratio = f", {result['times_empty']:.2f} times the empty programs" if "times_empty" in result else ""
        print(f"{mode:15} kept {result['kept']:.3f}  {result['cost_ns']:6.0f} ns a packet{ratio}", file=sys.stderr)
    for command, times_s in starts.items():
        print(f"{command:15} started after {statistics.median(times_s):.2f} s", file=sys.stderr)
    finish(
        "path",
        {"receive": arguments.receive, "modes": results, "starts_s": starts},
        {"bpftrace": version_of("bpftrace", "--version")},
        arguments.archive,
    )


if __name__ == "__main__":
    main()
