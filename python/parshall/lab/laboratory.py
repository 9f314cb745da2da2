"""Runs a study: plans the runs, measures each, and writes the bundle; continues an interrupted one."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.host.environment import environment
from parshall.host.stopping import Stopping
from parshall.lab import cycle
from parshall.lab.bundle import STUDY, Bundle
from parshall.lab.run import accounts, balances, lost
from parshall.lab.sites import Site, TestbedSite
from parshall.lab.study import CONTROLS, Level, Study, check, load

# Seconds that a run takes besides its workload, until some runs have shown it.
_OVERHEAD_S = 1.5
# After so many failed runs at the beginning the study ends.
_FAILURES_MAX = 3


@dataclass(frozen=True)
class Progress:
    """What is reported before each run.

    Attributes
    ----------
    done, total : int
        Finished runs, and all.
    what : str
        Level of the next run.
    left_s : float
        Estimate of the time left, seconds.
    """

    done: int
    total: int
    what: str
    left_s: float


def plan(study: Study, *, is_quick: bool, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Return the runs of a study, in their order.

    Every repeat has each level once, in an order that is shuffled with the seed: a randomised complete block design,
    so that a drift of the machine does not look like an effect of a factor.

    Returns
    -------
    list of dict
        ``repeat``, ``level`` and ``control`` of each run.
    """
    levels = study.levels_of(is_quick=is_quick)
    cells: list[tuple[Level, str]] = [(level, "") for level in levels]
    if study.has_controls:
        cells += [(study.control_level or levels[0], control) for control in CONTROLS]
    order = random.Random(seed)
    runs = []
    for repeat in range(repeats):
        block = order.sample(cells, len(cells))
        runs += [{"repeat": repeat, "level": level, "control": control} for level, control in block]
    return runs


def estimate_s(study: Study, runs: list[dict[str, Any]], *, is_quick: bool) -> float:
    """Return how long runs will take, before any has run."""
    return sum(_workload_s(study, run["level"], is_quick) + _OVERHEAD_S for run in runs)


def _workload_s(study: Study, level: Level, is_quick: bool) -> float:
    return study.setting(level, study.quick_duration_s if is_quick else study.duration_s).duration_s


def run(
    study: Study,
    study_text: str,
    directory: Path,
    *,
    is_quick: bool = False,
    at: Mapping[str, Sequence[str]] | None = None,
    repeats: int | None = None,
    seed: int = 1,
    is_built_in: bool = False,
    site: Site | None = None,
    stops_on_failure: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
    stopping: Stopping | None = None,
) -> Bundle:
    """Run a study into a new bundle.

    Parameters
    ----------
    study : Study
        The study.
    study_text : str
        The text of its file; the bundle keeps it.
    directory : pathlib.Path
        Directory of the bundle; it must be empty.
    is_quick : bool
        Whether to run fewer levels and repeats, and shorter workloads.
    at : mapping of str to sequence of str, optional
        Values of factors, as text: only levels with these run. See `Study.narrowed`.
    repeats : int, optional
        Runs of each level. Default: those of the study.
    seed : int
        Seed of the order of runs.
    is_built_in : bool
        Whether ``parshall lab run`` knows the study by its name.
    site : Site, optional
        Where it runs. Default: a testbed on this machine.
    stops_on_failure : bool
        Whether the first run that fails ends the study. Otherwise it is marked, and the study goes on.
    progress : callable
        Called before each run.
    stopping : Stopping, optional
        When a stop is requested, the study ends after the current run, and can be resumed.

    Raises
    ------
    UsageError
        The study is wrong, or the directory is not empty.
    ParshallError
        A file cannot be written; or a run failed, with `stops_on_failure`, or every run failed.
    """
    check(study, study.name)
    site = site or TestbedSite()
    count = repeats or (study.quick_repeats if is_quick else study.repeats)
    part = study.narrowed(at or {}, is_quick=is_quick)
    runs = plan(part, is_quick=is_quick, repeats=count, seed=seed)
    about = {
        "study": study.name,
        "title": study.title,
        "is_built_in": is_built_in,
        "is_quick": is_quick,
        "at": {name: [*values] for name, values in (at or {}).items()},
        "repeats": count,
        "seed": seed,
        "began": _now(),
        "environment": environment(),
        "site": site.describe(),
        "plan": runs,
    }
    bundle = Bundle.create(directory, about, study_text)
    return _continue(bundle, study, site, stops_on_failure, progress, stopping)


