"""What uses buffers of the kernel beside the packets of a test: it gets the addresses that they have left."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Each round closes sockets with unread data, which the kernel drops from their queues, and reads other data.
_NOISE = """
import itertools, os, socket, struct, sys
kinds = sys.argv[1].split(",")
os.sched_setaffinity(0, {int(sys.argv[2])})

def unix(number):
    a, b = socket.socketpair(socket.AF_UNIX, (socket.SOCK_STREAM, socket.SOCK_DGRAM)[number % 2])
    for size in (10, 100, 1000, 4000):
        a.send(bytes(size))
    if number % 3:
        b.recv(5)
    a.close()
    b.close()

def netlink(number):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        # RTM_GETLINK of all; the answer is read in one of two rounds.
        route.sendall(struct.pack("IHHIIBxxxIII", 32, 18, 0x301, number, 0, 0, 0, 0, 0))
        if number % 2:
            route.recv(1 << 16)

def packet(number):
    # As tcpdump does when it ends: packets are left in its queue.
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        for _ in range(20):
            unix(number)
            if number % 2:
                try:
                    tap.recv(100, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass

sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

def refused(number):
    # No socket has this port.
    for _ in range(50):
        sender.sendto(bytes(100), ("127.0.0.1", 9))

print("noisy", flush=True)
for number in itertools.count():
    for kind in kinds:
        {"unix": unix, "netlink": netlink, "packet": packet, "refused": refused}[kind](number)
"""


@contextmanager
def noise(host: Any, *kinds: str, cpu: int) -> Iterator[None]:
    """Keep a program on a CPU that churns sockets of these kinds in a host's namespace: unix, netlink, packet.

    The kind `refused` sends datagrams to a port without a socket.
    """
    command = [sys.executable, "-c", _NOISE, ",".join(kinds), str(cpu)]
    program = host.popen(command, stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "noisy\n"
    os.sched_yield()
    try:
        yield
        assert program.poll() is None, "it went on to the end"
    finally:
        program.kill()
        program.wait()
