"""Routers that are known, made event by event: what a calibration finds of them, and that no time is left over."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
from event_router import POLL_PACKETS, EventRouter, drawn, poisson_stalls
from test_router_calibration import constant, exponential, times_of_arrival, uniform

from made_calibration import known
from made_calibration import stalls as random_stalls
from parshall.model.plan import Limits
from parshall.router import calibrate as calibrating
from parshall.router import path_profile
from parshall.router.calibration import LATENCY_PARTS, Calibration
from parshall.router.estimation import LONG_PARTS, Passages, gaps_ns, owners
from parshall.router.forecast import forecast, holding_interval
from parshall.router.network import calibrated
from parshall.router.prediction import compare, latencies_ns, predict
from parshall.router.sender import drawn_stalls
from parshall.router.setup import Setup
from parshall.router.traffic import Traffic
from suites import long_except

Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Known:
    """A router of which all is known; times are in ns."""

    service: Draw
    mean_service: float
    wake: float = 9_000.0
    send: float = 0.0
    link: float = 1_300.0
    stalls_per_s: float = 0.0
    stall: float = 0.0
    poll_packets: int = POLL_PACKETS
    takes_part_polls: bool = False
    places: int = 1000
    stall_process: Callable[[np.random.Generator, float], list[tuple[float, float]]] | None = None

    @property
    def capacity_pps(self) -> float:
        """The rate at which its queue never empties."""
        return 1e9 * (1 - 1e-9 * self.stalls_per_s * self.stall) / (self.mean_service + self.send)

    def table(self, pps: float, count: int, seed: int, gaps: Callable = exponential) -> pyarrow.Table:
        """Return what it does."""
        random = np.random.default_rng(seed)
        span_ns = 1e9 * count * max(1 / pps, 1 / self.capacity_pps)
        router = EventRouter(
            service=drawn(self.service(random, count)),
            wake=drawn(self.wake * random.gamma(60, 1 / 60, count)),
            link=self.link,
            transfer=200,
            send=self.send,
            takes_part_polls=self.takes_part_polls,
            places=self.places,
            poll_packets=self.poll_packets,
            stalls=self.stall_process(random, span_ns)
            if self.stall_process
            else poisson_stalls(random, self.stalls_per_s, self.stall, span_ns),
        )
        return router.table(times_of_arrival(pps, count, seed + 1_000_000, gaps))

    def latencies_ns(self, seed: int) -> np.ndarray:
        """Return the latencies at half of the capacity."""
        return latencies_ns(self.table(self.capacity_pps / 2, 200_000, seed))

    def calibration(self, seed: int, *, repeats: int = 5, count: int = 60_000) -> Calibration:
        """Return its calibration, from the workloads that `calibrate` offers."""
        pps, seeds = self.capacity_pps, range(seed, seed + 3 * repeats, 3)
        sparse = [self.table(pps / 6, count, each, uniform) for each in seeds]
        waiting = [self.table(pps / 2, count, each + 1) for each in seeds]
        # Twice what it forwards.
        full = [self.table(2 * pps, count, each + 2, constant) for each in seeds]
        runs = ([Passages.of(table) for table in tables] for tables in (sparse, waiting, full))
        return known(**calibrating.estimated(*runs, batch=self.poll_packets))


def long_services(random: np.random.Generator, count: int) -> np.ndarray:
    return np.where(random.random(count) < 0.02, 15_000.0, 1_000.0)


ROUTERS = {
    "2 % long services": Known(long_services, 1_280.0),
    "polls and stalls": Known(
        lambda random, count: random.normal(700, 60, count), 700.0, send=270.0, stalls_per_s=900.0, stall=26_000.0
    ),
    "services of any length": Known(
        lambda random, count: random.gamma(2, 1_500, count), 3_000.0, wake=2_000.0, send=100.0, takes_part_polls=True
    ),
    "long stalls, short queue": Known(
        lambda random, count: random.lognormal(np.log(900) - 0.02, 0.2, count),
        900.0,
        stalls_per_s=60.0,
        stall=400_000.0,
        places=256,
    ),
    "0.3 % longer than a stall": Known(
        lambda random, count: np.where(random.random(count) < 0.003, 60_000.0, 800.0),
        977.6,
        wake=5_000.0,
        send=150.0,
        stalls_per_s=400.0,
        stall=50_000.0,
    ),
}


@cache
def calibration_of(name: str) -> Calibration:
    router = ROUTERS[name]
    # Rare stalls need more packets for as many of them.
    return router.calibration(1, count=60_000 if 0 < router.stalls_per_s < 100 else 30_000)


QUICK = ["2 % long services", "polls and stalls"]


@pytest.mark.parametrize("name", long_except(QUICK, ROUTERS))
def test_the_parts_of_a_router_give_its_capacity(name: str) -> None:
    assert calibration_of(name).parts_pps == pytest.approx(ROUTERS[name].capacity_pps, rel=0.02)


@pytest.mark.parametrize("name", long_except(QUICK, ROUTERS))
def test_no_time_between_arrival_and_departure_is_left_over(name: str) -> None:
    router, found = ROUTERS[name], calibration_of(name)
    found.check()
    for row in found.balance:
        assert sum(row[f"{part}_ns"] for part in LATENCY_PARTS) == pytest.approx(row["latency_ns"], rel=1e-9)
    full = found.balance[-1]
    assert full["idle_ns"] == pytest.approx(0, abs=5)
    assert full["send_ns"] == pytest.approx(router.send, rel=0.05, abs=5)
    work_ns = router.mean_service + router.send
    stalls_ns = 1e9 / router.capacity_pps - work_ns
    assert full["service_ns"] + full["stall_ns"] + full["send_ns"] == pytest.approx(work_ns + stalls_ns, rel=0.02)
    # Stalls shorter than a wake-up or a poll are longer services.
    assert full["stall_ns"] == pytest.approx(stalls_ns, abs=0.02 * work_ns)
    half = found.balance[1]
    assert half["latency_ns"] == pytest.approx(float(router.latencies_ns(3).mean()), rel=0.15)


@pytest.mark.long
@pytest.mark.parametrize("name", ROUTERS)
def test_intervals_hold_what_is_true_in_nine_of_ten_calibrations(name: str) -> None:
    router, runs = ROUTERS[name], 100
    found = [router.calibration(1_000 + 100 * run, count=30_000) for run in range(runs)]
    random = np.random.default_rng(0)
    shortest_ns = LONG_PARTS * max(router.wake, router.poll_packets * router.send)
    # Times are rounded to ns.
    intervals = {
        "link": ([(each.low_link_ns, each.high_link_ns) for each in found], router.link, 1.0),
        "send": ([(each.low_send_ns, each.high_send_ns) for each in found], router.send, 0.1),
        "service": (
            [(each.service.low_median_ns, each.service.high_median_ns) for each in found],
            float(np.median(router.service(random, 10_000_000))),
            1.0,
        ),
        "wake": (
            [(each.wake.low_median_ns, each.wake.high_median_ns) for each in found],
            router.wake * float(np.median(random.gamma(60, 1 / 60, 10_000_000))),
            1.0,
        ),
        "stalls": (
            [(each.noise.low_per_s, each.noise.high_per_s) for each in found],
            router.stalls_per_s * np.exp(-shortest_ns / router.stall) if router.stall else 0.0,
            0.0,
        ),
    }
    for parameter, (ends, true, rounding) in intervals.items():
        held = sum(low - rounding <= true <= high + rounding for low, high in ends)
        assert held >= 0.9 * runs, (parameter, held)
    near = sum(abs(each.parts_pps / router.capacity_pps - 1) < 0.02 for each in found)
    assert near >= 0.9 * runs, near


@pytest.mark.parametrize(("slow", "send"), [(1, 250.0), (3, 250.0), (1, 0.0)])
def test_a_stretch_in_which_half_load_is_overload_says_how_slow_it_was(slow: int, send: float) -> None:
    """Its queue is never empty: there are no first polls, and no latency shows the link."""
    usual = Known(lambda random, count: random.normal(700, 60, count), 700.0, send=send)
    late = dataclasses.replace(usual, service=lambda random, count: 2.5 * usual.service(random, count), send=2 * send)
    of = [late if number in range(1, 1 + slow) else usual for number in range(4)]
    pps, count = usual.capacity_pps, 25_000
    loads = ((pps / 6, uniform), (pps / 2, exponential), (2 * pps, constant))
    sparse, waiting, full = (
        # The queue fills before: a run that begins slow has hardly any packet that does not wait.
        [Passages.of(router.table(load, count, 10 * at + kind, gaps).slice(2_000)) for at, router in enumerate(of)]
        for kind, (load, gaps) in enumerate(loads)
    )
    assert len(waiting[1].services_ns(POLL_PACKETS)) < 100 < len(waiting[0].services_ns(POLL_PACKETS))
    found = calibrating.estimated(sparse, waiting, full, batch=POLL_PACKETS)
    for router, row in zip(of, found["stretches"], strict=True):
        service_ns = 2.5 * 700 if router is late else 700
        assert row["service_ns"] == pytest.approx(service_ns, rel=0.03)
        assert row["link_ns"] == pytest.approx(usual.link, rel=0.15)
        assert row["wake_ns"] == pytest.approx(usual.wake, rel=0.25 if router is late else 0.05)
    assert found["link_ns"] == pytest.approx(usual.link, rel=0.02)


@pytest.mark.long
def test_the_share_of_stretches_that_lose_packets_is_held_where_none_was_seen() -> None:
    """A stall of a millisecond every ten seconds: nearly every forecast sees no loss."""
    pps, stall_ns, period_s = 600e3, 1_000_000.0, 10.0
    router = Known(lambda random, count: np.full(count, 1_000.0), 1_000.0, stall=stall_ns, places=256)
    stalled = EventRouter(lambda: 1_000.0, lambda: 9_000.0, places=256, stalls=[(5e6, stall_ns)])
    lost = stalled.table(times_of_arrival(pps, 6_000, 1))["departure_ns"].null_count
    assert lost > 0
    duration_s = 0.02
    true = 1 - duration_s / period_s
    noise = random_stalls(1 / period_s, np.full(10, stall_ns))
    service, wake = (calibrating.times([np.full(10, each)]) for each in (1_000.0, router.wake))
    rows = [
        {
            **{"at_s": float(at), "overload_pps": 1e6, "service_ns": 1_000.0, "wake_ns": router.wake, "link_ns": 0.0},
            **{"stalls": 0, "span_s": 0.05},
        }
        for at in range(5)
    ]
    parts = {"service": service, "wake": wake, "noise": noise, "queue_packets": 256, "stretches": rows}
    found = known(**parts, link_ns=0.0, transfer_ns=0.0, send_ns=0.0)
    holding = [
        forecast(found, pps, duration_s=duration_s, draws=19, seed=1 + 19 * seed).holding(Limits(0.0))
        for seed in range(30)
    ]
    assert sum(count == of for count, of in holding) > 20
    assert sum(low <= true <= high for low, high in map(holding_interval, holding)) >= 28


def test_runs_that_lost_packets_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stalls that lose packets come three times in a run: to leave out such runs would leave out most stalls."""
    packets, repeats = 30_000, 6
    span_s = packets / (0.5 * 1e6)
    router = Known(
        lambda random, count: np.full(count, 1_000.0), 1_000.0, stalls_per_s=3 / span_s, stall=1e6, places=256
    )
    runs: list[pyarrow.Table] = []
    kinds: list[str] = []

    def measure(bed: object, traffic: Traffic, count: int) -> SimpleNamespace:
        gaps = {"random": uniform, "constant": constant}.get(traffic.kind, exponential)
        kinds.append(traffic.kind)
        runs.append(router.table(min(traffic.pps, 2e6), count, traffic.seed, gaps))
        return SimpleNamespace(table=runs[-1])

    monkeypatch.setattr(calibrating, "measure", measure)
    monkeypatch.setattr(calibrating, "overload", lambda *_, **__: SimpleNamespace(pps=router.capacity_pps))
    monkeypatch.setattr(path_profile, "interrupts", lambda *_: [])
    monkeypatch.setattr(path_profile, "stages", lambda *_: ([], []))
    # Trials give no parameter.
    monkeypatch.setattr(calibrating, "_TRIAL_LOADS", ())
    bed = SimpleNamespace(setup=Setup())
    found = calibrating.calibrate_in(bed, sizes="64", flows=1, repeats=repeats, count=packets, seed=5)  # type: ignore[arg-type]
    assert len(runs) == 3 * repeats, "no run is repeated"
    lossy = [table for table in runs if table["departure_ns"].null_count]
    assert len(lossy) > 2 * repeats
    of_kinds = [
        sum(table["departure_ns"].null_count for table, kind in zip(runs, kinds, strict=True) if kind == wanted)
        for wanted in ("random", "poisson", "constant")
    ]
    assert [row["lost"] for row in found.balance] == of_kinds
    assert kinds != kinds[:3] * repeats, "each repeat has an order of its own"
    assert found.noise.low_per_s <= router.stalls_per_s <= found.noise.high_per_s
    assert found.noise.per_s == pytest.approx(router.stalls_per_s, rel=0.35)


