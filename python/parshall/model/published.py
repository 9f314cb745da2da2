"""The published numbers of the software router of O. I. Lepe-Aldama's thesis (UPC 2002, chapter 3), and the models'.

Two calibrations, because the chapter's capacities (3.8.1) and its test-bed (3.8.2) do not agree with each other:
8.5 kpps at 100 MHz is 11.8 us at 1 GHz, 225 Mbit/s at 1 GHz is 12.8 us. A has the grains of Table 3-I and an IP queue
of 50 packets, for 3.8.2; B has 11.2 us and an IP queue of 256, for 3.8.1. Every quantity is computed under both, and
judged under the calibration of its section.

Not every agreement is a prediction: each quantity has a kind (`KINDS`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import polars as pl

from parshall.model.builtin import FORWARDED, parameters
from parshall.model.builtin.bsd import GRAINS_US, LOOKUP_US, BsdRouter
from parshall.model.builtin.gateway import CIPHERS_US_PER_BYTE
from parshall.model.plan import Limits, bisected, greatest_load
from parshall.model.simulation import Results, run

CALIBRATIONS: dict[str, dict[str, str | float]] = {
    "A": {"grain_scale": 1.0, "ip_queue": 50},
    "B": {"grain_scale": 11.2 / sum(GRAINS_US.values()), "ip_queue": 256},
}
KINDS = {
    "input": "parameters of the model, or the interpretation of other numbers, come from it",
    "predicted": "it follows from other numbers of the source",
    "fitted": "a parameter that the source does not give was chosen to match it",
    "undetermined": "it depends on parameters that the source does not give",
    "discrepancy": "it contradicts other numbers of the source",
}
# Packets of a replication in the search for a capacity: the largest load "without losing any".
CAPACITY_PACKETS = 50_000
SEED = 2002


@dataclass(frozen=True)
class Quantity:
    """A published number and how it is computed.

    Attributes
    ----------
    section, name, unit : str
        Its section, name and unit.
    published : float
        The published value.
    compute : callable
        Returns the value of the model under a calibration.
    kind : str
        One of `KINDS`.
    judged_by : str
        The calibration of its section.
    note : str
        A remark for readers of the comparison.
    """

    section: str
    name: str
    unit: str
    published: float
    compute: Callable[[str], float]
    kind: str = "predicted"
    judged_by: str = "A"
    note: str = ""

    @property
    def is_percentage(self) -> bool:
        """Whether its error is in percentage points, not relative."""
        return self.unit == "%"

    def error(self, ours: float) -> float:
        """Return the error of the model: relative, or in points for a percentage."""
        return ours - self.published if self.is_percentage else ours / self.published - 1


@cache
def router(
    calibration: str, load_mbps: float, cpu_mhz: float = 1000.0, model: str = "bsd-router", **settings: str | float
) -> Results:
    """Run a router with three flows of equal bit rate, as in 3.8.2."""
    own = dict(CALIBRATIONS[calibration])
    if model != "bsd-router":
        del own["ip_queue"]
    chosen = {**own, "load_mbps": load_mbps, "cpu_mhz": cpu_mhz, **settings}
    return run(parameters(model, chosen).build(), duration_s=1.0, warm_up_s=0.3, replications=4, seed=SEED)


def throughput_mbps(results: Results) -> float:
    """Return the total throughput of all flows."""
    return results.total(FORWARDED, "throughput_bps") / 1e6


@cache
def saturation_mbps(calibration: str, cpu_mhz: float) -> float:
    """Return the maximum throughput over the offered loads, in steps of 10 Mbit/s."""
    return max(throughput_mbps(router(calibration, load, cpu_mhz)) for load in _loads(cpu_mhz))


def _loads(cpu_mhz: float) -> list[float]:
    return [float(load) for load in (range(200, 300, 10) if cpu_mhz < 2000 else range(460, 620, 10))]


def _livelock_mbps(calibration: str) -> float:
    """Return the offered load above which less than 1 % of the saturation is forwarded."""
    limit = saturation_mbps(calibration, 1000.0) / 100

    def forwards(load_mbps: float) -> bool:
        return throughput_mbps(router(calibration, load_mbps)) > limit

    return sum(bisected(400.0, 1000.0, forwards, lambda *_: 1.0)) / 2


def _utilisation(calibration: str, station: str, cpu_mhz: float) -> float:
    """Return the utilisation of a station at the smallest load that saturates the router, in %."""
    limit = 0.995 * saturation_mbps(calibration, cpu_mhz)
    loads = [load for load in _loads(cpu_mhz) if throughput_mbps(router(calibration, load, cpu_mhz)) >= limit]
    return 100 * router(calibration, loads[0], cpu_mhz).mean(station, "utilisation")


def _reception_first(calibration: str, station: str | None = None) -> float:
    """Return the maximum throughput of a 3 GHz router with reception first, or a utilisation there, in %."""
    runs = [router(calibration, float(load), 3000.0, bus_arbitration="reception-first") for load in range(460, 540, 10)]
    best = max(runs, key=throughput_mbps)
    return throughput_mbps(best) if station is None else 100 * best.mean(station, "utilisation")


def _capacity_kpps(calibration: str, model: str, expected_kpps: float, **settings: str | float) -> float:
    chosen = {**CALIBRATIONS[calibration], **settings}
    duration_s = CAPACITY_PACKETS / (expected_kpps * 1e3)
    # The interval has only one end, since a run without loss does not prove that there is none.
    answer = greatest_load(model, Limits(0.0), settings=chosen, seed=SEED, duration_s=duration_s, replications=4)
    return answer.value / 1e3


def _p99_ms(calibration: str, model: str, load_pps: float, **settings: str | float) -> float:
    chosen = {**CALIBRATIONS[calibration], "load_pps": load_pps, **settings}
    model_ = parameters(model, chosen).build()
    results = run(model_, duration_s=20.0, warm_up_s=1.0, replications=8, seed=SEED)
    return results.quantile_ns(FORWARDED, 0.99) / 1e6


def _bsd_router(calibration: str, routes: int = 4) -> BsdRouter:
    return BsdRouter(grain_scale=float(CALIBRATIONS[calibration]["grain_scale"]), routes=routes)


def _forwarding_us(calibration: str, mhz: float, routes: int) -> float:
    own = _bsd_router(calibration, routes)
    return sum(own.grain_us(grain) for grain in GRAINS_US if grain != "dmarx") / mhz * 1e3


def _encrypting_us(calibration: str, mhz: float) -> float:
    return _forwarding_us(calibration, mhz, 4) + 1500 * CIPHERS_US_PER_BYTE["3des"] / mhz * 1e3


# Instructions of the grains (3.7.1); all but dmarx share their total time in proportion. `ifeotx` is `eotx` there.
INSTRUCTIONS = {"dmarx": 475, "ipintrq": 1261, "ifsnd": 216, "ipreturn": 192, "ifeotx": 236}


def _instructions(calibration: str, grain: str) -> float:
    """Return the instructions of a grain at the mean rate of all grains but dmarx."""
    own = _bsd_router(calibration)
    others = [name for name in INSTRUCTIONS if name != "dmarx"]
    rate = sum(INSTRUCTIONS[name] for name in others) / sum(own.grain_us(name) for name in others)
    return own.grain_us(grain) * rate


def _path_us(calibration: str, mhz: float) -> float:
    """Return the processor time of a packet, for all grains together."""
    own = _bsd_router(calibration)
    return sum(map(own.grain_us, GRAINS_US)) / mhz * 1e3


def quantities() -> list[Quantity]:
    """Return every published number."""
    return [*_characterization(), *_times(), *_capacities(), *_test_bed()]


def _characterization() -> list[Quantity]:
    instructions = [
        Quantity(
            "3.7.1",
            f"instructions, {grain}",
            "",
            count,
            partial(_instructions, grain=grain),
            "discrepancy" if grain == "dmarx" else "input",
            note="3.568 us, from the live-lock, are 734 instructions at the others' rate; dmarx has I/O instructions"
            if grain == "dmarx"
            else "divides 9.264 us among the grains",
        )
        for grain, count in INSTRUCTIONS.items()
    ]
    return [
        Quantity(
            "3.5.6",
            "forwarding one packet, slowest system (less than)",
            "us",
            80.0,
            partial(_path_us, mhz=100.0),
            "discrepancy",
            note="at 100 MHz both calibrations take longer; the limit holds from 161 MHz (A) or 141 MHz (B) on",
        ),
        Quantity(
            "3.5.10",
            "period of the noise",
            "ms",
            4.2,
            lambda _: BsdRouter().noise_period_ms,
            "input",
            note="its service distribution is normal; mean and variance are not given",
        ),
        *instructions,
        Quantity(
            "3.7.3",
            "3DES / DES, time per byte",
            "",
            3.0,
            lambda _: CIPHERS_US_PER_BYTE["3des"] / CIPHERS_US_PER_BYTE["des"],
            "input",
            note="Figure 3.14 has no numbers in the text; md5, sha1 and blowfish are not modelled",
        ),
    ]


def _times() -> list[Quantity]:
    listed = [
        Quantity(
            "3.7.4",
            f"forwarding time, 600 MHz, {routes} routes",
            "us",
            us,
            partial(_forwarding_us, mhz=600.0, routes=routes),
            "input",
            note="the grains without dmarx, and the cost of the table" if routes == 4 else "",
        )
        for routes, us in LOOKUP_US.items()
    ]
    for mhz, plain, encrypted in ((600.0, 15.44, 580.0), (1200.0, 7.72, 290.0), (4800.0, 1.93, 72.5)):
        name = f"{mhz:.0f} MHz"
        # The times at other clocks are those of the first, divided.
        kind = "input"
        forwarding, encrypting = partial(_forwarding_us, mhz=mhz, routes=4), partial(_encrypting_us, mhz=mhz)
        listed += [
            Quantity("3.7.5", f"forwarding, {name}", "us", plain, forwarding, kind),
            Quantity("3.7.5", f"forwarding and 3DES, {name}", "us", encrypted, encrypting, kind),
        ]
    slow, fast = BsdRouter(), BsdRouter(bus_mhz=200 / 3, bus_bits=64)
    bus = "bus transfer of 1500 B"
    return [
        *listed,
        Quantity("3.7.5", f"{bus}, 33 MHz x 32 bit", "us", 11.4, lambda _: slow.transfer_us(1500)),
        Quantity("3.7.5", f"{bus}, 66 MHz x 64 bit", "us", 2.9, lambda _: fast.transfer_us(1500)),
    ]


def _capacities() -> list[Quantity]:
    plain: dict[str, Any] = {"model": "bsd-router", "packet_bytes": "64"}
    gateway: dict[str, Any] = {"model": "security-gateway"}
    described: list[tuple[str, float, str, str, dict[str, Any]]] = [
        ("100 MHz", 8.5, "fitted", "11.2 us of B: 'more or less'", {**plain, "cpu_mhz": 100}),
        ("650 MHz", 55.0, "fitted", "the same 11.2 us", {**plain, "cpu_mhz": 650}),
        (
            "AH + DES, 512 B, 650 MHz",
            4.2,
            "discrepancy",
            "no a + b x bytes gives this beside the next two",
            {**gateway, "cipher": "des", "packet_bytes": "512"},
        ),
        (
            "AH + DES, 1386 B, 650 MHz",
            3.6,
            "undetermined",
            "DES taken as a third of 3DES, AH as in the next",
            {**gateway, "cipher": "des"},
        ),
        (
            "AH + 3DES, 1386 B, 650 MHz",
            1.5,
            "undetermined",
            "'around'; the cost of AH is not given, ours is fitted to the latency",
            gateway,
        ),
    ]
    capacities = [
        Quantity(
            "3.8.1",
            f"capacity, {name}",
            "kpps",
            kpps,
            partial(_capacity_kpps, expected_kpps=kpps, **settings),
            kind,
            "B",
            note,
        )
        for name, kpps, kind, note, settings in described
    ]
    latency = "'around'; mean of the noise and length of the queue are not given"
    return [
        *capacities,
        Quantity(
            "3.8.1",
            "P99 latency, 100 MHz, 8.5 kpps",
            "ms",
            10.0,
            partial(_p99_ms, load_pps=8500, cpu_mhz=100, **plain),
            "fitted",
            "B",
            f"{latency}: the noise is fitted; A is overloaded there",
        ),
        Quantity(
            "3.8.1",
            "P99 latency, AH + 3DES, 1386 B, 650 MHz, 1.5 kpps",
            "ms",
            10.0,
            partial(_p99_ms, load_pps=1500, **gateway),
            "fitted",
            "B",
            f"{latency}: the cost of AH is fitted",
        ),
    ]


def _test_bed() -> list[Quantity]:
    listed = []
    for mhz, name, mbps, cpu, bus in ((1000.0, "1 GHz", 225.0, 100.0, 50.0), (3000.0, "3 GHz", 500.0, 70.0, 100.0)):
        is_fast = mhz > 2000
        listed += [
            Quantity(
                "3.8.2",
                f"saturation, {name}",
                "Mbit/s",
                mbps,
                partial(saturation_mbps, cpu_mhz=mhz),
                "input",
                note="the 6 cycles besides data of a bus transfer"
                if is_fast
                else "that Table 3-I is without dmarx was inferred from it",
            ),
            *_at_saturation(name, partial(_utilisation, cpu_mhz=mhz), {"cpu": cpu, "bus": bus}),
        ]
    return [
        *listed,
        Quantity(
            "3.8.2",
            "saturation, 3 GHz, reception first",
            "Mbit/s",
            500.0,
            _reception_first,
            note="the chapter's own arbitration of the bus; the rows above have equal priorities",
        ),
        *_at_saturation("3 GHz, reception first", _reception_first, {"cpu": 70.0, "bus": 100.0}),
        Quantity("3.8.2", "live-lock, 1 GHz", "Mbit/s", 810.0, _livelock_mbps, "input", note="gives dmarx"),
    ]


def _at_saturation(router: str, compute: Callable[..., float], percents: dict[str, float]) -> list[Quantity]:
    """Return the utilisations of the stations of a saturated router."""
    return [
        Quantity(
            "3.8.2",
            f"{station} at saturation, {router}",
            "%",
            percent,
            partial(compute, station=station),
            note=f"'around {percent:.0f} %'" if percent < 100 else "",
        )
        for station, percent in percents.items()
    ]


def table(progress: Callable[[int, int], None] | None = None) -> pl.DataFrame:
    """Compute every quantity under both calibrations.

    Returns
    -------
    polars.DataFrame
        Shape (quantities, 11): ``section``, ``quantity``, ``unit``, ``published``, ``kind`` (of `KINDS`),
        ``judged_by``, ``A``, ``error_A``, ``B``, ``error_B`` (relative; of percentages in points), ``note``.
    """
    rows: list[dict[str, Any]] = []
    listed = quantities()
    for number, quantity in enumerate(listed, 1):
        row: dict[str, Any] = {
            "section": quantity.section,
            "quantity": quantity.name,
            "unit": quantity.unit,
            "published": quantity.published,
            "kind": quantity.kind,
            "judged_by": quantity.judged_by,
        }
        for calibration in CALIBRATIONS:
            ours = quantity.compute(calibration)
            row[calibration] = ours
            row[f"error_{calibration}"] = quantity.error(ours)
        rows.append({**row, "note": quantity.note})
        if progress:
            progress(number, len(listed))
    return pl.DataFrame(rows)


def check_statements() -> pl.DataFrame:
    """Check the statements of the chapter, under calibration A.

    Returns
    -------
    polars.DataFrame
        Shape (statements, 6): ``section``, ``figure``, ``statement``, ``holds``, ``seen``, ``note``: why it does not
        hold.
    """
    rows: list[tuple[str, str, str, bool, str, str]] = []

    def add(figure: str, statement: str, holds: bool, seen: str, note: str = "", section: str = "3.8.2") -> None:
        rows.append((section, figure, statement, bool(holds), seen, note))

    # Loads that no clock forwards.
    overloaded = {mhz: router("A", load, mhz) for mhz, load in ((600.0, 300.0), (1200.0, 600.0), (4800.0, 1000.0))}
    used = {
        mhz: {station: results.mean(station, "utilisation") for station in ("cpu", "bus")}
        for mhz, results in overloaded.items()
    }
    add(
        "Table 3-II",
        "the CPU is the bottleneck at 600 MHz, the bus at 4800 MHz",
        used[600.0]["cpu"] > used[600.0]["bus"] and used[4800.0]["bus"] > used[4800.0]["cpu"],
        "used under overload: "
        + ", ".join(f"{mhz:,.0f} MHz CPU {each['cpu']:.0%}, bus {each['bus']:.0%}" for mhz, each in used.items()),
        section="3.7.5",
    )

    lost = router("A", 400.0).lost()
    place = max(lost, key=lambda queue: lost[queue])
    add(
        "3.17",
        "1 GHz, saturated: most losses in the IP input queue",
        place == "ipintrq",
        f"{place}, {lost[place]:.1%} of all packets",
    )

    first = [router("A", load, 3000.0, bus_arbitration="reception-first") for load in (600.0, 700.0, 800.0)]
    rates = [throughput_mbps(results) for results in first]
    falls = rates[0] > rates[1] > rates[2]
    add("3.17", "3 GHz, reception first: throughput falls as the load rises", falls, _list(rates))
    lost = first[1].lost()
    place = max(lost, key=lambda queue: lost[queue])
    add(
        "3.17",
        "3 GHz, reception first: most losses in the driver's transmit queue",
        place == "ifsnd",
        f"{place}, {lost[place]:.1%}",
    )

    equal = [router("A", load, 3000.0).mean("cpu", "utilisation") for load in (600.0, 800.0, 1000.0)]
    add("3.17", "3 GHz, equal priority: the CPU never saturates", max(equal) < 0.95, _list(equal, ".2f"))

    polled = [throughput_mbps(router("A", load, model="mogul-ramakrishnan")) for load in (300.0, 600.0, 900.0)]
    add("3.19", "Mogul and Ramakrishnan, 1 GHz: same saturation", abs(polled[0] / 225 - 1) < 0.02, _list(polled))
    add("3.19", "Mogul and Ramakrishnan, 1 GHz: no collapse", min(polled) > 0.98 * max(polled), _list(polled))

    polled_shares = _shares(router("A", 900.0, model="mogul-ramakrishnan"))
    in_bytes = router("A", 900.0, model="mogul-ramakrishnan", nic_bytes=16384)
    add(
        "3.19",
        "Mogul and Ramakrishnan, 1 GHz: no fair share",
        max(abs(share - 1 / 3) for share in polled_shares) > 0.02,
        _list(polled_shares, ".3f"),
        "flows of equal bit rate that lose the same part of their packets have equal shares; with the card's buffer "
        f"counted in bytes (16 KiB) they are {_list(_shares(in_bytes), '.3f')}, but the throughput is then "
        f"{throughput_mbps(in_bytes):.0f} Mbit/s, not 225",
    )

    fair = _shares(router("A", 600.0, model="wfq-router"))
    add("3.21", "WFQ, 1 GHz: one third each", max(abs(share - 1 / 3) for share in fair) < 0.01, _list(fair, ".3f"))
    plain, bound = (
        _shares(router("A", 900.0, 3000.0, model="wfq-router", **card)) for card in ({}, {"nic_bytes": 16384})
    )
    add(
        "3.21",
        "WFQ, 3 GHz: not one third each",
        max(abs(share - 1 / 3) for share in plain) > 0.02,
        _list(plain, ".3f"),
        f"with the card's buffer counted in bytes (16 KiB) they are {_list(bound, '.3f')}",
    )
    return pl.DataFrame(rows, schema=["section", "figure", "statement", "holds", "seen", "note"], orient="row")


def _shares(results: Results) -> list[float]:
    rows = results.estimates.filter(kind="sink", place=FORWARDED, measure="throughput_bps").sort("class")
    rates = [rate for rate in rows["mean"].to_list() if rate > 0]
    return [rate / sum(rates) for rate in rates]


def _list(values: list[float], form: str = ".1f") -> str:
    return ", ".join(f"{value:{form}}" for value in values)
