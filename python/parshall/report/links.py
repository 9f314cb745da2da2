"""What the links of a testbed did, in sentences, and whether a run on them counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A packet that leaves later than this share of the link's delay has not seen the link that was asked for.
LATENESS_SHARE_MAX = 0.1
US_PER_NS = 1e-3


@dataclass(frozen=True)
class LinkText:
    """Sentences about a link.

    Attributes
    ----------
    what : str
        What it was asked to be.
    did : str
        What it carried and lost; empty when its player keeps no such account.
    doubts : tuple of str
        Why a run on it does not count; empty when it does.
    """

    what: str
    did: str
    doubts: tuple[str, ...]


def links(testbed: Mapping[str, Any]) -> list[LinkText]:
    """Return the sentences about every link.

    Parameters
    ----------
    testbed
        What `Testbed.describe` returns, with what `Link.statistics` returns of each link under
        ``statistics`` when it is there.
    """
    described = testbed.get("links", [])
    statistics = testbed.get("statistics") or [{}] * len(described)
    return [
        LinkText(_what(link), _did(told.get("relay")), _doubts(link, told.get("relay")))
        for link, told in zip(described, statistics, strict=False)
    ]


def _what(link: Mapping[str, Any]) -> str:
    near, far = link["hosts"]
    there, back = link["a_to_b"], link["b_to_a"]
    parts = [f"{there['rate_bps'] / 1e6:,.6g} Mbit/s"] if there["rate_bps"] else []
    parts.append(f"{there['delay_ms']:g} ms there and {back['delay_ms']:g} ms back")
    if there["queue_packets"]:
        parts.append(f"a queue of {there['queue_packets']:,} packets")
    if there["loss"]:
        parts.append(f"loss probability {there['loss']:g}")
    return f"{near} to {far}, played by {link['backend']}: {', '.join(parts)}."


def _did(relay: Mapping[str, Any] | None) -> str:
    if not relay:
        return ""
    there, back = relay["a_to_b"], relay["b_to_a"]
    return (
        f"It carried {there['forwarded']:,} of {there['arrived']:,} packets there "
        f"({there['queue_dropped']:,} dropped by the full queue, {there['loss_dropped']:,} by chance) and "
        f"{back['forwarded']:,} of {back['arrived']:,} back; they left {_late(there, 'median_ns')} late in "
        f"the median, {_late(there, 'p99_ns')} at the 99th percentile."
    )


def _doubts(link: Mapping[str, Any], relay: Mapping[str, Any] | None) -> tuple[str, ...]:
    if not relay:
        return ()
    said = []
    for direction, way in (("a_to_b", "there"), ("b_to_a", "back")):
        account, delay_ms = relay[direction], link[direction]["delay_ms"]
        lost = sum(account["own_lost"].values())
        if lost:
            said.append(f"The relay itself lost {lost:,} packets on the way {way}: this run does not count.")
        if delay_ms and account["lateness"]["p99_ns"] > LATENESS_SHARE_MAX * delay_ms * 1e6:
            said.append(
                f"On the way {way} one packet in a hundred left more than {_late(account, 'p99_ns')} late, "
                f"beside a delay of {delay_ms:g} ms: the machine was too busy; repeat it on a quiet one."
            )
    return tuple(said)


def _late(account: Mapping[str, Any], percentile: str) -> str:
    late_us = account["lateness"][percentile] * US_PER_NS
    return f"{late_us:.0f} µs" if late_us < 1000 else f"{late_us / 1000:.1f} ms"
