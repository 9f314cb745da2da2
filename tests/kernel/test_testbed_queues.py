"""Queues of the testbed's links that drop or mark before they are full."""

import re
import socket
import statistics
import struct
import threading

import pytest
from conversation import connection
from test_testbed import difference, two_hosts

from parshall.errors import UsageError

pytestmark = pytest.mark.kernel


def fill(bed, **queue):
    """Fill a link of 50 Mbit/s and 10 ms each way by TCP; return its median round-trip time (ms) and its account."""
    a, b, link = two_hosts(bed, rate_bps=50e6, delay_ms=10, queue_packets=500, **queue)
    for host in (a, b):
        host.run(["sysctl", "-qw", "net.ipv4.tcp_ecn=1"])
    round_trips_us = []
    with connection(a, b, link.address(b), 5201) as (active, passive):
        active.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        reading = threading.Thread(target=lambda: [None for _ in iter(lambda: passive.recv(1 << 16), b"")])
        reading.start()
        for _ in range(300):
            active.sendall(bytes(50_000))
            # tcpi_rtt of struct tcp_info
            info = active.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            round_trips_us.append(struct.unpack_from("I", info, 68)[0])
        active.shutdown(socket.SHUT_WR)
        reading.join()
    ledger = link.close()["relay"]["a_to_b"]
    assert difference(ledger) == 0 and sum(ledger["own_lost"].values()) == 0
    # Slow start fills any queue, and PIE needs a second to empty it: of the last third.
    return statistics.median(round_trips_us[200:]) / 1000, ledger


def test_a_plain_queue_fills_up(bed):
    round_trip_ms, ledger = fill(bed)
    # 500 packets of 1514 bytes take 121 ms.
    assert round_trip_ms > 50
    assert (ledger["early_dropped"], ledger["marked"]) == (0, 0)


@pytest.mark.parametrize("discipline", ["codel", "fq-codel", "pie"])
def test_a_managed_queue_stays_short(bed, discipline):
    round_trip_ms, ledger = fill(bed, discipline=discipline)
    # 20 ms of the cable, 5 or 15 of the target, and what the sender needs to answer.
    assert round_trip_ms < 50
    assert ledger["early_dropped"] > 0
    assert ledger["marked"] == 0


def test_a_managed_queue_marks_what_may_be_marked(bed):
    _, ledger = fill(bed, discipline="codel", ecn=True)
    # What is sent again may not be marked (RFC 3168, section 6.1.5).
    assert ledger["marked"] > ledger["early_dropped"]


@pytest.mark.parametrize(
    ("shaping", "said"),
    [
        ({"discipline": "red"}, "discipline 'red': is unknown; choose one of 'drop-tail', 'codel', 'fq-codel', 'pie'"),
        ({"discipline": "codel", "rate_bps": None}, "discipline 'codel' has no queue without rate_bps; give rate_bps"),
        ({"ecn": True}, "'drop-tail' marks nothing and has no target; choose another discipline"),
        ({"target_ms": 5}, "'drop-tail' marks nothing and has no target; choose another discipline"),
        ({"discipline": "pie", "interval_ms": 9}, "interval_ms is of 'codel' and 'fq-codel'; choose one of them"),
        ({"discipline": "pie", "target_ms": -1}, "target_ms -1: expected a number from 0 to 3.6e+06"),
        (
            {"discipline": "pie", "backend": "kernel"},
            "backend 'kernel' does not support this: discipline 'pie'; choose",
        ),
    ],
)
def test_a_queue_that_cannot_be_is_refused_in_one_line(bed, shaping, said):
    with pytest.raises(UsageError, match=re.escape(f"link: {said}")):
        bed.link(bed.host("a"), bed.host("b"), **{"rate_bps": 1e6} | shaping)
