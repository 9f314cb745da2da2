"""Where the packets of an interface can get: whether a flood from it could do harm."""

import ipaddress
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

# The number of no namespace: of one that cannot be found.
UNKNOWN_NAMESPACE = 0

# Two ends of one cable.
_PAIRS = frozenset({"veth", "netkit", "vxcan"})
# What they send ends at the host, or at an interface that is followed.
_SINKS = frozenset({"dummy", "ifb", "nlmon", "vcan"})
_STACKED = frozenset({"macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec", "hsr"})
_BONDS = frozenset({"bond", "team"})
_MASTERS = frozenset({"bridge", "vrf"}) | _BONDS
# What they send follows the routes of a namespace.
_GRE = frozenset({"gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan"})
_TUNNELS = frozenset({"vxlan", "geneve", "bareudp", "wireguard", "xfrm", "vti", "vti6", "ipip", "sit", "ip6tnl", *_GRE})
_FOLLOWED = _PAIRS | _SINKS | _STACKED | _MASTERS | _TUNNELS
# Of these the generator's own interface may be; from all others it asks.
_TEST_KINDS = frozenset({"veth", "netkit", "dummy", "ifb", "nlmon", "macvlan", "ipvlan", "vlan", "vxlan"})

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Link:
    """An interface, and what it hangs together with.

    Attributes
    ----------
    name : str
        Its name.
    kind : str or None
        ``veth``, ``bridge``, ...; None for a device of its own.
    is_loopback : bool
        Whether it is the loopback interface.
    has_addresses : bool
        Whether it has IP addresses of its namespace, other than link-local ones.
    master : int or None
        Index of the bridge, bond and the like whose port it is.
    other : int or None
        Index of the peer, or of the device below it.
    other_namespace : int or None
        Number of the namespace of this device, or of a tunnel's routes; None when it is the same,
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
        Whether it is the one in which the host's own programs run.
    links : dict of int to Link
        Its interfaces by their index.
    """

    number: int
    name: str
    is_host: bool
    links: dict[int, Link]


def reasons_to_ask(
    home: Namespace,
    index: int,
    look: Callable[[int], Namespace | None],
    default_routes: Collection[int],
) -> list[str]:
    """Return why a flood from an interface could do harm; empty when its packets stay in test namespaces.

    Masters, ports, lower and upper devices in the same namespace share packets with the interface. Peers and tunnels
    lead to namespaces, of which any interface may send on what arrives: by routes, bridges or programs. So in doubt
    there is a reason.

    Parameters
    ----------
    home : Namespace
        The interface's namespace.
    index : int
        Index of the interface.
    look : callable
        Returns a namespace by its number; None when it cannot be found.
    default_routes : collection of int
        Indices of the interfaces of `home` by which a default route leaves, or a part of one.
    """
    links = home.links
    start = links[index]
    reasons = []
    if start.is_loopback:
        reasons.append("it is the loopback interface of this host")
    elif start.kind not in _TEST_KINDS:
        reasons.append("it is no interface of a testbed (veth and the like), so that packets may leave the host")
    if index in default_routes:
        reasons.append("a default route leaves by it")
    if start.master in links and links[start.master].kind in _BONDS:
        reasons.append(f"it is a member of {links[start.master].name}")
    connected = _connected(links, index)
    for number in sorted(connected - {index}):
        link = links[number]
        if link.kind not in _FOLLOWED:
            reasons.append(f"packets may leave the host by {link.name}, with which it is connected")
        if number in default_routes:
            reasons.append(f"a default route leaves by {link.name}, with which it is connected")
        elif start.master is not None and link.has_addresses:
            reasons.append(f"{link.name}, with which it is connected, has addresses of this host")
    behind = {number for near in connected for number in _behind(links[near], home.number)}
    return reasons + _reasons_behind(behind, {(home.number, near) for near in connected}, look)


def routes_default(networks: Collection[Network]) -> bool:
    """Whether routes to these networks make a default route, or a part of one, as those of VPNs are.

    Private and multicast addresses do not count: tests route them.
    """
    for kind, widest_prefix in ((ipaddress.IPv4Network, 8), (ipaddress.IPv6Network, 12)):
        public: list[Any] = [
            network
            for network in networks
            if isinstance(network, kind) and not (network.is_private or network.is_multicast)
        ]
        addresses = sum(int(network.num_addresses) for network in ipaddress.collapse_addresses(public))
        # More than whoever is given one network of that length has.
        if public and addresses > 1 << public[0].max_prefixlen - widest_prefix:
            return True
    return False


def _connected(links: dict[int, Link], index: int) -> set[int]:
    """Return the interface and those of its namespace that share packets with it by masters and lower devices."""
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
    """Yield the namespace to which an interface leads beside its own."""
    if link.other_namespace is not None:
        yield link.other_namespace
    elif link.kind in _TUNNELS or (link.kind in _PAIRS and link.other is not None):
        yield namespace


def _reasons_behind(
    numbers: set[int], entrances: set[tuple[int, int]], look: Callable[[int], Namespace | None]
) -> list[str]:
    """Return by what packets leave that have come into these namespaces, other than back by the entrances."""
    reasons: list[str] = []
    found, new = set(numbers), sorted(numbers)
    while new:
        number = new.pop()
        namespace = look(number)
        if namespace is None:
            reasons.append("its packets reach a network namespace that cannot be found")
            continue
        if namespace.is_host:
            reasons.append("its packets reach the network namespace of this host")
            continue
        for link in namespace.links.values():
            if not link.is_loopback and link.kind not in _FOLLOWED:
                reasons.append(f"its packets may leave by {link.name} of namespace {namespace.name}")
            is_entrance = link.kind in _PAIRS and (link.other_namespace, link.other) in entrances
            behind = set() if is_entrance else set(_behind(link, number)) - found
            found |= behind
            new += sorted(behind)
    return reasons
