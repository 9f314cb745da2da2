"""``parshall model calibrate`` and ``validate``, and ``plan --calibration``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.host import privileges
from parshall.host.messages import progress_line, report_start, say, show
from parshall.host.quantities import long_time_text, parse_fraction
from parshall.host.session import check_choice


def check_output(option: str, path: Path) -> None:
    """Raise UsageError before anything is measured, unless a calibration can be written there."""
    if path.suffix != ".toml":
        raise UsageError(f"{option} {path}: expected the suffix .toml")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: no such directory: {path.parent}; create it first")
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a directory; name a file")


def calibrate(output: Path, setup: dict[str, Any], workload: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    """Calibrate, and write the file when all is measured."""
    from parshall.router.calibrate import calibrate as measure
    from parshall.router.calibration import LATENCY_PARTS
    from parshall.router.setup import Setup
    from parshall.router.traffic import Traffic

    check_output("-o", output)
    chosen = Setup(**setup)
    privileges.require_bpf("model calibrate")
    spread_s = workload["spread_s"]
    how_long = f"over {spread_s:g} s" if spread_s else "for about a minute"
    report_start("model calibrate", f"measuring the parameters of a router, {how_long}", quiet=quiet)
    if raised := Traffic(sizes=workload["sizes"]).raised_sizes:
        say("model", f"calibrate: {raised}")
    if chosen.shares_cpu:
        say("model", "calibrate: router and generator share a CPU: times include the generator's work")
    with progress_line("model", "calibrate", quiet=quiet) as show_text:
        calibration = measure(chosen, say=lambda what: show_text(f"calibrate: {what}"), **workload)
    calibration.write(output)
    stall = calibration.noise.times.mean_ns if calibration.noise.times else 0.0
    summary = {
        "overload_pps": calibration.overload_pps,
        "service_ns": calibration.service.mean_ns,
        "wake_us": calibration.wake.median_ns / 1e3,
        "link_us": calibration.link_ns / 1e3,
        "stalls_per_s": calibration.noise.per_s,
        "stall_us": stall / 1e3,
        "parts_pps": calibration.parts_pps,
        "stretches": calibration.stretches,
        "balance": calibration.balance,
    }
    if as_json:
        print(json.dumps(summary))
    elif not quiet:
        show(f"overload  {calibration.overload_pps:,.0f} packets/s; by the parts {calibration.parts_pps:,.0f}")
        show(f"service   {calibration.service.mean_ns:,.0f} ns, link {calibration.link_ns:,.0f} ns")
        show(f"wake-up   median {calibration.wake.median_ns / 1e3:,.1f}, p99 {calibration.wake.p99_ns / 1e3:,.1f} us")
        unknown = calibration.noise.unknown_share
        maybe = f"; {unknown:.0%} may be the generator's: too few packets arrived" if unknown else ""
        show(f"stalls    {calibration.noise.per_s:,.0f} in a second, mean {stall / 1e3:,.1f} us{maybe}")
        for name, text, digits in (("overload_pps", "packets/s", 0), ("service_ns", "ns", 0), ("wake_ns", "ns", 0)):
            values = [row[name] for row in calibration.stretches]
            show(f"stretches {name.partition('_')[0]} {min(values):,.{digits}f} to {max(values):,.{digits}f} {text}")
        for name in dict.fromkeys(row["quantile"] for row in calibration.trials):
            own = [row for row in calibration.trials if row["quantile"] == name]
            inside = sum(row["low_us"] <= row["measured_us"] <= row["high_us"] for row in own)
            factors = sorted(row["measured_us"] / row["middle_us"] for row in own)
            middle = factors[len(factors) // 2]
            show(f"trials    {name}: {inside} of {len(own)} within; measured is {middle:.2f} of the forecast (median)")
        for row in calibration.balance:
            parts = " + ".join(f"{part} {row[f'{part}_ns'] / 1e3:,.2f}" for part in LATENCY_PARTS if row[f"{part}_ns"])
            share = row["lost"] / (row["packets"] + row["lost"]) if row["lost"] else 0.0
            lost = f"; {row['lost']:,} packets ({share:.1%}) were lost, and have none" if row["lost"] else ""
            show(f"balance   {row['workload']}: latency {row['latency_ns'] / 1e3:,.2f} us = {parts}{lost}")


def validate(path: Path, traffic: str, loads: str, workload: dict[str, Any], *, keep: bool, quiet: bool) -> Any:
    """Return the table of errors; with `keep`, the calibration gets what was found of its age."""
    from parshall.router.calibration import Calibration
    from parshall.router.forecast import NAMES
    from parshall.router.traffic import PACED
    from parshall.router.trust import inside_interval
    from parshall.router.validation import LOAD_MAX
    from parshall.router.validation import validate as measure

    shares = [parse_fraction("--loads", each) for each in loads.split(",")]
    for each, share in zip(loads.split(","), shares, strict=True):
        if not 0 < share <= LOAD_MAX:
            expected = f"shares of the capacity above 0, at most {LOAD_MAX:g}, such as 0.3 or 30%"
            raise UsageError(f"--loads {each}: expected {expected}")
    calibration = Calibration.read(path)
    if keep and calibration.differences():
        raise UsageError(f"--keep: {path} is of another machine; what it costs there is not known here")
    _warn(calibration, "validate")
    kinds = traffic.split(",")
    for kind in kinds:
        check_choice("--traffic", kind, PACED)
    privileges.require_bpf("model validate")
    report_start("model validate", "measuring a router beside its model", quiet=quiet)
    age_s = calibration.age_s
    found = measure(calibration, kinds=kinds, loads=shares, **workload)
    if keep:
        inside, of = found.inside()
        _keep(path, calibration, {"age_s": age_s, "runs": of // len(NAMES), "inside": inside, "of": of})
    table = found.table()
    if not quiet:
        whose = {"": ""} | ({"beside_": " from the stretches beside"} if workload.get("beside") else {})
        for prefix, text in whose.items():
            count, of = found.inside(prefix)
            low, high = inside_interval(count, of, of // len(NAMES))
            say(
                "model",
                f"validate: {count} of {of} measured values lie within the 90 % intervals of their forecasts{text} "
                f"({count / of:.0%}; of such runs and this calibration {low:.0%} to {high:.0%} with 95 % confidence)",
            )
        say(
            "model",
            f"validate: the network is nearer than the single queue in {found.nearer.height} of {table.height} cases",
        )
    return table


def _keep(path: Path, calibration: Any, check: dict[str, Any]) -> None:
    """Add a check to a file in which another validation may have kept its own meanwhile; say why where it cannot be.

    What was measured is printed all the same.
    """
    try:
        now = type(calibration).read(path)
        if now.created != calibration.created:
            raise ParshallError(f"{path}: was calibrated anew meanwhile")
        replace(now, checks=[*now.checks, check]).write(path)
    except (ParshallError, OSError) as error:
        say("model", f"validate: --keep: nothing was added: {error}")


def plan(path: Path, loss: float, p99_us: float | None, pps: float | None, **options: Any) -> list[dict[str, Any]]:
    """Return the answers for the router of a calibration."""
    from parshall.router.calibration import Calibration
    from parshall.router.plan import plan as answer

    calibration = Calibration.read(path)
    _warn(calibration, "plan")
    return answer(calibration, loss=loss, p99_us=p99_us, pps=pps, **options)


def napi(path: Path) -> dict[str, str | float]:
    """Return the parameters of ``linux-napi`` from a calibration."""
    from parshall.router.calibration import Calibration
    from parshall.router.napi import napi_settings

    calibration = Calibration.read(path)
    _warn(calibration, "run")
    return napi_settings(calibration)


def _warn(calibration: Any, command: str) -> None:
    from parshall.router.trust import trusted

    for difference in calibration.differences():
        say("model", f"{command}: another machine: {difference}; calibrate here: parshall model calibrate -o FILE")
    age_s, span_s = calibration.age_s, calibration.span_s
    held, failed = trusted(calibration)
    old = f"{command}: the calibration is {long_time_text(age_s)} old"
    if failed and age_s >= failed.age_s:
        say("model", f"{old}; {_found(failed)}: calibrate again")
    # Where no validation failed, twice the age of the last one is near it.
    elif held and age_s > (held.age_s if failed else 2 * held.age_s):
        tried = "; ".join(_found(each) for each in (held, failed) if each)
        say("model", f"{old}; {tried}; `parshall model validate FILE --keep` tries it at this age")
    elif not held and age_s > span_s:
        say(
            "model",
            f"{old}, and its stretches span {long_time_text(span_s)}: how the machine changed since then is not in it; "
            "`parshall model validate FILE --beside --keep` measures what that costs",
        )


def _found(check: Any) -> str:
    return (
        f"when it was {long_time_text(check.age_s)} old, {check.inside} of {check.of} measured values lay within its "
        f"90 % intervals ({check.low:.0%} to {check.high:.0%} with 95 % confidence)"
    )
