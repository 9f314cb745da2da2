"""What follows from a bundle: the data of its figures, findings, statements, controls, summaries. Plain data.

The laboratory evaluates a study when its runs have ended and writes ``evaluation.json``. The report needs nothing
else, so it runs no code of a bundle, which may come from others.
"""

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from parshall.errors import ParshallError
from parshall.host.whole_file import write_whole
from parshall.lab.bundle import Bundle
from parshall.lab.comparison import compare_sides
from parshall.lab.sides import COPY, pairs_of_copies, words_of
from parshall.lab.study import CONTROLS, NO_INSTRUMENTS, Figure, Finding, Measure, Statement, Study, line_of
from parshall.lab.table import Table
from parshall.statistics import CONFIDENCE, confidence_of_looks, has_changed, summarise

EVALUATION = "evaluation.json"
# Why a relay lost packets itself (docs/testbed.md), and the remedy.
OWN_LOSSES = {
    "socket": "it read too late; give it a CPU of its own",
    "memory": "more than 64 MiB were on their way; lower the rate or the delay",
    "oversized": "packets longer than the MTU; switch offloads off",
    "send": "the kernel refused to send them",
    "interface": "the interface behind it dropped them; its CPU was too slow",
}
_NOT_MEASURED = Finding("not measured", None, "some of its levels have no values")
# The mean of a measure that no run has, in a sentence.
_NAN = re.compile(r"\bnan\b")
_Answer = TypeVar("_Answer")


def table_of(bundle: Bundle, study: Study) -> Table:
    """Return the table of a bundle; intervals that are looked at several times are wider."""
    confidence = confidence_of_looks() if bundle.about.get("budget_s") else CONFIDENCE
    return Table(study, bundle.table(study), bundle.runs(), confidence, planned=_planned(bundle))


def _planned(bundle: Bundle) -> list[dict[str, Any]]:
    """Return the levels of the plan, without those of controls."""
    plan = [planned for planned in bundle.about["plan"] if not planned["control"]]
    return [level for planned in plan for level in planned.get("states", [planned["level"]])]


def evaluate(bundle: Bundle, study: Study) -> dict[str, Any]:
    """Evaluate a study and write ``results.parquet`` and ``evaluation.json``.

    Returns
    -------
    dict
        What is in ``evaluation.json``; see ``docs/formats/bundle.md``.

    Raises
    ------
    ParshallError
        A measure, a figure or a statement of the study fails.
    """
    table = table_of(bundle, study)
    bundle.write_results(study)
    is_partial = _is_partial(bundle, table)
    found = {
        "study": study.name,
        "title": study.title,
        "question": study.question,
        "document": study.document,
        "factors": study.factors,
        "measures": {each.name: {"label": each.label, "unit": each.unit} for each in study.measures},
        "figures": [_figure(figure, table, is_partial) for figure in study.figures],
        "statements": [
            bundle.about.get("decisions", {}).get(str(number)) or statement(each, table, is_partial=is_partial)
            for number, each in enumerate(study.statements)
        ],
        "omitted": dict(study.omitted),
        "controls": list(_controls(table)),
        "summaries": list(_summaries(table)),
        "drifting": [measure.name for measure in study.measures if _has_changed(table, measure)],
        "ledgers": _ledgers(table),
        "failures": [
            {"run": run.record["run"], "level": run.level, "control": run.control, "failure": run.record["failure"]}
            for run in table.runs
            if run.record["status"] != "done"
        ],
        "links": _links(table),
    }
    if against := bundle.about.get("against"):
        found["comparison"] = compare_sides(table, _levels(table), words_of(against))
    if any(COPY in level for level in _levels(table)):
        found["equal"] = list(_equal(table))
    with bundle.naming_full_disks():
        write_whole(Path(EVALUATION), json.dumps(_plain(found), indent=1) + "\n", below=bundle.directory)
    return found


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: numbers that are not finite become null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _is_partial(bundle: Bundle, table: Table) -> bool:
    """Whether a level of the study has no run: only a part was wanted, or has run so far, or its runs failed."""
    done = [run["level"] for run in table.where().select(level=pl.struct(table.study.factors)).to_dicts()]
    return bool(bundle.about.get("at")) or any(
        {name: level.get(name) for name in table.study.factors} not in done for level in table.planned
    )


def _ask(what: str, question: Callable[[Table], _Answer], table: Table, without: _Answer | None) -> _Answer:
    """Return what a function of the study says of a table.

    Parameters
    ----------
    without : optional
        The answer when the function fails because levels have no runs; None when all have.
    """
    try:
        return question(table)
    except ParshallError:
        raise
    except Exception as error:
        if without is not None:
            return without
        raise ParshallError(f"{line_of(table.study, error)}{what}: {type(error).__name__}: {error}") from error


