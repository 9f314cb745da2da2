"""Calibrations of a router that is known: what is estimated, the file, predictions, answers."""

import dataclasses
import re
from datetime import UTC, datetime

import numpy as np
import pyarrow
import pytest

from made_calibration import LINK_NS, SERVICE_NS, known
from parshall.cli.model_calibration import check_output
from parshall.errors import ParshallError, UsageError
from parshall.model.builtin import parameters
from parshall.model.simulation import run
from parshall.router import calibrate as calibrating
from parshall.router import path_profile
from parshall.router.calibration import Calibration, machine
from parshall.router.estimation import Passages
from parshall.router.measurement import Measurement
from parshall.router.napi import napi_settings
from parshall.router.network import calibrated, network
from parshall.router.prediction import predict, single_queue
from parshall.router.validation import validate


def uniform(random, count, mean):
    return random.uniform(mean / 3, mean * 5 / 3, count)


def constant(random, count, mean):
    return np.full(count, mean)


def exponential(random, count, mean):
    return random.exponential(mean, count)


def times_of_arrival(pps: float, count: int, seed: int, gaps=exponential) -> np.ndarray:
    return (10**15 + np.cumsum(gaps(np.random.default_rng(seed), count, 1e9 / pps))).astype(np.int64)


def arrivals(pps: float, count: int = 60_000, seed: int = 3, gaps=exponential) -> pyarrow.Table:
    columns = {"sequence": np.arange(count, dtype=np.uint64), "arrival_ns": times_of_arrival(pps, count, seed, gaps)}
    return pyarrow.table(columns).append_column("departure_ns", pyarrow.nulls(count, pyarrow.int64()))


def measured(calibration: Calibration, pps: float, seed: int, gaps=exponential) -> pyarrow.Table:
    """What a router with these parameters does."""
    return predict(calibrated(calibration, seed), arrivals(pps, seed=seed, gaps=gaps))


def test_the_sender_is_as_fast_when_the_router_loses_packets():
    """The gaps of packets that left are the router's, not those of the sender."""
    fast = known(link_ns=5_000.0, transfer_ns=100.0, queue_packets=50)
    full = Passages.of(measured(fast, 4.0e6, 18, constant))
    assert len(full.arrival_ns) < 0.5 * 60_000
    assert full.gap_ns == pytest.approx(250, rel=0.01)
    sparse, waiting = (
        Passages.of(measured(fast, pps, 19, gaps)) for pps, gaps in ((1e6 / 6, uniform), (5e5, exponential))
    )
    assert calibrating.estimated([sparse], [waiting], [full], batch=64)["transfer_ns"] == pytest.approx(250, rel=0.01)


def test_without_a_wake_up_and_stalls_the_network_is_the_single_queue():
    constant = calibrating.times([np.full(10, 1000.0)])
    calm = calibrating.Noise(0.0, 0.0, 0.0, 0.0, None, None)
    never = dataclasses.replace(constant, bounds_ns=[0.0, 1e-3], counts=[1])
    exact = dataclasses.replace(constant, bounds_ns=[1000.0, 1000.001], counts=[1])
    model = known(service=exact, wake=never, noise=calm, link_ns=0.0, transfer_ns=0.0, send_ns=0.0)
    real = arrivals(700e3)
    one, other = (predict(each, real)["departure_ns"].to_numpy() for each in (calibrated(model), single_queue(1000)))
    assert np.abs(one - other).max() <= 2


