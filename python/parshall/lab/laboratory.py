"""Runs a study: plans the runs, measures each, and writes the bundle; continues an interrupted one."""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.host.environment import environment
from parshall.host.stopping import Stopping
from parshall.host.whole_file import write_whole
from parshall.lab import cycle, stretches
from parshall.lab.bundle import STUDY, Bundle, check_measures
from parshall.lab.decision import Look, blocks_of, is_look, look
from parshall.lab.run import accounts, balances, lost
from parshall.lab.sides import AGAINST, before_of, described
from parshall.lab.sites import Site, TestbedSite
from parshall.lab.study import AFTER, BEFORE, CONTROLS, INSTRUMENT, NO_INSTRUMENTS, WORKLOAD, Level, Study, check, load
from parshall.statistics import LOOKS

# Seconds that hosts and links take, and a program that starts and ends.
_HOSTS_S, _PROGRAM_S = 0.7, 0.7
# A pause of so long begins another session, and so does a change of one of these facts.
SESSION_PAUSE_S = 600.0
SESSION_FACTS = ("kernel", "machine", "cpus", "parshall")
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
    look : Look, optional
        What is known so far, of a study that goes on until it is decided.
    """

    done: int
    total: int
    what: str
    left_s: float
    look: Look | None = None


def plan(study: Study, *, is_quick: bool, repeats: int, seed: int, has_sides: bool = False) -> list[dict[str, Any]]:
    """Return the runs of a study, in their order.

    Every repeat has each level once, in an order that is shuffled with the seed: a randomised complete block design,
    so that a drift of the machine does not look like an effect of a factor.

    Returns
    -------
    list of dict
        ``repeat``, ``level`` and ``control`` of each run, and its ``side`` with `has_sides`.
    """
    levels = study.levels_of(is_quick=is_quick)
    cells = cells_of(study, levels)
    if study.has_controls:
        cells += [{"level": study.control_level or levels[0], "control": control} for control in CONTROLS]
    order = random.Random(seed)
    return [run for repeat in range(repeats) for run in block(cells, repeat, order, has_sides=has_sides)]


def block(
    cells: Sequence[dict[str, Any]], repeat: int, order: random.Random, *, has_sides: bool = False
) -> list[dict[str, Any]]:
    """Return the runs of a block in a shuffled order; both sides of a comparison follow each other, in either order."""
    found = []
    for cell in order.sample(cells, len(cells)):
        sides = order.sample((BEFORE, AFTER), 2) if has_sides and not cell["control"] else ("",)
        found += [{"repeat": repeat, **cell, **({"side": side} if side else {})} for side in sides]
    return found


def cells_of(study: Study, levels: Sequence[Level]) -> list[dict[str, Any]]:
    """Return the runs of a block that measure some levels: ``level``, ``control``, and ``states`` where they change."""
    if not study.switched:
        return [{"level": level, "control": ""} for level in levels]
    # A level that is compared with nothing within its run is measured as any other.
    return [
        {"level": states[0], "control": "", **({"states": states} if len(states) > 1 else {})}
        for states in study.runs_of(levels)
    ]


def estimate_s(study: Study, runs: list[dict[str, Any]], *, is_quick: bool) -> float:
    """Return how long runs will take, before any has run."""
    kinds = {_kind(run): run for run in runs}
    times_s = {kind: _run_s(study, run, is_quick) for kind, run in kinds.items()}
    return sum(times_s[_kind(run)] for run in runs)


def _kind(planned: Mapping[str, Any]) -> str:
    """Return a key that runs of the same level and control share, in every block."""
    return repr([planned["level"], planned["control"], planned.get("states")])


def _run_s(study: Study, planned: Mapping[str, Any], is_quick: bool) -> float:
    """Return about how long a run takes on a machine that does nothing else."""
    if "states" in planned:
        return _HOSTS_S + stretches.duration_s(study, planned["states"])
    setting = study.setting(planned["level"], study.quick_duration_s if is_quick else study.duration_s)
    instruments = [program for program in setting.programs if program.role == INSTRUMENT]
    if planned["control"] == NO_INSTRUMENTS:
        instruments = []
    changes_s = [_PROGRAM_S + (cycle.IDLE_S if program.is_drained else 0.0) for program in instruments]
    return _HOSTS_S + setting.duration_s + sum(changes_s)


def run(
    study: Study,
    study_text: str,
    directory: Path,
    *,
    is_quick: bool = False,
    at: Mapping[str, Sequence[str]] | None = None,
    repeats: int | None = None,
    seed: int = 1,
    budget_s: float | None = None,
    against: Path | None = None,
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
    budget_s : float, optional
        The study goes on, block by block, until each of its statements is decided, or so many seconds are over;
        `repeats` has no meaning then.
    against : pathlib.Path, optional
        Another ``parshall`` command, or the file of a study with other settings: each level is measured with it,
        too, in turns, as the side before.
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
    if budget_s is not None:
        count = LOOKS[0]
    runs = plan(part, is_quick=is_quick, repeats=count, seed=seed, has_sides=against is not None)
    about: dict[str, Any] = {
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
    if budget_s is not None:
        about |= {"budget_s": budget_s, "decisions": {}}
    if against is not None:
        about["against"] = described(against)
    bundle = Bundle.create(directory, about, study_text)
    if against is not None and "study" in about["against"]:
        write_whole(Path(AGAINST), against.read_text(), below=directory)
    return _Runner(bundle, study, site, stops_on_failure, progress, stopping).run()


def resume(
    directory: Path,
    *,
    more_s: float = 0.0,
    site: Site | None = None,
    stops_on_failure: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
    stopping: Stopping | None = None,
) -> Bundle:
    """Run what an interrupted study has left to run, and the runs that failed; the parameters are those of `run`.

    Parameters
    ----------
    more_s : float
        Seconds more than the study had at first, of one that goes on until its statements are decided.

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
    if more_s and not bundle.about.get("budget_s"):
        # Its verdicts were seen: with more blocks until they change, they would be wrong more often than they say.
        name = bundle.about["study"] if bundle.about.get("is_built_in") else "FILE"
        again = f"begin one that goes on until it is decided: parshall lab run {name} --until-decided -o DIR"
        remedy = again if study_of(bundle).statements else "leave it out"
        raise UsageError(f"--budget: {directory} has a fixed number of repeats; {remedy}")
    if more_s:
        bundle.about["budget_s"] = bundle.about.get("spent_s", 0.0) + more_s
    return _Runner(bundle, study_of(bundle), site or TestbedSite(), stops_on_failure, progress, stopping).run()


