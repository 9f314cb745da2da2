"""The backends of a link: what they share, the plain veth pair, and the namespace between two hosts."""

from pathlib import Path
from typing import Any

from parshall.host import namespaces
from parshall.testbed.cables import Cable, create_cable


class Player:
    """The backend of a link between two hosts.

    Attributes
    ----------
    name : str
        Name of the backend.
    """

    name: str

    def start(self) -> None:
        """Start to forward packets; the kernel's own devices forward from the start."""

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the backend, beyond those of the interfaces."""
        return {}

    def close(self) -> dict[str, Any]:
        """Stop, remove what does not belong to the hosts, and return the final statistics."""
        return {}


class Veth(Player):
    """A veth pair whose interfaces are those of the hosts."""

    name = "veth"

    def __init__(self, cable: Cable, offloads: bool) -> None:
        create_cable(cable, offloads_on=offloads)


class MiddleNamespace(Player):
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
