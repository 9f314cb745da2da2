"""A routing table of a given size, of which the test's destinations are entries."""

import ipaddress
import random

from parshall.testbed import Host

# RFC 2544, C.2.2: networks for tests of routers.
FIRST_DESTINATION = ipaddress.IPv4Address("198.18.1.1")
_PREFIX_BITS, _ADDRESS_BITS = 24, 32


def fill(router: Host, gateway: str, entries: int, destinations: int = 1, seed: int = 1) -> None:
    """Add routes by a gateway: the test's destinations, and random /24 networks.

    Parameters
    ----------
    router : Host
        The router.
    gateway : str
        Next hop.
    entries : int
        Number of routes, the destinations' included.
    destinations : int
        One: the route of the destination is a /24 network. More: each has a route of its own.
    seed : int
        Seed of the networks.
    """
    lines = [f"route add {network} via {gateway}" for network in networks(entries, destinations, seed)]
    router.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n")


def networks(entries: int, destinations: int, seed: int) -> list[str]:
    """Return the networks of the destinations, and random other ones, all different."""
    draw = random.Random(seed)
    host_bits = _ADDRESS_BITS - _PREFIX_BITS
    chosen, own = {int(FIRST_DESTINATION) >> host_bits}, []
    if destinations > 1:
        chosen, own = set(), [f"{FIRST_DESTINATION + number}/{_ADDRESS_BITS}" for number in range(destinations)]
    while len(chosen) + len(own) < entries:
        number = draw.randrange(1 << 16, 224 << 16)
        # Not the testbed's own networks, nor those that no router forwards.
        if number >> 16 not in (10, 127):
            chosen.add(number)
    others = [f"{ipaddress.ip_address(number << host_bits)}/{_PREFIX_BITS}" for number in sorted(chosen)]
    return own + others
