"""``parshall lab``: list and run studies, continue interrupted ones, compare with the published numbers."""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from parshall.cli import options
from parshall.cli.options import count_option, time_option
from parshall.errors import UsageError, printable
from parshall.host.messages import LINES_S, progress_line, say, show, show_paragraphs
from parshall.host.quantities import long_time_text, many
from parshall.host.running import Note
from parshall.host.stopping import Stopping

app = typer.Typer(add_completion=False, rich_markup_mode=None)

BUDGET_S = 20 * 60.0
# Of all built-in studies together; what one leaves is for those behind it.
ALL_BUDGET_S = 90 * 60.0
_LEAST_S = 60.0
# What a study is given in the second round, over what it asks for: an estimate from few blocks is often too short.
_MARGIN = 1.25
# Lines of a study without statements; its report has all.
_SUMMARIES_MAX = 40
# What is shown of a statement.
_STATED = ("source", "published", "measured", "is_same", "reason")

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="A built-in study, `all`, or a Python file")]
Hosts = Annotated[Path | None, typer.Option("--hosts", metavar="FILE", help="Real hosts, one Dask worker each")]
OnFailure = Annotated[
    str, typer.Option("--on-failure", metavar="continue|stop", help="When a run fails: mark it, or stop the study")
]


@app.command("list")
def list_studies(as_json: options.Json = False) -> None:
    """List the built-in studies, with the time that each takes."""
    from parshall.lab import laboratory
    from parshall.studies import NAMES

    rows = []
    width = max(map(len, NAMES))
    for study in _built_in():
        times = [
            laboratory.estimate_s(
                study, laboratory.plan(study, is_quick=is_quick, repeats=repeats, seed=1), is_quick=is_quick
            )
            for is_quick, repeats in ((True, study.quick_repeats), (False, study.repeats))
        ]
        budget_s = BUDGET_S if study.repeats > 1 else None
        times_s = {"quick_s": times[0], "full_s": times[1], "budget_s": budget_s}
        row = {"name": study.name, "title": study.title, **times_s}
        if as_json:
            rows.append(row)
            continue
        # At once: the studies behind it take a second to be read.
        show(f"{row['name']:{width}}  {row['title']}")
        until = f"until decided, at most {long_time_text(row['budget_s'])}; " if row["budget_s"] else ""
        spans = f"--quick {long_time_text(row['quick_s'])}, --full {long_time_text(row['full_s'])}"
        show(f"{'':{width}}  {until}{spans}")
    if as_json:
        print(json.dumps(rows))


