"""Links between two hosts."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parshall.errors import UsageError
from parshall.host.netlink import route_socket
from parshall.testbed.hosts import Host
from parshall.testbed.players import Player
from parshall.testbed.shaping import Shaping

# Seconds without a packet after the multicast reports for IPv6 addresses. With the settings of `create_cable`, the
# kernel sends them within a few clock ticks; when it is busy, later.
_SILENCE_S = 0.03
_REPORTS_TIMEOUT_S = 5.0
_ROBUSTNESS, _ROBUSTNESS_DEFAULT = Path("/proc/sys/net/ipv6/mld_qrv"), 2
_NUD_PERMANENT = 0x80
_IFA_F_NODAD = 0x02


@dataclass(frozen=True)
class End:
    """An end of a link.

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
        "veth" (no shaping), "kernel" (tbf and netem), or "relay" (Parshall's relay).
    shapings : tuple of Shaping
        Shaping from the first host to the second, and back.
    offloads : bool
        Whether offloads of the hosts' interfaces are on.
    mtu : int
        Maximum bytes of an IP packet.
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
        a, b = (end.host.name for end in self.ends)
        return f"Link({a!r}, {b!r}, backend={self.backend!r})"

    def end(self, host: Host) -> End:
        """Return the end of this link at a host."""
        for end in self.ends:
            if end.host is host:
                return end
        known = " and ".join(end.host.name for end in self.ends)
        found = f"host {host.name}" if isinstance(host, Host) else f"{host!r}, which is no Host"
        raise UsageError(f"link: {self!r} has no end at {found}; give one of its hosts, {known}")

    def interface(self, host: Host) -> str:
        """Return the name of a host's interface on this link."""
        return self.end(host).interface

    def address(self, host: Host, family: int = 4) -> str:
        """Return the address of a host on this link.

        Parameters
        ----------
        host : Host
            One of the two hosts.
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
        """Return the packets that the link carried and lost.

        Returns
        -------
        dict
            ``backend``; ``ends``: for each host's name the frames of its interface since the link
            was created (``tx_packets``, ``tx_dropped``, ``rx_packets``, ``rx_dropped``); and the counters of
            the backend: ``relay`` (the ledger, see docs/testbed.md) or ``qdiscs``.
        """
        ends = {}
        for end in self.ends:
            before, now = self._before[end.host.name], _interface_counters(end)
            ends[end.host.name] = {name: now[name] - before[name] for name in now}
        return {"backend": self.backend, "ends": ends, **self._player.statistics()}

    def describe(self) -> dict[str, Any]:
        """Return the parameters, to be stored with results."""
        a, b = self.ends
        return {
            "hosts": [a.host.name, b.host.name],
            "backend": self.backend,
            "a_to_b": asdict(self.shapings[0]),
            "b_to_a": asdict(self.shapings[1]),
            "mtu": self.mtu,
            "offloads": self.offloads,
            "seed": self.seed,
        }

    def close(self) -> dict[str, Any]:
        """Stop the backend and return the final statistics; called by the testbed."""
        return dict(self._player.close())


def configure_addresses(ends: tuple[End, End]) -> None:
    """Set the addresses of both ends, with permanent neighbour entries, and wait until the link is silent.

    There is no ARP on the link, and no neighbour discovery. The multicast reports that IPv6 sends for new addresses are
    over when this returns: however late their timers run, it waits for as many as the kernel sends.
    """
    before = [_multicast_reports(end) for end in ends]
    for end, other in (ends, ends[::-1]):
        _configure(end, other)
    if not any(end.ipv6 for end in ends):
        return
    deadline = time.monotonic() + _REPORTS_TIMEOUT_S
    while any(_multicast_reports(end) < sent + _reports_for_a_change() for end, sent in zip(ends, before, strict=True)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    # Further ones, of a host that forwards, come at the same time.
    seen, since = [-1, -1], time.monotonic()
    while time.monotonic() - since < _SILENCE_S:
        now = [_sent_packets(end) for end in ends]
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.001)


def _configure(end: End, other: End) -> None:
    with end.host.enter(), route_socket() as route:
        (index,) = route.link_lookup(ifname=end.interface)
        route.addr("add", index=index, address=end.ipv4, prefixlen=24)
        neighbours = [other.ipv4]
        if end.ipv6:
            route.addr("add", index=index, address=end.ipv6, prefixlen=64, flags=_IFA_F_NODAD)
            neighbours.append(other.ipv6)
        for neighbour in neighbours:
            route.neigh("replace", dst=neighbour, lladdr=other.mac, ifindex=index, state=_NUD_PERMANENT)


def _multicast_reports(end: End) -> int:
    """Return how many reports of MLDv2 an end has sent (RFC 3810)."""
    # Of this thread: the process may be in another namespace.
    path = Path("/proc/thread-self/net/dev_snmp6") / end.interface
    with end.host.enter():
        lines = path.read_text().splitlines() if path.exists() else []
    counts = (int(line.split()[1]) for line in lines if line.startswith("Icmp6OutMLDv2Reports"))
    return next(counts, 0)


def _sent_packets(end: End) -> int:
    """Return how many packets an end has sent: from a line of text, since it is asked every millisecond."""
    with end.host.enter():
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    named = (line.partition(":") for line in lines)
    counters = next((counters.split() for name, _, counters in named if name.strip() == end.interface), [])
    # Eight columns are of what was received; then come bytes and packets.
    return int(counters[9]) if counters else 0


def _reports_for_a_change() -> int:
    """Return how many times the kernel reports a change: the robustness of RFC 3810, one for all namespaces."""
    # Only the first namespace shows it.
    return int(_ROBUSTNESS.read_text()) if _ROBUSTNESS.exists() else _ROBUSTNESS_DEFAULT


def _interface_counters(end: End) -> dict[str, int]:
    with end.host.enter(), route_socket() as route:
        (link,) = route.get_links(ifname=end.interface)
        counters = link.get_attr("IFLA_STATS64")
        return {name: counters[name] for name in ("tx_packets", "tx_dropped", "rx_packets", "rx_dropped")}