def test_a_file_returns_what_was_written(tmp_path):
    path = tmp_path / "here.toml"
    known().write(path)
    read = Calibration.read(path)
    assert read.setup == known().setup
    assert read.correlations == known().correlations
    assert read.service.counts == known().service.counts
    assert read.service.bounds_ns == pytest.approx(known().service.bounds_ns, rel=1e-5)
    assert read.noise.times.mean_ns == pytest.approx(known().noise.times.mean_ns, rel=1e-5)
    assert "Times are in ns" in path.read_text()
    # Written again it is the same file.
    read.write(tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_text() == path.read_text()


ENDS_US = {"measured_us": 9.0, "low_us": 8.0, "middle_us": 10.0, "high_us": 15.0}
TRIALS = [{"traffic": "poisson", "load": 0.3, "seed": 7, "quantile": "p50"} | ENDS_US]
AFTER_IDLE = [{"idle_ns": 1000.0, "factor": 0.8}, {"idle_ns": 9000.0, "factor": 1.5}]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("parshall calibration", "another", "format 'another'"),
        ('format = "parshall calibration"', "", "names no format, so it is no calibration; make one with"),
        ('version = "4.2"', 'version = "1.0"', "version 1.0, this Parshall reads 4.x; calibrate again"),
        ("wait_ns = 100.0", "wait_ns = 90.0", "balance of half: parts are 690 ns of 700; calibrate again"),
        ("overload_pps = 1e+06", "overload_pps = -1.0", "overload_pps is -1.0"),
        ("overload_pps = 1e+06", 'overload_pps = "fast"', "overload_pps: 'fast'; expected float"),
        ("overload_pps = 1e+06", "", "overload_pps: missing"),
        ("queue_packets = 1000", "queue_packets = 1000\nextra = 1", "extra: unknown field"),
        ("queue_packets = 1000", "queue_packets = ", "not TOML"),
        ("poll_packets = 64", "poll_packets = 0", "poll_packets is 0; expected a number above 0"),
        ("link_ns = 1300.0", "link_ns = nan", "link_ns is nan"),
        ("[service]", "[service]\nother = 1", "other: unknown field"),
        ('created = "2026', 'created = "1026x', "created is '1026x-11-24T20:00:00+00:00'; expected a time such as"),
        ("held_share = 0.0", "held_share = 1.0", "held_share is 1.0; expected a number from 0 to less than 1;"),
        ("link_ns = 1300.0", "link_ns = 1e30", "link_ns is 1e+30; expected a number from 0"),
        ("counts = [", "counts = [inf, ", "service: counts: inf; expected int"),
        ("counts = [", "counts = [true, ", "service: counts: True; expected int"),
        ("flows = 1", 'flows = "one"', "traffic.flows: 'one'; expected int"),
        ("flows = 1\n", "", "traffic.flows: None; expected int"),
        ("gro = true", "gro = 1", "setup.gro: 1; expected bool"),
        ("destinations = 1", 'destinations = "all"', "setup.destinations: 'all'; expected int"),
        ("share = 0.7", "", "stages.share: None; expected float"),
        ("setup]", "[setup]]", "setup: [{"),
        ("measured_us = 9.0", "measured_us = 0.0", "trials: p50 of poisson at 0.3: expected latencies above 0"),
        ("high_us = 15.0", "high_us = 9.5", "trials: p50 of poisson at 0.3: expected latencies above 0, at most 1e+09"),
        ("high_us = 15.0", "high_us = inf", "trials: p50 of poisson at 0.3: expected"),
        ("high_us = 15.0", "", "trials.high_us: None; expected float"),
        ("factor = 1.5", "factor = -1.5", "after_idle: factor is -1.5; expected a number from 0 to 1e+09"),
        ("factor = 1.5", "factor = nan", "after_idle: factor is nan"),
        ("factor = 1.5", "", "after_idle.factor: None; expected float"),
        ("idle_ns = 9000.0", "idle_ns = 900.0", "after_idle: expected idle_ns that rise; calibrate again"),
        ("look_ns = 0.0", "look_ns = -1.0", "look_ns is -1.0; expected a number from 0"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path, old, new, message):
    path = tmp_path / "here.toml"
    known(after_idle=AFTER_IDLE, trials=TRIALS).write(path)
    text = path.read_text().replace("overload_pps = 1000000.0", "overload_pps = 1e+06", 1)
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ParshallError) as caught:
        Calibration.read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_before_4_2_has_one_destination(tmp_path):
    path = tmp_path / "here.toml"
    known().write(path)
    text = path.read_text()
    assert "\ndestinations = 1\n" in text
    path.write_text(text.replace('"4.2"', '"4.1"').replace("\ndestinations = 1\n", "\n"))
    assert Calibration.read(path).setup == known().setup


