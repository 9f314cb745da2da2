"""Plans, sweeps and settings of models that are not built in, against closed forms."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from parshall.errors import ParshallError, UsageError
from parshall.model import Model, parameters, run
from parshall.model.compare import compare, measurement
from parshall.model.plan import Answer, Limits, greatest_load, smallest
from parshall.model.sweep import sweep
from parshall.model.variation import build, main_sink

PLACES = 10


def m_m_1_k(load: float = 0.5, places: int = PLACES) -> Model:
    model = Model("m/m/1/k").station("s").source("c", f"poisson:mean={1000 / load}ns", "q")
    return model.queue("q", "s", "exponential:mean=1000", "out", capacity_packets=places, frees="at-end")


def loss(load: float, places: int = PLACES) -> float:
    """Part of the packets that M/M/1/K loses."""
    states = load ** np.arange(places + 1)
    return float(states[-1] / states.sum())


def load_of(wanted: float) -> float:
    low, high = 0.01, 3.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) < wanted else (low, middle)
    return low


def short(seed: int) -> dict[str, float]:
    return {"duration_s": 0.005, "warm_up_s": 0.0005, "seed": seed}


@pytest.mark.long
def test_the_interval_of_a_plan_holds_the_load_of_the_closed_form() -> None:
    # Of 20 intervals of 95 % fewer than 15 hold with probability 0.0003.
    truth = load_of(0.02) / 0.5
    answers = [greatest_load(m_m_1_k(), Limits(loss=0.02), **short(seed)) for seed in range(1, 21)]
    held = [answer.low <= truth <= answer.high for answer in answers if answer.low and answer.high]
    assert len(held) == 20 and sum(held) >= 15, (sum(held), truth)
    assert all(answer.low <= answer.value <= answer.high for answer in answers)  # type: ignore[operator]
    # The intervals are as wide as answers scatter, not wider by far.
    scatter = np.std([answer.value for answer in answers])
    widths = [answer.high - answer.low for answer in answers if answer.low and answer.high]
    assert 2 * scatter < np.median(widths) < 12 * scatter


def test_the_interval_of_a_queue_s_length_holds_the_closed_form() -> None:
    truth = next(places for places in range(1, 100) if loss(0.8, places) <= 0.01)
    settings = {"load_factor": 0.8 / 0.5}
    found = [
        smallest(m_m_1_k(), "queues.q.capacity_packets", Limits(loss=0.01), settings=settings, **short(seed))
        for seed in range(1, 21)
    ]
    held = sum(
        answer.low is not None and answer.high is not None and answer.low <= truth <= answer.high for answer in found
    )
    assert held >= 16, [(answer.low, answer.value, answer.high) for answer in found]


def test_a_longer_run_narrows_the_interval() -> None:
    limits = Limits(loss=0.005)
    once = greatest_load(m_m_1_k(), limits, **short(3))
    lengthened = greatest_load(m_m_1_k(), limits, within=0.05, **short(3))
    assert once.relative_width is not None and once.relative_width > 0.05
    assert lengthened.relative_width is not None and lengthened.relative_width <= 0.05
    assert lengthened.packets > once.packets


def test_a_limit_of_the_latency_has_an_interval_too() -> None:
    # M/M/1: the 99th percentile is ln(100) / (mu - lambda): of 20 us at a load of .7697.
    model = Model("m/m/1").station("s").source("c", "poisson:mean=2us", "q")
    model.queue("q", "s", "exponential:mean=1us", "out")
    truth = (1 - np.log(100) / 20) / 0.5
    found = greatest_load(
        model, Limits(p99_us=20), duration_s=0.02, warm_up_s=0.002, seed=2, allow_unstable=True, precision=0.01
    )
    assert found.low is not None and found.high is not None
    assert found.low <= truth <= found.high, found


def test_no_loss_at_all_is_never_beyond_doubt() -> None:
    found = greatest_load(m_m_1_k(), Limits(loss=0.0), **short(1))
    assert found.low is None and found.is_wide()


def test_an_answer_of_a_whole_number_is_not_wide_for_a_step() -> None:
    results = run(m_m_1_k(), duration_s=0.001, warm_up_s=0, replications=1)
    assert not Answer(5.0, 4.0, 6.0, 0.95, results).is_wide()
    assert Answer(5.0, 3.0, 7.0, 0.95, results).is_wide()
    assert Answer(5.5, 4.5, 6.4, 0.95, results).is_wide()


def test_a_sweep_over_a_file_follows_the_closed_form(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    m_m_1_k().save(path)
    over = {"load_factor": [1.0, 1.8], "queues.q.capacity_packets": [2, 5.0]}
    frame = sweep(path, over, duration_s=0.1, warm_up_s=0.001, replications=2)
    total = frame.filter(pl.col("class") == "")
    assert total.height == 4
    for row in total.iter_rows(named=True):
        expected = loss(0.5 * row["load_factor"], int(row["queues.q.capacity_packets"]))
        assert row["loss"] == pytest.approx(expected, rel=0.05)


def test_settings_reach_every_value_of_a_model() -> None:
    model = m_m_1_k()
    model.stations[0]["policies"] = [{"priority": 0, "policy": "round-robin", "quantum_ns": 5}]
    model.queue("nic1.rx", "s", 5, "out")
    model.sources[0]["to"].append({"to": [{"place": "nic1.rx"}]})
    settings: dict[str, str | float] = {
        "stations.s.servers": 2.0,
        "stations.s.policies.0.quantum_ns": "7.5",
        "queues.nic1.rx.service.0.time_ns": "exponential:mean=2us",
        "queues.q.capacity_packets": "3",
        "sources.c.gap_ns": 8,
        "load_factor": 2,
    }
    data = build(model, settings).as_dict()
    assert data["stations"][0]["servers"] == 2
    assert data["stations"][0]["policies"][0]["quantum_ns"] == 7.5
    assert data["queues"][1]["service"][0]["time_ns"] == "exponential:mean=2us"
    assert data["queues"][0]["capacity_packets"] == 3
    assert (data["sources"][0]["gap_ns"], data["sources"][0]["rate_factor"]) == (8, 2)
    assert "servers" not in model.stations[0], "the model itself is as it was"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("cpu_mhz", "no setting 'cpu_mhz'; expected load_factor, or KIND.NAME.FIELD"),
        ("queues.p.weight", "no part of queues has this name; there are q"),
        ("queues.q.service.4.time_ns", "no '4' there; there are numbers from 0 to 0"),
        ("queues.q.servce.0.time_ns", "no 'servce' there; there are name, station"),
    ],
)
def test_wrong_settings_are_named(key: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build(m_m_1_k(), {key: 1})
    assert "\n" not in str(caught.value)


def test_a_misspelt_field_is_named_before_a_plan() -> None:
    with pytest.raises(UsageError, match="capacity_packts is not a field here; did you mean capacity_packets"):
        smallest(m_m_1_k(), "queues.q.capacity_packts", Limits(loss=0.01))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("queues.q.blocking", "after", "blocking is .after."),
        ("stations.s.policies.0.visits", "every", "visits is .every."),
        ("sources.c.rate_factor", "fast", "rate_factor is .fast."),
        ("sources.c.rate_factor", 1e10, "rate_factor is 10000000000"),
    ],
)
def test_fields_of_model_files_are_checked(key: str, value: str | float, message: str) -> None:
    model = Model("m").station("s", policies=[{"policy": "polling", "batch": 1, "visits": "all", "visit_ns": 10}])
    model.source("c", "poisson:mean=10us", "q").queue("q", "s", 1000, "out").check()
    with pytest.raises(UsageError, match=message):
        build(model, {key: value}).check()


def test_a_factor_of_the_rate_divides_every_gap() -> None:
    model = Model("fast").station("s").source("c", "constant:value=10us", "q").queue("q", "s", 1000, "out")
    results = run(build(model, {"load_factor": 4}), duration_s=0.001, warm_up_s=0, replications=1)
    assert results.data["replications"][0]["balance"]["entered"] == 400
    with pytest.raises(UsageError, match="a load of 1"):
        run(build(model, {"load_factor": 12.5}), duration_s=0.001)
    with pytest.raises(UsageError, match="load_factor is 0"):
        build(model, {"load_factor": 0})


def test_an_ambiguous_sink_is_an_error() -> None:
    assert main_sink(["residue", "forwarded"], None, "m") == "forwarded"
    assert main_sink(["out"], None, "m") == "out"
    assert main_sink(["a", "b"], "b", "m") == "b"
    with pytest.raises(UsageError, match="has the sinks a, b; select one"):
        main_sink(["a", "b"], None, "m")
    with pytest.raises(UsageError, match="no sink 'c'"):
        main_sink(["a", "b"], "c", "m")


def test_a_comparison_offers_and_counts_lost_packets() -> None:
    own = parameters("single-queue", {"load_mbps": 260, "queue": 20}).build()
    seen = run(own, duration_s=0.2, warm_up_s=0, replications=1, trace=True)
    balance = seen.data["replications"][0]["balance"]
    measured = measurement(seen)
    assert measured.height == balance["left"] + balance["lost"]
    assert measured["departure_ns"].null_count() == balance["lost"] > 0
    models = {"same": own, "endless": parameters("single-queue", {"load_mbps": 260, "queue": 0}).build()}
    comparison = compare(measured, models)
    table = comparison.table()
    rows = {row["model"]: row for row in table.iter_rows(named=True)}
    assert rows["measured"]["lost"] == balance["lost"]
    assert rows["measured"]["loss"] == pytest.approx(balance["lost"] / measured.height)
    assert rows["same"]["lost"] == pytest.approx(balance["lost"], abs=20)
    assert rows["same"]["distance.measured"] < 0.01
    assert rows["endless"]["lost"] == 0 and rows["endless"]["packets"] == measured.height
    # Without a word the endless queue would only look slow.
    warning = comparison.warning()
    assert warning is not None and "packets that got through" in warning and "endless 0.00%" in warning


def test_other_sinks_of_a_model_are_not_losses() -> None:
    two = Model("two").station("s").source("c", "constant:value=10us", "q")
    two.queue("q", "s", 1000, {"to": [{"place": "a", "probability": 0.5}, {"place": "b", "probability": 0.5}]})
    trace = pl.DataFrame(
        {"arrival_ns": np.arange(1000) * 1e4, "departure_ns": np.arange(1000) * 1e4 + 900.0, "bytes": 0.0}
    )
    with pytest.raises(UsageError, match="has the sinks a, b"):
        compare(trace, {"two": two})
    table = compare(trace, {"two": two}, sink="a").table()
    assert table["lost"].to_list() == [0, 0]
    assert 400 < table["packets"][1] < 600


# --- clones and blocking ---------------------------------------------------------------------------


def test_clones_have_latencies_and_packets_join_times() -> None:
    # Fork and join: the packet takes 10 ns in its branch, its clone 30 in its own, 40 ns between packets.
    model = Model("fork").station("fork").station("a").station("b").source("c", 40, "q", packets=5)
    model.queue("q", "fork", 1, ["short", "long"]).queue("short", "a", 10, "out").queue("long", "b", 30, "copied")
    results = run(model, warm_up_s=0, replications=1, trace=True)
    assert results.mean("out", "latency_ns", "c") == 11
    assert results.mean("copied", "clone_latency_ns", "c") == 31
    assert [row["sink"] for row in results.data["clone_latencies"]] == ["copied"]
    joins = results.joins()
    assert joins["copies"].to_list() == [2] * 5
    assert joins["join_ns"].to_list() == [31.0] * 5
    with pytest.raises(ParshallError, match="trace=True"):
        run(model, warm_up_s=0, replications=1).joins()
    cut = run(model, duration_s=100e-9, warm_up_s=0, replications=1, trace=True)
    with pytest.raises(ParshallError, match="inside when the run began or ended"):
        cut.joins()


def test_blocking_after_service_is_as_in_ciw() -> None:
    ciw = pytest.importorskip("ciw")
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(0.9), None],
        service_distributions=[ciw.dists.Exponential(1.5), ciw.dists.Exponential(1.2)],
        routing=[[0.0, 0.8], [0.0, 0.0]],
        number_of_servers=[1, 1],
        queue_capacities=[float("inf"), 1],
    )
    ciw.seed(5)
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_time(40_000)
    records = [record for record in simulation.get_all_records() if record.arrival_date > 500]
    first = [record for record in records if record.node == 1 and record.record_type == "service"]
    blocked = sum(record.time_blocked for record in first) / len(first)
    sojourn = sum(record.exit_date - record.arrival_date for record in first) / len(first)

    model = Model("tandem").station("s1").station("s2").source("c", f"poisson:mean={1000 / 0.9}ns", "q1")
    way = {
        "to": [{"place": "q2", "probability": 0.8}, {"place": "out", "probability": 0.2}],
        "blocks": True,
    }
    model.queue("q1", "s1", f"exponential:mean={1000 / 1.5}", way, blocking="after-service")
    model.queue("q2", "s2", f"exponential:mean={1000 / 1.2}", "out", capacity_packets=1)
    ours = run(model, duration_s=0.2, warm_up_s=0.001, replications=4, allow_unstable=True)
    assert ours.mean("s1", "blocked") == pytest.approx(0.9 * blocked, rel=0.06)
    assert ours.mean("q1", "sojourn_ns", "c") / 1000 == pytest.approx(sojourn, rel=0.08)
    assert ours.mean("q2", "loss", "c") == 0
