"""The interface of a link's backend; the plain veth pair; the namespace between two hosts."""

from pathlib import Path
from typing import Any, Protocol

from parshall.testbed import namespaces
from parshall.testbed.cables import Cable, create_cable


class Player(Protocol):
    """The backend of a link between two hosts.

    Attributes
    ----------
    name : str
        Name of the backend.
    """

    name: str

    def start(self) -> None:
        """Start to forward packets."""

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the backend, beyond those of the interfaces."""

    def close(self) -> dict[str, Any]:
        """Stop, remove what does not belong to the hosts, and return the final statistics."""


class Veth:
    """A veth pair whose interfaces are those of the hosts."""

    name = "veth"

    def __init__(self, cable: Cable, offloads: bool) -> None:
        create_cable(cable, offloads_on=offloads)

    def start(self) -> None:
        """Do nothing: a veth pair forwards packets from the start."""

    def statistics(self) -> dict[str, Any]:
        """Return nothing: the interfaces have all counters."""
        return {}

    def close(self) -> dict[str, Any]:
        """Do nothing: the interfaces are removed with their namespaces."""
        return {}


class MiddleNamespace:
    """A namespace between the hosts, with the interfaces `a` and `b`."""

    def __init__(self, namespace: str, cable: Cable, offloads: bool) -> None:
        self.namespace = namespace
        self.path = namespaces.create(namespace)
        # No IPv6, so that this namespace sends no packets of its own.
        with namespaces.entered(self.path):
            switch = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
            if switch.exists():
                switch.write_text("1")
        for end, name, mac in ((cable.a, "a", "02:70:73:ff:ff:01"), (cable.b, "b", "02:70:73:ff:ff:02")):
            create_cable(Cable(end, (self.path, name, mac), cable.mtu), offloads_on=offloads)
