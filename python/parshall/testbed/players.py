"""What plays a link, seen from the link; the plain veth pair; the namespace between two hosts."""

from pathlib import Path
from typing import Any, Protocol

from parshall.testbed import namespaces
from parshall.testbed.cables import Cable, lay


class Player(Protocol):
    """Plays a link between two hosts.

    Attributes
    ----------
    name : str
        Name of the backend.
    """

    name: str

    def start(self) -> None:
        """Take packets from now on."""

    def statistics(self) -> dict[str, Any]:
        """Return what the backend knows beyond the interfaces' own counters."""

    def close(self) -> dict[str, Any]:
        """Stop, remove what is not the hosts', return the last statistics."""


class Veth:
    """The hosts' interfaces are each other's peers."""

    name = "veth"

    def __init__(self, cable: Cable, offloads: bool) -> None:
        lay(cable, offloads_on=offloads)

    def start(self) -> None:
        """Nothing to start."""

    def statistics(self) -> dict[str, Any]:
        """Nothing beyond the interfaces' own counters."""
        return {}

    def close(self) -> dict[str, Any]:
        """Nothing to stop: the interfaces go with their namespaces."""
        return {}


class Between:
    """A namespace of its own between the hosts, with the interfaces `a` and `b`."""

    def __init__(self, namespace: str, cable: Cable, offloads: bool) -> None:
        self.namespace = namespace
        self.path = namespaces.create(namespace)
        # In here nobody speaks: no address, no neighbour discovery.
        with namespaces.entered(self.path):
            switch = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
            if switch.exists():
                switch.write_text("1")
        for end, name, mac in ((cable.a, "a", "02:70:73:ff:ff:01"), (cable.b, "b", "02:70:73:ff:ff:02")):
            lay(Cable(end, (self.path, name, mac), cable.mtu), offloads_on=offloads)
