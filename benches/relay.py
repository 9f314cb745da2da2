"""What the relay carries, with one CPU for itself and another one for both hosts.

A study: ``benches/run relay`` or ``parshall lab run benches/relay.py``. Needs root and iperf3.

UDP, 100 Mbit/s
    1514-byte frames at 95 Mbit/s one way into a link of 100 Mbit/s with a delay of 3 ms.
UDP, 1 Gbit/s
    1514-byte frames at 0.98 Gbit/s one way into a link of 1 Gbit/s with a delay of 1 ms.
TCP, 1 Gbit/s
    One TCP connection through a link of 1 Gbit/s with a delay of 1 ms.
TCP, not shaped
    One TCP connection through a relay without a rate: what the relay and the hosts can carry.
TCP, no relay
    The same over a bare veth.
"""

import os

from parshall.lab import Figure, Finding, Host, Link, Measure, Setting, Statement, Study, grid, iperf3

# A full packet of MTU 1500 with its Ethernet header, and what of it is UDP payload.
FRAME_BYTES, UDP_PAYLOAD_BYTES = 1514, 1472
SHAPED = {"rate_bps": 1e9, "delay_ms": 1, "queue_packets": 1000, "backend": "relay"}
CASES = {
    "UDP, 100 Mbit/s": ({**SHAPED, "rate_bps": 100e6, "delay_ms": 3}, 95e6),
    "UDP, 1 Gbit/s": (SHAPED, 0.98e9),
    "TCP, 1 Gbit/s": (SHAPED, None),
    "TCP, not shaped": ({"backend": "relay"}, None),
    "TCP, no relay": ({"backend": "veth"}, None),
}


def setting(level, duration_s):
    """Return two hosts on the first CPU, and a link whose relay has the last one."""
    options, offered_bps = CASES[level["case"]]
    # Full frames at the rate, Ethernet headers included.
    payload_bps = round((offered_bps or 0) * UDP_PAYLOAD_BYTES / FRAME_BYTES)
    udp = ["-u", "-l", UDP_PAYLOAD_BYTES, "-b", payload_bps] if offered_bps else []
    return Setting(
        [Host("sender", cpu=0), Host("receiver", cpu=0)],
        [Link("sender", "receiver", cpu=max(os.sched_getaffinity(0)), **options)],
        iperf3("sender", "receiver", duration_s, *udp),
        duration_s,
    )


def relay(run):
    """Return the statistics of the relay; None without one."""
    return run.record["testbed"]["statistics"][0].get("relay")


def of_relay(function):
    """Return a measure of the relay's statistics and of the direction of the data."""
    return lambda run: function(relay(run), relay(run)["a_to_b"]) if relay(run) else None


def own_lost(statistics, _direction):
    """Return the packets that the relay lost by its own fault."""
    return sum(sum(statistics[name]["own_lost"].values()) for name in ("a_to_b", "b_to_a"))


def cpu_ns(statistics, _direction):
    """Return the CPU time of the relay for each frame."""
    return 1e9 * statistics["cpu_s"] / sum(statistics[name]["forwarded"] for name in ("a_to_b", "b_to_a"))


def payload_mbps(run):
    """Return the payload, Mbit/s."""
    end = run.result("iperf3")["end"]
    return (end["sum"] if "sum" in end else end["sum_received"])["bits_per_second"] / 1e6


def loses_nothing(table):
    """What the relay itself lost at 1 Gbit/s."""
    worst = max(table.values("own_lost", case="UDP, 1 Gbit/s"))
    return Finding(f"at most {worst:.0f} packets in a run", worst == 0, "" if worst == 0 else "the machine is too slow")


study = Study(
    name="relay",
    title="What does the relay carry?",
    question="iperf3 sends through a relay that has a CPU of its own; both hosts share another one.",
    setting=setting,
    levels=grid(case=[*CASES]),
    has_controls=False,
    duration_s=5,
    repeats=5,
    measures=[
        Measure("payload", "Mbit/s", payload_mbps, "payload"),
        Measure("own_lost", "packets", of_relay(own_lost), "lost by the relay itself"),
        Measure("dropped", "packets", of_relay(lambda _, forth: forth["queue_dropped"]), "dropped by the full queue"),
        Measure("cpu_ns", "ns", of_relay(cpu_ns), "CPU time a frame"),
        Measure(
            "late_p99", "us", of_relay(lambda _, forth: forth["lateness"]["p99_ns"] / 1e3), "lateness, 99th percentile"
        ),
    ],
    figures=[Figure("payload", "Payload through the link", "case", ["payload"])],
    statements=[Statement("requirement", "the relay itself loses nothing at 1 Gbit/s", loses_nothing)],
)
