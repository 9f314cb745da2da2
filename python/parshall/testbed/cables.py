"""Cables: veth pairs with one interface in each of two namespaces."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parshall.errors import ParshallError
from parshall.host import offloads
from parshall.host.namespaces import entered
from parshall.host.netlink import route_socket

if TYPE_CHECKING:
    from pyroute2 import IPRoute

# Seconds until an interface must be up.
_UP_TIMEOUT_S = 10.0
# Index of the first interface. The kernel reports a veth link up at once when the interface and its
# peer have different indices. With equal indices, as the first interfaces of two new namespaces have,
# it treats the link as one without a peer, and may wait a second.
_FIRST_INDEX = 1000
# The longest time until IPv6 reports a new address, and reports it again.
_REPORT_INTERVAL_MS = 1


@dataclass(frozen=True)
class Cable:
    """A veth pair: namespace path, name and Ethernet address of both interfaces."""

    a: tuple[Path, str, str]
    b: tuple[Path, str, str]
    mtu: int


def create_cable(cable: Cable, *, offloads_on: bool) -> None:
    """Create the interfaces of a cable in their namespaces; raise `ParshallError` if one does not come up."""
    (path_a, name_a, mac_a), (path_b, name_b, mac_b) = cable.a, cable.b
    with path_b.open() as peer, entered(path_a), route_socket() as route:
        route.link(
            "add",
            index=_FIRST_INDEX + max(link["index"] for link in route.get_links()),
            ifname=name_a,
            kind="veth",
            address=mac_a,
            mtu=cable.mtu,
            peer={"ifname": name_b, "address": mac_b, "mtu": cable.mtu, "net_ns_fd": peer.fileno()},
        )
    for path, name, _ in (cable.a, cable.b):
        with entered(path), route_socket() as route:
            offloads.switch(name, offloads_on)
            _quiet_ipv6(name)
            route.link("set", ifname=name, state="up")
    for path, name, _ in (cable.a, cable.b):
        with entered(path), route_socket() as route:
            _wait_until_up(route, name)


def has_ipv6() -> bool:
    """Whether the kernel has IPv6."""
    return Path("/proc/sys/net/ipv6/conf/default").is_dir()


def _quiet_ipv6(interface: str) -> None:
    """Disable automatic IPv6 traffic on an interface of the calling thread's namespace."""
    if not has_ipv6():
        return
    own = Path("/proc/sys/net/ipv6/conf") / interface
    for name, value in {
        "accept_ra": 0,
        "autoconf": 0,
        "dad_transmits": 0,
        "addr_gen_mode": 1,  # No link-local address.
        "mldv2_unsolicited_report_interval": _REPORT_INTERVAL_MS,
        "mldv1_unsolicited_report_interval": _REPORT_INTERVAL_MS,
    }.items():
        (own / name).write_text(str(value))


def _wait_until_up(route: "IPRoute", interface: str) -> None:
    deadline = time.monotonic() + _UP_TIMEOUT_S
    while True:
        (link,) = route.get_links(ifname=interface)
        state = link.get_attr("IFLA_OPERSTATE")
        if state == "UP":
            return
        if time.monotonic() > deadline:
            raise ParshallError(
                f"interface {interface}: still {state} after {_UP_TIMEOUT_S:g} s; check that its peer is up"
            )
        time.sleep(0.001)
