"""The properties of an interface that matter for sending."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parshall.errors import UsageError
from parshall.host.installation import require_kernel_side
from parshall.host.namespaces import entered

_IFF_UP = 0x1


@dataclass(frozen=True)
class Interface:
    """Properties of an interface.

    Attributes
    ----------
    name : str
        Its name.
    kind : str or None
        ``veth``, ``dummy``, ...; None for hardware.
    is_up, has_carrier : bool
        Its administrative state and its carrier.
    mtu_bytes : int
        Maximum size of an IP packet.
    mac : str
        Its Ethernet address.
    takes_xdp_frames : bool or None
        Whether it transmits redirected frames; None when the kernel does not report it.
    """

    name: str
    kind: str | None
    is_up: bool
    has_carrier: bool
    mtu_bytes: int
    mac: str
    takes_xdp_frames: bool | None


def interface_facts(name: str, namespace: Path | None = None) -> Interface:
    """Return the properties of an interface; raise `UsageError` if there is none of this name."""
    from parshall.host.netlink import route_socket

    require_kernel_side()
    from parshall import _native

    with entered(namespace) if namespace else nullcontext(), route_socket() as route:
        link = route.get_links(index_of(route, name))[0]
        information = link.get_attr("IFLA_LINKINFO")
        return Interface(
            name=name,
            kind=information.get_attr("IFLA_INFO_KIND") if information else None,
            is_up=bool(link["flags"] & _IFF_UP),
            has_carrier=bool(link.get_attr("IFLA_CARRIER")),
            mtu_bytes=link.get_attr("IFLA_MTU"),
            mac=link.get_attr("IFLA_ADDRESS") or "02:00:00:00:00:01",
            takes_xdp_frames=_native.interface_takes_xdp_frames(name),
        )


def index_of(route: Any, name: str) -> int:
    """Return the index of an interface of the namespace of a netlink socket; raise `UsageError` if there is none."""
    links: list[int] = list(route.link_lookup(ifname=name))
    if not links:
        raise UsageError(f"interface {name}: no such interface; `ip link` lists them, --netns selects a namespace")
    return links[0]
