"""Before and after a change: two sides that were interleaved in one bundle, or two bundles. Intervals and verdicts."""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from parshall.lab.bundle import Bundle
from parshall.lab.study import AFTER, BEFORE, NO_INSTRUMENTS, Measure
from parshall.lab.table import BLOCK, Table
from parshall.statistics import CONFIDENCE, Comparison, compare_sessions, holm

DIFFERENT, SAME = "different", "not distinguishable with these repeats"
ALONE = "the change cannot be distinguished from the machine"
AT_END = "not measurable here: at the end of its scale"
_ALPHA = 1 - CONFIDENCE
# What may change a result without being the change that is tested.
_FACTS = ("kernel", "machine", "cpus", "cpu_model", "clock_source", "parshall")


def compare_sides(table: Table, levels: Sequence[dict[str, Any]], what: str) -> dict[str, Any]:
    """Return the differences of both sides of a bundle, pair by pair.

    Parameters
    ----------
    table : Table
        The runs of both sides.
    levels : sequence of dict
        The levels.
    what : str
        What stands for the side before.

    Returns
    -------
    dict
        As `compare` returns it.
    """
    rows = [
        _row(level, measure.label, measure.name, found)
        for level in levels
        for measure in table.study.measures
        if (found := _compare_at(table, level, measure)) is not None
    ]
    # Where nothing could be seen, nothing was compared.
    compared = [row for row in rows if row["end"] is None]
    for row, p in zip(compared, holm([row["p"] for row in compared]), strict=True):
        row |= {"p": p, "verdict": DIFFERENT if p < _ALPHA else SAME}
    for row in rows:
        if row["end"] is not None:
            row["verdict"] = AT_END
    return {"before": what, "after": "this version", "rows": rows, "environment": [], "sentence": _sentence(rows)}


def _compare_at(table: Table, level: dict[str, Any], measure: Measure) -> Comparison | None:
    sides = []
    for side in (BEFORE, AFTER):
        one = Table(table.study, table.frame, table.runs, table.confidence, side, table.planned)
        values = one.where(level).drop_nulls(measure.name).group_by(BLOCK)
        sides.append(values.agg(value=pl.col(measure.name).mean()))
    pairs = sides[0].join(sides[1], on=BLOCK, suffix="_after").sort(BLOCK)
    missing = sides[0].height + sides[1].height - 2 * pairs.height
    return table.compare_values(measure.name, pairs["value"].to_list(), pairs["value_after"].to_list(), missing)


def compare(
    before: Bundle, evaluation_before: dict[str, Any], after: Bundle, evaluation_after: dict[str, Any]
) -> dict[str, Any]:
    """Return the differences of two bundles of one study.

    All runs of a session have the state of the machine in common, and no number of them separates it from the effect
    of a change. So there is a verdict only where both sides have two sessions or more.

    Returns
    -------
    dict
        ``before``, ``after``: the directories; ``rows``: one for each level and measure that both have: ``level``,
        ``label``, ``before``, ``after`` (means), ``low``, ``high`` (95 % interval of the change, a share where
        ``is_ratio``), ``p`` (corrected for their number), all three null without an interval, ``verdict``;
        ``environment``: facts that differ; ``sentence``.
    """
    rows = list(_rows(evaluation_before, evaluation_after))
    compared = [row for row in rows if row["p"] is not None]
    for row, p in zip(compared, holm([row["p"] for row in compared]), strict=True):
        row["p"] = p
        row["verdict"] = DIFFERENT if p < _ALPHA else SAME
    return {
        "before": str(before.directory),
        "after": str(after.directory),
        "rows": rows,
        "environment": _changes(before, after, evaluation_before, evaluation_after),
        "sentence": _sentence(rows),
    }


def _rows(evaluation_before: dict[str, Any], evaluation_after: dict[str, Any]) -> Iterator[dict[str, Any]]:
    of_before = {_key(row): row for row in evaluation_before["summaries"]}
    for row in evaluation_after["summaries"]:
        other = of_before.get(_key(row))
        if other is None:
            continue
        label = evaluation_after["measures"][row["measure"]]["label"]
        found = compare_sessions(_sessions(other), _sessions(row))
        if found is not None:
            yield _row(row["level"], label, row["measure"], found)
            continue
        means = {"before": other["mean"], "after": row["mean"]}
        yield _row(row["level"], label, row["measure"], None) | means


def _row(level: dict[str, Any], label: str, measure: str, found: Comparison | None) -> dict[str, Any]:
    names = ("before", "after", "change", "low", "high", "p", "pairs", "missing", "is_ratio", "end")
    values = {name: getattr(found, name, None) for name in names}
    return {"level": level, "measure": measure, "label": label, **values, "verdict": ALONE}


def _sessions(row: dict[str, Any]) -> list[list[float]]:
    """Return the values of each session. The first version wrote no sessions: there was one."""
    found: dict[int, list[float]] = {}
    for session, value in zip(row.get("sessions", [0] * len(row["values"])), row["values"], strict=True):
        found.setdefault(session, []).append(value)
    return list(found.values())


def _key(row: dict[str, Any]) -> str:
    return repr((sorted(row["level"].items(), key=str), row["measure"]))


def _sentence(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "They have no level in common that was measured twice."
    compared = [row for row in rows if row["verdict"] in (DIFFERENT, SAME)]
    if not compared and all(row["verdict"] == AT_END for row in rows):
        return "Everything lies at the end of its scale on both sides: nothing could be compared."
    if not compared:
        return (
            "Each was measured in one session. What a machine does in one session differs from another by itself, so "
            "these numbers cannot tell it from the change; run both in turns, in one bundle: parshall lab run STUDY "
            "--against OLD."
        )
    different = sum(row["verdict"] == DIFFERENT for row in compared)
    return f"Of {len(compared)} comparisons {different} are different, at a family-wise error of {_ALPHA:.0%}."


def _changes(
    before: Bundle, after: Bundle, evaluation_before: dict[str, Any], evaluation_after: dict[str, Any]
) -> list[str]:
    """Return in words which facts differ, whether the traffic without instruments does, and what changed meanwhile."""
    found = []
    for fact in _FACTS:
        old, new = (each.about["environment"].get(fact) for each in (before, after))
        if old != new:
            found.append(f"{fact}: {old} before, {new} after.")
    controls = [
        {row["measure"]: row for row in each["controls"] if row["control"] == NO_INSTRUMENTS}
        for each in (evaluation_before, evaluation_after)
    ]
    for measure, row in controls[1].items():
        other = controls[0].get(measure)
        if not other or other.get("low") is None or row.get("low") is None:
            continue
        if other["high"] < row["low"] or row["high"] < other["low"]:
            found.append(
                f"Without instruments, {measure} was {other['mean']:.4g} before and {row['mean']:.4g} after: the "
                "machine itself may have changed."
            )
    drifting = sorted({*evaluation_before["drifting"], *evaluation_after["drifting"]})
    if drifting:
        found.append(f"The machine changed while one of them was measured: {', '.join(drifting)}.")
    return found
