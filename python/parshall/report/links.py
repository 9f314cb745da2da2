"""Sentences about the links of a testbed, and whether a run on them is valid."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Maximum lateness of packets as a fraction of the link's delay; above it, the link does not have its parameters.
LATENESS_SHARE_MAX = 0.1
US_PER_NS = 1e-3


@dataclass(frozen=True)
class LinkText:
    """Sentences about a link.

    Attributes
    ----------
    what : str
        The link's parameters.
    did : str
        The packets that the link carried and lost; empty when its backend does not count them.
    warnings : tuple of str
        Why a run on this link should be discarded; empty when the run is valid.
    """

    what: str
    did: str
    warnings: tuple[str, ...]


def links(testbed: Mapping[str, Any]) -> list[LinkText]:
    """Return the sentences about every link.

    `testbed` is the result of `Testbed.describe`, optionally with that of `Link.statistics` in ``statistics``.
    """
    described = testbed.get("links", [])
    statistics = testbed.get("statistics") or [{}] * len(described)
    return [
        LinkText(_what(link), _did(counts.get("relay")), _warnings(link, counts.get("relay")))
        for link, counts in zip(described, statistics, strict=False)
    ]


def _what(link: Mapping[str, Any]) -> str:
    near, far = link["hosts"]
    forward, back = link["a_to_b"], link["b_to_a"]
    parts = [f"{forward['rate_bps'] / 1e6:,.6g} Mbit/s"] if forward["rate_bps"] else []
    parts.append(f"{forward['delay_ms']:g} ms delay forward and {back['delay_ms']:g} ms back")
    if forward["queue_packets"]:
        parts.append(f"a queue of {forward['queue_packets']:,} packets")
    # Older results do not name the discipline.
    discipline = forward.get("discipline", "drop-tail")
    if discipline != "drop-tail":
        parts.append(f"{discipline}{' with ECN' if forward['ecn'] else ''}")
    if forward["loss"]:
        parts.append(f"loss probability {forward['loss']:g}")
    return f"{near} to {far}, played by {link['backend']}: {', '.join(parts)}."


def _did(relay: Mapping[str, Any] | None) -> str:
    if not relay:
        return ""
    forward, back = relay["a_to_b"], relay["b_to_a"]
    early, marked = forward.get("early_dropped", 0), forward.get("marked", 0)
    managed = f", {early:,} of them by its discipline, which marked {marked:,}" if early or marked else ""
    queue = "the queue" if managed else "the full queue"
    return (
        f"It carried {forward['forwarded']:,} of {forward['arrived']:,} packets forward "
        f"({forward['queue_dropped']:,} dropped by {queue}{managed}, {forward['loss_dropped']:,} at random) and "
        f"{back['forwarded']:,} of {back['arrived']:,} back; they left {_late(forward, 'median_ns')} late in "
        f"the median, {_late(forward, 'p99_ns')} at the 99th percentile."
    )


def _warnings(link: Mapping[str, Any], relay: Mapping[str, Any] | None) -> tuple[str, ...]:
    if not relay:
        return ()
    warnings = []
    for direction, name in (("a_to_b", "forward"), ("b_to_a", "back")):
        account, delay_ms = relay[direction], link[direction]["delay_ms"]
        lost = sum(account["own_lost"].values())
        if lost:
            warnings.append(f"The relay itself lost {lost:,} packets in direction {name}: discard this run.")
        if delay_ms and account["lateness"]["p99_ns"] > LATENESS_SHARE_MAX * delay_ms * 1e6:
            warnings.append(
                f"In direction {name}, 1 % of the packets left more than {_late(account, 'p99_ns')} late, "
                f"compared with a delay of {delay_ms:g} ms: the machine was too busy; repeat the run on an idle one."
            )
    return tuple(warnings)


def _late(account: Mapping[str, Any], percentile: str) -> str:
    late_us = account["lateness"][percentile] * US_PER_NS
    return f"{late_us:.0f} µs" if late_us < 1000 else f"{late_us / 1000:.1f} ms"