@app.command("run")
def run_study(
    study: StudyName,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Directory of the results [default: lab-STUDY]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few levels and repeats, short workloads")] = False,
    full: Annotated[bool, typer.Option("--full", help="All levels and repeats of a built-in study")] = False,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Go on until each statement is decided; built-in studies do")
    ] = False,
    budget: Annotated[
        float | None, time_option("--budget", help="Until decided, but no longer than this [default: 20m]")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="OLD", help="In turns with another parshall command, or study file"),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="FACTOR=VALUE[,...]", help="Only levels with these values; repeatable"),
    ] = None,
    repeats: Annotated[int | None, count_option("--repeats", help="Runs of each level [default: the study's]")] = None,
    seed: options.Seed = 1,
    hosts: Hosts = None,
    on_failure: OnFailure = "continue",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Run a study and write its report."""
    from parshall.lab.sides import described
    from parshall.lab.study import load
    from parshall.studies import DIRECTORY, NAMES, path_of

    how = _how(hosts, on_failure)
    chosen = [path_of(name) for name in (NAMES if study == "all" else [study])]
    wanted = _values_of_factors(at or [])
    # Every study, and what it is compared with, is read before the first one runs.
    if against is not None:
        described(against)
    studies = []
    for path in chosen:
        loaded = load(path)
        form = _form(loaded, path.parent == DIRECTORY, quick, full, repeats, until_decided, budget, against is not None)
        loaded.narrowed(wanted, is_quick=form["is_quick"])
        studies.append((path, loaded, form))
    how |= {"at": wanted, "seed": seed, "against": against}
    done: dict[Path, dict[str, Any]] = {}
    end_s = time.monotonic() + ALL_BUDGET_S
    has_common_end = study == "all" and budget is None
    with Stopping() as stopping:
        for number, (path, loaded, form) in enumerate(studies):
            if has_common_end and form["budget_s"]:
                left_s = (end_s - time.monotonic()) / (len(studies) - number)
                form["budget_s"] = min(BUDGET_S, max(left_s, _LEAST_S))
            base = output or Path("lab-all" if study == "all" else f"lab-{loaded.name}")
            directory = base / loaded.name if study == "all" else base
            bundle = _run_one(loaded, path.read_text(), directory, how | form, quiet, stopping)
            done[directory] = _finish(bundle, loaded, quiet, as_json, is_stopped=stopping.is_requested())
            if stopping.is_requested():
                break

        def go_on(directory: Path, more_s: float) -> Any:
            if not quiet:
                say("lab", f"{directory.name}: goes on for {long_time_text(more_s)} of the time that is left")
            shared = {name: how[name] for name in ("site", "stops_on_failure")}
            resumed, read = _resumed(directory, more_s, shared, quiet, stopping)
            done[directory] = _finish(resumed, read, quiet, as_json, is_stopped=stopping.is_requested())
            return resumed

        if has_common_end:
            _second_round(list(done), end_s, go_on, stopping)
    if as_json:
        print(json.dumps([*done.values()] if study == "all" else done[directory]))
    return 130 if stopping.is_requested() else max(map(_status, done.values()))


def _second_round(
    directories: list[Path], end_s: float, go_on: Callable[[Path, float], Any], stopping: Stopping
) -> None:
    """Give the time that others left to the studies that have open statements, to those that need the least first."""
    from parshall.lab import laboratory
    from parshall.lab.bundle import Bundle

    bundles = [Bundle.open(directory) for directory in directories]
    while bundles := [each for each in bundles if each.about.get("more_s")]:
        went_on = []
        for bundle in sorted(bundles, key=lambda each: float(each.about["more_s"])):
            left_s = end_s - time.monotonic()
            if stopping.is_requested() or left_s < _LEAST_S:
                return
            resumed = go_on(bundle.directory, min(left_s, max(_MARGIN * bundle.about["more_s"], _LEAST_S)))
            # Otherwise a block takes longer than there is time.
            if laboratory.number_done(resumed) > laboratory.number_done(bundle):
                went_on.append(resumed)
        bundles = went_on


def _form(
    study: Any,
    is_built_in: bool,
    quick: bool,
    full: bool,
    repeats: int | None,
    until_decided: bool,
    budget_s: float | None,
    has_sides: bool,
) -> dict[str, Any]:
    """Return which levels of a study run, how often or how long: arguments of the laboratory."""
    decides = until_decided or budget_s is not None
    if quick and full:
        raise UsageError("--quick: given beside --full; leave one out")
    if decides and (quick or repeats is not None):
        given = "--quick" if quick else "--repeats"
        raise UsageError(f"{given}: a study that goes on until it is decided has no fixed repeats; leave one out")
    if decides and not study.statements:
        raise UsageError(f"{study.name}: has no statements that could be decided; give --repeats")
    # What is computed, not measured, says the same at each repeat; and two sides are compared after fixed repeats.
    if is_built_in and not quick and not full and repeats is None and not has_sides:
        decides = decides or study.repeats > 1
    is_short = quick or (is_built_in and (decides or has_sides) and not full)
    if has_sides and not quick:
        repeats = repeats or study.repeats
    limit_s = (budget_s or BUDGET_S) if decides else None
    return {"is_built_in": is_built_in, "is_quick": is_short, "repeats": repeats, "budget_s": limit_s}


def _how(hosts: Path | None, on_failure: str) -> dict[str, Any]:
    """Return the arguments of the laboratory that `run` and `resume` share."""
    from parshall.lab.sites import read_hosts

    if on_failure not in ("continue", "stop"):
        raise UsageError(f"--on-failure {on_failure}: expected continue or stop")
    return {"site": read_hosts(hosts) if hosts else None, "stops_on_failure": on_failure == "stop"}


def _values_of_factors(words: list[str]) -> dict[str, list[str]]:
    """Return the values of each factor of ``FACTOR=VALUE[,...]``."""
    found = {}
    for word in words:
        name, is_there, values = word.partition("=")
        if not is_there or name in found:
            raise UsageError(f"--at {word}: expected FACTOR=VALUE[,VALUE...], once for each factor")
        found[name] = values.split(",")
    return found


def _run_one(study: Any, text: str, directory: Path, how: dict[str, Any], quiet: bool, stopping: Stopping) -> Any:
    """Run a study as `laboratory.run` does, whose arguments `how` has; say what is planned, and show the progress."""
    from parshall.host import privileges
    from parshall.lab import laboratory
    from parshall.lab.bundle import check_new

    if how["site"] is None:
        privileges.require_bpf("lab", "CAP_SYS_ADMIN")
    is_quick, budget_s = how["is_quick"], how["budget_s"]
    repeats = how["repeats"] or (study.quick_repeats if is_quick else study.repeats)
    part = study.narrowed(how["at"], is_quick=is_quick)
    has_sides = how["against"] is not None
    planned = laboratory.plan(part, is_quick=is_quick, repeats=repeats, seed=how["seed"], has_sides=has_sides)
    check_new(directory)
    if not quiet:
        needed_s = laboratory.estimate_s(study, planned, is_quick=is_quick)
        count = f"{len(planned)} runs, {long_time_text(needed_s)}"
        wanted = "its statement is" if len(study.statements) == 1 else f"its {len(study.statements)} statements are"
        limit = f"until {wanted} decided, at most {long_time_text(budget_s or 0)}"
        say("lab", f"{study.name}: {limit if budget_s else count}, into {directory}")
    with _Progress(study.name, quiet) as progress:
        return laboratory.run(study, text, directory, **{**how, "progress": progress.show, "stopping": stopping})


@app.command("check")
def check_laboratory(
    study: StudyName,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Directory of the results [default: lab-STUDY-equal]"),
    ] = None,
    copies: Annotated[int, count_option("--copies", help="Copies of one level, compared two by two")] = 10,
    repeats: Annotated[int, count_option("--repeats", help="Runs of each copy")] = 5,
    seed: options.Seed = 1,
    hosts: Hosts = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Measure equal levels of a study, and show how often they are called different."""
    from parshall.lab.sides import equal, false_verdicts, text_of_equal
    from parshall.lab.study import load
    from parshall.statistics import PAIRS_MIN
    from parshall.studies import path_of

    if repeats < PAIRS_MIN:
        raise UsageError(f"--repeats {repeats}: expected {PAIRS_MIN} or more: fewer runs are not compared")
    if copies < 2 or copies % 2:
        raise UsageError(f"--copies {copies}: expected an even number: copies are compared two by two")
    path = path_of(study)
    made = equal(load(path), copies)
    how = _how(hosts, "continue") | {"is_quick": True, "at": {}, "repeats": repeats, "seed": seed, "against": None}
    directory = output or Path(f"lab-{made.name}")
    with Stopping() as stopping:
        text = text_of_equal(path.read_text(), copies)
        bundle = _run_one(made, text, directory, how | {"budget_s": None, "is_built_in": False}, quiet, stopping)
        done = _finish(bundle, made, quiet, as_json, is_stopped=stopping.is_requested())
    done |= (found := false_verdicts(done["equal"]))
    if as_json:
        print(json.dumps(done))
    elif compared := found["compared"]:
        show(
            f"of {many(compared, 'comparison')} of {many(found['pairs'], 'pair')} of equal levels {found['false']} are "
            f"called different ({found['false'] / compared:.1%}, 95 % interval {found['low']:.1%} to "
            f"{found['high']:.1%}; 5 % is what the verdicts promise); with more --copies the interval is narrower"
        )
    else:
        show("no comparison of equal levels: each was measured fewer than three times, or is at the end of its scale")
    return 130 if stopping.is_requested() else _status(done)


