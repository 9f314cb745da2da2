"""The times of the stages as lines of text."""

from typing import Any

from parshall.host.ledger_text import budget_text
from parshall.host.quantities import duration_text, many
from parshall.instruments.path.profile import WINDOW_S, PathSummary, with_namespaces
from parshall.instruments.path.reasons import described
from parshall.instruments.path.stages import WHOLE

_GROUPS_SHOWN = 20
PROBE_COST_S = 8
"""Time of steady traffic after which `--probe-cost` has enough windows, s."""
NO_COST = (
    "--probe-cost: not measured: fewer than 5 pairs of windows had 100 packets each with a stage between the first and "
    f"the last; measure for {PROBE_COST_S} s of steady traffic of 500 packets/s or more on the path, and with stages "
    "between, such as pre_routing, and forward and post_routing on a router"
)
"""What `--probe-cost` says when no code path has a cost."""


def windows_text(share: float) -> str:
    """Return when the programs are attached, if that is a part of the time only."""
    return f"a window of {WINDOW_S:g} s comes every {WINDOW_S / share:.3g} s on average, at random"


def stage_lines(summary: PathSummary, *, with_groups: bool) -> list[str]:
    """Return a table for each code path: one row a stage, with the time since the stage before."""
    lines = []
    by_path: dict[str, list[dict[str, Any]]] = {}
    for row in summary.times:
        if row["group"] is None:
            by_path.setdefault(row["path"], []).append(row)
    uncertain = {cost["path"] for cost in summary.probe_cost if not cost["is_distinguishable"]}
    for path, rows in by_path.items():
        doubt = "; what the probes cost is not distinguishable from zero" if path in uncertain else ""
        lines.append(f"{path}: {many(summary.paths[path], 'packet')}, times since the stage before{doubt}")
        heading = f"  {'stage':14}{'packets':>12}{'share':>8}{'median':>10}{'p99':>10}{'max':>10}"
        has_cost = "probe_cost_ns" in rows[0]
        lines.append(heading + (f"{'less probes: median':>28}{'p99':>10}" if has_cost else ""))
        lines += [f"  {row['stage']:14}{_times(row)}{_less_probes(row) if has_cost else ''}" for row in rows]
    if with_groups:
        wholes = [row for row in summary.times if row["group"] is not None and row["stage"] == WHOLE]
        wholes.sort(key=lambda row: -row["packets"])
        lines.append("groups, the whole path:")
        lines.append(f"  {'packets':>12}{'share':>8}{'median':>10}{'p99':>10}{'max':>10}  path and group")
        texts = with_namespaces(row["group"] for row in wholes)
        named = list(zip(wholes, texts, strict=True))[:_GROUPS_SHOWN]
        lines += [f"  {_times(row)}  {row['path']} {text}" for row, text in named]
        if len(wholes) > _GROUPS_SHOWN:
            lines.append(f"  and {len(wholes) - _GROUPS_SHOWN} more; --json has all")
    return lines


def summary_lines(summary: PathSummary) -> list[str]:
    """Return packets by code path, drops by reason, reads, noise and the cost of the probes."""
    counts = [f"{count:,} {path}" for path, count in summary.paths.items() if count]
    lines = [f"packets: {', '.join(counts) or 'none'}"]
    followed = [row for row in summary.drops if row["followed"]]
    if followed:
        lines.append("drops:")
        lines += [_drops(row) for row in sorted(followed, key=lambda row: -row["followed"])]
    if summary.without_histogram:
        lines.append(f"in no histogram: {summary.without_histogram:,} packets on CPUs that came online after the start")
    if summary.uncounted_drops:
        lines.append(
            f"drops of this host for other reasons: {summary.uncounted_drops:,}; 256 reasons have counts of their own"
        )
    if summary.reads:
        lines.append(f"reads, from data ready: {'':3}{'reads':>12}{'':8}{'median':>10}{'p99':>10}{'max':>10}")
        lines += [f"  {row['kind']:24}{row['events']:>12,}{'':8}{_quantiles(row)}" for row in summary.reads]
    # A log counts the packets of polls, for their numbers in its rows; without other kinds no noise was measured.
    if any(row["kind"] != "poll_packets" for row in summary.noise):
        lines.append(f"noise: {'':20}{'events':>12}{'gap':>10}{'median':>10}{'p99':>10}{'max':>10}")
        for row in summary.noise:
            gap = duration_text(row["gap_mean_ns"])
            times = _quantiles(row) if row["kind"] != "poll_packets" else _packets(row)
            lines.append(f"  {row['kind']:18} CPU {row['cpu']:<3}{row['events']:>12,}{gap:>10}{times}")
    lines += [_cost_line(cost) for cost in summary.probe_cost]
    wall_s = summary.ledger["cost"]["wall_s"]
    if summary.is_partial:
        lines.append(f"attached for {summary.attached_s:.1f} of {wall_s:.1f} s, in {many(summary.windows, 'window')}")
    if summary.budget is not None:
        lines.append(budget_text(summary.budget))
    if summary.estimates:
        lines.append(f"estimates for all {wall_s:.1f} s, with 95 % intervals; the tables are of the windows:")
        lines += [f"  {estimate_text(row)}" for row in summary.estimates]
    elif summary.is_partial and summary.windows and not summary.measures_probe_cost:
        lines.append(f"no estimates for all {wall_s:.1f} s: fewer than ten pauses between windows; measure longer")
    if summary.missed:
        runs = many(sum(count for _, count in summary.missed), "run")
        lines.append(
            f"skipped by the kernel, as the program was running already: {runs}; so many packets may be missing"
        )
    return lines


def estimate_text(row: dict[str, Any]) -> str:
    """Return what the windows say of a code path in the whole time."""
    low, high = (f"{row[f'{end}_packets']:,.0f}" for end in ("low", "high"))
    quantiles = "".join(
        f", {name} {duration_text(row[key][0])} ({duration_text(row[key][1])} to {duration_text(row[key][2])})"
        for name, key in (("median", "median_ns"), ("p99", "p99_ns"))
        if row[key] is not None
    )
    return f"{row['path']}: {row['packets']:,.0f} packets ({low} to {high}){quantiles}"


def _drops(row: dict[str, Any]) -> str:
    places = sorted(row["places"], key=lambda place: -row["places"][place])
    return f"  {row['followed']:>10,} {row['name']} after {' and '.join(places)}{described(row['name'])}"


def _cost_line(cost: dict[str, Any]) -> str:
    verdict = "" if cost["is_distinguishable"] else "; not distinguishable from zero"
    return (
        f"probe cost, {cost['path']}: {cost['ns_per_probe']:.0f} +- {cost['interval_ns']:.0f} ns a probe, for "
        f"{many(cost['probes'], 'probe')} between the first and the last (95 %, {cost['windows']} pairs of windows)"
        f"{verdict}"
    )


def _less_probes(row: dict[str, Any]) -> str:
    median = f"{duration_text(row['median_less_probes_ns'])} +- {duration_text(row['probe_cost_interval_ns'])}"
    return f"{median:>28}{duration_text(row['p99_less_probes_ns']):>10}"


def _times(row: dict[str, Any]) -> str:
    return f"{row['packets']:>12,}{row['share']:>8.1%}{_quantiles(row)}"


def _quantiles(row: dict[str, Any]) -> str:
    return f"{duration_text(row['median_ns']):>10}{duration_text(row['p99_ns']):>10}{duration_text(row['max_ns']):>10}"


def _packets(row: dict[str, Any]) -> str:
    return f"{row['median_ns']:>10.0f}{row['p99_ns']:>10.0f}{row['max_ns']:>10}"
