"""Networks of queues through Python; crates/core/tests/queueing tests the engine itself."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from parshall.errors import ParshallError, UsageError
from parshall.model import MODELS, Model, from_dict, load, parameters, published, run
from parshall.model.builtin import FORWARDED
from parshall.model.builtin.bsd import LOOKUP_US, BsdRouter
from parshall.model.compare import compare, distance, read_trace, with_arrivals
from parshall.model.published import (
    CALIBRATIONS,
    KINDS,
    Quantity,
    check_statements,
    quantities,
    router,
    throughput_mbps,
)
from parshall.model.sweep import parse_values, sweep
from suites import long_except


def m_d_1(load_: float = 0.8, **queue: object) -> Model:
    model = Model("m/d/1").station("s").source("c", f"poisson:mean={1000 / load_}ns", "q")
    return model.queue("q", "s", 1000, "out", **queue)


@pytest.mark.parametrize("name", MODELS)
def test_every_built_in_model_runs_and_balances(name: str) -> None:
    results = run(parameters(name, {}).build(), duration_s=0.05, warm_up_s=0.01, replications=2)
    for replication in results.data["replications"]:
        balance = replication["balance"]
        came = balance["inside_before"] + balance["entered"] + balance["cloned"]
        assert came == balance["left"] + balance["lost"] + balance["inside"]
    assert results.total(FORWARDED, "throughput_bps") > 0


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_description(name: str) -> None:
    for each in MODELS[name].__dataclass_fields__.values():
        assert each.metadata["what"], each.name


def test_a_mean_lies_in_its_interval() -> None:
    results = run(m_d_1(), duration_s=0.2, warm_up_s=0.005, replications=10, confidence=0.99)
    row = results.estimates.filter(measure="wait_ns").row(0, named=True)
    assert abs(row["mean"] - 2000) <= row["half_width"] < 100


def test_the_same_seed_gives_the_same_results_on_any_number_of_threads() -> None:
    runs = [run(m_d_1(), duration_s=0.01, warm_up_s=0, seed=7, threads=threads).data for threads in (1, 2)]
    for data in runs:
        del data["options"]["threads"]
    assert runs[0] == runs[1]
    assert runs[0] != run(m_d_1(), duration_s=0.01, warm_up_s=0, seed=8, threads=1).data


def test_replications_are_added_until_the_intervals_are_small() -> None:
    results = run(m_d_1(), duration_s=0.02, warm_up_s=0.001, replications=2, relative_half_width=0.01)
    assert results.data["is_precise"] is True
    assert len(results.data["replications"]) > 2
    means = results.estimates.filter(pl.col("measure") != "p99_ns", kind="sink")
    for row in means.iter_rows(named=True):
        assert row["half_width"] <= 0.01 * row["mean"]


def test_the_warm_up_is_found() -> None:
    results = run(m_d_1(0.9), duration_s=0.1, replications=2)
    assert results.data["is_steady"] is True
    # The queue begins empty, so there is one, and it is short.
    assert 0 < results.data["warm_up_ns"] <= 0.05e9
    grows = run(m_d_1(1.25), duration_s=0.1, replications=2, allow_unstable=True)
    assert grows.data["is_steady"] is False


def test_a_trace_holds_every_packet_and_every_visit() -> None:
    model = m_d_1(0.95, capacity_packets=3)
    results = run(model, duration_s=0.01, warm_up_s=0, replications=1, trace=True)
    assert results.packets is not None and results.visits is not None
    balance = results.data["replications"][0]["balance"]
    assert results.packets.height == balance["left"] + balance["lost"]
    assert results.packets["lost"].sum() == balance["lost"] > 0
    served = results.visits.filter(~pl.col("lost"))
    assert (served["left_ps"] - served["started_ps"] == 1_000_000).all()
    assert (served["started_ps"] >= served["arrived_ps"]).all()


def test_recorded_gaps_and_services_are_replayed() -> None:
    model = Model("replay").station("s").source("c", {"trace": "gaps"}, "q").queue("q", "s", {"trace": "work"}, "out")
    recorded = {"gaps": [5.0, 5.0, 30.0], "work": [10.0, 10.0, 10.0]}
    results = run(model, traces=recorded, replications=1, trace=True, allow_unstable=True)
    assert results.packets is not None
    assert results.packets["left_ps"].to_list() == [15_000, 25_000, 50_000]
    with pytest.raises(UsageError, match=r'trace "gaps": value 1 is NaN'):
        run(model, traces={"gaps": [1.0, math.nan], "work": [1.0]})


def test_measured_services_are_drawn_from_their_samples_and_histograms() -> None:
    for service, expected in (({"samples": [100, 300]}, 200), ({"bounds": [0, 100, 200], "counts": [1, 3]}, 125)):
        model = Model("measured").station("s").source("c", "poisson:mean=1us", "q").queue("q", "s", service, "out")
        results = run(model, duration_s=0.02, warm_up_s=0, replications=2)
        assert results.mean("s", "utilisation") == pytest.approx(expected / 1000, rel=0.02)


def test_a_model_file_is_toml_or_json(tmp_path: Path) -> None:
    text = """
        name = "small"
        stations = [{name = "cpu", clock_mhz = 500}]
        [[sources]]
        name = "flow"
        gap_ns = "poisson:mean=4us"
        to = "queue"
        [[queues]]
        name = "queue"
        station = "cpu"
        service = [{time_ns = 1000, measured_at_mhz = 1000}]
        capacity_packets = 50
        to = "out"
    """
    (tmp_path / "small.toml").write_text(text)
    model = load(tmp_path / "small.toml")
    assert run(model, duration_s=0.05, warm_up_s=0).mean("cpu", "utilisation") == pytest.approx(0.5, rel=0.05)
    model.save(tmp_path / "small.json")
    assert load(tmp_path / "small.json").as_dict() == model.as_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stations": []}, r'queue "q": no station "s" in the model; there is none'),
        ({"queues": []}, r'the model: source "c": to "q" is neither a queue nor one of sinks; expected one of out'),
        ({"things": []}, r"the model: things is not a field here; expected one of name, classes, sources"),
    ],
)
def test_mistakes_in_a_file_are_one_line(change: dict[str, object], message: str) -> None:
    data = m_d_1().as_dict() | change
    with pytest.raises(UsageError, match=message) as caught:
        from_dict(data).check()
    assert "\n" not in str(caught.value)


def test_an_unstable_network_runs_only_on_request() -> None:
    with pytest.raises(UsageError, match=r'station "s" has a load of 1\.250'):
        run(m_d_1(1.25), duration_s=0.001)
    assert run(m_d_1(1.25), duration_s=0.001, warm_up_s=0, allow_unstable=True).data["replications"]


def test_unknown_parameters_and_values_are_named() -> None:
    with pytest.raises(UsageError, match="no built-in model 'bsd'"):
        parameters("bsd", {})
    with pytest.raises(UsageError, match="no parameter 'cpu'"):
        parameters("bsd-router", {"cpu": 1})
    with pytest.raises(UsageError, match="cpu_mhz is 'fast'; expected a number"):
        parameters("bsd-router", {"cpu_mhz": "fast"})
    with pytest.raises(UsageError, match="bus_arbitration is 'x'"):
        parameters("bsd-router", {"bus_arbitration": "x"}).build()  # type: ignore[attr-defined]


# --- the software router of the thesis -------------------------------------------------------------


def test_the_forwarding_time_follows_the_routing_table() -> None:
    for routes, us in LOOKUP_US.items():
        own = BsdRouter(routes=routes)
        found = sum(own.grain_us(grain) for grain in ("ipintrq", "ifsnd", "ipreturn", "ifeotx")) / 0.6
        assert found == pytest.approx(us, abs=0.001)


@pytest.mark.parametrize("name", ["bsd-router", "bsd-router-functions", "security-gateway", "mogul-ramakrishnan"])
def test_a_part_of_a_grain_may_not_depend_on_the_clock(name: str) -> None:
    """A packet that meets no other one takes longer by the parts that the clock divides."""

    def latency_us(**settings: str | float) -> float:
        quiet = {"packet_bytes": "64", "load_pps": 100, "gaps": "constant", "noise_period_ms": 0}
        model = parameters(name, quiet | settings).build()
        results = run(model, duration_s=0.05, warm_up_s=0, replications=2)
        (row,) = results.estimates.filter(place="forwarded", measure="latency_ns").head(1).rows(named=True)
        return float(row["mean"]) / 1e3

    fixed = {"fixed_us": "dmarx=1.5/ifsnd=0.25"}
    assert latency_us(cpu_mhz=1000, **fixed) == pytest.approx(latency_us(cpu_mhz=1000), abs=1e-3)
    saved_us = latency_us(cpu_mhz=500) - latency_us(cpu_mhz=500, **fixed)
    assert saved_us == pytest.approx(1.75, abs=1e-3)


@pytest.mark.parametrize("wrong", ["dmarx", "dmarx=x", "dmarx=-1", "dmarx=4", "nosuch=1", "dmarx=1/dmarx=1"])
def test_a_part_that_no_grain_has_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"^fixed_us is .*; expected parts of dmarx, ipintrq, .* each once"):
        parameters("bsd-router", {"fixed_us": wrong}).build()  # type: ignore[attr-defined]


# Short runs differ from the long ones by about a percent, and take a seventh of the time.
SHORT = {"duration_s": 0.2, "warm_up_s": 0.1, "replications": 2}
SHORT_NAMES = (
    "saturation, 1 GHz", "live-lock, 1 GHz", "cpu at saturation, 1 GHz", "bus at saturation, 1 GHz",
    "saturation, 3 GHz, reception first", "cpu at saturation, 3 GHz, reception first",
    "bus at saturation, 3 GHz, reception first",
)  # fmt: skip


def quantity_of(name: str) -> Quantity:
    (quantity,) = (each for each in quantities() if each.name == name and each.section == "3.8.2")
    return quantity


def forget_runs() -> None:
    published.router.cache_clear()
    published.saturation_mbps.cache_clear()


@cache
def of_short_runs() -> dict[str, float]:
    """The model's values of `SHORT_NAMES`, which have runs in common."""
    forget_runs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "run", lambda model, **options: run(model, **{**options, **SHORT}))
        found = [quantity_of(name) for name in SHORT_NAMES]
        values = {quantity.name: quantity.compute(quantity.judged_by) for quantity in found}
    forget_runs()
    return values