@pytest.mark.parametrize(
    ("receive", "weights", "packets"), [("rps", (32, 2), 64), ("rps", (300, 1), 300), ("threaded", (32, 2), 64)]
)
def test_a_poll_has_as_many_packets_as_the_kernel_s_weight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, receive: str, weights: tuple[int, int], packets: int
) -> None:
    for name, value in zip(("dev_weight", "dev_weight_rx_bias"), weights, strict=True):
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(calibrating, "_SYSCTLS", tmp_path)
    assert calibrating.poll_packets(receive) == packets


@pytest.mark.parametrize("batch", [16, 300])
def test_the_poll_of_another_weight_is_found_and_predicted(batch: int) -> None:
    """Taken for polls of 64, those of 300 packets would have services of 80 us among them."""
    router = Known(lambda random, count: random.normal(700, 60, count), 700.0, send=270.0, poll_packets=batch)
    found = dataclasses.replace(router.calibration(1, repeats=2), poll_packets=batch)
    assert found.send_ns == pytest.approx(router.send, rel=0.02)
    assert found.service.p99_ns == pytest.approx(700 + 2.33 * 60, rel=0.02)
    assert found.parts_pps == pytest.approx(router.capacity_pps, rel=0.02)
    measured = router.table(0.95 * router.capacity_pps, 60_000, 77)
    error = compare(measured, predict(calibrated(found), measured.drop_columns(["due_ns"])))["p50"]["error"]
    assert abs(error) < 0.1


