"""Calibrations and predictions of a router that Parshall's models did not make: see `event_router.py`."""

import dataclasses
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pyarrow
import pytest
from event_router import POLL_PACKETS, EventRouter, drawn, poisson_stalls
from test_router_calibration import constant, exponential, times_of_arrival, uniform
from test_router_sender import PAUSE_NS, due, exact

from made_calibration import LINK_NS, SEND_NS, SERVICE_NS, STALL_NS, STALLS_PER_S, WAKE_NS, known
from parshall.router import calibrate as calibrating
from parshall.router import estimation
from parshall.router.calibration import Calibration
from parshall.router.estimation import Passages
from parshall.router.network import calibrated
from parshall.router.prediction import compare, latencies_ns, predict, single_queue

TRANSFER_NS = 200
# The rate at which the queue never empties.
CAPACITY_PPS = 1e9 / (SERVICE_NS + SEND_NS)
Table = pyarrow.Table


def witnessed(
    pps: float, seed: int, gaps: Callable = exponential, *, takes_part_polls: bool = False, pauses: bool = True
) -> Table:
    """Return what a router with the parameters of `known` does; its sender pauses while it wakes it, or never."""
    count = 60_000
    random = np.random.default_rng(seed)
    due_ns = times_of_arrival(pps, count, seed + 1000, gaps)
    router = EventRouter(
        service=drawn(random.normal(SERVICE_NS, 60, count)),
        wake=drawn(random.normal(WAKE_NS, 900, count)),
        pause=drawn(pauses * random.normal(PAUSE_NS, 300, count)),
        link=LINK_NS,
        transfer=TRANSFER_NS,
        send=SEND_NS,
        takes_part_polls=takes_part_polls,
        places=1000,
        stalls=poisson_stalls(random, STALLS_PER_S, STALL_NS, 1e9 * count / pps),
    )
    return router.table(due_ns)


@cache
def calibration_of(takes_part_polls: bool, pauses: bool) -> Calibration:
    """Return the calibration of such a router, from the workloads that `calibrate` offers."""
    kind = {"takes_part_polls": takes_part_polls, "pauses": pauses}
    sparse = [witnessed(CAPACITY_PPS / 6, seed, uniform, **kind) for seed in (11, 12)]
    waiting = [witnessed(CAPACITY_PPS / 2, seed, **kind) for seed in (13, 14)]
    # Faster than the sender can.
    full = [witnessed(1e7, seed, constant, **kind) for seed in (15, 16)]
    parts = calibrating.estimated(
        *([Passages.of(each) for each in runs] for runs in (sparse, waiting, full)), batch=POLL_PACKETS
    )
    if pauses:
        parts |= calibrating.sender_fields([*sparse, *waiting], parts["link_ns"])
    return known(**parts)


@pytest.fixture(scope="module", params=[False, True], ids=["full polls", "every poll"])
def found(request: pytest.FixtureRequest) -> Calibration:
    return calibration_of(request.param, True)


def mean_with_wake_ups_ns(pps: float, service_ns: float, wake_ns: float) -> float:
    """Return the mean sojourn in M/D/1 whose server must wake (Welch 1964; the decomposition of M/G/1 with set-up)."""
    rate = 1e-9 * pps
    wait = rate * service_ns**2 / (2 * (1 - rate * service_ns))
    return service_ns + wait + (2 * wake_ns + rate * wake_ns**2) / (2 * (1 + rate * wake_ns))


@pytest.mark.parametrize(("load", "wake_ns"), [(0.3, 9000.0), (0.7, 9000.0), (0.7, 0.0)])
def test_witness_network_and_sender_have_the_mean_of_the_closed_form(load: float, wake_ns: float) -> None:
    table = due(times_of_arrival(load * 1e6, 100_000, 3, exponential))
    plain = {"wake": known_time(wake_ns), "waking": known_time(0.0), "transfer_ns": 0.0, "link_ns": 0.0}
    model = calibrated(exact(**plain))
    witness = EventRouter(lambda: 1000.0, lambda: wake_ns).table(table["due_ns"].to_numpy())
    expected_ns = mean_with_wake_ups_ns(load * 1e6, 1000.0, wake_ns)
    tables = (witness, predict(model, table), predict(model, table.drop_columns(["due_ns"])))
    for each in tables:
        assert latencies_ns(each).mean() == pytest.approx(expected_ns, rel=0.03)


def test_under_overload_a_packet_takes_its_service_and_its_way_to_the_sink() -> None:
    table = due(np.arange(50_000) * 100)
    model = calibrated(exact(send_ns=270.0, transfer_ns=100.0, waking=known_time(0.0)))
    witness = EventRouter(lambda: 1000.0, lambda: 9000.0, send=270.0, places=1000).table(table["due_ns"].to_numpy())
    for each in (witness, predict(model, table), predict(model, table.drop_columns(["due_ns"]))):
        left_ns = np.sort(each["departure_ns"].drop_null().to_numpy())[: 50 * POLL_PACKETS + 1]
        assert np.ptp(left_ns) / (50 * POLL_PACKETS) == pytest.approx(1270, rel=0.001)