def compared(name: str, *, is_short: bool) -> tuple[Quantity, float]:
    """A published value of the test-bed and that of the model, under its calibration."""
    quantity = quantity_of(name)
    return quantity, of_short_runs()[name] if is_short else quantity.compute(quantity.judged_by)


def runs_of(*names: str) -> list[Any]:
    """Return names with short runs where there are some, and with all of the runs for the long suite."""
    return long_except(
        [(name, True) for name in names if name in SHORT_NAMES],
        [(name, is_short) for name in names for is_short in (True, False) if name in SHORT_NAMES or not is_short],
    )


@pytest.mark.parametrize(("name", "is_short"), runs_of("saturation, 1 GHz", "saturation, 3 GHz", "live-lock, 1 GHz"))
def test_published_throughputs_are_met_within_2_percent(name: str, is_short: bool) -> None:
    quantity, ours = compared(name, is_short=is_short)
    assert abs(quantity.error(ours)) <= 0.02, f"{name}: {ours}, published {quantity.published}"


@pytest.mark.parametrize(
    ("name", "is_short"),
    runs_of(*(f"{station} at saturation, {clock}" for station in ("cpu", "bus") for clock in ("1 GHz", "3 GHz"))),
)
def test_published_utilisations_are_met_within_5_points(name: str, is_short: bool) -> None:
    quantity, ours = compared(name, is_short=is_short)
    assert quantity.is_percentage
    assert abs(quantity.error(ours)) <= 5, f"{quantity.name}: {ours} %, published {quantity.published} %"


