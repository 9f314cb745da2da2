"""``parshall router``: measure, capacity."""

import contextlib
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.model_calibration import check_output
from parshall.cli.options import Accepted, count_option, rate_option, share_option, time_option, whole_option
from parshall.errors import ParshallError, UsageError
from parshall.host.messages import progress_line, report_start, say, show
from parshall.host.quantities import many
from parshall.host.stopping import exiting_on_signals
from parshall.host.whole_file import new_file

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_Receive = Annotated[
    str, typer.Option("--receive", metavar="rps|threaded", help="Softirq by RPS, or a NAPI thread, on the router's CPU")
]
_NoGro = Annotated[bool, typer.Option("--no-gro", help="Receive without generic receive offload")]
_Routes = Annotated[int, count_option("--routes", help="Entries of the routing table")]
_Rules = Annotated[int, count_option("--rules", help="nftables rules that each packet passes", allow_0=True)]
_Destinations = Annotated[
    int, count_option("--destinations", help="Entries of the table that packets go to, at random")
]
_Tunnel = Annotated[
    str | None,
    typer.Option("--tunnel", metavar="aes-gcm|chacha20", help="Send through a security gateway with this cipher"),
]
_Traffic = Annotated[
    str,
    typer.Option(
        "--traffic",
        metavar="KIND",
        help="constant, poisson, bursts, onoff, mixed, random; or of gen",
    ),
]
_Sizes = Annotated[str, typer.Option("--sizes", metavar="SPEC", help="Sizes of the IP packets, as for gen")]
_Flows = Annotated[int, count_option("--flows", help="Number of flows")]
_RouterCpu = Annotated[
    int | None, whole_option("--router-cpu", metavar="CPU", help="CPU of the router [default: the last]")
]
_SenderCpu = Annotated[
    int | None, whole_option("--sender-cpu", metavar="CPU", help="CPU of the generator [default: the first]")
]

# Of the rate that is asked for: a sender that offers less was the limit.
_REACHED = 0.95
_LOADS = Accepted("a share of the capacity above 0, at most 10, such as 0.6 or 60%", lambda share: 0 < share <= 10)
# A short search, for --load.
_SHORT: dict[str, Any] = {"duration_s": 0.2, "trials": 24, "resolution": 0.1}
_OVERLOAD_PACKETS = 300_000
# A calibration of some seconds, for --calibrate. Its seeds are not those of the workload.
_SHORT_CALIBRATION: dict[str, Any] = {"repeats": 3, "count": 30_000}
_CALIBRATION_SEED, _CALIBRATION_SEEDS = 1_000_001, 100