def study_of(bundle: Bundle) -> Study:
    """Return the study of a bundle, from the text that it keeps."""
    return load(bundle.directory / STUDY)


@dataclass
class _Runner:
    """Measures the runs of a bundle in one session."""

    bundle: Bundle
    study: Study
    site: Site
    stops_on_failure: bool
    progress: Callable[[Progress], None]
    stopping: Stopping | None
    session: int = 0
    measured: int = 0
    failures: int = 0
    is_checked: bool = False
    estimated_s: float = 0.0
    spent_s: float = 0.0
    look: Look | None = None
    began_s: float = field(default_factory=lambda: time.monotonic())

    def run(self) -> Bundle:
        """Measure what waits, and go on until it is decided, where the bundle says so."""
        with self.bundle.locked():
            self.session = _session(self.bundle)
            self.run_what_waits()
            if self.bundle.about.get("budget_s"):
                self.run_until_decided()
        return self.bundle

    @property
    def is_stopped(self) -> bool:
        """Whether a stop was requested."""
        return self.stopping is not None and self.stopping.is_requested()

    def run_what_waits(self) -> None:
        """Measure the runs of the plan that have not run, or failed."""
        runs, bundle = self.bundle.about["plan"], self.bundle
        waiting = [number for number in range(len(runs)) if not bundle.has_run(number) or bundle.has_failed(number)]
        is_quick = bundle.about["is_quick"]
        estimated_s = {number: _run_s(self.study, runs[number], is_quick) for number in waiting}
        for number in waiting:
            if self.is_stopped or self._is_over:
                break
            planned = runs[number]
            left_s = self._slowness * sum(estimated_s[each] for each in waiting if each >= number)
            self.progress(Progress(number_done(bundle), len(runs), describe(planned), left_s, self.look))
            began_s = time.monotonic()
            self.estimated_s += estimated_s[number]
            try:
                failure = _measure(bundle, self.study, self.site, number, self.session, self.stopping)
            except stretches.StoppedError:
                break
            self.spent_s += time.monotonic() - began_s
            self.measured += 1
            self.failures += failure is not None
            if failure is None and not self.is_checked:
                # A mistake in a measure is said now, not after hours.
                (done,) = [run for run in bundle.runs() if run.record["run"] == number]
                check_measures(self.study, done)
                self.is_checked = not planned["control"]
            # When nothing works, the rest would not either.
            if failure is not None and (self.stops_on_failure or self.failures == self.measured >= _FAILURES_MAX):
                raise ParshallError(
                    f"run {number + 1} of {len(runs)} ({describe(planned)}): {failure}; "
                    f"go on with parshall lab resume {bundle.directory}"
                )

    def _needed_s(self, planned: dict[str, Any]) -> float:
        """Return how long a run will take, on a machine that is as fast as it was for those before."""
        return self._slowness * _run_s(self.study, planned, self.bundle.about["is_quick"])

    @property
    def _slowness(self) -> float:
        return self.spent_s / self.estimated_s if self.measured else 1.0

    def run_until_decided(self) -> None:
        """Measure block after block until each statement is decided, or the time is over."""
        about = self.bundle.about
        part = self.study.narrowed(about["at"], is_quick=about["is_quick"])
        levels = part.levels_of(is_quick=about["is_quick"])
        needed, spent_s = levels, about.get("spent_s", 0.0)
        while not self.is_stopped and not self._is_over:
            blocks = blocks_of(self.bundle)
            if is_look(blocks):
                needed = self._look_at(levels).levels
            order = random.Random(f"{about['seed']} {blocks}")
            cells = cells_of(self.study, needed)
            runs = block(cells, blocks, order, has_sides="against" in about)
            is_over = spent_s + self._elapsed_s + sum(map(self._needed_s, runs)) > about["budget_s"]
            if not runs or blocks >= LOOKS[-1] or is_over:
                break
            about["plan"] += runs
            self.bundle.write_about()
            self.run_what_waits()
        last = self.look
        about["spent_s"] = spent_s + self._elapsed_s
        if self.is_stopped and last is None:
            # Not one block is whole: there is nothing to look at.
            about["more_s"] = None
            self.bundle.write_about()
            return
        if last is None or last.blocks != blocks_of(self.bundle):
            last = self._look_at(levels)
            about["spent_s"] = spent_s + self._elapsed_s
        # What would do, if the intervals go on to narrow.
        block_s = sum(map(self._needed_s, cells_of(self.study, last.levels)))
        about["more_s"] = last.more_blocks * block_s if last.open else None
        self.bundle.write_about()

    def _look_at(self, levels: list[Level]) -> Look:
        self.look = look(self.bundle, self.study, levels)
        self.progress(Progress(number_done(self.bundle), len(self.bundle.about["plan"]), "", 0.0, self.look))
        return self.look

    @property
    def _is_over(self) -> bool:
        budget_s = self.bundle.about.get("budget_s")
        return budget_s is not None and self.bundle.about.get("spent_s", 0.0) + self._elapsed_s > budget_s

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self.began_s