@pytest.mark.long
def test_statements_of_the_chapter_hold() -> None:
    statements = check_statements()
    assert statements.height == 11
    # Statements that do not hold have a note why.
    broken = statements.filter(~pl.col("holds"))
    assert [(row["figure"], row["statement"]) for row in broken.iter_rows(named=True)] == [
        ("3.9", "a queue for each function is not a good model"),
        ("3.19", "Mogul and Ramakrishnan, 1 GHz: no fair share"),
    ]
    assert all(row["note"] for row in broken.iter_rows(named=True))


def test_every_quantity_says_whether_it_is_a_prediction() -> None:
    for quantity in quantities():
        assert quantity.kind in KINDS and quantity.judged_by in CALIBRATIONS
        # Values that depend on unpublished numbers are no predictions.
        assert quantity.section != "3.8.1" or quantity.kind != "predicted", quantity.name


def test_numbers_that_the_model_does_not_meet_are_called_discrepancies() -> None:
    listed = {(quantity.section, quantity.name): quantity for quantity in quantities()}
    # A value that calibrated the model is no prediction.
    assert listed[("3.8.2", "saturation, 1 GHz")].kind == "input"
    early = [quantity for quantity in listed.values() if quantity.section < "3.7.4"]
    far = [quantity for quantity in early if abs(quantity.error(quantity.compute("A"))) > 0.02]
    assert 0 < len(far) < len(early)
    assert {quantity.kind for quantity in far} == {"discrepancy"}


