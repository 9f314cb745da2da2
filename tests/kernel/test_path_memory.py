"""Memory of ``parshall path``: bounded, whatever number of packets is under way or is never freed."""

import contextlib
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from conversation import socket_at
from path_run import Measurement, check_balance, run, slow_queue

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
PORT = 9000
MANY = 1_050_000
"""More than the largest table of these tests has places."""
PACKETS_MAX = 1 << 16
"""The default of ``--packets-max``."""
SIZES = [
    pytest.param(100_000, 1 << 12),
    pytest.param(MANY, PACKETS_MAX, marks=pytest.mark.long),
    pytest.param(MANY, 1 << 20, marks=pytest.mark.long),
]
"""How many packets there are, and places in the table."""
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
# An sk_buff with its data takes 768 bytes; the test needs room for another time as much.
NEEDED_BYTES = 3 << 30


def available_bytes() -> int:
    """Return the memory that programs can get."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


needs_memory = pytest.mark.skipif(available_bytes() < NEEDED_BYTES, reason="less than 3 GiB of memory are available")


def flood(host: Any, address: str, count: int) -> None:
    """Send datagrams, and do not wait for the room that the socket would give them."""
    with socket_at(host, address, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 30)
        for _ in range(count):
            sender.sendto(b"x", (address, PORT))


def resident_bytes(pid: int) -> int:
    """Return the memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def map_bytes(pid: int) -> int:
    """Return the memory of the eBPF maps that a process holds, as the kernel accounts it."""
    texts = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        # It may close one meanwhile.
        with contextlib.suppress(FileNotFoundError):
            texts.append(path.read_text())
    sizes = {
        number[1]: int(size[1])
        for text in texts
        if (number := re.search(r"map_id:\s*(\d+)", text)) and (size := re.search(r"memlock:\s*(\d+)", text))
    }
    return sum(sizes.values())


class Memory:
    """The memory of a measurement, before packets come and after."""

    def __init__(self, measurement: Measurement) -> None:
        self._pid = measurement.process.pid
        self._resident_bytes, self._map_bytes = resident_bytes(self._pid), map_bytes(self._pid)
        assert self._map_bytes > 0

    def check(self, packets_max: int) -> None:
        """Assert that it has not grown, and that it is what the manual says of a packet's place."""
        assert map_bytes(self._pid) == self._map_bytes
        assert resident_bytes(self._pid) - self._resident_bytes < 32 << 20
        assert 224 * packets_max < self._map_bytes < 224 * packets_max + (96 << 20)


def flooded(measurement: Measurement, host: Any, address: str, count: int, packets_max: int) -> dict[str, Any]:
    """Send datagrams while the memory of a measurement does not grow, end it, and return its summary."""
    memory = Memory(measurement)
    flood(host, address, count)
    memory.check(packets_max)
    return json.loads(measurement.end(signal.SIGINT, timeout_s=120).stdout)


@needs_memory
@pytest.mark.parametrize(("count", "packets_max"), SIZES)
def test_packets_under_way_are_open_or_displaced(bed: Any, count: int, packets_max: int) -> None:
    """They wait in a queue discipline that hardly sends."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, backend="veth")
    slow_queue(left, link.interface(left), 500_000_000)
    address = str(link.address(right))
    arguments = ["--netns", left.namespace, "--packets-max", str(packets_max)]
    arguments += ["--stages", "local_out,queue,start_xmit,drop"]
    with Measurement(*arguments, "--json") as measurement:
        summary = flooded(measurement, left, address, count, packets_max)
    paths = summary["paths"]
    ended = sum(paths.values())
    failed = check_balance(summary["ledger"])["packets"]["lost"]["failed"]
    # Without its place a packet begins anew at the next stage at which packets may begin, and counts again.
    assert count <= ended + failed <= 1.01 * count
    assert paths["open"] <= packets_max
    # Two packets whose addresses have one place overwrite each other, also in a table with room; how often depends on
    # where the kernel has its buffers.
    assert paths["open"] > 0.3 * min(packets_max, count)
    assert paths["open"] + paths["displaced"] > 0.99 * count


@needs_memory
@pytest.mark.parametrize(("count", "packets_max"), SIZES[:2])
def test_packets_that_are_never_freed_are_delivered_in_bounded_memory(bed: Any, count: int, packets_max: int) -> None:
    """A socket without a reader keeps all packets: none of their sk_buffs is used again."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, backend="veth")
    address = str(link.address(right))
    arguments = ["--netns", right.namespace, "--packets-max", str(packets_max)]
    arguments += ["--stages", "netif_rx,receive,local_in,drop"]
    with socket_at(right, address, socket.SOCK_DGRAM) as sink, Measurement(*arguments, "--json") as measurement:
        sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 30)
        sink.bind((address, PORT))
        summary = flooded(measurement, left, address, count, packets_max)
    paths = summary["paths"]
    account = check_balance(summary["ledger"])["packets"]
    # Without its place a packet begins anew at the next stage at which packets may begin, and counts again.
    assert count <= account["seen"] - account["filtered"] <= 1.001 * count
    assert count <= sum(paths.values()) + account["lost"]["failed"] <= 1.001 * count
    # The backlog of a CPU holds 1,000 packets; beyond, it drops.
    assert paths["delivered"] > 0.9 * count


def test_the_largest_table(bed: Any) -> None:
    """4,194,304 packets: a gigabyte of the kernel's memory."""
    if available_bytes() < NEEDED_BYTES:
        pytest.skip("less than 3 GiB of memory are available")
    answer = run("--netns", bed.host("idle").namespace, "--packets-max", 1 << 22, "--duration", "0.5", "--json", "-q")
    assert answer.returncode == 0, answer.stderr
    check_balance(json.loads(answer.stdout)["ledger"])
