"""The interfaces around a sending interface, as the kernel reports them."""

import ipaddress
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError
from parshall.host.namespaces import NETNS_DIRECTORY, entered
from parshall.instruments.generate import reach
from parshall.instruments.generate.interface import index_of
from parshall.instruments.generate.reach import UNKNOWN_NAMESPACE, Link, Namespace, Network

_IFF_LOOPBACK = 0x8
_RTN_UNICAST = 1
_SCOPE_LINK = 253
_NO_NUMBER = (1 << 32) - 1


def reasons_to_confirm(interface: str, namespace: Path | None = None) -> list[str]:
    """Return the reasons why a flood from an interface could do harm; empty for a test interface.

    Without `namespace`, the interface is in the network namespace of the calling thread.
    """
    from parshall.host.netlink import route_socket

    # Held open, because the kernel reuses the number of a removed namespace.
    with (namespace or Path("/proc/thread-self/ns/net")).open("rb") as held:
        home = Path(f"/proc/self/fd/{held.fileno()}")
        with entered(home), route_socket() as route:
            index, default_interfaces = index_of(route, interface), default_routes(route)
        surroundings = _Surroundings(home)
        return reach.reasons_to_confirm(surroundings.home, index, surroundings.find, default_interfaces)


def default_routes(route: Any) -> set[int]:
    """Return the indices of the interfaces that a default route, or a part of one, uses, in any table."""
    networks: dict[int | None, list[Network]] = {}
    for entry in route.get_routes():
        if entry["family"] not in (2, 10) or entry["type"] != _RTN_UNICAST:
            continue
        anywhere = "0.0.0.0" if entry["family"] == 2 else "::"
        network = ipaddress.ip_network(f"{entry.get_attr('RTA_DST') or anywhere}/{entry['dst_len']}", strict=False)
        hops = entry.get_attr("RTA_MULTIPATH") or ()
        # The answer may lack the interface of a route with a nexthop object; then assume any interface.
        for index in {hop["oif"] for hop in hops} or {entry.get_attr("RTA_OIF")}:
            networks.setdefault(index, []).append(network)
    everywhere = networks.pop(None, [])
    if everywhere:
        networks = {link["index"]: networks.get(link["index"], []) + everywhere for link in route.get_links()}
    return {index for index, routed in networks.items() if index is not None and reach.routes_default(routed)}


class _Surroundings:
    """The namespaces that have a name or a process; read on request."""

    def __init__(self, home: Path) -> None:
        self._paths: dict[int, Path] = {}
        named = NETNS_DIRECTORY.iterdir() if NETNS_DIRECTORY.is_dir() else ()
        for path in (*named, home, *Path("/proc").glob("[0-9]*/ns/net")):
            with suppress(OSError):
                self._paths.setdefault(path.stat().st_ino, path)
        self._host = _host_number()
        self.home = self._namespace(home.stat().st_ino)

    def find(self, number: int) -> Namespace | None:
        """Return a namespace by its inode number; None when it cannot be found."""
        try:
            return self._namespace(number)
        except (KeyError, ParshallError):
            # Its last process may have ended.
            return None

    def _namespace(self, number: int) -> Namespace:
        from parshall.host.netlink import route_socket

        path = self._paths[number]
        with entered(path), route_socket() as route:
            messages = list(route.get_links())
            addressed = {entry["index"] for entry in route.get_addr() if entry["scope"] < _SCOPE_LINK}
            is_foreign = any(message.get_attr("IFLA_LINK_NETNSID") is not None for message in messages)
            inodes = dict(self._inodes(route)) if is_foreign else {}
        links = {}
        for message in messages:
            index, other = message["index"], message.get_attr("IFLA_LINK")
            foreign = message.get_attr("IFLA_LINK_NETNSID")
            links[index] = Link(
                name=message.get_attr("IFLA_IFNAME"),
                kind=message.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND"),
                is_loopback=bool(message["flags"] & _IFF_LOOPBACK),
                has_addresses=index in addressed,
                master=message.get_attr("IFLA_MASTER"),
                # Some kinds report 0 or their own index for no other device.
                other=other if foreign is not None or other not in (0, index) else None,
                other_namespace=None if foreign is None else inodes.get(foreign, UNKNOWN_NAMESPACE),
            )
        name = path.name if path.parent == NETNS_DIRECTORY else "without a name"
        return Namespace(number, name, number == self._host, links)

    def _inodes(self, route: Any) -> Iterator[tuple[int, int]]:
        """Yield the ID of each other namespace in the socket's namespace, with the other's inode number."""
        from pyroute2.netlink.exceptions import NetlinkError

        for inode, path in self._paths.items():
            # A name that is being created or removed is no namespace.
            with suppress(OSError, NetlinkError), path.open("rb") as namespace:
                number = route.get_netnsid(fd=namespace.fileno())["nsid"]
                if number != _NO_NUMBER and os.fstat(namespace.fileno()).st_ino == inode:
                    yield number, inode


def _host_number() -> int:
    """Return the number of the host's namespace: of process 1, or in some containers of the eldest readable ancestor.

    The namespace of this process may be another one, by ``ip netns exec``.
    """
    for process in (Path("/proc/1"), *reversed(list(_ancestors()))):
        with suppress(OSError):
            return (process / "ns/net").stat().st_ino
    return Path("/proc/self/ns/net").stat().st_ino


def _ancestors() -> Iterator[Path]:
    """Yield the directories of this process's parent, its parent, and so on."""
    number = os.getppid()
    while number:
        process = Path(f"/proc/{number}")
        yield process
        try:
            # Behind the command's name in parentheses, which may have spaces: state and parent.
            number = int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            return
