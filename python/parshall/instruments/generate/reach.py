"""Which hosts the packets of an interface can reach: whether a flood from it could do harm."""

import ipaddress
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

# Stands for a namespace that cannot be found.
UNKNOWN_NAMESPACE = 0

# Kinds with a peer.
_PAIRS = frozenset({"veth", "netkit", "vxcan"})
# Their packets end at the host, or at an interface that is followed.
_SINKS = frozenset({"dummy", "ifb", "nlmon", "vcan"})
_STACKED = frozenset({"macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec", "hsr"})
_BONDS = frozenset({"bond", "team"})
_MASTERS = frozenset({"bridge", "vrf"}) | _BONDS
# Their packets follow the routes of a namespace.
_GRE = frozenset({"gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan"})
_TUNNELS = frozenset({"vxlan", "geneve", "bareudp", "wireguard", "xfrm", "vti", "vti6", "ipip", "sit", "ip6tnl", *_GRE})
_FOLLOWED = _PAIRS | _SINKS | _STACKED | _MASTERS | _TUNNELS
# Kinds from which the generator sends without --yes-on.
_TEST_KINDS = frozenset({"veth", "netkit", "dummy", "ifb", "nlmon", "macvlan", "ipvlan", "vlan", "vxlan"})

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Link:
    """An interface, and the interfaces that it is connected with.

    Attributes
    ----------
    name : str
        Its name.
    kind : str or None
        ``veth``, ``bridge``, ...; None for hardware.
    is_loopback : bool
        Whether it is the loopback interface.
    has_addresses : bool
        Whether it has IP addresses other than link-local ones.
    master : int or None
        Index of the bridge, bond or other master whose port it is.
    other : int or None
        Index of the peer, or of the lower device.
    other_namespace : int or None
        Number of the namespace of `other`, or of a tunnel's routes; None for the same namespace,
        `UNKNOWN_NAMESPACE` when it cannot be found.
    """

    name: str
    kind: str | None
    is_loopback: bool = False
    has_addresses: bool = False
    master: int | None = None
    other: int | None = None
    other_namespace: int | None = None


@dataclass(frozen=True)
class Namespace:
    """A network namespace.

    Attributes
    ----------
    number : int
        Its inode number.
    name : str
        Its name, for messages.
    is_host : bool
        Whether it is the host's own namespace.
    links : dict of int to Link
        Its interfaces by index.
    """

    number: int
    name: str
    is_host: bool
    links: dict[int, Link]


def reasons_to_confirm(
    home: Namespace,
    index: int,
    find_namespace: Callable[[int], Namespace | None],
    default_routes: Collection[int],
) -> list[str]:
    """Return the reasons why a flood from an interface could do harm; empty when packets stay in test namespaces.

    Masters, ports, lower and upper devices in the same namespace share packets with the interface. Peers and tunnels
    lead to namespaces, where any interface may forward packets, by routes, bridges or programs. In doubt, a reason is
    returned.

    Parameters
    ----------
    home : Namespace
        The interface's namespace.
    index : int
        Index of the interface.
    find_namespace : callable
        Returns a namespace by its number; None when it cannot be found.
    default_routes : collection of int
        Indices of the interfaces of `home` that a default route, or a part of one, uses.
    """
    links = home.links
    start = links[index]
    reasons = []
    if start.is_loopback:
        reasons.append("it is the loopback interface of this host")
    elif start.kind not in _TEST_KINDS:
        reasons.append("it is not a test interface (such as veth), so packets may leave the host")
    if index in default_routes:
        reasons.append("a default route uses it")
    if start.master in links and links[start.master].kind in _BONDS:
        reasons.append(f"it is a member of {links[start.master].name}")
    connected = _connected(links, index)
    for number in sorted(connected - {index}):
        link = links[number]
        if link.kind not in _FOLLOWED:
            reasons.append(f"packets may leave the host through {link.name}, which it is connected with")
        if number in default_routes:
            reasons.append(f"a default route uses {link.name}, which it is connected with")
        elif start.master is not None and link.has_addresses:
            reasons.append(f"{link.name}, which it is connected with, has addresses of this host")
    behind = {number for near in connected for number in _behind(links[near], home.number)}
    return reasons + _reasons_behind(behind, {(home.number, near) for near in connected}, find_namespace)


def routes_default(networks: Collection[Network]) -> bool:
    """Whether routes to these networks form a default route or a large part of one, such as those of VPNs.

    Private and multicast addresses do not count: tests route them.
    """
    for kind, widest_prefix in ((ipaddress.IPv4Network, 8), (ipaddress.IPv6Network, 12)):
        public: list[Any] = [
            network
            for network in networks
            if isinstance(network, kind) and not (network.is_private or network.is_multicast)
        ]
        addresses = sum(int(network.num_addresses) for network in ipaddress.collapse_addresses(public))
        # More than a single network with this prefix length.
        if public and addresses > 1 << public[0].max_prefixlen - widest_prefix:
            return True
    return False


def _connected(links: dict[int, Link], index: int) -> set[int]:
    """Return the interface and those of its namespace that share packets with it through masters and lower devices."""
    neighbours: dict[int, set[int]] = {number: set() for number in links}
    for number, link in links.items():
        is_above = link.kind not in _PAIRS and link.other_namespace is None
        for other in (link.master, link.other if is_above else None):
            if other in links:
                neighbours[number].add(other)
                neighbours[other].add(number)
    found, new = {index}, [index]
    while new:
        farther = neighbours[new.pop()] - found
        found |= farther
        new += farther
    return found


def _behind(link: Link, namespace: int) -> Iterator[int]:
    """Yield the namespace that the peer or tunnel of an interface leads to."""
    if link.other_namespace is not None:
        yield link.other_namespace
    elif link.kind in _TUNNELS or (link.kind in _PAIRS and link.other is not None):
        yield namespace


def _reasons_behind(
    numbers: set[int], entrances: set[tuple[int, int]], find_namespace: Callable[[int], Namespace | None]
) -> list[str]:
    """Return how packets can leave these namespaces, other than back through the entrances."""
    reasons: list[str] = []
    found, new = set(numbers), sorted(numbers)
    while new:
        number = new.pop()
        namespace = find_namespace(number)
        if namespace is None:
            reasons.append("its packets reach a network namespace that cannot be found")
            continue
        if namespace.is_host:
            reasons.append("its packets reach the network namespace of this host")
            continue
        for link in namespace.links.values():
            if not link.is_loopback and link.kind not in _FOLLOWED:
                reasons.append(f"its packets may leave through {link.name} of namespace {namespace.name}")
            is_entrance = link.kind in _PAIRS and (link.other_namespace, link.other) in entrances
            behind = set() if is_entrance else set(_behind(link, number)) - found
            found |= behind
            new += sorted(behind)
    return reasons