def resume(
    directory: Path,
    *,
    site: Site | None = None,
    stops_on_failure: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
    stopping: Stopping | None = None,
) -> Bundle:
    """Run what an interrupted study has left to run, and the runs that failed; the parameters are those of `run`.

    Raises
    ------
    UsageError
        The directory has no bundle; or it needs the file of real hosts.
    ParshallError
        As for `run`.
    """
    bundle = Bundle.open(directory)
    if site is None and bundle.about["site"]["kind"] != "testbed":
        raise UsageError(f"{directory}: ran on real hosts; name their file with --hosts")
    return _continue(bundle, study_of(bundle), site or TestbedSite(), stops_on_failure, progress, stopping)


def study_of(bundle: Bundle) -> Study:
    """Return the study of a bundle, from the text that it keeps."""
    return load(bundle.directory / STUDY)


def _continue(
    bundle: Bundle,
    study: Study,
    site: Site,
    stops_on_failure: bool,
    progress: Callable[[Progress], None],
    stopping: Stopping | None,
) -> Bundle:
    runs, is_quick = bundle.about["plan"], bundle.about["is_quick"]
    with bundle.locked():
        waiting = [number for number in range(len(runs)) if not bundle.has_run(number) or bundle.has_failed(number)]
        overhead_s, failures = 0.0, 0
        for measured, number in enumerate(waiting):
            planned = runs[number]
            left = [_workload_s(study, runs[each]["level"], is_quick) for each in waiting[measured:]]
            each_s = overhead_s / measured if measured else _OVERHEAD_S
            progress(Progress(number_done(bundle), len(runs), describe(planned), sum(left) + each_s * len(left)))
            began_s = time.monotonic()
            failure = _measure(bundle, study, site, number)
            overhead_s += max(0.0, time.monotonic() - began_s - left[0])
            failures += failure is not None
            # When nothing works, the rest would not either.
            if failure is not None and (stops_on_failure or failures == measured + 1 >= _FAILURES_MAX):
                raise ParshallError(
                    f"run {number + 1} of {len(runs)} ({describe(planned)}): {failure}; "
                    f"go on with parshall lab resume {bundle.directory}"
                )
            if stopping is not None and stopping.is_requested():
                break
    return bundle


def number_done(bundle: Bundle) -> int:
    """Return how many runs of a bundle are finished."""
    return sum(bundle.has_run(number) for number in range(len(bundle.about["plan"])))


def describe(planned: dict[str, Any]) -> str:
    """Return the level of a planned run in words."""
    words = [f"{name} {value}" for name, value in planned["level"].items()]
    return ", ".join([*words, planned["control"]] if planned["control"] else words)


def _measure(bundle: Bundle, study: Study, site: Site, number: int) -> str | None:
    """Measure one run; return why it failed, or None."""
    planned, is_quick = bundle.about["plan"][number], bundle.about["is_quick"]
    setting = study.setting(planned["level"], study.quick_duration_s if is_quick else study.duration_s)
    with bundle.new_run(number) as (directory, record):
        earlier = bundle.failures(number)
        record.update(run=number, began=_now(), status="done", failure=None, earlier_failures=earlier, **planned)
        try:
            record.update(cycle.measure(site, setting, directory, planned["control"]))
            record["ledgers"] = _ledgers(record, directory)
        except ParshallError as error:
            record.update(status="failed", failure=str(error))
            record.setdefault("programs", {})
    failure: str | None = record["failure"]
    return failure


def _ledgers(record: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return the sums of every ledger, and whether it balances."""
    from parshall.lab.run import Run

    run = Run(directory, record)
    found = {}
    for name, outcome in record["programs"].items():
        result = run.result(name) if outcome["is_json"] else None
        ledger = result.get("ledger") if isinstance(result, dict) else None
        if not ledger:
            continue
        listed = list(accounts(ledger))
        found[name] = {
            "balances": balances(ledger),
            **{key: sum(account[key] for account in listed) for key in ("seen", "filtered", "thinned", "logged")},
            "lost": sum(map(lost, listed)),
            "cost": ledger.get("cost"),
        }
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