@app.command("measure")
def measure_router(
    receive: _Receive = "rps",
    no_gro: _NoGro = False,
    routes: _Routes = 4,
    destinations: _Destinations = 1,
    rules: _Rules = 0,
    tunnel: _Tunnel = None,
    traffic: _Traffic = "poisson",
    pps: Annotated[
        float | None, rate_option("--pps", counted="packets", help="Packets per second: 100k [default: 100k]")
    ] = None,
    load: Annotated[
        float | None, share_option("--load", help="Share of the capacity, which is measured first", accepted=_LOADS)
    ] = None,
    sizes: _Sizes = "64",
    flows: _Flows = 1,
    count: Annotated[int | None, count_option("-c", "--count", help="Number of packets [default: --duration]")] = None,
    duration: Annotated[float, time_option("-d", "--duration", help="Length of the workload: 1, 500ms")] = 1.0,
    seed: options.Seed = 1,
    router_cpu: _RouterCpu = None,
    sender_cpu: _SenderCpu = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Parquet file: one row a packet")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibrate", metavar="FILE", help="Calibrate the same router first: a TOML file")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Measure when each packet arrives at a router in a testbed, and when it leaves."""
    from parshall.router import RouterTestbed, Setup, Traffic, measure, overload, zero_loss
    from parshall.router.prediction import latencies_ns
    from parshall.router.traffic import check_kind

    if load is not None and pps is not None:
        raise UsageError("--load: given beside --pps; give one of them")
    if calibration is not None:
        check_output("--calibrate", calibration)
    options.named_for(output, "a Parquet file", ".parquet")
    check_kind(traffic)
    setup = Setup(receive, not no_gro, routes, rules, tunnel, router_cpu, sender_cpu, destinations)
    workload = Traffic(traffic, pps or 100_000, sizes, flows, seed)
    # The file is opened first: what was measured must not be lost for a name that cannot be written.
    with (
        exiting_on_signals(),
        contextlib.nullcontext() if output is None else new_file(output, "wb") as opened,
        RouterTestbed(setup) as bed,
        progress_line("router", "measuring", quiet=quiet) as progress,
    ):
        _warn(setup, workload, quiet)
        report_start("router", f"measuring a router, {receive}", quiet=quiet)
        capacity, beyond, text = None, None, ""
        if load is not None:
            constant = Traffic("constant", sizes=sizes, flows=flows, seed=seed)
            found = zero_loss(bed, constant, **_SHORT, progress=lambda each: progress(f"capacity, {each}"))
            capacity = found.describe()
            text = _capacity_line(found, more="parshall router capacity has one")
            progress("overload")
            beyond = vars(overload(bed, workload, count=_OVERLOAD_PACKETS, repeats=1))
            if not found.pps:
                raise UsageError("--load: the router loses packets at every rate; give a rate by --pps")
            workload = Traffic(traffic, load * found.pps, sizes, flows, seed)
        is_calibrated = False
        if calibration is not None:
            progress("calibrating")
            is_calibrated = _calibrate(bed, calibration, workload)
        progress(f"measuring {traffic} traffic, {workload.pps:,.0f} packets/s")
        found_packets = measure(bed, workload, count or max(1, round(duration * workload.pps)))
        quantiles = _quantiles(latencies_ns(found_packets.table) / 1e3)
        result = {
            "setup": found_packets.setup,
            "traffic": found_packets.traffic,
            "capacity": capacity,
            "overload": beyond,
            "is_calibrated": is_calibrated,
            "offered_pps": found_packets.offered_pps,
            "lost_share": found_packets.lost_share,
            "ledger": found_packets.ledger,
            "latency_us": quantiles,
        }
        try:
            if opened is not None:
                file, commit = opened
                found_packets.write(file)
                commit()
        finally:
            if as_json or not quiet:
                _show(result, found_packets.planned_pps, text, as_json)


def _show(result: dict[str, Any], planned_pps: float, capacity: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_finite(result)))
        return
    if capacity:
        show(capacity)
    offered_pps = result["offered_pps"]
    found_pps = result["capacity"]["pps"] if result["capacity"] else None
    show(
        f"offered   {offered_pps:,.0f} packets/s"
        + (f", {offered_pps / found_pps:.0%} of capacity" if found_pps else "")
    )
    show(_ledger_line(result["ledger"]))
    show("latency   " + ", ".join(f"{name} {value:,.1f}" for name, value in result["latency_us"].items()) + " us")
    if offered_pps < _REACHED * planned_pps:
        say("router", f"{planned_pps:,.0f} packets/s were planned: the sender was the limit, and offered fewer")
    if found_pps and offered_pps > found_pps and not result["lost_share"]:
        say(
            "router",
            "nothing was lost above the capacity, so the capacity was higher by then: "
            "measure it more often with `parshall router capacity`, and give a rate by --pps",
        )


def _capacity_line(found: Any, *, more: str = "raise --trials") -> str:
    """Return the capacity as a line; `more` says how to get an interval where there is none."""
    low, high = (f"{each:,.0f}" if 0 < each < math.inf else "unknown" for each in (found.low_pps, found.high_pps))
    ends = f"{low} to {high}"
    if found.is_sender_limited:
        ends = f"at least {low}, limited by the generator"
    elif found.low_pps == 0 and found.high_pps == math.inf:
        trials = many(len(found.trials), "trial")
        return f"zero loss about {found.pps:,.0f} packets/s ({trials} without an interval: {more})"
    return f"zero loss {found.pps:,.0f} packets/s ({ends}; {found.confidence:.0%} confidence)"


@app.command("capacity")
def measure_capacity(
    receive: _Receive = "rps",
    no_gro: _NoGro = False,
    routes: _Routes = 4,
    destinations: _Destinations = 1,
    rules: _Rules = 0,
    tunnel: _Tunnel = None,
    traffic: _Traffic = "constant",
    sizes: _Sizes = "64",
    flows: _Flows = 1,
    duration: Annotated[float, time_option("-d", "--duration", help="Length of a trial: 1, 500ms")] = 0.5,
    trials: Annotated[int, count_option("--trials", help="Most trials of the search")] = 100,
    repeats: Annotated[int, count_option("--repeats", help="Repeats of the overload")] = 5,
    resolution: Annotated[
        float, share_option("--resolution", help="Width of the interval that ends the search", accepted=options.PART)
    ] = 0.02,
    loss: Annotated[
        float, share_option("--loss", help="Share of the packets that a trial may lose", accepted=options.PART)
    ] = 0.0,
    seed: options.Seed = 1,
    router_cpu: _RouterCpu = None,
    sender_cpu: _SenderCpu = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Search the highest rate without loss, and measure the rate under overload."""
    from parshall.router import RouterTestbed, Setup, Traffic, overload, zero_loss
    from parshall.router.traffic import check_kind

    check_kind(traffic)
    setup = Setup(receive, not no_gro, routes, rules, tunnel, router_cpu, sender_cpu, destinations)
    workload = Traffic(traffic, sizes=sizes, flows=flows, seed=seed)
    with exiting_on_signals(), RouterTestbed(setup) as bed:
        _warn(setup, workload, quiet)
        trials_text = f"up to {many(trials, 'trial')} of {duration:g} s"
        report_start("router", f"measuring the capacity, {receive}: {trials_text}", quiet=quiet)
        with progress_line("router", "overload", quiet=quiet) as progress:
            beyond = overload(bed, workload, repeats=repeats)
            found = zero_loss(
                bed,
                workload,
                duration_s=duration,
                trials=trials,
                resolution=resolution,
                loss=loss,
                progress=progress,
            )
    if as_json:
        result = {"setup": setup.describe(), "zero_loss": found.describe(), "overload": vars(beyond)}
        print(json.dumps(_finite(result)))
        return
    if quiet:
        return
    show(_capacity_line(found))
    show(f"overload  {beyond.pps:,.0f} packets/s ({beyond.low_pps:,.0f} to {beyond.high_pps:,.0f})")
    show(f"          of {beyond.sent_pps:,.0f} offered, {beyond.lost_share:.1%} lost: {_places(beyond.lost)}")
    if beyond.is_sender_limited:
        remedy = "; give the generator a CPU of its own (--sender-cpu)" if setup.shares_cpu else ""
        say("router", f"overload: hardly more was sent than forwarded, so the router may forward more{remedy}")