def test_a_missing_file_and_a_histogram_that_falls_are_refused(tmp_path):
    with pytest.raises(UsageError, match="calibrate -o"):
        Calibration.read(tmp_path / "none.toml")
    wrong = dataclasses.replace(known().service, bounds_ns=known().service.bounds_ns[::-1])
    empty = dataclasses.replace(wrong, bounds_ns=[1.0], counts=[])
    endless = dataclasses.replace(wrong, bounds_ns=[1.0, np.inf], counts=[1])
    for times, message in ((wrong, "rising bounds"), (empty, "not all 0"), (endless, "rising bounds")):
        with pytest.raises(ParshallError, match=message):
            known(service=times).check()


def test_another_machine_is_reported():
    assert known().differences() == []
    (difference,) = known(machine=machine() | {"kernel": "5.4.0"}).differences()
    assert "5.4.0" in difference


@pytest.mark.parametrize("seed", [1_000_001, 1_000_003, 999_950])
def test_a_validation_with_seeds_of_the_calibration_is_refused(seed):
    with pytest.raises(UsageError, match=f"--seed {seed}: the calibration's seeds"):
        validate(known(), repeats=1, seed=seed)


def test_too_few_packets_and_a_profile_with_losses_are_refused():
    few = Passages.of(measured(known(), 0.5e6, 31).slice(0, 500))
    with pytest.raises(ParshallError, match="too few for the 99% quantile"):
        calibrating.estimated([few], [few], [few], batch=64)
    enough = Passages.of(measured(known(), 0.5e6, 31))
    with pytest.raises(ParshallError, match="too few for polls of 4,000: expected more than 64,000; raise --count"):
        calibrating.estimated([enough], [enough], [enough], batch=4_000)
    with pytest.raises(ParshallError, match="lost packets"):
        path_profile.check_ledger({"hooks": [{"hook": "packets", "lost": {"dropped": 3, "missed": 0}}]})
    with pytest.raises(UsageError, match="--tunnel"):
        calibrating.calibrate(calibrating.Setup(tunnel="aes-gcm"))


def test_correlated_stages_are_merged():
    random = np.random.default_rng(6)
    one, noise, other = (random.exponential(100, 5000) for _ in range(3))
    stages, correlations = path_profile.merged(["a", "b", "c"], np.array([one, one + 0.3 * noise, other]))
    assert [stage["group"] for stage in stages] == ["a+b", "a+b", "c"]
    assert [each["is_merged"] for each in correlations] == [True, False]
    assert sum(stage["share"] for stage in stages) == pytest.approx(1)


def test_times_that_are_equal_have_no_order():
    """Times of a coarse clock have few values; beside a time that drifts, their order in the file must not count."""
    random = np.random.default_rng(7)
    drifting = np.arange(15_000) + random.normal(0, 1000, 15_000)
    for rare in (0.0, 0.02, 0.3):
        coarse = np.where(random.random(15_000) < rare, 31.0, 30.0)
        assert abs(path_profile.correlation(coarse, drifting)) < 0.05
    first = random.random(15_000) < 0.05
    second = np.where(random.random(15_000) < 0.5, first, random.random(15_000) < 0.05)
    phi = np.corrcoef(first, second)[0, 1]
    assert path_profile.correlation(first.astype(float), second.astype(float)) == pytest.approx(phi)


