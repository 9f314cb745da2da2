"""Runs in stretches: instruments change while the workload runs, and each stretch is compared with its neighbours.

From run to run, a machine often changes more than the effect that is measured. It changes less between neighbouring
stretches of one workload. So the first level, the base, stands between any two others: base, A, base, B, base. A is
compared with the mean of the base before and after it.
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

# Maximum wait until the workload sends.
_TRAFFIC_S = 30.0
# The workload sends when so many packets have passed: handshakes and control connections have fewer.
_PACKETS = 1000
_POLL_S = 0.02
# Time between two stretches, in which programs end and start.
CHANGE_S = 1.2


class StoppedError(Exception):
    """A run was stopped before its end: it has no result."""


def duration_s(study: Study, states: Sequence[Level]) -> float:
    """Return the approximate duration of a run in stretches."""
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
    """Run a workload once, and change the state in each stretch. See `cycle.measure` for the other parameters.

    Parameters
    ----------
    study : Study
        The study. Between the states, its settings differ only in their instruments.
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
    # The run ends the workload, so the workload gets a duration that it never reaches.
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
        for number, (of_cycle, state) in enumerate(order):
            if stopping is not None and stopping.is_requested():
                raise StoppedError
            measured = _stretch(scene, settings[state], number, study)
            stretches.append({"level": states[state], "cycle": of_cycle, **measured})
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

    Each cycle has its own base at both ends. Two cycles that shared a base would share its noise, and their common
    interval would be too narrow.
    """
    order = []
    for number in range(cycles):
        order.append((number, 0))
        for state in shuffle.sample(range(1, states), states - 1):
            order += [(number, state), (number, 0)]
    return order


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
                f"the workload sent fewer than {_PACKETS} packets in {_TRAFFIC_S:g} s; with so little "
                "traffic, each level needs a run of its own: take the factors out of switched"
            )
        time.sleep(_POLL_S)


def _packets(scene: Scene) -> int:
    return sum(
        counts["rx_packets"]
        for name, agent in scene.agents.items()
        for counts in agent.counters(scene.places[name].interfaces).values()
    )


def _stretch(scene: Scene, setting: Setting, number: int, study: Study) -> dict[str, Any]:
    """Measure one stretch: start its instruments, wait, measure, and end the instruments."""
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
        programs[program.name] = outcome | {"cpu_s": seconds, "context_switches": None, "output": numbered.name}
    return {"programs": programs, "hosts": hosts, "workload_s": length_s}


def _numbered(program: Program, number: int) -> Program:
    """Return an instrument with its own name in this stretch, because it starts again in each."""
    # Not drained: packets that are unread at the end of the stretch do not count.
    return replace(program, name=f"{program.name}-{number}", is_drained=False)


def _end_at_any_status(scene: Scene, program: Program) -> dict[str, Any]:
    """Wait for the end of an interrupted program; its status may be any, and its output is not read."""
    agent = scene.agents[program.host]
    deadline_s = time.monotonic() + program.end_s
    while agent.is_running(program.name) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    status = agent.status(program.name)
    if status is None:
        raise ParshallError(f"{program.name}: did not end within {program.end_s:g} s of SIGINT")
    used = {"cpu_s": None, "context_switches": None}
    return {"host": program.host, "role": program.role, "status": status, "is_json": False, **used}


def stretches_of(run: Run) -> list[Run]:
    """Return each stretch of a run as a run of its own."""
    common = {name: value for name, value in run.record.items() if name != "stretches"}
    return [Run(run.directory, common | stretch) for stretch in run.record["stretches"]]


def beside_neighbours(
    stretches: Sequence[tuple[Level, int, float | None]], *, is_ratio: bool
) -> list[tuple[Level, int, float]]:
    """Return one value for each level and cycle, corrected by the neighbours of its stretch.

    Parameters
    ----------
    stretches : sequence of tuple
        Level, cycle and value of each stretch, in order of time. The base is the first, and before and after any other.
    is_ratio : bool
        Whether to compare values by their ratio, if all are positive; otherwise by their difference.

    Returns
    -------
    list of tuple
        Level, cycle and value. The value of the base is its mean in the cycle. The value of another level is this mean,
        plus the stretch's difference from the mean of its neighbours, or times its ratio to that mean. For ratios, the
        means are geometric, because the arithmetic mean of both neighbours is too high.
    """
    if is_ratio and any(value is not None and value <= 0 for _, _, value in stretches):
        is_ratio = False
    into, back = (math.log, math.exp) if is_ratio else (float, float)
    values = [None if value is None else into(value) for _, _, value in stretches]
    base = stretches[0][0]
    by_cycle: dict[int, list[float]] = {}
    steps: list[tuple[Level, int, float]] = []
    for number in range(1, len(stretches) - 1):
        level, of_cycle, _ = stretches[number]
        if level == base:
            continue
        left, value, right = values[number - 1 : number + 2]
        if left is None or value is None or right is None:
            continue
        by_cycle.setdefault(of_cycle, []).append((left + right) / 2)
        steps.append((level, of_cycle, value - (left + right) / 2))
    means = {of_cycle: sum(listed) / len(listed) for of_cycle, listed in by_cycle.items()}
    bases = [(base, of_cycle, back(mean)) for of_cycle, mean in means.items()]
    return bases + [(level, of_cycle, back(means[of_cycle] + step)) for level, of_cycle, step in steps]
