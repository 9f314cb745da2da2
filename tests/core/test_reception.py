"""The account of stamped packets that arrived."""

import time

import numpy as np
import pyarrow
import pytest

from parshall.instruments.generate import Reception, stamp_offset_bytes


def batch(sequences, latency_ns=1000, offset=42):
    now_ns, utc_ns = time.monotonic_ns(), time.time_ns()
    packets = [bytes(offset) + number.to_bytes(8, "big") + now_ns.to_bytes(8, "big") + b"rest" for number in sequences]
    times = pyarrow.array([utc_ns + latency_ns] * len(packets), pyarrow.timestamp("ns", "UTC"))
    return pyarrow.record_batch({"time": times, "packet": pyarrow.array(packets, pyarrow.binary())})


def test_all_in_order():
    reception = Reception()
    for start in range(0, 5000, 1000):
        reception.add(batch(range(start, start + 1000), latency_ns=50_000_000))
    summary = reception.summary(sent=5000)
    assert (summary["received"], summary["lost"], summary["reordered"], summary["duplicates"]) == (5000, 0, 0, 0)
    # Between the two clocks that stamp a packet here, the machine may do something else.
    assert len(summary["latency_ns"]) > 0
    assert list(summary["latency_ns"]) == pytest.approx([50e6] * len(summary["latency_ns"]), abs=20e6)


def test_loss_duplicates_and_reordering_across_batches():
    reception = Reception()
    reception.add(batch([0, 1, 3, 2]))
    reception.add(batch([5, 5, 1]))
    summary = reception.summary(sent=8)
    # 4, 6 and 7 are missing; 2 and the second 1 came after a later one; 5 and 1 came twice.
    assert (summary["lost"], summary["reordered"], summary["duplicates"]) == (3, 2, 2)
    assert reception.summary()["lost"] == 1


def test_an_impossible_sequence_number_is_foreign():
    reception = Reception()
    reception.add(batch([0, 1, 1 << 63, 2]))
    summary = reception.summary(sent=3)
    assert (summary["received"], summary["foreign"], summary["lost"]) == (3, 1, 0)


@pytest.mark.parametrize("seed", range(5))
def test_it_balances_whatever_the_network_does(seed):
    rng = np.random.default_rng(seed)
    arrived = rng.permutation(np.repeat(rng.choice(1000, 700, replace=False), rng.integers(1, 3, 700)))
    reception = Reception()
    for part in np.array_split(arrived, 7):
        reception.add(batch([int(number) for number in part]))
    summary = reception.summary(sent=1000)
    assert summary["lost"] == 300 and summary["received"] == len(arrived)
    assert summary["received"] - summary["duplicates"] + summary["lost"] == 1000
    highest, late = -1, 0
    for number in arrived:
        late += number < highest
        highest = max(highest, number)
    assert summary["reordered"] == late


def test_packets_without_a_stamp_are_counted():
    reception = Reception(stamp_offset_bytes(is_ipv6=True, protocol="tcp", is_tagged=True))
    assert reception.offset_bytes == 78
    reception.add(batch([0], offset=42))
    assert reception.summary() == {
        "received": 0, "duplicates": 0, "reordered": 0, "too_short": 1, "foreign": 0, "lost": 0, "latency_ns": None,
    }  # fmt: skip


def test_packets_of_another_run_are_foreign():
    reception = Reception()
    reception.add(batch(range(10)))
    reception.add(batch([2, 8]))
    summary = reception.summary(sent=6)
    assert (summary["received"], summary["duplicates"], summary["lost"], summary["foreign"]) == (8, 2, 0, 4)
    assert reception.summary(sent=12)["lost"] == 2