def _figure(figure: Figure, table: Table, is_partial: bool) -> dict[str, Any]:
    study, what = table.study, f"figure {figure.name}"
    rows = figure.rows or functools.partial(_points, figure)
    points = _ask(what, rows, table, pl.DataFrame() if is_partial else None)
    sentence = _ask(what, figure.sentence, table, "" if is_partial else None)
    units = [study.measure(name).unit for name in figure.y]
    title = study.label(figure.y[0]) if len(figure.y) == 1 else (units or [""])[0]
    is_drawn = not points.is_empty()
    is_raw = "repeat" not in points.columns
    return {
        "name": figure.name,
        "title": figure.title,
        "finding": "" if _NAN.search(sentence) else sentence,
        "x_title": figure.x_title or (study.label(figure.x) if figure.x else ""),
        "y_title": figure.y_title or title,
        "line_title": study.label(figure.colour) if figure.colour else "",
        "is_log_x": figure.is_log_x,
        "is_log_y": figure.is_log_y,
        "is_stepped": figure.is_stepped,
        "is_scatter": figure.is_scatter,
        "is_raw": is_raw,
        "points": points.to_dicts() if is_drawn else [],
        "means": [] if is_raw or not is_drawn else _means(points).to_dicts(),
        "published": [{"line": each.label, "x": x, "y": y} for each in figure.published for x, y in each.points],
    }


def _points(figure: Figure, table: Table) -> pl.DataFrame:
    """Return one row for each run and measure: ``panel``, ``line``, ``level``, ``x``, ``y``, ``repeat``."""
    study = table.study
    frame = table.where(figure.where)
    frames = []
    for name in figure.y:
        title = study.measure(name).title or name
        line = pl.col(figure.colour).cast(pl.String) if figure.colour else pl.lit(title if len(figure.y) > 1 else "")
        if figure.colour and len(figure.y) > 1:
            line = pl.concat_str(line, pl.lit(f", {title}"))
        panel = pl.lit("")
        if figure.panel:
            panel = pl.concat_str(pl.lit(f"{figure.panel} "), pl.col(figure.panel).cast(pl.String))
        factors = [pl.col(factor).cast(pl.String).fill_null("") for factor in study.factors]
        frames.append(
            frame.select(
                panel=panel,
                line=line.fill_null(""),
                level=pl.concat_str(factors, separator="/"),
                x=pl.col(figure.x),
                y=pl.col(name),
                repeat=pl.col("repeat"),
            )
        )
    order = {_key(level, study): number for number, level in enumerate(_levels(table))}
    points = pl.concat(frames).drop_nulls(["x", "y"])
    return points.sort(points["level"].replace_strict(order, default=len(order)), maintain_order=True)


def _key(level: dict[str, Any], study: Study) -> str:
    """Return the text for a level in the points of a figure."""
    return "/".join("" if level.get(name) is None else str(level[name]) for name in study.factors)


def _means(points: pl.DataFrame) -> pl.DataFrame:
    """Return mean, minimum and maximum at each level, as the thesis draws them; of x, too, where it is measured."""
    x, y = pl.col("x"), pl.col("y")
    for name, default in (("panel", pl.lit("")), ("line", pl.lit("")), ("level", x.cast(pl.String))):
        if name not in points.columns:
            points = points.with_columns(default.alias(name))
    is_number = points.schema["x"].is_numeric()
    means = points.group_by("panel", "line", "level", maintain_order=True).agg(
        x=x.mean() if is_number else x.first(),
        x_low=x.min() if is_number else x.first(),
        x_high=x.max() if is_number else x.first(),
        y=y.mean(),
        y_low=y.min(),
        y_high=y.max(),
        count=pl.len(),
    )
    # Words stay in the order of the levels.
    return means.sort("panel", "line", *(["x"] if is_number else []), maintain_order=True)


def statement(stated: Statement, table: Table, *, is_partial: bool) -> dict[str, Any]:
    """Return what a document says, and what a table says of it: plain data.

    Parameters
    ----------
    is_partial : bool
        Whether levels may lack runs; otherwise a check that fails is a fault of the study.
    """
    finding = _ask(f"statement {stated.source}", stated.check, table, _NOT_MEASURED if is_partial else None)
    if _NAN.search(finding.measured):
        finding = _NOT_MEASURED
    found: dict[str, Any] = _plain({"source": stated.source, "published": stated.published, **asdict(finding)})
    return found


