"""The model of a security gateway: a thread encrypts what the softirq, which goes first, forwards to it on one CPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow

from parshall.model.builtin.bsd import FORWARDED
from parshall.model.network import Model
from parshall.router.network import PACKETS, departures_of
from parshall.router.prediction import Prediction

# The length of a TUN device's queue, packets.
_TUN_PACKETS = 500
# Where packets are lost that the softirq does nothing for.
_BEFORE = ("ring", "backlog")
# Below this ratio of what arrives to what the gateway forwards, both rates are those of the softirq, and the gateway's
# own service cannot be computed from them.
_LEAST_SURPLUS = 1.1


@dataclass(frozen=True)
class Services:
    """What a packet takes, ns: in the softirq, and in the gateway's thread."""

    softirq_ns: float
    gateway_ns: float


def services(capacity: Mapping[str, Any], overload: Mapping[str, Any]) -> Services | None:
    """Return both from two rates of a gateway; None where the rates do not tell them apart.

    At the highest rate without loss ``c``, both take all of the CPU: ``c (s + g) = 1``. Under overload the softirq has
    the CPU first, and takes each of the ``r`` packets a second that reach it; the gateway forwards ``f`` of them in
    the time that is left: ``r s + f g = 1`` (the live-lock of section 3.8.2 of Lepe-Aldama's thesis).

    Parameters
    ----------
    capacity, overload : mapping
        ``capacity`` and ``overload`` of the result of ``parshall router measure --load``.
    """
    lost = overload["lost"]
    share = overload["lost_share"] * sum(lost[place] for place in _BEFORE) / max(1, sum(lost.values()))
    reached, forwarded = overload["sent_pps"] * (1 - share), overload["pps"]
    if not capacity["pps"] or reached < _LEAST_SURPLUS * forwarded:
        return None
    both_ns = 1e9 / capacity["pps"]
    softirq_ns = (1e9 - both_ns * forwarded) / (reached - forwarded)
    return Services(softirq_ns, both_ns - softirq_ns) if 0 < softirq_ns < both_ns else None


def gateway(found: Services, seed: int = 1) -> Prediction:
    """Return the model: constant services, no bound of the backlog, no wake-ups of the thread, no stalls."""

    def departures(arrivals: pyarrow.Table) -> pyarrow.Array:
        model = Model("gateway").source(PACKETS, {"trace": "gaps_ns"}, "softirq")
        model.station("cpu", kind="preemptive-resume")
        model.queue("softirq", "cpu", found.softirq_ns, "gateway", priority=0)
        model.queue("gateway", "cpu", found.gateway_ns, FORWARDED, priority=1, capacity_packets=_TUN_PACKETS)
        return departures_of(model, arrivals.column("arrival_ns").to_numpy(), seed)

    return departures
