"""What the relay carries, with one CPU for itself and another one for both hosts.

Run as root: ``python benches/relay.py [--repeats 5] [--seconds 5]``. Prints one line of JSON: for
each case the minimum, median and maximum over the repeats, and the sum of what the relay lost by
its own fault. The cases are interleaved, because the speed of a shared machine drifts.

udp_100m
    1514-byte frames at 95 Mbit/s one way into a link of 100 Mbit/s with a delay of 3 ms.
udp_1g
    1514-byte frames at 0.98 Gbit/s one way into a link of 1 Gbit/s with a delay of 1 ms.
tcp_1g
    One TCP connection through a link of 1 Gbit/s with a delay of 1 ms.
tcp_unshaped
    One TCP connection through a relay that limits nothing: the relay's own limit.
tcp_veth
    The same connection without a relay, offloads off: what the hosts' CPU alone can do.
"""

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from _record import finish, parser_for, version_of

from parshall import _native
from parshall.testbed import Link, Testbed

# A full packet of MTU 1500 with its Ethernet header, and what of it is UDP payload.
FRAME_BYTES, UDP_PAYLOAD_BYTES = 1514, 1472


def udp(offered_bps: float) -> list[str]:
    """Return the options of iperf3 for full frames at this rate, Ethernet headers included."""
    payload_bps = round(offered_bps * UDP_PAYLOAD_BYTES / FRAME_BYTES)
    return ["-u", "-l", str(UDP_PAYLOAD_BYTES), "-b", str(payload_bps)]


SHAPED = {"rate_bps": 1e9, "delay_ms": 1, "queue_packets": 1000}
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "udp_100m": ({"rate_bps": 100e6, "delay_ms": 3, "backend": "relay"}, udp(95e6)),
    "udp_1g": ({**SHAPED, "backend": "relay"}, udp(0.98e9)),
    "tcp_1g": ({**SHAPED, "backend": "relay"}, []),
    "tcp_unshaped": ({"backend": "relay"}, []),
    "tcp_veth": ({"backend": "veth"}, []),
}


def measure(case: str, seconds: float, host_cpu: int, relay_cpu: int) -> dict[str, float]:
    """Run one case once."""
    parameters, options = CASES[case]
    with Testbed() as bed:
        sender, receiver = bed.host("sender", cpu=host_cpu), bed.host("receiver", cpu=host_cpu)
        link: Link = bed.link(sender, receiver, cpu=relay_cpu, **parameters)
        server = receiver.popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
        receiver.wait_for_listener(5201)
        command = ["iperf3", "-c", link.address(receiver), "-t", f"{seconds:g}", "-J", *options]
        end = json.loads(sender.run(command, timeout_s=seconds + 60).stdout)["end"]
        server.wait(timeout=60)
        payload_bps = end["sum" if "-u" in options else "sum_received"]["bits_per_second"]
        measured = {"payload_gbps": payload_bps / 1e9}
        relay = link.close().get("relay")
        if relay is None:
            return measured
        ledgers = (relay["a_to_b"], relay["b_to_a"])
        frames = sum(ledger["forwarded"] for ledger in ledgers)
        forth = relay["a_to_b"]
        return measured | {
            "frames": forth["arrived"],
            "arrived_gbps": forth["arrived_bytes"] * 8 / seconds / 1e9,
            "own_lost": sum(sum(ledger["own_lost"].values()) for ledger in ledgers),
            "queue_dropped": forth["queue_dropped"],
            "cpu_ns_per_frame": relay["cpu_s"] * 1e9 / frames,
            "cpu_share": relay["cpu_s"] / seconds,
            **{f"late_{name[:-3]}_us": value / 1e3 for name, value in forth["lateness"].items()},
        }


def summary(values: list[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def main() -> int:
    """Measure, print, and fail when the relay lost packets of its own at 1 Gbit/s."""
    parser = parser_for(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    runs: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    for _ in range(arguments.repeats):
        for case, done in runs.items():
            done.append(measure(case, arguments.seconds, cpus[0], cpus[-1]))
    results = {case: {name: summary([run[name] for run in done]) for name in done[0]} for case, done in runs.items()}
    versions = {"parshall": _native.__version__, "iperf3": version_of("iperf3", "--version")}
    finish("relay", {"results": results}, versions, arguments.archive)
    return int(results["udp_1g"]["own_lost"]["max"] > 0)


if __name__ == "__main__":
    sys.exit(main())
