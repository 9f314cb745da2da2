"""What the studies after Schneider's thesis share: its traffic, its filter, capturing rates."""

from typing import Any

from parshall.lab.programs import generate, tcpdump_counts
from parshall.lab.run import AbsentError, Run, lost
from parshall.lab.study import Host, Link, Program

DOCUMENT = (
    "F. Schneider: Performance evaluation of packet capturing systems for high-speed networks, diploma thesis, "
    "Technische Universität München, 2005"
)
# 26 gaps from 100,000 to 0 ns, as in section 6.2.1.
GAPS_NS = [
    *(100_000, 50_000, 30_000, 20_000, 15_000, 12_000, 10_000, 9_000, 8_000, 7_000, 6_500, 6_000, 5_500),
    *(5_000, 4_500, 4_000, 3_500, 3_000, 2_500, 2_000, 1_500, 1_000, 750, 500, 250, 0),
]
SENDER, SNIFFER = "sender", "sniffer"
# Its link, Mbit/s.
GIGABIT = 1000.0


def hosts(cpus: int = 2) -> tuple[list[Host], list[Link]]:
    """Return the generating host and the sniffer on a cable; with one CPU, both share it."""
    return [Host(SENDER, cpu=0), Host(SNIFFER, cpu=-1 if cpus == 2 else 0)], [Link(SENDER, SNIFFER, napi=True)]


def traffic(duration_s: float, gap_ns: int | None = None, sizes: str = "thesis", **rate: str) -> Program:
    """Return the generator, with the addresses of section 6.3.2; a gap of 0 is as fast as it goes."""
    gaps = ["--gap", f"fixed:mean={gap_ns}ns"] if gap_ns else []
    rates = [word for name, value in rate.items() for word in (f"--{name}", value)]
    addresses = ["--src", "192.168.10.100", "--dst", "192.168.10.12"]
    macs = ["--src-mac", "00:00:00:00:00:00-00:00:00:00:00:02"]
    return generate(SENDER, duration_s, "--sizes", sizes, *gaps, *rates, *addresses, *macs, "-d", f"{duration_s:g}s")


def filter_50() -> str:
    """Return the expression of Figure 6.5: it looks at every address, and accepts all generated packets.

    Its line 31, "990.99.12.23", is no address; 110 stands there.
    """
    terms = ["ether[6:4]=0x00000000 and ether[10]=0x00 and not tcp"]
    for word, network in (("src", 11), ("dst", 99)):
        terms += [f"not ip {word} {(number + 1) * 10}.{network}.12.{13 + number}" for number in range(19)]
    return " and ".join(terms)


def rate_mbps(run: Run) -> float:
    """Return the bits of frames that the link carried, Mbit/s."""
    return 8 * run.sent(SENDER, what="bytes") / run.result("gen")["elapsed_ns"] * 1e3


def rate_kpps(run: Run) -> float:
    """Return the packets that the link carried, thousands a second."""
    return run.sent(SENDER) / run.result("gen")["elapsed_ns"] * 1e6


def captured(run: Run) -> list[int]:
    """Return how many packets each application captured."""
    found = []
    for name, outcome in run.record["programs"].items():
        if not name.startswith("app-"):
            continue
        if outcome["is_json"]:
            found.append(sum(account["logged"] for account in _interfaces(run.result(name))))
        else:
            found.append(tcpdump_counts(run.errors(name))["captured"])
    if not found:
        raise AbsentError("no application ran")
    return found


def _interfaces(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [account for one in result["ledger"]["subscribers"] for account in one["interfaces"]]


def capturing_rates(run: Run) -> list[float]:
    """Return the capturing rate of each application, percent: equation 6.1, packets captured of those on the link."""
    return [100 * packets / run.sent(SENDER) for packets in captured(run)]


def share_lost(run: Run) -> float:
    """Return what the ledgers of the applications say was lost, percent of what they saw."""
    listed = [account for name in run.record["ledgers"] for account in _interfaces(run.result(name))]
    return 100 * sum(map(lost, listed)) / max(1, sum(account["seen"] for account in listed))


def sniffer_cpu(run: Run) -> float | None:
    """Return how busy the CPU of the applications was, percent."""
    return run.cpu_percent(SNIFFER, -1 if run.level.get("cpus", 2) == 2 else 0)
