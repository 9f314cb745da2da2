"""Profiles of a router's packet path beside a calibration: stages, how they correlate, and what else ran.

They describe the router; no parameter comes from them, because the probes take time from the packets.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from parshall import statistics
from parshall.errors import ParshallError
from parshall.host.temporary import TemporaryDirectory
from parshall.instruments.path import PathLog, PathProfile
from parshall.router.measurement import measure
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic

STAGES = ("receive", "pre_routing", "forward", "post_routing", "queue", "start_xmit")
# Adjacent stages whose times correlate more than this are one stage.
MERGED_CORRELATION = 0.1
_QUANTILE = 0.99


def interrupts(bed: RouterTestbed, traffic: Traffic, count: int) -> list[dict[str, Any]]:
    """Return the kernel's record of what else ran on the router's CPU."""
    with PathProfile(stages=["receive", "start_xmit"], netns=bed.router.path, noise=True) as profile:
        measure(bed, traffic, count, records=False)
    summary = profile.summary
    assert summary is not None, "the profile has stopped"
    rows = [row for row in summary.noise if row["cpu"] == bed.setup.router_cpu and row["kind"] != "poll_packets"]
    return interrupts_of(rows, summary.attached_s)


def interrupts_of(rows: Sequence[dict[str, Any]], attached_s: float) -> list[dict[str, Any]]:
    """Return `Calibration.interrupts` of rows of `PathSummary.noise`; without gaps where there was one event only."""
    return [
        {
            "kind": row["kind"],
            "per_s": row["events"] / max(attached_s, 1e-9),
            "mean_ns": row["sum_ns"] / max(1, row["events"]),
            "p99_ns": float(row["p99_ns"]),
            **{name: row[name] for name in ("gap_mean_ns", "gap_deviation_ns") if row[name] is not None},
        }
        for row in rows
    ]


def stages(bed: RouterTestbed, traffic: Traffic, count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the stages of the path, and the correlations of adjacent ones."""
    with TemporaryDirectory("calibrate") as directory:
        path = directory / "path.arrow"
        with PathProfile(path, stages=list(STAGES), netns=bed.router.path) as profile:
            measure(bed, traffic, count, records=False)
        assert profile.summary is not None, "the profile has stopped"
        check_ledger(profile.summary.ledger)
        packets = PathLog(path).packets
    names = [name for name in STAGES[1:] if packets[f"{name}_ns"].null_count < len(packets) / 2]
    columns = packets.select([f"{name}_ns" for name in names]).drop_null()
    since = np.array([columns[f"{name}_ns"].to_numpy() for name in names], dtype=float)
    if since.size == 0:
        raise ParshallError("calibration: no packet passed the stages; raise --count")
    return merged(names, np.diff(since, axis=0, prepend=0.0))


def check_ledger(ledger: dict[str, Any]) -> None:
    """Raise `ParshallError` for a profile that lost packets."""
    for hook in ledger["hooks"]:
        lost = {place: packets for place, packets in hook["lost"].items() if packets}
        if lost:
            raise ParshallError(f"calibration: the path's profile lost {hook['hook']}: {lost}; lower --count")


def merged(names: Sequence[str], times_ns: np.ndarray) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Merge adjacent stages whose times correlate: their times may not be drawn each on its own.

    Parameters
    ----------
    names : sequence of str
        The stages.
    times_ns : numpy.ndarray
        Shape (stages, packets).
    """
    groups: list[list[str]] = []
    correlations = []
    for number, name in enumerate(names):
        if number:
            before, own = times_ns[number - 1], times_ns[number]
            same, lag = correlation(before, own), correlation(before[:-1], own[1:])
            is_merged = abs(same) > MERGED_CORRELATION
            pair = [names[number - 1], name]
            correlations.append({"stages": pair, "lag_0": same, "lag_1": lag, "is_merged": is_merged})
            if is_merged:
                groups[-1].append(name)
                continue
        groups.append([name])
    whole = float(times_ns.sum()) or 1.0
    group_of = {name: "+".join(group) for group in groups for name in group}
    stages = [
        {
            "stage": name,
            "group": group_of[name],
            "mean_ns": float(own.mean()),
            "median_ns": float(np.median(own)),
            "p99_ns": float(np.quantile(own, _QUANTILE)),
            "share": float(own.sum()) / whole,
        }
        for name, own in zip(names, times_ns, strict=True)
    ]
    return stages, correlations


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's rank correlation: stalls do not decide it. 0 where one side is constant."""
    found = statistics.correlation(one.tolist(), other.tolist()) if len(one) > 2 else 0.0
    return found if math.isfinite(found) else 0.0
