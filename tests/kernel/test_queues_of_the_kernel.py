"""The relay's managed queues beside the kernel's own (sch_codel, sch_fq_codel), with the same packets.

Kernels without them skip; `scripts/under-kernel bookworm -- scripts/test tests/kernel/test_queues_of_the_kernel.py` has
one that has.
"""

import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from conversation import socket_at

pytestmark = [pytest.mark.kernel, pytest.mark.long]

RATE_BPS, FRAME_BYTES = 5e6, 1250
HEADERS_BYTES = 14 + 20 + 8
# A quarter more than the line carries.
GAP_S = 0.8 * FRAME_BYTES * 8 / RATE_BPS
LENGTH_S = 10.0
SPARSE_GAP_S = 0.05
QUEUE_PACKETS = 1000
OPTIONS = {
    "codel": ["target", "5ms", "interval", "100ms", "noecn"],
    "fq-codel": ["target", "5ms", "interval", "100ms", "quantum", "1514", "noecn"],
}
BULK, SPARSE = 0, 1
# A sender that is never later sends both queues the same.
LATE_S = 0.02


@dataclass(frozen=True)
class Carried:
    """What a link did with the packets of a flow: when each was sent, s, and its delay, ms; None: it did not come."""

    packets: list[tuple[float, float | None]]

    def delays_ms(self, begin_s: float, end_s: float) -> list[float]:
        """Return the delays of what was sent in a time."""
        return [delay for sent_s, delay in self.packets if begin_s <= sent_s < end_s and delay is not None]

    def lost(self, end_s: float = LENGTH_S) -> int:
        """Return how many packets that were sent before a time did not come."""
        return sum(delay is None for sent_s, delay in self.packets if sent_s < end_s)


def carry(sender: Any, receiver: Any, address: str) -> list[Carried]:
    """Send a bulk flow and a sparse one, at times that do not depend on the link."""
    with socket_at(receiver, address, socket.SOCK_DGRAM) as receiving:
        receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        receiving.bind((address, 0))
        receiving.settimeout(2.0)
        came: dict[tuple[int, int], float] = {}

        def receive() -> None:
            try:
                while True:
                    packet = receiving.recv(2048)
                    flow, number = struct.unpack_from("II", packet)
                    came[flow, number] = time.monotonic()
            except TimeoutError:
                return

        reading = threading.Thread(target=receive)
        reading.start()
        sent: list[list[float]] = [[], []]
        with (
            socket_at(sender, address, socket.SOCK_DGRAM) as bulk,
            socket_at(sender, address, socket.SOCK_DGRAM) as sparse,
        ):
            bulk.connect(receiving.getsockname())
            sparse.connect(receiving.getsockname())
            began_s = time.monotonic()
            while (at_s := len(sent[BULK]) * GAP_S) < LENGTH_S:
                time.sleep(max(0.0, began_s + at_s - time.monotonic()))
                for flow, opened, due in ((SPARSE, sparse, SPARSE_GAP_S), (BULK, bulk, GAP_S)):
                    if len(sent[flow]) * due <= at_s:
                        payload = struct.pack("II", flow, len(sent[flow]))
                        sent[flow].append(time.monotonic() - began_s)
                        opened.send(payload.ljust(FRAME_BYTES - HEADERS_BYTES if flow == BULK else 64, b"\0"))
        reading.join()
    return [
        Carried(
            [
                (sent_s, 1000 * (came[flow, number] - began_s - sent_s) if (flow, number) in came else None)
                for number, sent_s in enumerate(sent[flow])
            ]
        )
        for flow in (BULK, SPARSE)
    ]


def by_the_relay(bed: Any, discipline: str) -> list[Carried]:
    """Return what the relay does."""
    a, b = bed.host("sender"), bed.host("receiver")
    link = bed.link(a, b, backend="relay", rate_bps=RATE_BPS, queue_packets=QUEUE_PACKETS, discipline=discipline)
    return carry(a, b, link.address(b))


def by_the_kernel(bed: Any, discipline: str) -> list[Carried]:
    """Return what the kernel's discipline does behind a token bucket, which keeps the rate."""
    a, b = bed.host("left"), bed.host("right")
    link = bed.link(a, b, backend="veth", offloads=False)
    name = link.interface(a)
    tc = ["tc", "qdisc", "add", "dev", name]
    bucket = [
        "root",
        "handle",
        "1:",
        "tbf",
        "rate",
        f"{RATE_BPS:.0f}bit",
        "burst",
        str(2 * FRAME_BYTES),
        "limit",
        "3mb",
    ]
    managed = ["parent", "1:1", "handle", "10:", discipline.replace("-", "_"), "limit", str(QUEUE_PACKETS)]
    for words in (bucket, [*managed, *OPTIONS[discipline]]):
        done = a.run([*tc, *words], check=False)
        if done.returncode:
            pytest.skip(f"this kernel has no {words[3 if words is bucket else 4]}: {done.stderr.strip()}")
    return carry(a, b, link.address(b))


@pytest.mark.alone
@pytest.mark.parametrize("discipline", OPTIONS)
def test_a_managed_queue_does_what_that_of_the_kernel_does(bed: Any, discipline: str) -> None:
    # The kernel's first: it skips where there is none.
    kernels, ours = by_the_kernel(bed, discipline), by_the_relay(bed, discipline)
    late_s = max(
        sent_s - number * GAP_S for each in (kernels, ours) for number, (sent_s, _) in enumerate(each[BULK].packets)
    )
    steady = [statistics.mean(each[BULK].delays_ms(5, LENGTH_S)) for each in (kernels, ours)]
    begun = [statistics.mean(each[BULK].delays_ms(0.2, 2)) for each in (kernels, ours)]
    lost = [each[BULK].lost() for each in (kernels, ours)]
    sparse = [statistics.median(each[SPARSE].delays_ms(2, LENGTH_S)) for each in (kernels, ours)]
    what = f"{discipline}: kernel and relay: {steady=} ms, {begun=} ms, {lost=}, {sparse=} ms; {late_s=}"
    print(what)
    # A fifth of what is sent has no room; both hold it back in time alike.
    assert lost[1] == pytest.approx(lost[0], rel=0.1, abs=10), what
    assert steady[1] == pytest.approx(steady[0], rel=0.25, abs=3), what
    assert sparse[1] == pytest.approx(sparse[0], rel=0.25, abs=3), what
    # What a late sender sends at once fills a queue that has not begun to drop.
    assert late_s > LATE_S or begun[1] == pytest.approx(begun[0], rel=0.25, abs=3), what
    if discipline == "fq-codel":
        assert sparse[1] < steady[1] / 2, what