@pytest.mark.parametrize(
    ("name", "is_short"),
    runs_of(*(f"{what}, 3 GHz, reception first" for what in ("saturation", "cpu at saturation", "bus at saturation"))),
)
def test_reception_first_is_compared_too(name: str, is_short: bool) -> None:
    quantity, ours = compared(name, is_short=is_short)
    assert abs(quantity.error(ours)) <= (5 if quantity.is_percentage else 0.05), ours


def test_polling_has_no_live_lock_and_weights_share_alike() -> None:
    assert throughput_mbps(router("A", 900.0, model="mogul-ramakrishnan")) == pytest.approx(225, rel=0.02)
    flows = router("A", 600.0, model="wfq-router").estimates.filter(
        kind="sink", place=FORWARDED, measure="throughput_bps"
    )
    rates = np.array([rate for rate in flows["mean"] if rate > 0])
    assert rates / rates.sum() == pytest.approx([1 / 3] * 3, abs=0.01)


def test_published_quantities_name_their_section_once() -> None:
    names = [(quantity.section, quantity.name) for quantity in quantities()]
    assert len(set(names)) == len(names)
    assert set(CALIBRATIONS) == {"A", "B"}


# --- sweeps and comparisons ------------------------------------------------------------------------


def test_values_of_a_sweep() -> None:
    assert parse_values("1,2.5,x") == [1.0, 2.5, "x"]
    assert parse_values("0:1:0.25") == [0, 0.25, 0.5, 0.75, 1]
    for wrong in ("1:2:0", "3:2:1", "0:1:1e-9"):
        with pytest.raises(UsageError):
            parse_values(wrong)


def test_a_sweep_has_a_row_per_point_and_flow() -> None:
    over = {"cpu_mhz": [1000.0, 2000.0], "load_mbps": [100.0, 300.0]}
    frame = sweep("single-queue", over, duration_s=0.02, warm_up_s=0.01, replications=1)
    assert frame.height == 4 * (1 + 3)
    total = frame.filter(pl.col("class") == "")
    assert total["cpu_mhz"].to_list() == [1000, 1000, 2000, 2000]
    shares = frame.filter(pl.col("class") != "").group_by("cpu_mhz", "load_mbps").agg(pl.col("share").sum())
    assert shares["share"].to_numpy() == pytest.approx(1)


