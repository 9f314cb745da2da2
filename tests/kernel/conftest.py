"""What the tests of the kernel need: links between two hosts, taps that stamp packets."""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from accept_queues import Clients
from conversation import socket_at
from router import Router
from wire import tapped

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
ETH_P_ALL = 3
PORT = 9009


@pytest.fixture
def echo() -> Callable[..., None]:
    """Send a UDP question from one host to an address of another, and wait for the answer."""

    def exchange(source: Any, destination: Any, address: str, payload_bytes: int = 64) -> None:
        answering, asking = (socket_at(host, address, socket.SOCK_DGRAM) for host in (destination, source))
        with answering, asking:
            for each in (answering, asking):
                each.settimeout(10)
                if each.family == socket.AF_INET:
                    each.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
            answering.bind((address, 0))
            asking.sendto(bytes(payload_bytes), answering.getsockname())
            question, asker = answering.recvfrom(65536)
            answering.sendto(question, asker)
            assert asking.recv(65536) == bytes(payload_bytes)

    return exchange


@pytest.fixture
def router(bed: Any) -> Router:
    """Make a router between two hosts, and let their neighbours be known."""
    made = Router(bed)
    made.send(1)
    return made


@pytest.fixture
def one_cpu() -> Iterator[int]:
    """Keep everything on one CPU, whose number is given.

    A packet that comes in is looked at before the socket is locked. On another CPU the window may
    change between the looks of two logs, or packets change places, and then both are right.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield min(before)
    os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Stamp:
    """A numbered packet at a tap: sequence number, kernel time in ns, bytes of the frame."""

    number: int
    at_ns: int
    frame_bytes: int


def _wait_for_stamps() -> None:
    """Wait until the kernel stamps packets on arrival: it begins a moment after the first socket has asked.

    Before, a packet is stamped when it is read, which looks like a delay.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as looping:
        looping.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        looping.bind(("127.0.0.1", 0))
        for _ in range(1000):
            looping.sendto(b"", looping.getsockname())
            time.sleep(0.002)
            before_read_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
            _, controls, _, _ = looping.recvmsg(1, 64)
            seconds, nanoseconds = struct.unpack("qq", controls[0][2])
            if seconds * 1_000_000_000 + nanoseconds < before_read_ns:
                return
    pytest.fail("the kernel does not stamp packets on arrival")


class Tap:
    """Sees the numbered UDP packets of `Probe` at an interface, with the kernel's time stamps."""

    def __init__(self, link: Any, host: Any, destination: Any) -> None:
        self._destination = socket.inet_aton(link.address(destination))
        with host.enter():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 512 << 20)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        _wait_for_stamps()
        self._socket.setblocking(False)
        self._socket.bind((link.interface(host), ETH_P_ALL))

    def read(self) -> list[Stamp]:
        """Read everything that has come since the last call."""
        stamps = []
        while True:
            try:
                frame, controls, _, _ = self._socket.recvmsg(65536, 256)
            except BlockingIOError:
                return stamps
            # IPv4 without options, UDP, our port, this direction.
            if frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[36:38] != PORT.to_bytes(2, "big"):
                continue
            if frame[30:34] != self._destination:
                continue
            ((_, _, stamp),) = [control for control in controls if control[1] == SO_TIMESTAMPNS]
            seconds, nanoseconds = struct.unpack("qq", stamp[:16])
            number = int.from_bytes(frame[42:50], "big")
            stamps.append(Stamp(number, seconds * 10**9 + nanoseconds, len(frame)))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Probe:
    """Sends numbered UDP packets from one host of a link to the other, seen by a tap at each end."""

    def __init__(self, link: Any, source: Any, destination: Any) -> None:
        self.departures = Tap(link, source, destination)
        self.arrivals = Tap(link, destination, destination)
        with source.enter():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with destination.enter():
            # Without a listener, the host answers every packet with an ICMP error.
            self._sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sink.bind((link.address(destination), PORT))
        self._socket.connect((link.address(destination), PORT))
        self._number = 0

    def send(self, payload_bytes: int = 100) -> None:
        """Send one packet; `payload_bytes` is without the 42 bytes of Ethernet, IP and UDP."""
        self._socket.send(self._number.to_bytes(8, "big") + bytes(payload_bytes - 8))
        self._number += 1

    def close(self) -> None:
        """Close all sockets."""
        for opened in (self.departures, self.arrivals, self._socket, self._sink):
            opened.close()


@pytest.fixture
def probe() -> Iterator[Callable[..., Probe]]:
    """Make probes, closed after the test."""
    made: list[Probe] = []

    def make(link: Any, source: Any, destination: Any) -> Probe:
        made.append(Probe(link, source, destination))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Fail when a logger of this session leaves a cgroup after a test."""
    from tcp_logger import STARTED

    from parshall.host import names

    yield
    groups = {path for mount in names.cgroup2_mounts() for path in mount.glob("parshall-*") if path.is_dir()}
    owners = {path: names.owner_of(path.name) for path in groups}
    assert not [path for path, owner in owners.items() if owner and owner.pid in STARTED]


@pytest.fixture
def ends(bed: Any) -> tuple[Any, Any, Any]:
    """Two hosts and a plain link on which one skb is one packet."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right)
    for host in (left, right):
        host.run(["ip", "link", "set", "dev", link.interface(host), "gso_max_segs", "1"])
    return left, right, link


@pytest.fixture
def pair(ends: tuple[Any, Any, Any]) -> tuple[Any, Any, str]:
    """The same hosts, and the second one's address."""
    left, right, link = ends
    return left, right, link.address(right)


@pytest.fixture
def xdp_link(bed: Any) -> tuple[Any, Any, Any]:
    """Two hosts and a link whose receiving end takes redirected frames."""
    return _xdp_link(bed)


@pytest.fixture
def tap(xdp_link: Any) -> Iterator[Callable[[int], list[bytes]]]:
    """Read frames at the receiving end of `xdp_link`."""
    with tapped(xdp_link) as read:
        yield read


@pytest.fixture(scope="module")
def standing_xdp_link(root: None) -> Iterator[tuple[Any, Any, Any]]:
    """One `xdp_link` for all tests of a module that change nothing about it."""
    from parshall.testbed import Testbed

    with Testbed() as testbed:
        yield _xdp_link(testbed)


def _xdp_link(bed: Any) -> tuple[Any, Any, Any]:
    from parshall.host import offloads

    sender, receiver = bed.host("sender"), bed.host("receiver")
    link = bed.link(sender, receiver)
    # With packets of the host itself, losses of the generator's would be unknown.
    sender.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"])
    with receiver.enter():
        offloads.switch(link.interface(receiver), True)
    return sender, receiver, link


@pytest.fixture
def clients_at() -> Iterator[Callable[[Any], Clients]]:
    """Make clients on a host; close them after the test."""
    made: list[Clients] = []

    def make(host: Any) -> Clients:
        made.append(Clients(host))
        return made[-1]

    yield make
    for each in (each for clients in made for each in clients.sockets):
        each.close()
