"""Times of reads, held against what servers of several kinds stamp themselves."""

import json
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from conversation import socket_at

from ledgers import unbalanced

# Times are compared, so that nothing else may run.
pytestmark = [pytest.mark.kernel, pytest.mark.alone, pytest.mark.usefixtures("root")]

STAGES = ["netif_rx", "receive", "local_in", "socket_in", "tcp_receive", "data_ready", "drop"]
ADDRESS = "127.0.0.1"
REQUEST = b"a short request"
NAME = b"stamping"
TOLERANCE = 0.05
# The kernel stamps a packet before the stack has it: for the shortest waits, the way to the socket counts.
STACK_NS = 50_000
# Others take the CPU from a server between a read and its look at the clock.
FAR_SHARE_MAX = 0.1

# The times of a read: when the kernel received the data, and when the call returned. Each server works a moment
# before it reads, as one that is busy with another client: its requests wait.
_SERVER = """
import ctypes, json, os, select, socket, struct, sys, threading, time
kind, requests = sys.argv[1], int(sys.argv[2])
work_s = 0.001
ctypes.CDLL(None).prctl(15, b"stamping")  # PR_SET_NAME
is_datagram = kind == "datagrams"
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if is_datagram else socket.SOCK_STREAM)
server.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
server.bind(("127.0.0.1", 0))
stamps = []

def read(one, work=True):
    if work:
        time.sleep(work_s)
    data, controls, _, sender = one.recvmsg(4096, 64)
    returned_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
    seconds, nanoseconds = struct.unpack("qq", controls[0][2])
    return sender, (seconds * 10**9 + nanoseconds, returned_ns)

def answer(one):
    stamps.append(read(one)[1])
    one.send(b"answer")

def wait_until_stamped():
    # The kernel begins to stamp a moment after the first socket has asked; before, a packet has the time of its read.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as looping:
        looping.setsockopt(socket.SOL_SOCKET, 35, 1)
        looping.bind(("127.0.0.1", 0))
        while True:
            looping.sendto(b"", looping.getsockname())
            time.sleep(work_s)
            before_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
            if read(looping, work=False)[1][0] < before_ns:
                return

def sequential():
    for _ in range(requests):
        with server.accept()[0] as one:
            answer(one)

def keep_alive():
    with server.accept()[0] as one:
        for _ in range(requests):
            select.select([one], [], [])
            answer(one)

def at_once():
    clients = [server.accept()[0] for _ in range(100)]
    while len(stamps) < requests:
        for one in select.select(clients, [], [])[0]:
            answer(one)

def epoll():
    clients = {one.fileno(): one for one in (server.accept()[0] for _ in range(100))}
    waiting = select.epoll()
    kinds = select.EPOLLIN | select.EPOLLONESHOT
    for number in clients:
        waiting.register(number, kinds)
    def serve():
        while len(stamps) < requests:
            for number, _ in waiting.poll(0.05, 1):
                answer(clients[number])
                waiting.modify(number, kinds)
    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def fork():
    for _ in range(requests):
        one, _ = server.accept()
        back, forth = os.pipe()
        if not os.fork():
            answer(one)
            os.write(forth, json.dumps(stamps[-1]).encode())
            os._exit(0)
        one.close()
        os.close(forth)
        os.wait()
        with os.fdopen(back) as said:
            stamps.append(json.load(said))

def datagrams():
    for number in range(requests):
        if number % 5 == 0:
            input()  # all five have been sent
        sender, times = read(server)
        stamps.append(times)
        if number % 5 == 4:
            server.sendto(b"answer", sender)

wait_until_stamped()
if not is_datagram:
    server.listen(128)
print(server.getsockname()[1], flush=True)
input()
{one.__name__: one for one in (sequential, keep_alive, at_once, epoll, fork, datagrams)}[kind]()
print(json.dumps(stamps), flush=True)
input()
"""


