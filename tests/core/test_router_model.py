"""The search for a router's capacity, and predictions beside measurements, without a router."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parshall.cli.router import _capacity_line
from parshall.errors import UsageError
from parshall.host.quantities import many
from parshall.router import capacity, measurement
from parshall.router.capacity import Trial, search
from parshall.router.prediction import ccdf, compare, latencies_ns, predict, single_queue
from parshall.router.routes import networks
from parshall.router.setup import Setup
from parshall.router.traffic import KINDS, Traffic
from suites import long_except

DEFAULTS = {"trials": 200, "resolution": 0.02, "loss": 0.0, "low_pps": 5e3, "high_pps": 4e6}


def router(capacity_pps, sender_pps=1e9, deviation=0.0, stalls=0.0, seed=1):
    """A router that loses what exceeds its capacity, behind a generator with a limit.

    The logarithm of the capacity varies from trial to trial, and a share of the trials has a stall that loses packets.
    """
    random = np.random.default_rng(seed)

    def trial(pps, number):
        sent_pps = min(pps, sender_pps)
        lost = max(0.0, 1 - capacity_pps * np.exp(deviation * random.normal()) / sent_pps)
        stalled = random.random() < stalls
        return Trial(pps, sent_pps, round(sent_pps), round(lost * sent_pps) + 100 * stalled)

    return trial


@pytest.mark.parametrize(
    ("deviation", "stalls", "width"),
    long_except(
        [(0.0, 0.0, 0.02), (0.01, 0.05, 0.05)],
        [(0.0, 0.0, 0.02), (0.01, 0.0, 0.03), (0.03, 0.0, 0.1), (0.01, 0.05, 0.05)],
    ),
)
def test_the_interval_of_a_search_holds_the_capacity(deviation, stalls, width):
    random, runs = np.random.default_rng(7), 60
    found = []
    for seed in range(runs):
        true_pps = float(np.exp(random.uniform(np.log(20e3), np.log(2e6))))
        found.append((true_pps, search(router(true_pps, deviation=deviation, stalls=stalls, seed=seed), **DEFAULTS)))
    # Of intervals of 95 % fewer than 53 of 60 hold once in 200 times.
    assert sum(each.low_pps <= true <= each.high_pps for true, each in found) >= 53
    assert all(each.low_pps < each.high_pps for _, each in found)
    assert np.median([each.high_pps / max(1, each.low_pps) - 1 for _, each in found]) <= width
    assert np.median([abs(each.pps / true - 1) for true, each in found]) <= width


@pytest.mark.parametrize("trials", [1, 2, 3, 5])
def test_a_search_of_few_trials_has_an_estimate_without_an_interval(trials):
    found = search(router(300e3), **DEFAULTS | {"trials": trials})
    assert (found.low_pps, found.high_pps, len(found.trials)) == (0, np.inf, trials)
    assert 5e3 <= found.pps <= 4e6
    line = f"zero loss about {found.pps:,.0f} packets/s ({many(trials, 'trial')} without an interval: "
    assert _capacity_line(found) == f"{line}raise --trials)"
    # What measures a share of the capacity has no such option.
    assert _capacity_line(found, more="see capacity") == f"{line}see capacity)"


@pytest.mark.parametrize("capacity_pps", [7e3, 40e3, 300e3, 3e6])
def test_a_search_of_an_undisturbed_router_is_short(capacity_pps):
    found = search(router(capacity_pps), **DEFAULTS)
    assert found.low_pps <= capacity_pps <= found.high_pps <= 1.021 * found.low_pps
    assert not found.is_sender_limited
    assert len(found.trials) < 60


@pytest.mark.parametrize("number", [0, 1, 3, 6, 20])
def test_no_failure_is_final(number):
    plain = router(300e3)

    def trial(pps, own):
        found = plain(pps, own)
        return dataclasses.replace(found, lost=found.lost + 100 * (own == number))

    found = search(trial, **DEFAULTS)
    assert found.low_pps <= 300e3 <= found.high_pps <= 1.05 * found.low_pps


def test_each_trial_has_a_number_of_its_own_and_there_are_no_more_than_asked():
    numbers = []

    def trial(pps, number):
        numbers.append(number)
        return router(100e3)(pps, number)

    found = search(trial, **DEFAULTS | {"trials": 20})
    assert numbers == list(range(20)) == list(range(len(found.trials)))


def test_the_limit_of_the_generator_is_not_the_router_s():
    found = search(router(900e3, sender_pps=200e3), **DEFAULTS)
    assert found.is_sender_limited
    assert 196e3 <= found.low_pps <= found.pps <= 200e3 and found.high_pps == np.inf
    # Loss at the rate that the generator reached is the router's.
    found = search(router(150e3, sender_pps=200e3), **DEFAULTS)
    assert not found.is_sender_limited
    assert found.low_pps <= 150e3 <= found.high_pps


def test_a_trial_is_of_the_rate_at_which_packets_were_sent():
    plain = router(300e3)
    found = search(lambda pps, number: dataclasses.replace(plain(0.985 * pps, number), pps=pps), **DEFAULTS)
    assert found.low_pps <= 300e3 <= found.high_pps


def test_a_router_that_always_or_never_loses():
    found = search(router(10), **DEFAULTS)
    assert (found.pps, found.low_pps) == (0, 0) and found.high_pps <= 1.02 * 5e3
    found = search(router(1e9), **DEFAULTS)
    assert found.is_sender_limited and found.low_pps > 3.9e6 and len(found.trials) < 60


def test_loss_may_be_allowed():
    found = search(router(100e3), **DEFAULTS | {"loss": 0.2})
    assert found.low_pps <= 125e3 * 1.001 and found.high_pps >= 125e3 * 0.999


@pytest.mark.parametrize(("received", "is_limited"), [(1000, True), (960, True), (900, False)])
def test_an_overload_that_the_router_forwards_is_no_overload(monkeypatch, received, is_limited):
    ledger = {"sent": 1000, "received": received, "lost": {"queue": 1000 - received}}
    offered = SimpleNamespace(ledger=ledger, received_pps=1e6, sent_pps=1e6)
    monkeypatch.setattr(capacity, "offer", lambda *_: offered)
    assert capacity.overload(None, repeats=2).is_sender_limited is is_limited


def test_too_few_trials_decide_nothing():
    found = search(router(100e3), **DEFAULTS | {"trials": 4})
    assert (found.low_pps, found.high_pps) == (0, np.inf)


@pytest.mark.parametrize("wrong", [{"low_pps": 0}, {"low_pps": 5e6}, {"resolution": 0}, {"loss": 1}, {"trials": 0}])
def test_a_wrong_search_is_refused(wrong):
    with pytest.raises(UsageError, match="expected rising rates"):
        search(router(1e5), **DEFAULTS | wrong)


def table(arrivals, departures):
    return pyarrow.table(
        {
            "arrival_ns": pyarrow.array(arrivals, pyarrow.int64()),
            "departure_ns": pyarrow.array(departures, pyarrow.int64()),
        }
    )


def test_the_single_queue_is_lindleys_recursion():
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1200, 5000)).astype(np.int64)
    free_ns, expected = 0, []
    for arrival_ns in arrivals:
        free_ns = max(free_ns, int(arrival_ns)) + 1000
        expected.append(free_ns)
    predicted = predict(single_queue(1000), table(arrivals, arrivals))
    assert predicted.column("departure_ns").to_pylist() == expected


def test_a_prediction_is_compared_with_what_was_measured():
    measured = table([0, 10_000, 20_000, 30_000], [1000, 12_000, None, 34_000])
    assert latencies_ns(measured).tolist() == [1000, 2000, 4000]
    found = compare(measured, predict(single_queue(1000), measured))
    assert found["p50"] == {"measured_us": 2.0, "predicted_us": 1.0, "error": -0.5}
    assert found["lost_share"] == {"measured": 0.25, "predicted": 0.0}


def test_an_impossible_prediction_is_refused():
    measured = table([0, 10_000], [1, 10_001])
    with pytest.raises(ValueError, match="1 departures of 2 packets"):
        predict(lambda arrivals: pyarrow.array([1]), measured)
    with pytest.raises(ValueError, match="before it arrives"):
        predict(lambda arrivals: pyarrow.array([1, 9_999]), measured)


def test_a_prediction_does_not_see_the_departures():
    seen = []

    def spy(arrivals):
        seen.append(arrivals.column_names)
        return arrivals.column("arrival_ns").combine_chunks()

    predict(spy, table([1], [2]))
    assert seen == [["arrival_ns"]]


def test_the_complementary_distribution_falls_from_one():
    latency_us, share = ccdf(np.arange(1, 1001) * 1000)
    assert share[0] == 1 and (np.diff(share) < 0).all() and (np.diff(latency_us) >= 0).all()
    assert latency_us[np.searchsorted(-share, -0.1)] == pytest.approx(900, rel=0.05)


def test_routes_are_different_and_include_the_destination():
    for entries in (1, 4, 10_000):
        found = networks(entries, 1, seed=3)
        assert len(set(found)) == entries and "198.18.1.0/24" in found
    assert networks(50, 1, 1) == networks(50, 1, 1) != networks(50, 1, 2)


def test_each_of_several_destinations_has_a_route():
    found = networks(1000, 600, seed=3)
    own = [name for name in found if name.endswith("/32")]
    assert len(set(found)) == 1000 and len(own) == 600
    # Those of RFC 2544, one after the other, as the generator counts.
    assert own[:2] == ["198.18.1.1/32", "198.18.1.2/32"] and own[-1] == "198.18.3.88/32"
    assert networks(65_536, 65_536, 1)[-1] == "198.19.1.0/32"


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"receive": "irq"}, {"routes": 0}, {"rules": -1}, {"tunnel": "des"}, {"cpu": 4096}, {"sender_cpu": -1}],
        *[{"destinations": 0}, {"destinations": 5}, {"routes": 10**6, "destinations": 65_537}],
        {"destinations": 2, "tunnel": "aes-gcm"},
    ],
)
def test_a_wrong_set_up_is_refused(wrong):
    with pytest.raises(UsageError):
        Setup(**wrong)


def test_a_cpu_that_cannot_be_used_is_named_by_its_option():
    with pytest.raises(UsageError, match=r"^--router-cpu 4096: cannot be used"):
        Setup(cpu=4096)


@pytest.mark.parametrize("wrong", [{"kind": "x"}, {"pps": 0}, {"flows": 0}, {"flows": 251}, {"kind": "a:b"}])
def test_wrong_traffic_is_refused(wrong):
    with pytest.raises(UsageError):
        Traffic(**wrong)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("foisson:mean=1us", '--traffic: gap distribution "foisson": unknown; '),
        (
            "poisson:mean=1us + none",
            "--traffic: distribution superposed: one source is none; expected sources with gaps",
        ),
        ("bursts:size=0", "--traffic: distribution bursts: size is 0; expected 1 packet or more"),
        ("trace:x.pcap", "--traffic trace:x.pcap: gaps of a file are for `parshall gen`; give a distribution"),
        ("poisson:\udc80", "--traffic "),
    ],
)
def test_a_mistake_in_a_distribution_is_found_before_a_testbed_is_made(kind, message):
    with pytest.raises(UsageError) as raised:
        Traffic(kind)
    assert str(raised.value).startswith(message), raised.value


def test_traffic_may_have_any_gaps_of_the_generator():
    assert Traffic("bursts:size=64").gap == "bursts:size=64"
    assert Traffic("mixed").gap == "poisson + bursts:size=16"


def test_only_overload_is_not_paced():
    assert [kind for kind in KINDS if Traffic(kind).paced_pps is None] == ["none"]


def test_an_interrupted_measurement_keeps_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "packets.parquet"
    table = pyarrow.table({"sequence": pyarrow.array(range(50_000), pyarrow.uint64())})
    made = measurement.Measurement(table, {"sent": 3}, {}, {}, None, {}, {})
    made.write(path)
    assert pyarrow.parquet.read_table(path).num_rows == 50_000

    write = pyarrow.parquet.write_table

    def interrupted(table, where, **options):
        write(table.slice(0, 100), where, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(measurement.pyarrow.parquet, "write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.write(path)
    assert pyarrow.parquet.read_table(path).num_rows == 50_000
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@settings(max_examples=50)
@given(results=st.lists(st.tuples(st.booleans(), st.floats(0.01, 1.0)), min_size=100, max_size=100))
def test_a_search_stays_within_the_rates_that_it_may_try(results):
    """Whatever its trials say: those of a router and a generator that are disturbed all the time, too."""

    def trial(pps, number):
        has_passed, reached = results[number]
        return Trial(pps, pps * reached, 1000, 0 if has_passed else 1)

    found = search(trial, trials=100, resolution=0.02, loss=0.0, low_pps=5_000.0, high_pps=4e6)
    assert all(5_000 <= each.pps <= 4e6 for each in found.trials)
    assert 0 <= found.pps <= max(each.sent_pps for each in found.trials)


@pytest.mark.parametrize("has_passed", [True, False])
def test_a_search_whose_trials_all_end_alike_says_so(has_passed):
    def trial(pps, number):
        # Never quite the same rate.
        return Trial(pps, pps * (0.5 + 0.4 * (number % 7) / 7), 1000, 0 if has_passed else 1)

    found = search(trial, trials=300, resolution=0.02, loss=0.0, low_pps=5_000.0, high_pps=4e6)
    assert found.pps <= max(each.sent_pps for each in found.trials)
    assert (found.pps > 0) is has_passed


def test_a_size_below_headers_and_stamp_is_said() -> None:
    assert Traffic(sizes="3").raised_sizes == "--sizes 3: packets have 44 bytes, those of headers and stamp"
    assert [Traffic(sizes=sizes).raised_sizes for sizes in ("44", "64", "imix")] == [None] * 3
