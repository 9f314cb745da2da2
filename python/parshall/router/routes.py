"""A routing table of a given size, of which the test's destination is one entry."""

import ipaddress
import random

from parshall.testbed import Host

# RFC 2544, C.2.2: networks for tests of routers.
DESTINATION = "198.18.1.0/24"
_PREFIX_BITS = 24


def fill(router: Host, gateway: str, entries: int, seed: int = 1) -> None:
    """Add routes by a gateway: the test's destination, and random /24 networks.

    Parameters
    ----------
    router : Host
        The router.
    gateway : str
        Next hop.
    entries : int
        Number of routes, the destination's included.
    seed : int
        Seed of the networks.
    """
    lines = [f"route add {network} via {gateway}" for network in networks(entries, seed)]
    router.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n")


def networks(entries: int, seed: int) -> list[str]:
    """Return the destination and random other networks, all different."""
    draw = random.Random(seed)
    chosen = {int(ipaddress.ip_network(DESTINATION).network_address) >> (32 - _PREFIX_BITS)}
    while len(chosen) < entries:
        number = draw.randrange(1 << 16, 224 << 16)
        # Not the testbed's own networks, nor those that no router forwards.
        if number >> 16 not in (10, 127):
            chosen.add(number)
    return [f"{ipaddress.ip_address(number << (32 - _PREFIX_BITS))}/{_PREFIX_BITS}" for number in sorted(chosen)]
