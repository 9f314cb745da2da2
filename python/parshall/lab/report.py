"""The report of a study: one self-contained HTML page, figures as PNG and SVG; of several bundles, together."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from altair.utils.schemapi import debug_mode

from parshall.errors import UsageError, naming_damage
from parshall.host.input_file import read_json
from parshall.host.quantities import long_time_text, many
from parshall.lab.bundle import STUDY, Bundle
from parshall.lab.comparison import compare
from parshall.lab.drawing import begins_at, draw, hidden, split
from parshall.lab.evaluation import EVALUATION
from parshall.lab.study import Finding
from parshall.lab.together import check_one_study, figures_together, names_of, side_by_side
from parshall.report.document import check_destination, render, write_document
from parshall.report.images import Images


def read_evaluation(directory: Path) -> dict[str, Any]:
    """Return the evaluation of a bundle.

    Raises
    ------
    UsageError
        The study has not ended, or the file is damaged.
    """
    path = directory / EVALUATION
    try:
        evaluation: dict[str, Any] = read_json(path)
    except OSError:
        raise UsageError(f"{directory}: its study has not ended; go on: parshall lab resume {directory}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is damaged: {error}; parshall lab resume {directory} writes it again") from None
    if isinstance(evaluation, dict):
        # The first version did not write it.
        evaluation.setdefault("omitted", {})
    return evaluation


def write_report(directories: Sequence[Path], output: Path | None = None, title: str | None = None) -> Path:
    """Write ``report.html`` and the figures of a study; of several bundles, with the lines of all in each figure.

    No code of a bundle runs, so bundles of others can be reported.

    Parameters
    ----------
    directories : sequence of pathlib.Path
        Bundles of one study. Two are compared, too: before and after a change.
    output : pathlib.Path, optional
        Directory of the report. Default: the last bundle.
    title : str, optional
        Heading of the page. Default: the title of the study.

    Returns
    -------
    pathlib.Path
        The HTML file.

    Raises
    ------
    UsageError
        A directory has no ended study, or a damaged one, or they are of different studies.
    """
    bundles = [Bundle.open(directory) for directory in directories]
    check_destination(output or bundles[-1].directory)
    with Images() as images:
        return _written(bundles, directories, output, title, images)


def _written(
    bundles: list[Bundle], directories: Sequence[Path], output: Path | None, title: str | None, images: Images
) -> Path:
    evaluations = [read_evaluation(directory) for directory in directories]
    bundle, evaluation = bundles[-1], evaluations[-1]
    resume = f"write its evaluation again: parshall lab resume {bundle.directory}"
    with naming_damage([each.directory for each in bundles], resume):
        check_one_study(bundles, evaluations)
        comparison, listed, together = evaluation.get("comparison"), evaluation["figures"], None
        if len(bundles) == 2:
            comparison = compare(bundles[0], evaluations[0], bundles[1], evaluations[1])
        if len(bundles) > 1:
            names = names_of(bundles)
            listed, together = figures_together(names, evaluations), side_by_side(names, bundles, evaluations)
        figures = _drawn(listed)
        for figure in figures:
            if figure["specification"]:
                images.add(Path(figure["name"]).name, figure["specification"])
        page = _render(title or evaluation["title"], bundle, evaluation, figures, comparison, together)
    return write_document(output or bundle.directory, page, images)


def _drawn(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures with their specification (None without a picture), and sentences in place of pictures."""
    parts = [split(figure) for figure in figures]
    pictures = [picture for picture, _ in parts]
    said: set[str] = set()
    found = []
    # The tests hold figures against Vega-Lite's schema, which takes longer here than all else that draws them.
    with debug_mode(False):
        for picture, sentences in parts:
            # Panels of one figure of a document may share a sentence.
            finding = "" if picture["finding"] in said else picture["finding"]
            if picture["points"] or sentences:
                said.add(finding)
            specification = draw(picture, pictures).to_dict(validate=False) if picture["points"] else None
            texts = {"finding": finding, "sentences": sentences, "caption": _caption(picture)}
            found.append({**picture, **texts, "specification": specification})
    return found


def _caption(figure: dict[str, Any]) -> str:
    """Return what the marks are."""
    if figure["is_raw"]:
        text = f"{len(figure['points']):,} values."
    else:
        counts = sorted({row["count"] for row in figure["means"]})
        values = f"{counts[0]}" if len(set(counts)) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "0"
        text = f"Marks: mean of {values} values; bars: minimum and maximum; faint: every value."
    if count := hidden(figure):
        text += f" {count} values at 0 are not drawn: the axis is logarithmic."
    if begin := begins_at(figure):
        text += f" The axis begins at {begin} %."
    return f"{text} Grey diamonds: published." if figure["published"] else text


