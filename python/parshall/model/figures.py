"""Figures of the software-router study (thesis of O. I. Lepe-Aldama, UPC 2002, chapter 3), from the models.

Each figure has a reduction, which runs models and returns a table, and is drawn by `parshall.figures.panels`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from parshall.figures.panels import Panel, draw
from parshall.host.whole_file import write_whole
from parshall.model.builtin import FORWARDED, parameters
from parshall.model.builtin.bsd import GRAINS_US, BsdRouter
from parshall.model.builtin.gateway import AUTHENTICATION_US, CIPHERS_US_PER_BYTE
from parshall.model.compare import ccdf, ccdf_panel, with_arrivals
from parshall.model.network import Model
from parshall.model.published import CALIBRATIONS
from parshall.model.simulation import run
from parshall.model.sweep import sweep
from parshall.report.figure_file import save

SEED = 2002


@dataclass(frozen=True)
class RouterFigure:
    """A figure: its title, the function for its rows, and its panels.

    Attributes
    ----------
    title : str
        Title of the figure.
    rows : callable
        Returns the table; its argument selects fewer points and shorter runs.
    panels : tuple of Panel
        The panels.
    note : str
        Differences from the chapter's figure and text, shown below the title.
    """

    title: str
    rows: Callable[[bool], pl.DataFrame]
    panels: tuple[Panel, ...]
    note: str = ""


# --- 3.11: latencies, packet by packet and as a distribution ---------------------------------------------

TRAFFIC = {
    "constant gaps of 2 ms": "constant:value=2ms",
    "bursts of 4 packets, one a ms": "bursts:size=4,inside=100us,period=1ms",
    "four on/off sources": "onoff:sources=4,on=50,off=150,gap=4,slot=100us",
}


def latency_rows(quick: bool) -> pl.DataFrame:
    """Latencies of a 100 MHz router and of a single queue with the same mean service, fed the same packets.

    Returns
    -------
    polars.DataFrame
        Columns ``panel`` ("packets" or "distribution"), ``traffic``, ``model``, ``packet`` (in the order of arrivals),
        ``latency_us``, ``ccdf``: the fraction of packets that take at least as long.
    """
    frames = []
    service_us = sum(GRAINS_US.values())
    common: dict[str, str | float] = {"packet_bytes": "64", "cpu_mhz": 100}
    systems = {
        "queueing network": parameters("bsd-router", common).build(),
        "single queue": parameters("single-queue", {**common, "service_us": service_us}).build(),
    }
    for traffic, gap in TRAFFIC.items():
        offered = _offered(gap, 0.4 if quick else 2.0)
        for name, system in systems.items():
            latencies = _latencies(system, offered)
            distribution = ccdf(latencies["latency_us"].to_numpy()).with_columns(panel=pl.lit("distribution"))
            both = pl.concat([latencies.with_columns(panel=pl.lit("packets")), distribution], how="diagonal")
            frames.append(both.with_columns(traffic=pl.lit(traffic), model=pl.lit(name)))
    return pl.concat(frames)


def _offered(gap: str, duration_s: float) -> pl.DataFrame:
    """Generate the packets that both systems get, with a source that leads to a sink."""
    source = Model("traffic").station("none", kind="delay").source("flow1", gap, "pass", size_bytes=64)
    source.queue("pass", "none", 0, FORWARDED)
    results = run(source, duration_s=duration_s, warm_up_s=0, replications=1, trace=True, seed=SEED)
    assert results.packets is not None, "the run has trace=True"
    born_ns = results.packets.sort("packet")["born_ps"] / 1e3
    return pl.DataFrame({"arrival_ns": born_ns, "bytes": pl.repeat(64.0, born_ns.len(), eager=True)})


def _latencies(system: Model, offered: pl.DataFrame) -> pl.DataFrame:
    """Return the latencies of the packets that a system forwards: ``packet``, ``latency_us``."""
    network, recorded = with_arrivals(system, offered)
    results = run(network, replications=1, trace=True, seed=SEED, traces=recorded, allow_unstable=True)
    assert results.packets is not None, "the run has trace=True"
    forwarded = results.packets.filter((pl.col("place") == FORWARDED) & ~pl.col("clone")).sort("packet")
    # Packet numbers include those of the noise, so number the forwarded packets again.
    number = pl.int_range(pl.len(), dtype=pl.Int64)
    return forwarded.select(packet=number, latency_us=(pl.col("left_ps") - pl.col("born_ps")) / 1e6)


# --- 3.9: one queue for each function ----------------------------------------------------------------------


def one_to_one_rows(quick: bool) -> pl.DataFrame:
    """Latencies of a queue for each function, and of the five grains, fed the same packets.

    The columns are ``model``, ``latency_us`` and ``ccdf``: the fraction of packets that take at least as long.
    """
    offered = _offered(TRAFFIC["four on/off sources"], 0.4 if quick else 2.0)
    frames = []
    for title, name in (("a queue for each function", "bsd-router-functions"), ("five grains", "bsd-router")):
        system = parameters(name, {"packet_bytes": "64", "cpu_mhz": 100}).build()
        latencies = _latencies(system, offered)["latency_us"]
        frames.append(ccdf(latencies.to_numpy()).with_columns(model=pl.lit(title)))
    return pl.concat(frames)


# --- 3.14: execution times and the length of packets -------------------------------------------------------


def length_rows(_quick: bool) -> pl.DataFrame:
    """Time at 600 MHz against the length of a packet: ``work``, ``bytes``, ``time_us``."""
    forwarding_us = sum(BsdRouter().grain_us(grain) for grain in GRAINS_US if grain != "dmarx")
    works = {
        "forwarding": (forwarding_us, 0.0),
        "AH (its time is inferred, its dependence on the length is not given)": (AUTHENTICATION_US["ah"], 0.0),
        "DES": (0.0, CIPHERS_US_PER_BYTE["des"]),
        "3DES": (0.0, CIPHERS_US_PER_BYTE["3des"]),
    }
    rows = [
        {"work": work, "bytes": size, "time_us": (fixed_us + per_byte_us * size) / 0.6}
        for work, (fixed_us, per_byte_us) in works.items()
        for size in range(0, 1501, 100)
    ]
    return pl.DataFrame(rows)


# --- 3.12: execution times and the clock -----------------------------------------------------------------


def clock_rows(quick: bool) -> pl.DataFrame:
    """Time of every grain against the clock: ``grain``, ``cpu_mhz``, ``time_us``, for a table of 4 routes."""
    step = 100 if quick else 20
    router = BsdRouter()
    rows = [
        {"grain": grain, "cpu_mhz": float(mhz), "time_us": router.grain_us(grain) / mhz * 1e3}
        for grain in GRAINS_US
        for mhz in range(300, 1001, step)
    ]
    return pl.DataFrame(rows)


# --- 3.15: capacity ----------------------------------------------------------------------------------------

LOAD_KPPS = ("load_kpps", "offered load (kpps)")
SYSTEMS: dict[str, tuple[str, dict[str, str | float], float]] = {
    "100 MHz": ("bsd-router", {"packet_bytes": "64", "cpu_mhz": 100}, 9.5e3),
    "650 MHz": ("bsd-router", {"packet_bytes": "64", "cpu_mhz": 650}, 62e3),
    "650 MHz, AH + DES, 512 B": ("security-gateway", {"cipher": "des", "packet_bytes": "512"}, 10e3),
    "650 MHz, AH + DES, 1386 B": ("security-gateway", {"cipher": "des"}, 4.2e3),
    "650 MHz, AH + 3DES, 1386 B": ("security-gateway", {}, 1.9e3),
}


def capacity_rows(quick: bool) -> pl.DataFrame:
    """Loss and latency against the load, calibration B: ``system``, ``load_kpps``, ``loss_percent``, ``p99_ms``."""
    frames = []
    points, duration_s = (5, 0.5) if quick else (16, 6.0)
    for system, (model, settings, top_pps) in SYSTEMS.items():
        loads = [top_pps * (0.4 + 0.6 * point / (points - 1)) for point in range(points)]
        fixed = {**CALIBRATIONS["B"], **settings}
        swept = sweep(model, {"load_pps": loads}, settings=fixed, duration_s=duration_s, warm_up_s=0.5, seed=SEED)
        frames.append(
            swept.filter(pl.col("class") == "").select(
                system=pl.lit(system),
                load_kpps=pl.col("load_pps") / 1e3,
                loss_percent=pl.col("loss") * 100,
                p99_ms=pl.col("p99_us") / 1e3,
            )
        )
    return pl.concat(frames)


# --- 3.17, 3.19, 3.21: overload ---------------------------------------------------------------------------

CLOCKS = {"1 GHz": 1000.0, "3 GHz": 3000.0}


def overload_rows(model: str, **settings: str | float) -> Callable[[bool], pl.DataFrame]:
    """Return a function that sweeps a router over the offered load.

    Its rows have ``clock``, ``flow`` ("all" for the sum), ``load_mbps``, ``throughput_mbps``, ``share``.
    """

    def rows(quick: bool) -> pl.DataFrame:
        loads = [float(load) for load in range(50, 1401, 270 if quick else 50)]
        swept = sweep(
            model,
            {"cpu_mhz": list(CLOCKS.values()), "load_mbps": loads},
            settings=settings,
            duration_s=0.1 if quick else 0.5,
            warm_up_s=0.1 if quick else 0.3,
            replications=1 if quick else 3,
            seed=SEED,
        )
        clocks = {mhz: name for name, mhz in CLOCKS.items()}
        return swept.select(
            pl.col("cpu_mhz").replace_strict(clocks, return_dtype=pl.String).alias("clock"),
            pl.when(pl.col("class") == "").then(pl.lit("all")).otherwise("class").alias("flow"),
            "load_mbps",
            "throughput_mbps",
            "share",
        )

    return rows


def _overload_panels(with_throughput: bool = True) -> tuple[Panel, ...]:
    load = ("load_mbps", "offered load (Mbit/s)")
    total = Panel("throughput", *load, "throughput_mbps", "throughput (Mbit/s)", "clock", where={"flow": "all"})
    share = ("share", "share of the throughput", "flow")
    shares = tuple(
        Panel(f"share, {clock}", *load, *share, where={"clock": clock}, without={"flow": "all"}) for clock in CLOCKS
    )
    return (total, *shares) if with_throughput else shares


FIGURES: dict[str, RouterFigure] = {
    "3.9": RouterFigure(
        "Latencies with a queue for each function, and with the five grains, 100 MHz",
        one_to_one_rows,
        (ccdf_panel("distribution"),),
        "The five grains replace the chapter's measured router, whose traces are not "
        "published. We divided the grains into functions. The chapter blames correlated service times; "
        "constants have no correlation, so the two curves lie closer together than the chapter's.",
    ),
    "3.11": RouterFigure(
        "Latencies of a 100 MHz router",
        latency_rows,
        tuple(
            panel
            for traffic in TRAFFIC
            for panel in (
                Panel(
                    f"packets, {traffic}",
                    *("packet", "packet, in the order of arrivals", "latency_us", "latency (us)", "model"),
                    where={"traffic": traffic, "panel": "packets"},
                    mark="point",
                ),
                ccdf_panel(f"distribution, {traffic}", {"traffic": traffic, "panel": "distribution"}),
            )
        ),
        "Simplified: the measured router is missing, since its traces are not published, and so is the security "
        "gateway. Services are constants where the chapter draws from measured histograms, so bands are lines. "
        "We chose the mean and deviation of the noise; the traffic follows the chapter's description.",
    ),
    "3.12": RouterFigure(
        "Execution time of the grains against the clock",
        clock_rows,
        (Panel("time", "cpu_mhz", "clock (MHz)", "time_us", "time (us)", "grain"),),
        "Simplified: all grains are proportional to 1 / clock. The chapter measured 300 to 630 MHz; there dmarx and "
        "eotx have a part that the clock does not change (I/O instructions), whose size is not given (the models' "
        "fixed_us sets it), and a computer of 1 GHz is faster than proportional but for eotx.",
    ),
    "3.14": RouterFigure(
        "Execution time against the length of a packet, 600 MHz",
        length_rows,
        (Panel("time", "bytes", "packet length (B)", "time_us", "time (us)", "work"),),
        "From the text: forwarding does not depend on the length, 3DES costs three times DES and 564.6 us for 1500 B. "
        "The set-up times of the ciphers, md5, sha1 and blowfish have no numbers in the text and are left out.",
    ),
    "3.15": RouterFigure(
        "Capacity of routers and security gateways",
        capacity_rows,
        (
            # The loads of the systems differ by a factor of 60.
            Panel("loss", *LOAD_KPPS, "loss_percent", "loss (%)", "system", x_logarithmic=True),
            Panel("latency", *LOAD_KPPS, "p99_ms", "99th percentile of latency (ms)", "system", x_logarithmic=True),
        ),
    ),
    "3.17": RouterFigure(
        "The basic router under overload",
        overload_rows("bsd-router", bus_arbitration="reception-first"),
        _overload_panels(),
        "The bus serves reception first. Where next to nothing gets through, shares are of few packets.",
    ),
    "3.19": RouterFigure(
        "Mogul and Ramakrishnan's router under overload",
        overload_rows("mogul-ramakrishnan"),
        _overload_panels(),
        'Contradicts the text: "the system still does not achieve a fair share". Here the card\'s buffer is counted in '
        "packets, every flow loses the same part, and flows of equal bit rate have a third each. Counted in bytes "
        "(nic_bytes=16384) shares differ, but 1 GHz then carries some 153 Mbit/s, against the text's same saturation.",
    ),
    "3.21": RouterFigure(
        # With a buffer in packets, every flow loses the same fraction, and shares stay equal.
        "A router with weighted fair queueing under overload, its card's buffer 16 KiB",
        overload_rows("wfq-router", nic_bytes=16384),
        _overload_panels(False),
        "With a buffer that counts packets, each flow loses the same part, and all shares are equal.",
    ),
}


def write(name: str, directory: Path, *, quick: bool = False) -> list[Path]:
    """Draw a figure; return the written files: table, HTML, PNG and SVG."""
    figure = FIGURES[name]
    rows = figure.rows(quick)
    directory.mkdir(parents=True, exist_ok=True)
    paths = [Path(f"figure-{name}.{suffix}") for suffix in ("csv", "html", "png", "svg")]
    write_whole(paths[0], rows.write_csv(), below=directory)
    chart = draw(rows, f"{figure.title} (Figure {name})", figure.panels, figure.note)
    for path in paths[1:]:
        save(chart, path, below=directory)
    return [directory / path for path in paths]
