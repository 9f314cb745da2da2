"""A testbed: hosts and links that are created and removed together."""

import itertools
import operator
import re
from typing import Any, Self

from parshall.errors import UsageError
from parshall.host import namespaces
from parshall.host.names import clean, current_owner
from parshall.host.stopping import uninterrupted
from parshall.testbed import backends, links
from parshall.testbed.cables import Cable, has_ipv6
from parshall.testbed.disciplines import Kernel
from parshall.testbed.hosts import Host
from parshall.testbed.links import End, Link
from parshall.testbed.players import Player, Veth
from parshall.testbed.relays import Relay
from parshall.testbed.shaping import Shaping

_numbers = itertools.count(1)


class Testbed:
    """Hosts and links, removed at the end of the ``with`` block in any case.

    The constructor also removes leftovers of killed runs (`parshall.testbed.clean`).

    Examples
    --------
    ::

        with Testbed() as bed:
            sender, receiver = bed.host("sender"), bed.host("receiver")
            link = bed.link(sender, receiver, rate_bps=100e6, delay_ms=3, queue_packets=50)
            sender.run(["ping", "-c", "1", link.address(receiver)])
    """

    # pytest would collect a class whose name begins with "Test".
    __test__ = False

    def __init__(self) -> None:
        clean()
        self._owner = current_owner()
        self._number = next(_numbers)
        self._closed = False
        self.hosts: list[Host] = []
        self.links: list[Link] = []
        self._link_number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def host(self, name: str, *, cpu: int | None = None) -> Host:
        """Add a host.

        Parameters
        ----------
        name : str
            Letters, digits and ``_``, at most 32; unique in this testbed.
        cpu : int, optional
            CPU of the programs of this host.

        Raises
        ------
        UsageError
            The name is taken or invalid.
        ParshallError
            The namespace cannot be created.
        """
        self._check_open()
        if not re.fullmatch(r"[A-Za-z0-9_]{1,32}", name):
            raise UsageError(f"host {name!r}: expected a name of 1 to 32 letters, digits and _")
        if any(host.name == name for host in self.hosts):
            raise UsageError(f"host {name!r}: is already in this testbed; choose another name")
        host = Host(name, self._name(name), self._owner.prefix, None if cpu is None else operator.index(cpu))
        self.hosts.append(host)
        return host

    def link(
        self,
        a: Host,
        b: Host,
        *,
        rate_bps: float | None = None,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
        jitter_distribution: str = "uniform",
        loss: float = 0.0,
        queue_packets: int | None = None,
        queue_bytes: int | None = None,
        overhead_bytes: int = 0,
        discipline: str = "drop-tail",
        ecn: bool = False,
        target_ms: float | None = None,
        interval_ms: float | None = None,
        reverse: dict[str, Any] | None = None,
        mtu: int = 1500,
        offloads: bool = False,
        backend: str = "auto",
        cpu: int | None = None,
        seed: int = 1,
    ) -> Link:
        """Add a link between two hosts; it is ready for packets when this returns.

        Parameters
        ----------
        a, b : Host
            The hosts.
        rate_bps, delay_ms, jitter_ms, jitter_distribution, loss, queue_packets, queue_bytes, overhead_bytes
        discipline, ecn, target_ms, interval_ms
            Shaping of both directions; see `Shaping`.
        reverse : dict, optional
            Parameters that differ from `b` to `a`, such as ``{"rate_bps": 1e6}``.
        mtu : int
            Maximum bytes of an IP packet, 1280 to 65521.
        offloads : bool
            Whether to leave checksum and segmentation offloads of the hosts' interfaces on. Then one packet in
            the kernel may be several on a wire.
        backend : str
            "auto", "veth", "kernel" or "relay"; see `backends.choose`.
        cpu : int, optional
            CPU of the relay.
        seed : int
            Seed of losses and jitter.

        Raises
        ------
        UsageError
            A parameter is invalid.
        ParshallError
            The kernel refuses.
        """
        self._check_open()
        if a is b:
            raise UsageError(f"link: both ends are at host {a.name}; give two hosts")
        mtu, seed = operator.index(mtu), operator.index(seed)
        if not 1280 <= mtu <= 65521:
            raise UsageError(f"link: mtu {mtu}: expected 1280 (the minimum for IPv6) to 65521")
        forward = Shaping(
            rate_bps,
            delay_ms,
            jitter_ms,
            jitter_distribution,
            loss,
            queue_packets,
            queue_bytes,
            overhead_bytes,
            discipline,
            ecn,
            target_ms,
            interval_ms,
        )
        shapings = (forward, forward.with_changes(reverse))
        chosen = backends.choose(backend, shapings, offloads)
        ends = self._ends(a, b)
        left, right = ((end.host.path, end.interface, end.mac) for end in ends)
        cable = Cable(left, right, mtu)
        namespace = self._name(f"link{self._link_number}")
        player: Player
        if chosen == "veth":
            player = Veth(cable, offloads)
        elif chosen == "relay":
            player = Relay(namespace, cable, shapings, cpu, seed)
        else:
            player = Kernel(namespace, cable, shapings, offloads, seed)
        links.configure_addresses(ends)
        player.start()
        link = Link(ends, shapings, player, mtu=mtu, offloads=offloads, seed=seed)
        self.links.append(link)
        return link

    def describe(self) -> dict[str, Any]:
        """Return hosts and links with their parameters, to be stored with results."""
        return {
            "hosts": [{"name": host.name, "cpu": host.cpu} for host in self.hosts],
            "links": [link.describe() for link in self.links],
        }

    def close(self) -> None:
        """Remove everything; called at the end of the ``with`` block. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        errors: list[Exception] = []
        parts: list[Link | Host] = [*self.links, *self.hosts]
        with uninterrupted():
            for part in parts:
                try:
                    part.close()
                except Exception as error:
                    # Remove the rest nevertheless.
                    errors.append(error)
            # Namespaces of parts that failed while they were created are in no list.
            for path in namespaces.NETNS_DIRECTORY.glob(self._name("*")):
                namespaces.remove(path.name)
        if errors:
            raise errors[0]

    def _name(self, rest: str) -> str:
        return self._owner.name(f"{self._number}-{rest}")

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("testbed: is closed; create a new one")

    def _ends(self, a: Host, b: Host) -> tuple[End, End]:
        # Not the length of the list: a link whose creation failed has used its number.
        self._link_number += 1
        number = self._link_number
        if number > 254:
            raise UsageError("testbed: has 254 links, the maximum; create another testbed")

        def end(host: Host, side: int) -> End:
            interface = f"eth{host.interface_count}"
            host.interface_count += 1
            mac = f"02:70:73:00:{number:02x}:{side:02x}"
            ipv6 = f"fd70:7300:0:{number:x}::{side}" if has_ipv6() else ""
            return End(host, interface, mac, f"10.77.{number}.{side}", ipv6)

        return end(a, 1), end(b, 2)