def test_a_model_fed_with_its_own_trace_matches_it(tmp_path: Path) -> None:
    original = parameters("single-queue", {"load_mbps": 150, "queue": 0}).build()
    results = run(original, duration_s=0.05, warm_up_s=0, replications=1, trace=True)
    assert results.packets is not None
    made = results.packets.sort("packet").select(
        arrival_ns=pl.col("born_ps") / 1000, departure_ns=pl.col("left_ps") / 1000, bytes="bytes"
    )
    made.write_csv(tmp_path / "trace.csv")
    comparison = compare(
        read_trace(tmp_path / "trace.csv"),
        {"same": original, "slow": parameters("single-queue", {"load_mbps": 150, "queue": 0, "cpu_mhz": 800}).build()},
    )
    table = comparison.table()
    assert table["model"].to_list() == ["measured", "same", "slow"]
    assert table["distance.measured"][0] == 0
    assert table["distance.measured"][1] < 0.01
    assert table["distance.measured"][2] > 0.2
    assert table["distance.slow"][1] == table["distance.same"][2] > 0.2
    assert table["mean_us"][1] == pytest.approx(table["mean_us"][0], rel=1e-3)
    ccdfs = comparison.ccdfs()
    for name, latencies in comparison.latencies_ns.items():
        own = ccdfs.filter(model=name)
        middle = own.row(own.height // 2, named=True)
        assert middle["ccdf"] == pytest.approx((latencies >= middle["latency_us"] * 1e3 * (1 - 1e-12)).mean())
        assert own["ccdf"].is_sorted(descending=True) and own["ccdf"][0] == 1 and own["ccdf"][-1] > 0
    paths = comparison.write(tmp_path / "figures")
    assert [path.name for path in paths] == ["comparison.csv", "ccdf.csv", "ccdf.html", "ccdf.png", "ccdf.svg"]
    assert all(path.stat().st_size > 100 for path in paths)


def test_broken_measurements_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    for text, message in (
        ("arrival_ns\n1\n", "no column 'departure_ns'"),
        ("arrival_ns,departure_ns\n5,6\n4,7\n", "row 1 is 4"),
        ("arrival_ns,departure_ns\n5,6\nNaN,7\n", "row 1 is nan"),
        ("arrival_ns,departure_ns\n", "numbers|no packet"),
        ("arrival_ns,departure_ns\n5,6\n7,6.5\n", "row 1 left at 6.5, before it arrived at 7"),
    ):
        path.write_text(text)
        with pytest.raises(ParshallError, match=message):
            read_trace(path)


@pytest.mark.parametrize("kind", [pl.Int64, pl.UInt64])
def test_times_since_1970_keep_their_nanoseconds(tmp_path: Path, kind: type[pl.DataType]) -> None:
    """In floating point they have steps of 256 ns."""
    begin_ns = 1_795_000_000_000_000_001
    frame = pl.DataFrame(
        {
            "arrival_ns": [begin_ns, begin_ns + 100, begin_ns + 217],
            "departure_ns": [begin_ns + 99, None, begin_ns + 300],
        },
        schema={"arrival_ns": kind, "departure_ns": kind},
    )
    frame.write_parquet(tmp_path / "trace.parquet")
    trace = read_trace(tmp_path / "trace.parquet")
    assert trace["arrival_ns"].to_list() == [0, 100, 217]
    assert trace["departure_ns"].to_list() == [99, None, 300]
    early = frame.with_columns(departure_ns=pl.col("arrival_ns") - 1)
    early.write_parquet(tmp_path / "early.parquet")
    with pytest.raises(ParshallError, match=f"row 0 left at {begin_ns - 1}, before it arrived at {begin_ns};"):
        read_trace(tmp_path / "early.parquet")


def test_background_sources_keep_their_own_times() -> None:
    trace = pl.DataFrame({"arrival_ns": [0.0, 3e9], "departure_ns": [1.0, 3e9 + 1], "bytes": [64.0, 64.0]})
    for gap, times in (("constant:value=1s", 4), ("poisson:mean=500ms", 7), (1e6, 3001)):
        own = Model("own").station("cpu").source("flow", "poisson:mean=1ms", "q", size_bytes=64)
        own.source("noise", gap, "noise").queue("q", "cpu", 5, "out").queue("noise", "cpu", 5, "residue")
        network, _ = with_arrivals(own, trace)
        (noise,) = [source for source in network.sources if source["name"] == "noise"]
        assert noise["packets"] == times, gap
    own.sources[1]["gap_ns"] = {"samples": [1e6]}
    with pytest.raises(UsageError, match=r'source "noise": gap_ns'):
        with_arrivals(own, trace)


@pytest.mark.parametrize(
    ("kind", "left_ps"), [("non-preemptive", [10_000, 15_000]), ("preemptive-resume", [15_000, 5_000])]
)
def test_simultaneous_arrivals_come_in_the_order_of_their_sources(kind: str, left_ps: list[int]) -> None:
    model = Model("together").station("cpu", kind=kind)
    for name, priority, service_ns in (("low", 1, 10), ("high", 0, 5)):
        model.source(name, {"samples": [100.0]}, name, packets=1)
        model.queue(name, "cpu", service_ns, "out", priority=priority)
    results = run(model, duration_s=1e-6, warm_up_s=0, replications=1, trace=True)
    assert results.packets is not None
    latencies = results.packets.sort("class").with_columns(pl.col("left_ps") - 100_000)
    assert dict(zip(latencies["class"], latencies["left_ps"], strict=True)) == dict(
        zip(("low", "high"), left_ps, strict=True)
    )


def test_the_distance_of_samples() -> None:
    assert distance(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 0
    assert distance(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == 1
    assert distance(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == 0.5


def test_results_are_plain_data() -> None:
    results = run(m_d_1(), duration_s=0.01, warm_up_s=0, replications=1)
    assert json.loads(json.dumps(results.data)) == results.data
    assert results.data["generator"]