def known_time(value_ns: float) -> calibrating.Times:
    """Return times that are all equal."""
    return dataclasses.replace(exact().service, bounds_ns=[value_ns, value_ns + 1e-3])


SLEEPS = pytest.mark.xfail(
    strict=True, reason="when the queue is empty after 64 packets the network sleeps; the CPU takes them to the sink"
)


@pytest.mark.parametrize(
    ("pause_ns", "pps"),
    [
        *((6137.3, pps) for pps in (50e3, 300e3, 600e3, 750e3)),
        *((0.0, pps) for pps in (50e3, 300e3)),
        *(pytest.param(0.0, pps, marks=SLEEPS) for pps in (600e3, 750e3)),
    ],
)
def test_times_that_are_known_give_each_packet_the_departure_of_the_witness(pause_ns: float, pps: float) -> None:
    # No sum of these is another one, so no two events are at one time.
    changes = {"wake": known_time(9003.1), "waking": known_time(pause_ns), "link_ns": 1011.7, "transfer_ns": 203.9}
    changes |= {"send_ns": 270.0, "sender_batch": 1}
    router = EventRouter(lambda: 1000.0, lambda: 9003.1, lambda: pause_ns, link=1011.7, transfer=203.9, send=270.0)
    witness = router.table(times_of_arrival(pps, 20_000, 9, exponential))
    # Without planned times it is the network, fed with the arrivals.
    found = predict(calibrated(exact(**changes)), witness if pause_ns else witness.drop_columns(["due_ns"]))
    for name in ("arrival_ns", "departure_ns"):
        # Arrivals are rounded to ns.
        assert np.abs(found[name].to_numpy() - witness[name].to_numpy()).max() <= 50, name


def slower(idle_ns: float, least: float = 0.5, most: float = 1.7) -> float:
    """A CPU that slept for longer wakes more slowly."""
    share = np.log(np.clip(idle_ns, 1_000, 30_000) / 1_000) / np.log(30)
    return least + (most - least) * float(share)


@pytest.mark.parametrize("pps", [50e3, 300e3, 500e3])
def test_a_router_that_looks_again_and_sleeps_deeper_leaves_as_the_witness(pps: float) -> None:
    # Steeper, and a difference of a nanosecond in one wake-up would be a larger one in the next.
    ends = (0.9, 1.3)
    after = [{"idle_ns": idle, "factor": factor} for idle, factor in zip((1_000.0, 30_000.0), ends, strict=True)]
    changes = {"wake": known_time(9003.1), "waking": known_time(6137.3), "link_ns": 1011.7, "transfer_ns": 203.9}
    changes |= {"send_ns": 0.0, "sender_batch": 1, "look_ns": 1604.3, "after_idle": after}
    router = EventRouter(
        lambda: 1000.0,
        lambda: 9003.1,
        lambda: 6137.3,
        link=1011.7,
        transfer=203.9,
        look=1604.3,
        slower_after=partial(slower, least=ends[0], most=ends[1]),
    )
    witness = router.table(times_of_arrival(pps, 20_000, 9, exponential))
    found = predict(calibrated(exact(**changes)), witness)
    for name in ("arrival_ns", "departure_ns"):
        assert np.abs(found[name].to_numpy() - witness[name].to_numpy()).max() <= 50, name


def thread_at(pps: float, seed: int, gaps: Callable, count: int = 25_000) -> Table:
    """Return what a NAPI thread does, which looks again, and whose CPU sleeps deeper the longer it sleeps."""
    random = np.random.default_rng(seed)
    router = EventRouter(
        service=drawn(random.normal(SERVICE_NS, 60, count)),
        wake=drawn(random.normal(WAKE_NS, 900, count)),
        pause=drawn(random.normal(PAUSE_NS, 300, count)),
        link=LINK_NS,
        transfer=TRANSFER_NS,
        look=1_800.0,
        slower_after=slower,
        places=256,
    )
    return router.table(times_of_arrival(pps, count, seed + 1000, gaps))


