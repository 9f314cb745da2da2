"""The calibrated router with its sender: exact small cases; `test_router_witness.py` has the others."""

import dataclasses

import numpy as np
import pyarrow
import pytest
from test_router_calibration import arrivals

from made_calibration import WAKE_NS, known
from parshall.errors import ParshallError
from parshall.router import calibrate as calibrating
from parshall.router.network import calibrated
from parshall.router.prediction import compare, predict, single_queue
from parshall.router.sender import sending, with_sender

PAUSE_NS = 6_000


def always(value_ns):
    """Times that are all equal."""
    return dataclasses.replace(
        calibrating.times([np.full(10, value_ns)]), bounds_ns=[value_ns, value_ns + 1e-3], counts=[1]
    )


def exact(**changes):
    calm = calibrating.Noise(0.0, 0.0, 0.0, 0.0, None, None)
    fields = {"service": always(1000.0), "wake": always(9000.0), "waking": always(6000.0), "noise": calm}
    return known(**fields | {"link_ns": 1000.0, "transfer_ns": 500.0, "send_ns": 0.0} | changes)


def due(times_ns):
    columns = {"due_ns": np.array(times_ns, np.int64), "arrival_ns": np.array(times_ns, np.int64)}
    return pyarrow.table(columns).append_column("departure_ns", pyarrow.nulls(len(times_ns), pyarrow.int64()))


def paced(pps, seed, **changes):
    """What a router with known parameters and its sender do."""
    table = arrivals(pps, seed=seed)
    table = table.append_column("due_ns", table.column("arrival_ns"))
    random = np.random.default_rng(8)
    waking = calibrating.times([random.normal(PAUSE_NS, 300, 20_000)])
    return predict(with_sender(known(waking=waking, **changes), seed), table)


def test_the_sender_waits_while_it_wakes_the_router():
    found = predict(calibrated(exact()), due([0, 100, 7000, 7000]))
    # The first wakes the router; the second waits for the sender; the others are one batch.
    assert found.column("arrival_ns").to_pylist() == [0, 6000, 7000, 7000]
    assert found.column("departure_ns").to_numpy() == pytest.approx([11_000, 12_000, 13_000, 14_000], abs=2)
    # Asleep again, it is woken by the next.
    later = predict(calibrated(exact()), due([0, 50_000])).column("departure_ns").to_numpy()
    assert later == pytest.approx([11_000, 61_000], abs=2)


def test_packets_beyond_the_queue_are_lost_and_a_poll_follows_each_64():
    found = predict(calibrated(exact(queue_packets=100, send_ns=100.0)), due([0] * 400))
    left = found.column("departure_ns").drop_null().to_numpy()
    assert found.column("departure_ns").null_count == 400 - len(left) > 100
    services = np.diff(left)
    assert services[63:64] == pytest.approx([1000 + 64 * 100], abs=2)
    assert np.delete(services, [63, 127])[:150] == pytest.approx(1000, abs=2)


def test_without_waiting_it_is_the_single_queue():
    model = exact(wake=always(0.0), waking=always(0.0), transfer_ns=0.0, link_ns=0.0)
    table = due(arrivals(700e3).column("arrival_ns").to_numpy())
    one, other = (predict(each, table)["departure_ns"].to_numpy() for each in (calibrated(model), single_queue(1000)))
    assert np.abs(one - other).max() <= 2


def test_without_planned_times_or_a_sender_it_is_the_network():
    table = arrivals(100e3, count=100)
    assert predict(calibrated(exact()), table).column("arrival_ns").equals(table.column("arrival_ns"))
    with pytest.raises(ParshallError, match=r"no \[waking\]; calibrate again"):
        with_sender(known())


def test_one_packet_shows_nothing_of_the_sender():
    assert sending(due([5]), 0).batch == 1


def test_late_wake_ups_make_the_tail():
    usual = np.full(99, WAKE_NS)
    plain, other = (
        paced(300e3, 61, wake=calibrating.times([np.append(usual, last)]), noise=exact().noise)
        for last in (WAKE_NS, 150_000)
    )
    tails = [compare(each, each)["p99"]["measured_us"] for each in (plain, other)]
    assert tails[0] < 3 * WAKE_NS / 1e3 < 100 < tails[1]
