"""A router between two hosts of a testbed."""

import socket
from typing import Any

from conversation import on_one_cpu, socket_at


class Router:
    """A source, a router and a sink in a row."""

    def __init__(self, bed: Any) -> None:
        self.bed = bed
        self.source, self.router, self.sink = (bed.host(name) for name in ("source", "router", "sink"))
        self.links = [
            bed.link(self.source, self.router, backend="veth"),
            bed.link(self.router, self.sink, backend="veth"),
        ]
        (self.source_if, self.in_if), (self.out_if, self.sink_if) = (
            (link.interface(a), link.interface(b))
            for link, a, b in zip(self.links, (self.source, self.router), (self.router, self.sink), strict=True)
        )
        self.source_address = self.links[0].address(self.source)
        self.sink_address = self.links[1].address(self.sink)
        self.router.sysctl("net.ipv4.ip_forward", 1)
        self.source.route("default", self.links[0].address(self.router))
        self.sink.route("default", self.links[1].address(self.router))

    def counters(self) -> dict[str, int]:
        """Return the router's IP counters, as the kernel keeps them."""
        text = self.router.run(["cat", "/proc/net/snmp"]).stdout
        names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Ip: "))
        return dict(zip(names, map(int, values), strict=True))

    def send(
        self, count: int, address: Any = None, port: int = 9000, payload_bytes: int = 100, ttl: int | None = None
    ) -> None:
        """Send datagrams from the source, and wait until the router has had them all.

        On a busy host the kernel leaves packets that have come to a thread of its own, behind which a measurement that
        ends at once would miss the last ones. Those of one CPU keep their order, so one to the router itself marks
        their end.
        """
        marked = str(self.links[0].address(self.router))
        with (
            on_one_cpu(),
            socket_at(self.source, "0.0.0.0", socket.SOCK_DGRAM) as sender,
            socket_at(self.router, marked, socket.SOCK_DGRAM) as marks,
        ):
            marks.bind((marked, 0))
            marks.settimeout(20)
            if ttl is not None:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            to = (str(address or self.sink_address), port)
            for number in range(count):
                sender.sendto(number.to_bytes(4, "big") + bytes(payload_bytes - 4), to)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 64)
            sender.sendto(b"", marks.getsockname())
            marks.recv(1)
