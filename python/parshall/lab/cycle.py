"""The measurement cycle: one run of a setting.

After F. Schneider, "Performance evaluation of packet capturing systems for high-speed networks", 2005, section 3.4:
start the instruments and wait until they are ready, read the counters of the link, generate, read them again, stop
the instruments, collect.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError
from parshall.host.stopping import Stopping
from parshall.instruments.cpu import usage_between
from parshall.lab import programs
from parshall.lab.agent import POLL_INTERVAL_S, filled
from parshall.lab.sites import Scene, Site
from parshall.lab.study import (
    INSTRUMENT,
    NO_INSTRUMENTS,
    NO_TRAFFIC,
    SERVER,
    START_S,
    WORKLOAD,
    Program,
    Setting,
)

# What a run does next; `measure` reports it.
START, TRAFFIC, END = "start", "traffic", "end"
# A program that uses no CPU time for so long has read everything: the kernel hands tcpdump a block that is not full
# after 1 s.
IDLE_S = 1.3


def measure(
    site: Site,
    setting: Setting,
    directory: Path,
    control: str = "",
    *,
    progress: Callable[[str, Scene], None] = lambda step, scene: None,
    stopping: Stopping | None = None,
) -> dict[str, Any]:
    """Run a setting once.

    Parameters
    ----------
    site : Site
        Where it runs.
    setting : Setting
        Hosts, links and programs.
    directory : pathlib.Path
        Directory of the outputs and files.
    control : {"", "no traffic", "no instruments"}
        What to leave out.
    progress : callable
        Called with "start", "traffic" and "end" before instruments start, traffic starts and instruments end.
    stopping : Stopping, optional
        When a stop is requested, the workload is terminated, and the run ends early.

    Returns
    -------
    dict
        ``programs``, ``hosts``, ``testbed``, ``workload_s``; see ``docs/formats/bundle.md``.

    Raises
    ------
    ParshallError
        A program failed, or a host is lost.
    """
    chosen = _chosen(setting, control)
    with site.scene(setting, directory) as scene:
        before = Counts(scene)
        progress(START, scene)
        for role in (INSTRUMENT, SERVER):
            for program in of(chosen, role):
                start(scene, program)
        before.read()
        progress(TRAFFIC, scene)
        began_s = time.monotonic()
        for program in of(chosen, WORKLOAD):
            launch(scene, program)
        _wait_for_workload(scene, chosen, stopping)
        workload_s = time.monotonic() - began_s
        hosts = before.hosts_until_now()
        # Servers first: an instrument sees the end of what they receive.
        ended = {program.name: end(scene, program) for role in (WORKLOAD, SERVER) for program in of(chosen, role)}
        progress(END, scene)
        ended |= {program.name: end(scene, program) for program in of(chosen, INSTRUMENT)}
        outcomes = {program.name: ended[program.name] for program in chosen}
        testbed = scene.describe()
        for program in chosen:
            scene.agents[program.host].remove(program.scratch)
    return {"programs": outcomes, "hosts": hosts, "testbed": testbed, "workload_s": workload_s}


def _chosen(setting: Setting, control: str) -> list[Program]:
    if control == NO_INSTRUMENTS:
        return [program for program in setting.programs if program.role != INSTRUMENT]
    if control == NO_TRAFFIC:
        instruments = list(of(setting.programs, INSTRUMENT))
        return [*instruments, programs.pause(setting.hosts[0].name, setting.duration_s)]
    return list(setting.programs)


def of(chosen: Iterable[Program], role: str) -> list[Program]:
    """Return the programs of a role."""
    return [program for program in chosen if program.role == role]


def launch(scene: Scene, program: Program) -> None:
    """Start a program, with the names in its command replaced."""
    agent = scene.agents[program.host]
    places = {**scene.places, "directory": agent.directory(), "ring": scene.ring}
    cpu = program.cpu
    agent.start(program.name, filled(program.command, places), cpu)


def start(scene: Scene, program: Program) -> None:
    """Start an instrument or a server, and wait until it is ready."""
    launch(scene, program)
    agent = scene.agents[program.host]
    deadline_s = time.monotonic() + START_S
    while not agent.is_ready(program.name, program.ready):
        if time.monotonic() > deadline_s:
            raise ParshallError(
                f"{program.name}: not ready after {START_S:g} s: no line matches {program.ready!r}"
                if not program.ready.startswith("tcp:")
                else f"{program.name}: does not listen on {program.ready} after {START_S:g} s"
            )
        time.sleep(POLL_INTERVAL_S)


def _wait_for_workload(scene: Scene, chosen: list[Program], stopping: Stopping | None) -> None:
    """Wait until the workload has ended; an instrument that ends before fails the run."""
    began_s = time.monotonic()
    is_stopped = False
    running = of(chosen, WORKLOAD)
    watched = of(chosen, INSTRUMENT)
    while running:
        running = [program for program in running if scene.agents[program.host].is_running(program.name)]
        for program in watched:
            agent = scene.agents[program.host]
            if not agent.is_running(program.name):
                raise ParshallError(
                    f"{program.name}: ended during the workload with status {agent.status(program.name)}: "
                    f"{agent.last_line(program.name)}"
                )
        for program in running:
            if time.monotonic() - began_s > program.end_s:
                raise ParshallError(f"{program.name}: did not end within {program.end_s:g} s")
        if running and stopping is not None and stopping.is_requested() and not is_stopped:
            is_stopped = True
            for program in running:
                scene.agents[program.host].terminate(program.name)
        if running:
            time.sleep(POLL_INTERVAL_S)


def end(scene: Scene, program: Program) -> dict[str, Any]:
    """End a program, and return its exit status."""
    agent = scene.agents[program.host]
    if program.is_drained:
        _drain(agent, program)
    if program.role != WORKLOAD:
        agent.interrupt(program.name)
    deadline_s = time.monotonic() + program.end_s
    while agent.is_running(program.name):
        if time.monotonic() > deadline_s:
            raise ParshallError(f"{program.name}: did not end within {program.end_s:g} s of SIGINT")
        time.sleep(POLL_INTERVAL_S)
    status = agent.status(program.name)
    if status not in program.statuses:
        raise ParshallError(f"{program.name}: ended with status {status}: {agent.last_line(program.name)}")
    return {
        "host": program.host,
        "role": program.role,
        "status": status,
        "is_json": program.is_json,
        "cpu_s": agent.cpu_s(program.name),
        "context_switches": agent.context_switches(program.name),
    }


def _drain(agent: Any, program: Program) -> None:
    """Wait until a program has used no CPU time for a while."""
    deadline_s = time.monotonic() + program.end_s
    ticks, since_s = -1, 0.0
    while (now_s := time.monotonic()) < deadline_s:
        used = agent.cpu_ticks(program.name)
        if used != ticks:
            ticks, since_s = used, now_s
        elif now_s - since_s > IDLE_S:
            return
        time.sleep(POLL_INTERVAL_S)


class Counts:
    """Counters of interfaces and CPUs over the workload."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._before: dict[str, tuple[Any, Any]] = {}

    def read(self) -> None:
        """Read the counters at the beginning."""
        self._before = self._now()

    def _now(self) -> dict[str, tuple[Any, Any]]:
        return {
            name: (agent.counters(self._scene.places[name].interfaces), agent.ticks())
            for name, agent in self._scene.agents.items()
        }

    def hosts_until_now(self) -> dict[str, Any]:
        """Return what each host counted since they were read."""
        hosts = {}
        for name, (counters, ticks) in self._now().items():
            counters_before, ticks_before = self._before[name]
            hosts[name] = {
                "counters": {
                    interface: {key: counts[key] - counters_before[interface][key] for key in counts}
                    for interface, counts in counters.items()
                },
                "cpu": {cpu: usage_between(ticks_before[cpu], ticks[cpu]) for cpu in ticks if cpu in ticks_before},
            }
        return hosts