def test_the_look_of_a_thread_and_its_wake_ups_after_idle_times_are_found_and_matter() -> None:
    pps = 1e9 / SERVICE_NS
    sparse = [thread_at(pps / 6, seed, uniform) for seed in (11, 12, 13)]
    waiting = [thread_at(pps / 2, seed, exponential) for seed in (14, 15, 16)]
    full = [thread_at(1e7, seed, constant) for seed in (17, 18, 19)]
    runs = [[Passages.of(each) for each in of] for of in (sparse, waiting, full)]
    parts = calibrating.estimated(*runs, batch=POLL_PACKETS, looks=True)
    sender = calibrating.sender_fields([*sparse, *waiting], parts["link_ns"])
    assert parts["look_ns"] == pytest.approx(1_800, rel=0.1)
    # A factor is of the usual wake-up, which is one after some us.
    usual = parts["wake"].median_ns
    for row in parts["after_idle"]:
        assert row["factor"] * usual == pytest.approx(WAKE_NS * slower(row["idle_ns"]), rel=0.1)
    with_all = known(**parts, **sender, queue_packets=256)
    without = known(**calibrating.estimated(*runs, batch=POLL_PACKETS), **sender, queue_packets=256)
    without = dataclasses.replace(without, after_idle=[])
    errors = []
    for seed, gaps in ((21, exponential), (22, constant), (23, uniform)):
        real = thread_at(0.3 * pps, seed, gaps, 40_000)
        errors.append([compare(real, predict(calibrated(one), real))["p50"]["error"] for one in (with_all, without)])
    own, other = np.abs(errors).max(axis=0)
    assert own < 0.1 < other, errors


def test_with_rps_no_look_is_found() -> None:
    """Each packet for an empty backlog needs an interrupt, whether its CPU is awake or not."""
    found = calibration_of(False, True)
    assert found.look_ns == 0 and all(0.9 < row["factor"] < 1.1 for row in found.after_idle)


def test_the_parameters_of_a_router_are_found(found: Calibration) -> None:
    assert found.send_ns == pytest.approx(SEND_NS, rel=0.05)
    assert found.link_ns == pytest.approx(LINK_NS, abs=150)
    assert found.transfer_ns == pytest.approx(TRANSFER_NS, rel=0.05)
    assert (found.service.median_ns, found.service.mean_ns) == pytest.approx((SERVICE_NS, SERVICE_NS), rel=0.03)
    assert found.wake.median_ns == pytest.approx(WAKE_NS, rel=0.05)
    assert found.wake.p99_ns == pytest.approx(WAKE_NS + 2.33 * 900, rel=0.05)
    assert found.waking is not None and found.waking.median_ns == pytest.approx(PAUSE_NS, rel=0.05)
    assert found.sender_batch == 1
    assert found.held_share < 1e-3
    # Only stalls are seen that are longer than a wake-up or a poll.
    shortest_ns = estimation.LONG_PARTS * max(WAKE_NS, POLL_PACKETS * SEND_NS)
    assert found.noise.per_s == pytest.approx(STALLS_PER_S * np.exp(-shortest_ns / STALL_NS), rel=0.35)
    assert found.noise.times is not None
    assert found.noise.times.mean_ns == pytest.approx(shortest_ns + STALL_NS, rel=0.35)


PART_POLLS = pytest.mark.xfail(
    strict=True, reason="in the model a poll of fewer than 64 packets is free; the CPU takes these to the sink, too"
)
FAULTS = {
    (True, False, 0.6, "p50"): PART_POLLS,
    (True, False, 0.8, "p50"): PART_POLLS,
    (True, True, 0.6, "p50"): PART_POLLS,
}
# What docs/measurements/predict.md promises for the median and p90; some 40 stalls make p99.
TOLERANCES = {"p50": 0.1, "p90": 0.2, "p99": 0.4}


@cache
def errors_of(takes_part_polls: bool, pauses: bool, load: float) -> dict[str, tuple[float, float]]:
    """Return the errors of the calibrated model and of the single queue: the medians of three runs, by quantile."""
    found = []
    for seed in (31, 32, 33):
        real = witnessed(load * CAPACITY_PPS, seed, takes_part_polls=takes_part_polls, pauses=pauses)
        real = real if pauses else real.drop_columns(["due_ns"])
        models = (calibrated(calibration_of(takes_part_polls, pauses), seed + 7), single_queue(1e9 / CAPACITY_PPS))
        compared = [compare(real, predict(model, real)) for model in models]
        found.append([[each[name]["error"] for each in compared] for name in TOLERANCES])
    medians = np.median(found, axis=0)
    return {name: tuple(row) for name, row in zip(TOLERANCES, medians.tolist(), strict=True)}


@pytest.mark.parametrize(
    ("takes_part_polls", "pauses", "load", "quantile"),
    [
        pytest.param(part, pauses, load, quantile, marks=FAULTS.get((part, pauses, load, quantile), ()))
        for part in (False, True)
        for pauses in (False, True)
        # A sender that pauses has long busy periods at more, and so little of p90 in a run.
        for load in ((0.3, 0.6) if pauses else (0.3, 0.6, 0.8))
        for quantile in TOLERANCES
    ],
)
def test_a_calibration_predicts_other_runs(takes_part_polls: bool, pauses: bool, load: float, quantile: str) -> None:
    own, queue = errors_of(takes_part_polls, pauses, load)[quantile]
    assert abs(own) < TOLERANCES[quantile]
    assert abs(own) < abs(queue)
