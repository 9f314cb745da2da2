"""The times of stages less what the probes cost the packets."""

from collections.abc import Sequence
from typing import Any

from parshall.instruments.path.stages import WHOLE

LESS_PROBES = ("mean_less_probes_ns", "median_less_probes_ns", "p90_less_probes_ns", "p99_less_probes_ns")
"""What `less_probes` adds to a row, beside ``probe_cost_ns`` and ``probe_cost_interval_ns``."""


def less_probes(times: Sequence[dict[str, Any]], costs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to the times of stages what they are without the probes.

    A time is from one stage to the next, so it has the cost of one probe; the whole has one for each stage behind the
    first. A cost below zero counts as none, and no time gets below zero.

    Parameters
    ----------
    times : sequence of dict
        Rows of `PathSummary.times`.
    costs : sequence of dict
        Rows of `PathSummary.probe_cost`.

    Returns
    -------
    list of dict
        The rows. Those of code paths whose cost was measured also have ``probe_cost_ns``, ``probe_cost_interval_ns``
        (half of the 95 % interval), and `LESS_PROBES`.
    """
    by_path = {cost["path"]: cost for cost in costs}
    passed: dict[str, int] = {}
    for row in times:
        if row["stage"] != WHOLE:
            passed[_key(row)] = passed.get(_key(row), 0) + row["packets"]
    return [_less(row, by_path.get(row["path"]), passed.get(_key(row), 0)) for row in times]


def _key(row: dict[str, Any]) -> str:
    return f"{row['path']} {row['group']}"


def _less(row: dict[str, Any], cost: dict[str, Any] | None, passed: int) -> dict[str, Any]:
    if cost is None:
        return row
    probes = passed / row["packets"] if row["stage"] == WHOLE else 1.0
    cost_ns = max(cost["ns_per_probe"], 0.0) * probes
    measured_ns = (row["sum_ns"] / row["packets"], row["median_ns"], row["p90_ns"], row["p99_ns"])
    less = {name: max(time_ns - cost_ns, 0.0) for name, time_ns in zip(LESS_PROBES, measured_ns, strict=True)}
    return row | {"probe_cost_ns": cost_ns, "probe_cost_interval_ns": cost["interval_ns"] * probes} | less
