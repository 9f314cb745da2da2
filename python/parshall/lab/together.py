"""Several bundles of one study on one page: their figures together, and their verdicts side by side."""

from collections.abc import Sequence
from typing import Any

from parshall.errors import UsageError, printable
from parshall.lab.bundle import Bundle

# What figures must have in common to be drawn in one.
_AXES = ("x_title", "y_title", "is_raw", "is_stepped", "is_scatter", "is_log_x", "is_log_y")


def check_one_study(bundles: Sequence[Bundle], evaluations: Sequence[dict[str, Any]]) -> None:
    """Raise `UsageError` unless all bundles are of one study, and each is named once."""
    directories = [bundle.directory.resolve() for bundle in bundles]
    for number, bundle in enumerate(bundles):
        if directories[number] in directories[:number]:
            raise UsageError(f"{bundle.directory}: is named twice; name each bundle once")
    for bundle, evaluation in zip(bundles, evaluations, strict=True):
        if evaluation["study"] != evaluations[0]["study"]:
            raise UsageError(
                f"{bundles[0].directory} is of the study {evaluations[0]['study']}, {bundle.directory} of "
                f"{evaluation['study']}; compare bundles of one study"
            )


def names_of(bundles: Sequence[Bundle]) -> list[str]:
    """Return the bundles' directories by the shortest names that are unique."""
    names = [printable(bundle.directory.resolve().name) for bundle in bundles]
    return names if len(set(names)) == len(names) else [printable(str(bundle.directory)) for bundle in bundles]


def figures_together(names: Sequence[str], evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of the last evaluation with the lines of all: each line has the name of its bundle.

    A figure that another bundle has with other axes, or lacks, is without that bundle.
    """
    found = []
    for figure in evaluations[-1]["figures"]:
        same = [
            (name, other)
            for name, evaluation in zip(names, evaluations, strict=True)
            for other in evaluation["figures"]
            if other["name"] == figure["name"] and all(other[axis] == figure[axis] for axis in _AXES)
        ]
        rows = {
            part: [
                {**row, "line": f"{row['line']}, {name}" if row.get("line") else name}
                for name, other in same
                for row in other[part]
            ]
            for part in ("points", "means")
        }
        findings = [f"{name}: {other['finding']}" for name, other in same if other["finding"]]
        titles = [title for title in (figure["line_title"], "bundle") if title]
        found.append({**figure, **rows, "finding": " ".join(findings), "line_title": ", ".join(titles)})
    return found


def side_by_side(
    names: Sequence[str], bundles: Sequence[Bundle], evaluations: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return what each bundle is, and each statement with the finding of each bundle that has it.

    Returns
    -------
    dict
        ``bundles``: ``name``, ``began``, ``kernel``, ``cpu_model``, ``cpus``; ``statements``: ``source``,
        ``published``, and ``findings``, the statement of each bundle, or None.
    """
    of_source = [{each["source"]: each for each in evaluation["statements"]} for evaluation in evaluations]
    return {
        "bundles": [
            {"name": name, "began": bundle.about["began"], **_machine(bundle)}
            for name, bundle in zip(names, bundles, strict=True)
        ],
        "statements": [
            {
                "source": each["source"],
                "published": each["published"],
                "findings": [known.get(each["source"]) for known in of_source],
            }
            for each in evaluations[-1]["statements"]
        ],
    }


def _machine(bundle: Bundle) -> dict[str, Any]:
    environment = bundle.about["environment"]
    return {name: environment.get(name) for name in ("kernel", "cpu_model", "cpus")}