def _session(bundle: Bundle) -> int:
    """Return the number of the session whose runs follow; note it in the bundle.

    What is measured hours later, after a boot or by another build has another state of the machine: only runs of one
    session are compared with each other.
    """
    facts = environment()
    now = {name: facts.get(name) for name in SESSION_FACTS} | {"boot": _boot()}
    sessions = bundle.about.setdefault("sessions", [])
    is_same = sessions and all(sessions[-1].get(name) == value for name, value in now.items())
    if not is_same or time.time() - bundle.last_end_s() > SESSION_PAUSE_S:
        sessions.append({"began": _now(), **now})
        bundle.write_about()
    return len(sessions) - 1


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def number_done(bundle: Bundle) -> int:
    """Return how many runs of a bundle are finished."""
    return sum(bundle.has_run(number) for number in range(len(bundle.about["plan"])))


def describe(planned: dict[str, Any]) -> str:
    """Return the level of a planned run in words."""
    words = [f"{name} {value}" for name, value in planned["level"].items()]
    if "states" in planned:
        words.append(f"and {len(planned['states']) - 1} other states")
    return ", ".join([*words, *filter(None, (planned["control"], planned.get("side")))])


def _measure(
    bundle: Bundle, study: Study, site: Site, number: int, session: int, stopping: Stopping | None
) -> str | None:
    """Measure one run; return why it failed, or None."""
    planned, is_quick = bundle.about["plan"][number], bundle.about["is_quick"]
    if planned.get("side") == BEFORE:
        study = before_of(study, bundle.about["against"], bundle.directory)
    setting = study.setting(planned["level"], study.quick_duration_s if is_quick else study.duration_s)
    with bundle.new_run(number) as (directory, record):
        earlier = bundle.failures(number)
        record.update(run=number, began=_now(), session=session, load=os.getloadavg()[0])
        record.update(status="done", failure=None, earlier_failures=earlier, **planned)
        try:
            if "states" in planned:
                order = f"{bundle.about['seed']} {number}"
                measured = stretches.measure(site, study, planned["states"], directory, seed=order, stopping=stopping)
                record.update(measured)
                for stretch in record["stretches"]:
                    stretch["ledgers"] = _ledgers(stretch, directory)
                record["ledgers"] = _sums([stretch["ledgers"] for stretch in record["stretches"]])
            else:
                record.update(cycle.measure(site, setting, directory, planned["control"]))
                _check_workloads(record, directory)
                record["ledgers"] = _ledgers(record, directory)
        except ParshallError as error:
            record.update(status="failed", failure=str(error))
            record.setdefault("programs", {})
    failure: str | None = record["failure"]
    return failure


def _check_workloads(record: dict[str, Any], directory: Path) -> None:
    """Raise if a workload says in its result that it failed: iperf3 does so, and ends with status 0."""
    from parshall.lab.run import Run

    run = Run(directory, record)
    for name, outcome in record["programs"].items():
        result = run.result(name) if outcome["role"] == WORKLOAD and outcome["is_json"] else None
        if isinstance(result, dict) and result.get("error"):
            raise ParshallError(f"{name}: {result['error']}")


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


def _sums(ledgers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of the ledgers of all stretches; the cost is that of the last."""
    found: dict[str, Any] = {}
    for name, ledger in (item for each in ledgers for item in each.items()):
        if name not in found:
            found[name] = dict(ledger)
            continue
        for key in ("seen", "filtered", "thinned", "logged", "lost"):
            found[name][key] += ledger[key]
        found[name] |= {"balances": found[name]["balances"] and ledger["balances"], "cost": ledger["cost"]}
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
