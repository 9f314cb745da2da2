"""Listeners that accept nothing, clients that fill their queues, and the kernel's own counts of what found no room."""

import socket
from collections.abc import Callable
from typing import Any

from retransmission_counters import counters


def listener_at(host: Any, address: str, port: int, backlog: int, **options: Any) -> socket.socket:
    """Open a listener that accepts nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with host.enter():
        return socket.create_server((address, port), family=family, backlog=backlog, **options)


class Clients:
    """Sockets that connect and do not wait for it."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.sockets: list[socket.socket] = []

    def connect(self, address: str, port: int, count: int, protocol: int = 0) -> list[socket.socket]:
        """Begin so many connections."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self._host.enter():
            begun = [socket.socket(family, socket.SOCK_STREAM, protocol) for _ in range(count)]
        self.sockets += begun
        for each in begun:
            each.setblocking(False)
            each.connect_ex((address, port))
        return begun


def queue_of(host: Any, port: int) -> tuple[int, int]:
    """Length and limit of a listener's accept queue, as ss shows them."""
    (line,) = host.run(["ss", "-ltnH", f"sport = :{port}"]).stdout.splitlines()
    _, length, limit, *_ = line.split()
    return int(length), int(limit)


def has_queued(host: Any, port: int, count: int) -> Callable[[], bool]:
    """Whether so many connections wait to be accepted."""
    return lambda: queue_of(host, port)[0] == count


def overflows(host: Any) -> int:
    """The kernel's count of SYNs and ACKs that found an accept queue full."""
    return counters(host)["ListenOverflows"]


def silence(host: Any, interface: str) -> None:
    """Let nothing more arrive from a host, so that two counts of what arrived can be compared."""
    host.run(["ip", "link", "set", "dev", interface, "down"])


def delayed_ends(bed: Any) -> tuple[Any, Any, Any]:
    """Two hosts so far apart that SYNs of several clients arrive before their ACKs."""
    left, right = bed.host("left"), bed.host("right")
    return left, right, bed.link(left, right, delay_ms=50)


def refuse_final_acks(
    clients: Clients, host: Any, address: str, port: int, until: Callable[..., None], *, sends: bool
) -> None:
    """Let a far listener with a backlog of 4 refuse two final ACKs, and then requests of these clients."""
    clients.connect(address, port, 3)
    until("three connections wait", has_queued(host, port, 3))
    # Two of these have room. All four SYNs come before the first ACK.
    late = clients.connect(address, port, 4)
    until("two ACKs were refused", lambda: overflows(host) >= 2)
    assert queue_of(host, port) == (5, 4)
    if sends:
        for each in late:
            each.send(b"a request")
        until("requests were refused", lambda: overflows(host) >= 4)
