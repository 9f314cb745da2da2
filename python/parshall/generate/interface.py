"""What an interface is, as far as sending packets from it is concerned."""

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from parshall.errors import ParshallError
from parshall.testbed.namespaces import NETNS_DIRECTORY, entered

_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
# Made by software, so that nothing leaves the host by them alone.
_VIRTUAL_KINDS = frozenset({"veth", "dummy", "ifb", "tun", "macvlan", "ipvlan", "vlan", "netkit", "nlmon", "vxlan"})


@dataclass(frozen=True)
class Interface:
    """Facts of an interface.

    Attributes
    ----------
    name : str
        Its name.
    kind : str or None
        ``veth``, ``dummy``, ...; None for a device of its own.
    is_up, has_carrier, is_loopback : bool
        Its state.
    mtu_bytes : int
        Longest IP packet.
    mac : str
        Its address.
    has_default_route : bool
        Whether a default route, IPv4 or IPv6, leaves by it.
    takes_xdp_frames : bool or None
        Whether redirected frames leave; None when the kernel does not tell.
    """

    name: str
    kind: str | None
    is_up: bool
    has_carrier: bool
    is_loopback: bool
    mtu_bytes: int
    mac: str
    has_default_route: bool
    takes_xdp_frames: bool | None

    @property
    def is_virtual(self) -> bool:
        """Whether it is made by software."""
        return self.kind in _VIRTUAL_KINDS


def namespace_path(namespace: str | os.PathLike[str] | None) -> Path | None:
    """Return the path of a network namespace that was given as a name or as a path."""
    if namespace is None:
        return None
    path = Path(namespace)
    return path if path.is_absolute() else NETNS_DIRECTORY / path


def interface_facts(name: str, namespace: Path | None = None) -> Interface:
    """Return the facts of an interface.

    Raises
    ------
    ParshallError
        When there is no such interface or namespace.
    """
    from pyroute2 import IPRoute

    from parshall import _native

    with entered(namespace) if namespace else nullcontext(), IPRoute() as route:
        links = list(route.link_lookup(ifname=name))
        if not links:
            raise ParshallError(
                f"interface {name}: there is none; `ip link` names those there are, and --netns another namespace"
            )
        index = links[0]
        link = route.get_links(index)[0]
        routes = [
            entry for family in (2, 10) for entry in route.get_default_routes(family=family) if _leaves_by(entry, index)
        ]
        information = link.get_attr("IFLA_LINKINFO")
        return Interface(
            name=name,
            kind=information.get_attr("IFLA_INFO_KIND") if information else None,
            is_up=bool(link["flags"] & _IFF_UP),
            has_carrier=bool(link.get_attr("IFLA_CARRIER")),
            is_loopback=bool(link["flags"] & _IFF_LOOPBACK),
            mtu_bytes=link.get_attr("IFLA_MTU"),
            mac=link.get_attr("IFLA_ADDRESS") or "02:00:00:00:00:01",
            has_default_route=bool(routes),
            takes_xdp_frames=_native.interface_takes_xdp_frames(name),
        )


def _leaves_by(route: object, index: int) -> bool:
    if route.get_attr("RTA_OIF") == index:  # type: ignore[attr-defined]
        return True
    hops = route.get_attr("RTA_MULTIPATH") or ()  # type: ignore[attr-defined]
    return any(hop["oif"] == index for hop in hops)