def _controls(table: Table) -> Iterator[dict[str, Any]]:
    """Yield what the laboratory itself does: CPU without traffic, measures without instruments."""
    for control in CONTROLS:
        runs = table.runs_where(control=control)
        if not runs:
            continue
        busy = summarise([value for run in runs if (value := run.cpu_percent()) is not None], (0.0, 100.0))
        yield {"control": control, "level": runs[0].level, "measure": "CPUs busy (%)", **_as_row(busy)}
        for measure in table.study.measures:
            if control != NO_INSTRUMENTS:
                continue
            without = table.summary(measure.name, control=control)
            if without is None:
                continue
            level = {name: value for name, value in runs[0].level.items()}
            beside = table.summary(measure.name, **level)
            yield {
                "control": control,
                "level": level,
                "measure": measure.label,
                **_as_row(without),
                "mean_with": beside.mean if beside else None,
            }


def _as_row(summary: Any) -> dict[str, Any]:
    return asdict(summary) if summary else {}


def _summaries(table: Table) -> Iterator[dict[str, Any]]:
    """Yield one row for each level and measure."""
    for level in _levels(table):
        for measure in table.study.measures:
            summary = table.summary(measure.name, **level)
            if summary:
                runs = table.of_runs(measure.name, **level)
                listed = {"values": runs[measure.name].to_list(), "sessions": runs["session"].to_list()}
                yield {"level": level, "measure": measure.name, **asdict(summary), **listed}


def _levels(table: Table) -> list[dict[str, Any]]:
    """Return the levels that ran, in the order of the study."""
    seen: list[dict[str, Any]] = []
    ran = [level for run in table.runs if not run.control for level in run.levels]
    for level in (*table.study.levels, *table.study.quick_levels, *ran):
        if level in ran and level not in seen:
            seen.append(level)
    return seen


def _has_changed(table: Table, measure: Measure) -> bool:
    """Whether the machine changed while a measure was measured."""
    frame = table.where().drop_nulls(measure.name).sort("run")
    key = pl.Series(
        [str(_key(level, table.study)) for level in frame.select(table.study.factors).to_dicts()], dtype=pl.String
    )
    value = pl.col(measure.name)
    frame = frame.with_columns(key=key).with_columns(centre=value.median().over("key"), rows=pl.len().over("key"))
    # What the levels and cycles of a run have in common is one observation.
    deviation = (value / pl.col("centre")).mean()
    runs = (
        frame.filter((pl.col("rows") > 1) & (pl.col("centre") != 0)).group_by("run", maintain_order=True).agg(deviation)
    )
    return has_changed([""] * runs.height, runs[measure.name].to_list())


def _ledgers(table: Table) -> list[dict[str, Any]]:
    """Return the sum of the ledgers of each instrument over all runs, and its cost."""
    found: dict[str, dict[str, Any]] = {}
    keys = ("seen", "filtered", "thinned", "logged", "lost")
    for run in table.runs:
        for name, ledger in run.record.get("ledgers", {}).items():
            entry = found.setdefault(name, {"program": name, "runs": 0, "unbalanced": 0, "reader_cpu_s": 0.0})
            entry["runs"] += 1
            entry["unbalanced"] += not ledger["balances"]
            for key in keys:
                entry[key] = entry.get(key, 0) + ledger[key]
            entry["reader_cpu_s"] += float((ledger["cost"] or {}).get("reader_cpu_s") or 0)
    return list(found.values())


def _equal(table: Table) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each two equal levels, by each measure; what lies at the end of its scale is none."""
    for before, after in pairs_of_copies(_levels(table)):
        for measure in table.study.measures:
            found = table.compare(measure.name, before, after)
            if found is not None and found.end is None:
                yield {
                    "copies": [before[COPY], after[COPY]],
                    "measure": measure.name,
                    **asdict(found),
                    "sign": found.sign,
                }


def _links(table: Table) -> dict[str, Any]:
    """Return what the relays of all runs lost themselves, and in which runs: it must be 0 for valid ones."""
    relayed, lost = 0, []
    for run in table.runs:
        causes: Counter[str] = Counter()
        for link in run.record.get("testbed", {}).get("statistics", []):
            for direction in ("a_to_b", "b_to_a"):
                if "relay" in link:
                    relayed += 1
                    causes.update(link["relay"][direction]["own_lost"])
        level = ", ".join(f"{name} {value}" for name, value in run.level.items())
        lost += [
            {"run": run.record["run"], "level": level, "packets": packets, "cause": OWN_LOSSES.get(cause, cause)}
            for cause, packets in causes.items()
            if packets
        ]
    return {"relayed": relayed, "own_lost": sum(each["packets"] for each in lost), "runs": lost}