@app.command("resume")
def resume_study(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of an interrupted study")],
    budget: Annotated[float | None, time_option("--budget", help="Go on for this time with what is undecided")] = None,
    hosts: Hosts = None,
    on_failure: OnFailure = "continue",
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Run what an interrupted study has left to run, and write its report again."""
    how = _how(hosts, on_failure)
    with Stopping() as stopping:
        bundle, study = _resumed(directory, budget or 0.0, how, quiet, stopping)
        done = _finish(bundle, study, quiet, as_json, is_stopped=stopping.is_requested())
    if as_json:
        print(json.dumps(done))
    return 130 if stopping.is_requested() else _status(done)


def _resumed(directory: Path, more_s: float, how: dict[str, Any], quiet: bool, stopping: Stopping) -> tuple[Any, Any]:
    """Resume a study as `laboratory.resume` does, whose arguments `how` has; return its bundle, and the study."""
    from parshall.lab import laboratory
    from parshall.lab.bundle import Bundle

    study = laboratory.study_of(Bundle.open(directory))
    with _Progress(study.name, quiet, first_line_s=0.0) as progress:
        how = how | {"progress": progress.show, "stopping": stopping}
        return laboratory.resume(directory, more_s=more_s, **how), study


def _finish(bundle: Any, study: Any, quiet: bool, as_json: bool, *, is_stopped: bool = False) -> dict[str, Any]:
    """Evaluate a bundle, write its report, and print where it is."""
    from parshall.lab import laboratory
    from parshall.lab.evaluation import evaluate
    from parshall.lab.report import write_report

    what = f"{study.name}: evaluating, and writing the report"
    if is_stopped and not quiet:
        say("lab", f"stopped; {what} of what is done, which may take a minute; Ctrl-C again leaves that out")
    with progress_line("lab", what, quiet=quiet):
        evaluation = evaluate(bundle, study)
        report = write_report([bundle.directory])
    done, total = laboratory.number_done(bundle), len(bundle.about["plan"])
    failed = len(evaluation["failures"])
    unbalanced = sum(ledger["unbalanced"] for ledger in evaluation["ledgers"])
    if not quiet:
        more_s = bundle.about.get("more_s")
        is_open = [each for each in evaluation["statements"] if each["is_open"]]
        if more_s is not None:
            go_on = f"parshall lab resume {bundle.directory} --budget {math.ceil(more_s / 60)}m"
            more = f"about {long_time_text(more_s)} more would do"
            say("lab", f"{many(len(is_open), 'statement')} open; {more}: {go_on}")
        elif done < total:
            say("lab", f"{done} of {total} runs are done; go on with: parshall lab resume {bundle.directory}")
        for failure in evaluation["failures"][:3]:
            say("lab", f"run {failure['run']} failed: {failure['failure']}")
        for each in evaluation["links"]["runs"][:3]:
            say("lab", f"run {each['run']}: the relay lost {each['packets']:,} packets itself: {each['cause']}")
        if unbalanced:
            say("lab", f"{unbalanced} ledgers do not balance; see the report")
    if not as_json and not quiet:
        for statement in evaluation["statements"]:
            why = f" ({statement['reason']})" if statement["is_same"] is None and statement["reason"] else ""
            show(f"{_verdict(statement['is_same']):9} {statement['source']}: {statement['measured']}{why}")
        if not evaluation["statements"]:
            for line in _summary_lines(evaluation["summaries"], study):
                show(line)
        show(report)
    return {
        "study": study.name,
        "report": str(report),
        "runs": done,
        "planned": total,
        "failed": failed,
        "unbalanced": unbalanced,
        "equal": evaluation.get("equal", []),
    }


def _summary_lines(summaries: list[dict[str, Any]], study: Any) -> Iterator[str]:
    """Yield what each measure was at each level, for a study that asks no question of its own."""
    from parshall.lab.table import interval_text

    levels = [", ".join(f"{name} {value}" for name, value in row["level"].items()) for row in summaries]
    width = max(map(len, levels), default=0)
    for level, row in list(zip(levels, summaries, strict=True))[:_SUMMARIES_MAX]:
        interval = "" if row["count"] == 1 else f"95 % interval {interval_text(row['low'], row['high'])}, "
        value = f"{row['mean']:,.4g} {study.measure(row['measure']).unit}".rstrip()
        yield f"{level:{width}}  {row['measure']}: {value} ({interval}{many(row['count'], 'value')})"
    if len(summaries) > _SUMMARIES_MAX:
        yield f"{many(len(summaries) - _SUMMARIES_MAX, 'further mean')} in the report"


def _verdict(is_same: bool | None) -> str:
    # A file of others may have something else there.
    return "same" if is_same is True else "different" if is_same is False else "open"


def _status(done: dict[str, Any]) -> int:
    """1 when nothing was measured or a ledger does not balance."""
    return int(done["failed"] == done["runs"] or done["unbalanced"] > 0)


@app.command("published")
def published(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories of studies, or of `lab run all`")
    ],
    as_json: options.Json = False,
) -> None:
    """Show what the documents say, what was measured here, and whether it is the same."""
    from parshall.errors import naming_damage
    from parshall.lab.report import read_evaluation

    for given in directories:
        if not given.is_dir():
            raise UsageError(f"{given}: no such directory; name that of a study (parshall lab run), or of several")
    found = [directory for given in directories for directory in _bundles(given)]
    if not found:
        raise UsageError(f"{directories[0]}: no study in it; measure one: parshall lab run STUDY -o {directories[0]}")
    rows = []
    for directory in found:
        with naming_damage([directory], f"write its evaluation again: parshall lab resume {directory}"):
            evaluation = read_evaluation(directory)
            statements = [*evaluation["statements"], *_omitted(evaluation)]
            rows += [{"study": evaluation["study"], **{key: each[key] for key in _STATED}} for each in statements]
    if as_json:
        print(json.dumps(rows))
        return
    if not rows:
        say("lab", f"{directories[0]}: its study has no statement about a document")
        return
    show_paragraphs(_paragraph(row) for row in rows)


def _paragraph(row: dict[str, Any]) -> tuple[str, list[tuple[str, object]]]:
    """Return a heading and sentences for a statement. A file of others may have numbers where texts belong."""
    verdict = _verdict(row["is_same"]) if row["measured"] else ""
    sentences = [(name, row[name]) for name in ("published", "measured") if row[name]]
    if row["reason"]:
        sentences.append(("why" if verdict else "not measured", row["reason"]))
    return f"{row['study']}, {row['source']}{': ' if verdict else ''}{verdict}", sentences


def _omitted(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows for the figures and tables of a document that are not measured."""
    empty = {"published": "", "measured": "", "is_same": None}
    return [{"source": source, **empty, "reason": reason} for source, reason in evaluation["omitted"].items()]


def _bundles(directory: Path) -> list[Path]:
    from parshall.lab.bundle import ABOUT

    if (directory / ABOUT).is_file():
        return [directory]
    return sorted(path.parent for path in directory.glob(f"*/{ABOUT}"))


def _built_in() -> Iterator[Any]:
    from parshall.lab.study import load
    from parshall.studies import NAMES, path_of

    for name in NAMES:
        yield load(path_of(name))


def _look_text(look: Any) -> str:
    """Return what a look at the statements found, with the intervals of those that are open."""
    text = f"after {look.blocks} blocks {len(look.decided)} of {many(len(look.statements), 'statement')} decided"
    return f"{text}{'; open: ' if look.open else ''}{'; '.join(map(_open_text, look.open))}"


def _open_text(statement: dict[str, Any]) -> str:
    low, high, limit = (statement[name] for name in ("low", "high", "limit"))
    if low is None or limit is None:
        return str(statement["source"])
    unit = f" {statement['unit']}".rstrip()
    return f"{statement['source']} ({low:+.3g} to {high:+.3g}{unit}, held against {limit:.3g}{unit})"


class _Progress:
    """One line of progress on a terminal, elsewhere one a minute; a note for others while the block runs."""

    def __init__(self, name: str, quiet: bool, first_line_s: float = LINES_S) -> None:
        self._name = name
        self._note = Note("lab")
        self._statements: list[dict[str, Any]] = []
        self._is_quiet = quiet
        self._is_shown = not quiet and sys.stderr.isatty()
        self._next_line_s = time.monotonic() + first_line_s

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self._clear()
        self._note.__exit__()

    def show(self, progress: Any) -> None:
        """Show what runs next, and the time left; after a look, what is decided and what is open."""
        if not progress.what:
            self._clear()
            self._statements = progress.look.statements
            if not self._is_quiet:
                say("lab", _look_text(progress.look))
            return
        left = f"{long_time_text(progress.left_s)} left"
        text = f"{self._name}: run {progress.done + 1} of {progress.total}, {left}: {progress.what}"
        self._note.write(text, self._statements)
        if not self._is_shown:
            if not self._is_quiet and time.monotonic() >= self._next_line_s:
                self._next_line_s = time.monotonic() + LINES_S
                say("lab", text)
            return
        line = printable(text)[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
