"""The search for a router's capacity, and predictions beside measurements, without a router."""

import numpy as np
import pyarrow
import pytest

from parshall.errors import UsageError
from parshall.router import measurement
from parshall.router.capacity import Trial, bisect, summarise
from parshall.router.prediction import ccdf, compare, latencies_ns, predict, single_queue
from parshall.router.routes import DESTINATION, networks
from parshall.router.setup import Setup
from parshall.router.traffic import KINDS, Traffic

DEFAULTS = {"seed": 1, "trials": 2, "resolution": 0.02, "loss": 0.0, "low_pps": 1e3, "high_pps": 1e6}


def router(capacity_pps, sender_pps=1e9):
    """A router that loses what exceeds its capacity, behind a generator with a limit."""

    def trial(pps, seed):
        sent_pps = min(pps, sender_pps)
        lost = max(0.0, 1 - capacity_pps / sent_pps)
        return Trial(pps, sent_pps, round(sent_pps), round(lost * sent_pps))

    return trial


@pytest.mark.parametrize("capacity_pps", [1.5e3, 40e3, 300e3, 999e3])
def test_a_search_finds_the_capacity(capacity_pps):
    search = bisect(router(capacity_pps), **DEFAULTS)
    assert capacity_pps / 1.03 <= search.pps <= capacity_pps
    assert not search.is_sender_limited
    assert len(search.trials) < 40


def test_every_trial_must_pass():
    calls = []

    def trial(pps, seed):
        calls.append(seed)
        return Trial(pps, pps, 1000, int(pps > 10e3 and len(calls) % 2 == 0))

    assert bisect(trial, **DEFAULTS).pps <= 10e3
    assert len(set(calls)) == len(calls), "each trial has a seed of its own"


def test_the_limit_of_the_generator_is_not_the_router_s():
    search = bisect(router(900e3, sender_pps=200e3), **DEFAULTS)
    assert search.is_sender_limited
    assert 190e3 <= search.pps <= 204e3
    # Loss at the rate that the generator reached is the router's.
    search = bisect(router(150e3, sender_pps=200e3), **DEFAULTS)
    assert not search.is_sender_limited
    assert 145e3 <= search.pps <= 150e3


def test_a_router_that_always_or_never_loses():
    assert bisect(router(10), **DEFAULTS).pps == 0
    search = bisect(router(1e9), **DEFAULTS)
    assert (search.pps, search.is_sender_limited, len(search.trials)) == (1e6, True, 2)


def test_loss_may_be_allowed():
    assert bisect(router(100e3), **DEFAULTS | {"loss": 0.2}).pps == pytest.approx(125e3, rel=0.03)


def test_searches_have_an_interval():
    found = summarise([bisect(router(pps), **DEFAULTS) for pps in (90e3, 100e3, 110e3)])
    assert found.low_pps < found.pps < found.high_pps
    assert found.mean_low_pps < found.low_pps
    assert not found.is_sender_limited


@pytest.mark.parametrize("wrong", [{"low_pps": 0}, {"low_pps": 2e6}, {"resolution": 0}, {"loss": 1}])
def test_a_wrong_search_is_refused(wrong):
    with pytest.raises(UsageError, match="expected rising rates"):
        bisect(router(1e5), **DEFAULTS | wrong)


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
        found = networks(entries, seed=3)
        assert len(set(found)) == entries and DESTINATION in found
    assert networks(50, 1) == networks(50, 1) != networks(50, 2)


@pytest.mark.parametrize(
    "wrong", [{"receive": "irq"}, {"routes": 0}, {"rules": -1}, {"tunnel": "des"}, {"cpu": 4096}, {"sender_cpu": -1}]
)
def test_a_wrong_set_up_is_refused(wrong):
    with pytest.raises(UsageError):
        Setup(**wrong)


def test_a_cpu_that_cannot_be_used_is_named_by_its_option():
    with pytest.raises(UsageError, match=r"^--router-cpu 4096: cannot be used"):
        Setup(cpu=4096)


@pytest.mark.parametrize("wrong", [{"kind": "x"}, {"pps": 0}, {"flows": 0}, {"flows": 251}])
def test_wrong_traffic_is_refused(wrong):
    with pytest.raises(UsageError):
        Traffic(**wrong)


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