def _render(
    title: str,
    bundle: Bundle,
    evaluation: dict[str, Any],
    figures: list[dict[str, Any]],
    comparison: dict[str, Any] | None,
    together: dict[str, Any] | None,
) -> str:
    return render(
        "lab.html.j2",
        "lab.js",
        filters={"figures": _significant},
        title=title,
        bundle=bundle.about,
        # Its text is kept there, and a built-in study needs none.
        study=bundle.about["study"] if bundle.about.get("is_built_in") else STUDY,
        options=options_of(bundle),
        part="".join(
            f" --at {shlex.quote(f'{name}=' + ','.join(values))}" for name, values in bundle.about.get("at", {}).items()
        ),
        evaluation=evaluation,
        figures=[each for each in figures if each["specification"] or each["sentences"]],
        findings=list(dict.fromkeys(each["finding"] for each in figures if each["finding"])),
        without_data=[each["title"] for each in figures if not each["specification"] and not each["sentences"]],
        # A table has them.
        stated={Finding(**_measured(each)).sentence for each in evaluation["statements"]},
        comparison=comparison,
        together=together,
        runs_sentence=runs_sentence(bundle, evaluation),
        warnings=list(warnings(evaluation)),
    )


def _measured(statement: dict[str, Any]) -> dict[str, Any]:
    return {name: statement[name] for name in ("measured", "is_same", "reason")}


def _significant(value: float | None) -> str:
    """Return a number with four significant digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def runs_sentence(bundle: Bundle, evaluation: dict[str, Any]) -> str:
    """Return how many runs there are, and in which order they ran."""
    planned = len(bundle.about["plan"])
    failed = len(evaluation["failures"])
    done = sum(bundle.has_run(number) for number in range(planned))
    text = f"{done} of {planned} planned runs" if done < planned else f"{planned} runs"
    lost = f", of which {failed} failed" if failed else ""
    if budget_s := bundle.about.get("budget_s"):
        return (
            f"{text}{lost}, in blocks whose order is shuffled (seed {bundle.about['seed']}). {_until(bundle, budget_s)}"
        )
    repeats = many(bundle.about["repeats"], "time")
    return (
        f"{text}{lost}{'; the plan has' if done < planned else ':'} every level {repeats}, in blocks of one run a "
        f"level whose order is shuffled (seed {bundle.about['seed']})."
    )


def options_of(bundle: Bundle) -> str:
    """Return the options that repeat a study."""
    about = bundle.about
    if budget_s := about.get("budget_s"):
        return f"{'' if about['is_quick'] else ' --full'} --budget {budget_s:g}"
    return f"{' --quick' if about['is_quick'] else ''} --repeats {about['repeats']}"


def _until(bundle: Bundle, budget_s: float) -> str:
    """Return when a study ended that went on until its statements were decided."""
    more_s = bundle.about.get("more_s")
    text = (
        "The first blocks have every level, later ones those of the statements that were open. The intervals hold at "
        "all looks together."
    )
    if more_s is None:
        return text
    return (
        f"{text} The time, {long_time_text(budget_s)}, was over before all were decided: about "
        f"{long_time_text(more_s)} more would do, if nothing else varies (parshall lab resume DIR --budget "
        f"{math.ceil(more_s / 60)}m)."
    )


def warnings(evaluation: dict[str, Any]) -> list[str]:
    """Return what makes numbers doubtful."""
    found = [
        f"Run {failure['run']} failed, and is not in the numbers: {failure['failure']}"
        for failure in evaluation["failures"][:5]
    ]
    if len(evaluation["failures"]) > 5:
        found.append(f"{len(evaluation['failures']) - 5} more runs failed.")
    found += [
        f"{row['program']}: {row['unbalanced']} ledgers do not balance."
        for row in evaluation["ledgers"]
        if row["unbalanced"]
    ]
    # The first versions did not list them.
    found += [
        f"Run {each['run']} ({each['level']}) is not of the link that it should be: the relay lost {each['packets']:,} "
        f"packets itself: {each['cause']}."
        for each in evaluation["links"].get("runs", [])[:5]
    ]
    if evaluation["drifting"]:
        names = ", ".join(evaluation["measures"][name]["label"] for name in evaluation["drifting"])
        found.append(
            f"The machine changed while it was measured: {names}: a stretch of the runs differs from the "
            "others (p < 0.01). Levels are shuffled within each block and compared within it, so differences between "
            "levels stand."
        )
    return found
