"""Runs of stretches: instruments change while the workload runs, and each stretch is compared with its neighbours.

What a machine does changes from run to run by more than what is measured; from one stretch of a running workload to the
next it changes less. So the first level of a run, its base, stands between any two others: base, A, base, B, base. The
value of A is that beside both neighbours.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError
from parshall.host.stopping import Stopping
from parshall.lab import cycle
from parshall.lab.run import Run
from parshall.lab.sites import Scene, Site
from parshall.lab.study import INSTRUMENT, SERVER, WORKLOAD, Level, Program, Setting, Study

# A workload that has sent nothing after so long does not work.
_TRAFFIC_S = 30.0
# Handshakes and control connections have fewer.
_PACKETS = 1000
_POLL_S = 0.02
# What a stretch takes besides itself: programs start and end.
CHANGE_S = 1.2


class StoppedError(Exception):
    """A run was stopped before its end: it has no result."""


def duration_s(study: Study, states: Sequence[Level]) -> float:
    """Return about how long a run of stretches takes."""
    changes = study.cycles * (len(states) - 1)
    return (2 * changes + study.cycles) * (study.stretch_s + study.settle_s) + changes * CHANGE_S


def measure(
    site: Site,
    study: Study,
    states: Sequence[Level],
    directory: Path,
    *,
    seed: str = "",
    stopping: Stopping | None = None,
) -> dict[str, Any]:
    """Run a workload once, and change between states meanwhile; other parameters are those of `cycle.measure`.

    Parameters
    ----------
    study : Study
        Whose settings differ between the states in their instruments only.
    states : sequence of dict
        The levels; the first is the base.
    seed : str
        Seed of the order of the states.
    stopping : Stopping, optional
        When a stop is requested, the run ends without a result.

    Returns
    -------
    dict
        ``stretches``, ``programs``, ``hosts``, ``testbed``, ``workload_s``; see ``docs/formats/bundle.md``.

    Raises
    ------
    ParshallError
        A program failed, or a host is lost.
    StoppedError
        A stop was requested.
    """
    # The workload ends with the run.
    settings = [study.setting(state, 24 * 3600.0) for state in states]
    base = settings[0]
    order = _order(len(states), study.cycles, random.Random(seed))
    with site.scene(base, directory) as scene:
        for program in cycle.of(base.programs, SERVER):
            cycle.start(scene, program)
        before = cycle.Counts(scene)
        before.read()
        began_s = time.monotonic()
        for program in cycle.of(base.programs, WORKLOAD):
            cycle.launch(scene, program)
        _wait_for_traffic(scene, base)
        stretches = []
        for number, (turn, state) in enumerate(order):
            if stopping is not None and stopping.is_requested():
                raise StoppedError
            measured = _stretch(scene, settings[state], number, study)
            stretches.append({"level": states[state], "cycle": turn, **measured})
        workload_s = time.monotonic() - began_s
        hosts = before.hosts_until_now()
        ended = {}
        for program in [*cycle.of(base.programs, WORKLOAD), *cycle.of(base.programs, SERVER)]:
            scene.agents[program.host].interrupt(program.name)
            ended[program.name] = _end_at_any_status(scene, program)
        testbed = scene.describe()
        for program in [each for setting in settings for each in setting.programs]:
            scene.agents[program.host].remove(program.scratch)
    return {
        "stretches": stretches,
        "programs": ended,
        "hosts": hosts,
        "testbed": testbed,
        "workload_s": workload_s,
    }


def _order(states: int, cycles: int, shuffle: random.Random) -> list[tuple[int, int]]:
    """Return cycle and state of each stretch: the base (0) before and after any other.

    Each cycle has its own base at both ends. If two cycles shared one, their changes would have its noise in common,
    and an interval of both would be too narrow.
    """
    found = []
    for turn in range(cycles):
        found.append((turn, 0))
        for state in shuffle.sample(range(1, states), states - 1):
            found += [(turn, state), (turn, 0)]
    return found


def _wait_for_traffic(scene: Scene, base: Setting) -> None:
    """Wait until the workload sends."""
    deadline_s = time.monotonic() + _TRAFFIC_S
    before = _packets(scene)
    while _packets(scene) < before + _PACKETS:
        for program in cycle.of(base.programs, WORKLOAD):
            agent = scene.agents[program.host]
            if not agent.is_running(program.name):
                raise ParshallError(f"{program.name}: ended at once: {agent.last_line(program.name)}")
        if time.monotonic() > deadline_s:
            raise ParshallError(
                f"the workload sent fewer than {_PACKETS} packets in {_TRAFFIC_S:g} s; one that sends so little needs "
                "runs of its own: take the factors out of switched"
            )
        time.sleep(_POLL_S)


def _packets(scene: Scene) -> int:
    return sum(
        counts["rx_packets"]
        for name, agent in scene.agents.items()
        for counts in agent.counters(scene.places[name].interfaces).values()
    )


def _stretch(scene: Scene, setting: Setting, number: int, study: Study) -> dict[str, Any]:
    """Measure one stretch: its instruments start, it settles, is measured, and they end."""
    instruments = [_numbered(program, number) for program in cycle.of(setting.programs, INSTRUMENT)]
    for program in instruments:
        cycle.start(scene, program)
    time.sleep(study.settle_s)
    before = cycle.Counts(scene)
    used_s = [scene.agents[program.host].cpu_now_s(program.name) for program in instruments]
    before.read()
    began_s = time.monotonic()
    time.sleep(study.stretch_s)
    hosts = before.hosts_until_now()
    length_s = time.monotonic() - began_s
    used_s = [
        scene.agents[program.host].cpu_now_s(program.name) - already_s
        for program, already_s in zip(instruments, used_s, strict=True)
    ]
    for program in cycle.of(setting.programs, WORKLOAD):
        agent = scene.agents[program.host]
        if not agent.is_running(program.name):
            raise ParshallError(
                f"{program.name}: ended during the run with status {agent.status(program.name)}: "
                f"{agent.last_line(program.name)}"
            )
    programs = {}
    for program, numbered, seconds in zip(cycle.of(setting.programs, INSTRUMENT), instruments, used_s, strict=True):
        outcome = cycle.end(scene, numbered)
        programs[program.name] = outcome | {"cpu_s": seconds, "output": numbered.name}
    return {"programs": programs, "hosts": hosts, "workload_s": length_s}


def _numbered(program: Program, number: int) -> Program:
    """Return an instrument under a name of its own: it starts anew in each stretch."""
    # What has not been read when the stretch ends is not of it.
    return replace(program, name=f"{program.name}-{number}", is_drained=False)


def _end_at_any_status(scene: Scene, program: Program) -> dict[str, Any]:
    """End a program that would have gone on; its status says nothing, and its output is not read."""
    agent = scene.agents[program.host]
    deadline_s = time.monotonic() + program.end_s
    while agent.is_running(program.name) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    status = agent.status(program.name)
    if status is None:
        raise ParshallError(f"{program.name}: did not end within {program.end_s:g} s of SIGINT")
    return {"host": program.host, "role": program.role, "status": status, "is_json": False, "cpu_s": None}


def stretches_of(run: Run) -> list[Run]:
    """Return each stretch of a run as a run of its own."""
    common = {name: value for name, value in run.record.items() if name != "stretches"}
    return [Run(run.directory, common | stretch) for stretch in run.record["stretches"]]


def beside_neighbours(
    stretches: Sequence[tuple[Level, int, float | None]], *, is_ratio: bool
) -> list[tuple[Level, int, float]]:
    """Return one value for each level and cycle, as it is beside its neighbours.

    Parameters
    ----------
    stretches : sequence of tuple
        Level, cycle and value of each, in their order: the base is the first, and before and after any other.
    is_ratio : bool
        Whether values are compared by ratio, all being positive then.

    Returns
    -------
    list of tuple
        Level, cycle and value. The base has its mean in the cycle, any other that mean, changed as the stretch was
        beside its neighbours; geometric means of ratios: the arithmetic one of both neighbours is biased (its mean is
        above what lies between them).
    """
    if is_ratio and any(value is not None and value <= 0 for _, _, value in stretches):
        is_ratio = False
    into, back = (math.log, math.exp) if is_ratio else (float, float)
    values = [None if value is None else into(value) for _, _, value in stretches]
    base = stretches[0][0]
    by_cycle: dict[int, list[float]] = {}
    steps: list[tuple[Level, int, float]] = []
    for number in range(1, len(stretches) - 1):
        level, turn, _ = stretches[number]
        if level == base:
            continue
        left, value, right = values[number - 1 : number + 2]
        if left is None or value is None or right is None:
            continue
        by_cycle.setdefault(turn, []).append((left + right) / 2)
        steps.append((level, turn, value - (left + right) / 2))
    means = {turn: sum(listed) / len(listed) for turn, listed in by_cycle.items()}
    found = [(base, turn, back(mean)) for turn, mean in means.items()]
    return found + [(level, turn, back(means[turn] + step)) for level, turn, step in steps]