class Client:
    """Asks a server in every way that the tests need."""

    def __init__(self, host: Any, port: int, tell: Callable[[], None]) -> None:
        self._host, self._server, self._tell = host, (ADDRESS, port), tell

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """Give a connection to the server."""
        with socket_at(self._host, ADDRESS, socket.SOCK_STREAM) as active:
            active.settimeout(30)
            active.connect(self._server)
            yield active

    def sequential(self, requests: int) -> None:
        """Open a connection for each request."""
        for _ in range(requests):
            with self.connected() as active:
                active.sendall(REQUEST)
                assert active.recv(100)

    fork = sequential

    def keep_alive(self, requests: int) -> None:
        """Send all requests by one connection."""
        with self.connected() as active:
            for _ in range(requests):
                active.sendall(REQUEST)
                assert active.recv(100)

    def at_once(self, requests: int) -> None:
        """Let 100 connections send a request at once, again and again."""
        clients = [self._open() for _ in range(100)]
        try:
            for _ in range(requests // 100):
                for one in clients:
                    one.sendall(REQUEST)
                waiting = set(clients)
                while waiting:
                    for one in select.select(list(waiting), [], [], 30)[0]:
                        assert one.recv(100)
                        waiting.remove(one)
        finally:
            for one in clients:
                one.close()

    epoll = at_once

    def datagrams(self, requests: int) -> None:
        """Send five datagrams, and go on when all were read."""
        with socket_at(self._host, ADDRESS, socket.SOCK_DGRAM) as asking:
            asking.settimeout(30)
            for _ in range(requests // 5):
                for _ in range(5):
                    asking.sendto(REQUEST, self._server)
                self._tell()
                assert asking.recv(100)

    def _open(self) -> socket.socket:
        active = socket_at(self._host, ADDRESS, socket.SOCK_STREAM)
        active.settimeout(30)
        active.connect(self._server)
        return active


def waits_of_streams(stamps: list[list[int]]) -> list[int]:
    """Return how long each request waited, ns: every read has the data of one."""
    return [returned - received for received, returned in stamps]


def waits_of_datagrams(stamps: list[list[int]]) -> list[int]:
    """Return how long data had been there at each read that had new data, ns: the first since the read before."""
    waits = []
    for (_, before), (_, returned) in pairwise([[0, 0], *stamps]):
        fresh = [received for received, _ in stamps if before < received <= returned]
        if fresh:
            waits.append(returned - min(fresh))
    return waits


@pytest.mark.parametrize(
    ("kind", "requests", "waits_of"),
    [
        ("sequential", 1000, waits_of_streams),
        ("keep_alive", 1000, waits_of_streams),
        ("at_once", 1000, waits_of_streams),
        ("epoll", 1000, waits_of_streams),
        ("fork", 300, waits_of_streams),
        ("datagrams", 1000, waits_of_datagrams),
    ],
)
def test_times_of_reads_are_those_of_the_servers_own_stamps(
    bed: Any, tmp_path: Path, kind: str, requests: int, waits_of: Callable[[list[list[int]]], list[int]]
) -> None:
    from parshall.instruments.path import PathLog, PathProfile

    host = bed.host("server")
    command = [sys.executable, "-c", _SERVER, kind, str(requests)]
    server = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    with PathProfile(tmp_path / "path.arrow", netns=host.namespace, reads=True, stages=STAGES) as profile:

        def tell() -> None:
            print(file=server.stdin, flush=True)

        tell()
        getattr(Client(host, port, tell), kind)(requests)
        stamps = json.loads(server.stdout.readline())
    server.communicate("\n", timeout=30)
    if "data_ready" not in profile.summary.stages:
        pytest.skip("this kernel lacks the stage at which data is ready")
    assert not list(unbalanced(profile.summary.ledger))
    # Both in the order in which the reads returned.
    waits_ns = waits_of(sorted(stamps, key=lambda stamp: stamp[1]))
    reads = PathLog(tmp_path / "path.arrow").reads
    ours = reads.filter(pc.equal(pc.cast(reads["command"], "string"), NAME.decode()))
    ready_ns = pc.cast(ours["time"], "int64").to_pylist()
    found_ns = [read_ns for _, read_ns in sorted(zip(ready_ns, ours["read_ns"].to_pylist(), strict=True), key=sum)]
    assert len(found_ns) == len(waits_ns) > 0
    # A server's own clock begins before the stack, and stops once it has a CPU again.
    later_ns = [stamped - found for found, stamped in zip(found_ns, waits_ns, strict=True)]
    assert 0 < statistics.median(later_ns) < STACK_NS
    far = [
        pair
        for pair in zip(found_ns, waits_ns, strict=True)
        if pair[0] != pytest.approx(pair[1], rel=TOLERANCE, abs=STACK_NS)
    ]
    assert len(far) <= FAR_SHARE_MAX * len(found_ns), far


# It looks for data between other work, and never sleeps: no thread waits for data, and the kernel wakes none for it.
_LOOKING = """
import ctypes, socket, sys, time
ctypes.CDLL(None).prctl(15, b"stamping")  # PR_SET_NAME
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
left = int(sys.argv[1])
while left:
    until_s = time.monotonic() + 0.005
    while time.monotonic() < until_s:
        pass
    try:
        server.recv(100, socket.MSG_DONTWAIT)
        left -= 1
    except BlockingIOError:
        pass
"""


def test_who_waits_for_no_data_is_not_woken_by_it(bed: Any, tmp_path: Path) -> None:
    """The next thread that is woken on that CPU is another one, whose times are not the reader's."""
    from parshall.instruments.path import PathLog, PathProfile

    host, requests = bed.host("server"), 40
    command = [sys.executable, "-c", _LOOKING, str(requests)]
    server = host.popen(command, stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    with (
        PathProfile(tmp_path / "path.arrow", netns=host.namespace, reads=True, stages=STAGES) as profile,
        socket_at(host, ADDRESS, socket.SOCK_DGRAM) as client,
    ):
        while server.poll() is None:
            client.sendto(REQUEST, (ADDRESS, port))
            time.sleep(0.007)  # the kernel wakes this thread, on the CPU on which the data became ready
    if "data_ready" not in profile.summary.stages:
        pytest.skip("this kernel lacks the stage at which data is ready")
    reads = PathLog(tmp_path / "path.arrow").reads
    ours = reads.filter(pc.equal(pc.cast(reads["command"], "string"), NAME.decode()))
    assert len(ours) > requests / 2
    assert set(ours["waking_ns"].to_pylist()) == set(ours["running_ns"].to_pylist()) == {None}
    assert all(read_ns > 0 for read_ns in ours["read_ns"].to_pylist())
