"""Starts, watches and ends programs on one host: in this process, or as an actor on a Dask worker."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError
from parshall.host import programs
from parshall.host.environment import environment
from parshall.host.temporary import TemporaryDirectory
from parshall.instruments.cpu import read_ticks

POLL_INTERVAL_S = 0.005
# Ready when the program listens on a TCP port.
_PORT = "tcp:"
_LISTEN = "0A"
Popen = Callable[..., "subprocess.Popen[Any]"]


def _popen(command: Sequence[str], *, cpu: int | None = None, **options: Any) -> programs.Program:
    """Start a program in this process's own namespace, on a CPU."""

    def start() -> programs.Program:
        before = os.sched_getaffinity(0)
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        try:
            return programs.start(command, **options)
        finally:
            os.sched_setaffinity(0, before)

    try:
        return programs.in_starter(start)
    except OSError as error:
        raise ParshallError(f"{command[0]}: cannot be started: {error.strerror}") from error


class Agent:
    """Runs programs on one host.

    Parameters
    ----------
    popen : callable, optional
        Starts a program, as `parshall.testbed.Host.popen`. Default: on this machine.
    directory : pathlib.Path, optional
        Directory of outputs and files. Default: a temporary one.
    """

    def __init__(self, popen: Popen = _popen, directory: Path | None = None) -> None:
        self._popen = popen
        self._temporary = None
        if directory is None:
            self._temporary = TemporaryDirectory("lab")
            directory = self._temporary.path
        self._directory = directory
        self._programs: dict[str, subprocess.Popen[Any]] = {}

    def directory(self) -> str:
        """Return the directory in which programs may write files."""
        return str(self._directory)

    def cpu(self, number: int | None) -> int | None:
        """Return the CPU for the number of a study; a machine with fewer CPUs uses its last one."""
        if number is None:
            return None
        cpus = sorted(os.sched_getaffinity(0))
        return cpus[max(-len(cpus), min(number, len(cpus) - 1))]

    def cpus(self) -> int:
        """Return the number of CPUs that programs may use."""
        return len(os.sched_getaffinity(0))

    def start(self, name: str, command: Sequence[str], cpu: int | None) -> None:
        """Start a program; its outputs go to ``NAME.out`` and ``NAME.err``."""
        with (self._directory / f"{name}.out").open("wb") as out, (self._directory / f"{name}.err").open("wb") as err:
            # In a process group of its own: Ctrl-C in a terminal is for the laboratory, which ends its programs.
            self._programs[name] = self._popen(
                [*command], cpu=self.cpu(cpu), stdout=out, stderr=err, stdin=subprocess.DEVNULL, process_group=0
            )

    def is_ready(self, name: str, ready: str) -> bool:
        """Whether a program is ready.

        Raises
        ------
        ParshallError
            It has ended.
        """
        is_ready = self._listens(name, int(ready[len(_PORT) :])) if ready.startswith(_PORT) else self._says(name, ready)
        if not is_ready and not self.is_running(name):
            raise ParshallError(f"{name}: ended with status {self._programs[name].returncode}: {self.last_line(name)}")
        return is_ready

    def _says(self, name: str, ready: str) -> bool:
        text = (self._directory / f"{name}.err").read_text(errors="replace")
        return not ready or re.search(ready, text, re.MULTILINE) is not None

    def _listens(self, name: str, port: int) -> bool:
        process = Path(f"/proc/{self._programs[name].pid}/net")
        try:
            tables = [process / table for table in ("tcp", "tcp6")]
            lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()]
        except OSError:
            return False
        return any(line[3] == _LISTEN and int(line[1].rpartition(":")[2], 16) == port for line in lines[1:])

    def is_running(self, name: str) -> bool:
        """Whether a program still runs."""
        return self._programs[name].poll() is None

    def cpu_s(self, name: str) -> float | None:
        """Return the CPU time of a program that has ended, with that of its children, seconds."""
        program = self._programs[name]
        return program.cpu_s if isinstance(program, programs.Program) else None

    def context_switches(self, name: str) -> int | None:
        """Return how often a program that has ended, and its children, gave up a CPU or lost it."""
        program = self._programs[name]
        return program.context_switches if isinstance(program, programs.Program) else None

    def cpu_now_s(self, name: str) -> float:
        """Return the CPU time of a program so far, of its threads that live, seconds; 0 when it has ended."""
        directory = Path(f"/proc/{self._programs[name].pid}/task")
        try:
            texts = [(task / "schedstat").read_text() for task in directory.iterdir()]
        except OSError:
            return 0.0
        return sum(int(text.split()[0]) for text in texts) / 1e9

    def cpu_ticks(self, name: str) -> int:
        """Return the CPU time of a program so far, in clock ticks."""
        try:
            fields = Path(f"/proc/{self._programs[name].pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0
        return int(fields[11]) + int(fields[12])

    def interrupt(self, name: str) -> None:
        """Ask a program to end, by SIGINT."""
        if self.is_running(name):
            self._programs[name].send_signal(signal.SIGINT)

    def terminate(self, name: str) -> None:
        """Ask a program to end, by SIGTERM."""
        if self.is_running(name):
            self._programs[name].terminate()

    def status(self, name: str) -> int | None:
        """Return the exit status of a program; None while it runs."""
        return self._programs[name].poll()

    def last_line(self, name: str) -> str:
        """Return the last line of a program's standard error."""
        lines = (self._directory / f"{name}.err").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"

    def output(self, name: str) -> str:
        """Return the standard output of a program."""
        return (self._directory / f"{name}.out").read_text(errors="replace")

    def remove(self, names: Sequence[str]) -> None:
        """Remove files of the directory."""
        for name in names:
            (self._directory / name).unlink(missing_ok=True)

    def files(self) -> dict[str, bytes]:
        """Return all outputs and files, by name; only of a temporary directory."""
        if self._temporary is None:
            return {}
        return {path.name: path.read_bytes() for path in sorted(self._directory.iterdir()) if path.is_file()}

    def counters(self, interfaces: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return packets, bytes, errors and drops of interfaces, both directions."""
        command = ["ip", "-json", "-statistics", "link", "show"]
        shown = self._popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        links = json.loads(shown.communicate()[0] or b"[]")
        found = {link["ifname"]: link["stats64"] for link in links}
        names = ("packets", "bytes", "errors", "dropped")
        return {
            interface: {f"{way}_{name}": found[interface][way][name] for way in ("rx", "tx") for name in names}
            for interface in interfaces
            if interface in found
        }

    def ticks(self) -> dict[str, tuple[int, ...]]:
        """Return the clock ticks of each state of the CPUs; see `parshall.instruments.cpu.read_ticks`."""
        return read_ticks()

    def clock_ns(self) -> int:
        """Return this host's CLOCK_REALTIME."""
        return time.time_ns()

    def environment(self) -> dict[str, Any]:
        """Return the environment of this host."""
        return environment()

    def close(self) -> None:
        """Kill programs that still run, and remove a temporary directory."""
        for program in self._programs.values():
            if program.poll() is None:
                program.kill()
                program.wait()
        if self._temporary is not None:
            self._temporary.remove()


def filled(command: Sequence[str], places: Mapping[str, Any]) -> list[str]:
    """Return a command with its names of addresses, interfaces and directories replaced.

    Raises
    ------
    ParshallError
        A name is unknown.
    """
    try:
        return [str(word).format_map(places) for word in command]
    except (KeyError, AttributeError, IndexError, ValueError) as error:
        raise ParshallError(
            f"{' '.join(map(str, command))}: {error}: no such name; expected {{HOST.address}}, {{HOST.interface}} or "
            "{directory}, and {{ }} for braces"
        ) from None
