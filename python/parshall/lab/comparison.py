"""Two bundles of one study, before and after a change: differences with intervals, and a verdict."""

from typing import Any

from parshall.errors import UsageError
from parshall.lab.bundle import Bundle
from parshall.lab.study import NO_INSTRUMENTS
from parshall.statistics import difference, holm

DIFFERENT, SAME = "different", "not distinguishable with these repeats"
UNSTABLE = "environment unstable"
_ALPHA = 0.05
# What may change a result without being the change that is tested.
_FACTS = ("kernel", "machine", "cpus", "cpu_model", "clock_source", "parshall")


def compare(
    before: Bundle, evaluation_before: dict[str, Any], after: Bundle, evaluation_after: dict[str, Any]
) -> dict[str, Any]:
    """Return the differences of two bundles.

    Returns
    -------
    dict
        ``before``, ``after``: the directories; ``rows``: one for each level and measure that both have: ``level``,
        ``label``, ``before``, ``after`` (means), ``low``, ``high`` (95 % interval of the difference), ``p`` (corrected
        for their number), ``verdict``; ``environment``: facts that differ; ``sentence``.

    Raises
    ------
    UsageError
        The bundles are of different studies.
    """
    if evaluation_before["study"] != evaluation_after["study"]:
        raise UsageError(
            f"{before.directory} is of the study {evaluation_before['study']}, {after.directory} of "
            f"{evaluation_after['study']}; compare bundles of one study"
        )
    is_unstable = bool(evaluation_before["drifting"] or evaluation_after["drifting"])
    of_before = {_key(row): row for row in evaluation_before["summaries"]}
    rows: list[dict[str, Any]] = []
    for row in evaluation_after["summaries"]:
        other = of_before.get(_key(row))
        found = difference(other["values"], row["values"]) if other else None
        if found is None:
            continue
        label = evaluation_after["measures"][row["measure"]]["label"]
        rows.append({"level": row["level"], "measure": row["measure"], "label": label, **vars(found)})
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        is_drifting = row["measure"] in (*evaluation_before["drifting"], *evaluation_after["drifting"])
        row["p"] = p
        row["verdict"] = UNSTABLE if is_drifting else DIFFERENT if p < _ALPHA else SAME
    return {
        "before": str(before.directory),
        "after": str(after.directory),
        "rows": rows,
        "environment": _changes(before, after, evaluation_before, evaluation_after),
        "sentence": _sentence(rows, is_unstable),
    }


def _key(row: dict[str, Any]) -> str:
    return repr((sorted(row["level"].items(), key=str), row["measure"]))


def _sentence(rows: list[dict[str, Any]], is_unstable: bool) -> str:
    if not rows:
        return "They have no level with two or more runs in common."
    different = sum(row["verdict"] == DIFFERENT for row in rows)
    text = f"Of {len(rows)} comparisons {different} are different, at a family-wise error of {_ALPHA:.0%}."
    if is_unstable:
        text += " The machine changed while one of them was measured; repeat it on a quiet machine."
    return text


def _changes(
    before: Bundle, after: Bundle, evaluation_before: dict[str, Any], evaluation_after: dict[str, Any]
) -> list[str]:
    """Return in words which facts differ, and whether the traffic without instruments does."""
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
    return found
