"""Links between two hosts."""

import time
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from parshall.errors import UsageError
from parshall.testbed.hosts import Host
from parshall.testbed.players import Player
from parshall.testbed.shaping import Shaping

# The multicast reports of IPv6 addresses are over when none has come for this long; the settings
# of `cables.lay` let the kernel send them within a few clock ticks.
_SILENCE_S = 0.03
_NUD_PERMANENT = 0x80
_IFA_F_NODAD = 0x02


@dataclass(frozen=True)
class End:
    """Where a link meets a host.

    Attributes
    ----------
    host : Host
        The host.
    interface : str
        Name of the interface in the host.
    mac, ipv4, ipv6 : str
        Its addresses; `ipv6` is empty where the kernel has no IPv6.
    """

    host: Host
    interface: str
    mac: str
    ipv4: str
    ipv6: str


class Link:
    """A link between two hosts; made by `Testbed.link`.

    Attributes
    ----------
    backend : str
        What plays it: "veth" (packets just pass), "kernel" (tbf and netem), or "relay" (ours).
    shapings : tuple of Shaping
        What happens from the first host to the second, and back.
    offloads : bool
        Whether the hosts' interfaces have offloads on.
    mtu : int
        Bytes of the longest IP packet.
    seed : int
        Seed of losses and jitter.
    """

    def __init__(
        self,
        ends: tuple[End, End],
        shapings: tuple[Shaping, Shaping],
        player: Player,
        *,
        mtu: int,
        offloads: bool,
        seed: int,
    ) -> None:
        self.ends = ends
        self.shapings = shapings
        self.mtu = mtu
        self.offloads = offloads
        self.seed = seed
        self.backend = player.name
        self._player = player
        self._before = {end.host.name: _interface_counters(end) for end in ends}

    def __repr__(self) -> str:
        """Show ends and backend."""
        a, b = (end.host.name for end in self.ends)
        return f"Link({a!r}, {b!r}, backend={self.backend!r})"

    def end(self, host: Host) -> End:
        """Return the end of this link at a host."""
        for end in self.ends:
            if end.host is host:
                return end
        raise UsageError(f"link: host {host.name} is not at {self!r}")

    def interface(self, host: Host) -> str:
        """Name of the interface by which a host is on this link."""
        return self.end(host).interface

    def address(self, host: Host, family: int = 4) -> str:
        """Address of a host on this link.

        Parameters
        ----------
        host : Host
            One of the two.
        family : int
            4 or 6.
        """
        end = self.end(host)
        address = {4: end.ipv4, 6: end.ipv6}.get(family)
        if not address:
            known = "4 and 6" if end.ipv6 else "4 alone"
            raise UsageError(f"link: no address of family {family}; this kernel has {known}")
        return address

    def statistics(self) -> dict[str, Any]:
        """Return what the link carried and lost.

        Returns
        -------
        dict
            ``backend``; ``ends``: for each host's name the frames of its interface since the link
            was made (``tx_packets``, ``tx_dropped``, ``rx_packets``, ``rx_dropped``); and what the backend
            itself says: ``relay`` (the ledger, see docs/testbed.md) or ``qdiscs``.
        """
        ends = {}
        for end in self.ends:
            before, now = self._before[end.host.name], _interface_counters(end)
            ends[end.host.name] = {name: now[name] - before[name] for name in now}
        return {"backend": self.backend, "ends": ends, **self._player.statistics()}

    def describe(self) -> dict[str, Any]:
        """Parameters, for results."""
        a, b = self.ends
        return {
            "hosts": [a.host.name, b.host.name],
            "backend": self.backend,
            "a_to_b": self.shapings[0].as_dict(),
            "b_to_a": self.shapings[1].as_dict(),
            "mtu": self.mtu,
            "offloads": self.offloads,
            "seed": self.seed,
        }

    def close(self) -> dict[str, Any]:
        """Stop what plays the link and return the last statistics; done by the testbed."""
        return dict(self._player.close())


def address(end: End, other: End) -> None:
    """Give an end its addresses, and the other's Ethernet address for good: no ARP on the link."""
    with end.host.enter(), IPRoute() as route:
        (index,) = route.link_lookup(ifname=end.interface)
        route.addr("add", index=index, address=end.ipv4, prefixlen=24)
        neighbours = [other.ipv4]
        if end.ipv6:
            route.addr("add", index=index, address=end.ipv6, prefixlen=64, flags=_IFA_F_NODAD)
            neighbours.append(other.ipv6)
        for neighbour in neighbours:
            route.neigh("replace", dst=neighbour, lladdr=other.mac, ifindex=index, state=_NUD_PERMANENT)


def wait_for_silence(end: End) -> None:
    """Wait until the multicast reports, which IPv6 sends for new addresses, are over."""
    if not end.ipv6:
        return
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < _SILENCE_S:
        now = _interface_counters(end)["tx_packets"]
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.001)


def _interface_counters(end: End) -> dict[str, int]:
    with end.host.enter(), IPRoute() as route:
        (link,) = route.get_links(ifname=end.interface)
        counters = link.get_attr("IFLA_STATS64")
        return {name: counters[name] for name in ("tx_packets", "tx_dropped", "rx_packets", "rx_dropped")}