def _calibrate(bed: Any, path: Path, workload: Any) -> bool:
    """Calibrate the router of a testbed into a file; a refusal is a message, because the measurement goes on."""
    from parshall.router.calibrate import calibrate_in

    try:
        found = calibrate_in(
            bed,
            sizes=workload.sizes,
            flows=workload.flows,
            seed=_CALIBRATION_SEED + _CALIBRATION_SEEDS * workload.seed,
            **_SHORT_CALIBRATION,
        )
    except ParshallError as error:
        say("router", f"{error}; {path} was not written")
        return False
    found.write(path)
    return True


def _warn(setup: Any, workload: Any, quiet: bool) -> None:
    if workload.raised_sizes and not quiet:
        say("router", workload.raised_sizes)
    if setup.shares_cpu:
        say("router", f"CPU {setup.router_cpu}: runs router and generator, so latencies include the generator's work")


def _quantiles(latencies_us: Any) -> dict[str, float]:
    import numpy as np

    names = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {name: float(np.quantile(latencies_us, share)) for name, share in names.items()}


def _ledger_line(ledger: dict[str, Any]) -> str:
    lost = sum(ledger["lost"].values())
    return f"packets   sent {ledger['sent']:,}, received {ledger['received']:,}, lost {lost:,}" + (
        f": {_places(ledger['lost'])}" if lost else ""
    )


def _places(lost: dict[str, int]) -> str:
    return ", ".join(f"{place} {packets:,}" for place, packets in lost.items() if packets) or "none"


def _finite(value: Any) -> Any:
    """Return a value with null in place of what JSON cannot hold."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