def test_one_interrupt_has_no_gap():
    row = {
        "kind": "timer_irq",
        "events": 1,
        "sum_ns": 900,
        "p99_ns": 900,
        "gap_mean_ns": None,
        "gap_deviation_ns": None,
    }
    often = row | {"events": 50, "sum_ns": 50_000, "gap_mean_ns": 2e7, "gap_deviation_ns": 5.0}
    one, other = path_profile.interrupts_of([row, often], 2.0)
    assert one == {"kind": "timer_irq", "per_s": 0.5, "mean_ns": 900.0, "p99_ns": 900.0}
    assert (other["per_s"], other["mean_ns"], other["gap_mean_ns"], other["gap_deviation_ns"]) == (
        25.0,
        1000.0,
        2e7,
        5.0,
    )


def test_a_directory_is_no_place_for_a_calibration(tmp_path):
    (tmp_path / "here.toml").mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        check_output("-o", tmp_path / "here.toml")


def test_linux_napi_with_a_calibration_is_near_the_calibrated_network():
    settings = napi_settings(known())
    assert settings["packet_us"] == pytest.approx(SERVICE_NS / 1e3, rel=0.01)
    assert settings["rx_ring"] == 1000
    options = {"duration_s": 0.5, "warm_up_s": 0.05, "replications": 2, "seed": 7}
    for pps in (100e3, 500e3):
        own = run(network(known(), pps=pps), **options)
        napi = run(parameters("linux-napi", settings | {"load_pps": pps}).build(), **options)
        for quantile, tolerance in ((0.5, 0.15), (0.9, 0.2)):
            expected_ns = own.quantile_ns("forwarded", quantile) - LINK_NS
            assert napi.quantile_ns("forwarded", quantile) == pytest.approx(expected_ns, rel=tolerance), (pps, quantile)


def test_a_load_in_bits_is_of_packets_as_long_as_those_of_the_calibration():
    for sizes, length in (("1386", 1386), ("64", 64), ("imix", 64)):
        settings = napi_settings(known(traffic=known().traffic | {"sizes": sizes}))
        (rate_pps,) = parameters("linux-napi", settings | {"load_mbps": 100.0}).rates_pps
        assert rate_pps == pytest.approx(100e6 / 8 / length)


def test_the_command_takes_the_parameters_of_linux_napi_from_a_file(tmp_path, capsys):
    from parshall.cli.model import build_network

    path = tmp_path / "here.toml"
    known(machine=machine() | {"cpus": 64}).write(path)
    model = build_network("linux-napi", ["dev_weight=32"], "200kpps", path)
    (policy,) = next(each for each in model.as_dict()["stations"] if each["name"] == "cpu0")["policies"]
    assert policy["wake_ns"] == pytest.approx(known().wake.median_ns, rel=1e-4)
    assert policy["batch"] == 32, "--set comes last"
    said = capsys.readouterr().err
    assert "another machine: cpus is" in said
    assert re.search(r"the calibration is [\d,]+ h \d+ min old, and its stretches span 11 s: how the machine", said)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known(machine=machine() | {"cpus": 64}, created=now).write(path)
    build_network("linux-napi", [], "200kpps", path)
    assert "old, and" not in capsys.readouterr().err
    with pytest.raises(UsageError, match="has parameters of linux-napi, not of bsd-router"):
        build_network("bsd-router", None, None, path)


def test_few_packets_with_random_gaps_were_planned_at_another_rate_than_was_asked_for():
    due = times_of_arrival(100.0, 10, 7)
    late = due + np.arange(10) * 1_000_000
    table = pyarrow.table({"due_ns": due, "arrival_ns": late})
    found = Measurement(table, {}, {}, {}, None, {}, {})
    assert found.planned_pps == pytest.approx(9e9 / (due[-1] - due[0]))
    assert found.offered_pps == pytest.approx(9e9 / (late[-1] - late[0]))
    assert found.offered_pps < found.planned_pps
    assert Measurement(table[:1], {}, {}, {}, None, {}, {}).planned_pps == 0