def grouped(random: np.random.Generator, span_ns: float) -> list[tuple[float, float]]:
    """Return stalls of a process of two states: 5 ms with 4,000 in a second, 20 ms without."""
    found, now = [], 0.0
    while now < span_ns:
        end = now + random.exponential(5e6)
        begins = np.sort(random.uniform(now, end, random.poisson(4e-6 * (end - now))))
        found.extend(zip(begins.tolist(), random.exponential(40_000, len(begins)).tolist(), strict=True))
        now = end + random.exponential(20e6)
    return found


def dispersion(begins_ns: np.ndarray, span_ns: float, window_ns: float = 5e6) -> float:
    """Return the variance of the number of stalls in a window over its mean: 1 of a Poisson process."""
    counts, _ = np.histogram(begins_ns, np.arange(0, span_ns, window_ns))
    return float(counts.var() / counts.mean())


@cache
def grouped_calibration() -> Calibration:
    router = Known(lambda random, count: np.full(count, 1_000.0), 1_000.0, wake=5_000.0, stall_process=grouped)
    return router.calibration(9, repeats=8, count=50_000)


def test_stalls_that_come_in_groups_are_drawn_in_groups() -> None:
    span_ns = 20e9
    random = np.random.default_rng(4)
    long_ns = LONG_PARTS * 5_000
    true = np.array([begin for begin, length in grouped(random, span_ns) if length > long_ns])
    found = grouped_calibration()
    assert found.noise.gaps is not None
    drawn_ns = np.array([begin for begin, _ in drawn_stalls(random, found, 0, int(span_ns))])
    assert len(drawn_ns) == pytest.approx(found.noise.per_s * 20, rel=0.1)
    # A fifth of the time has stalls, and those are seen that are long.
    assert found.noise.low_per_s <= 4_000 / 5 * np.exp(-long_ns / 40_000) <= found.noise.high_per_s
    assert dispersion(true, span_ns) > 4
    assert dispersion(drawn_ns, span_ns) == pytest.approx(dispersion(true, span_ns), rel=0.4)


def test_few_stalls_are_drawn_as_of_a_poisson_process() -> None:
    gaps = gaps_ns([np.array([1e6, 2e6]), np.array([5e5])], [3e6, 3e6])
    assert gaps.mean() == pytest.approx(2e6, rel=0.01)
    assert gaps.std() == pytest.approx(2e6, rel=0.02)


def test_whose_a_stall_was_is_unknown_when_no_packet_was_expected_in_it() -> None:
    at_10_kpps = Passages(*(np.arange(0, 10**9, 100_000) + shift for shift in (0, 1_000, 0)))
    for stall_ns, is_unknown in ((60_000.0, True), (500_000.0, False)):
        long = np.zeros(len(at_10_kpps.arrival_ns) - 1)
        long[50] = stall_ns
        own = owners(at_10_kpps, long)
        assert not own[0].any() and own[1].any() == is_unknown
