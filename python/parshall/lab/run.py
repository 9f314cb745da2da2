"""One run: what its programs printed, what links and CPUs counted; measures are functions of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError
from parshall.instruments.cpu import STATES
from parshall.lab.study import Level

RECORD = "run.json"
_PARTS = {"seen", "filtered", "thinned", "logged", "lost"}


class AbsentError(ParshallError):
    """A program did not run in this run."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    directory : pathlib.Path
        Its directory, with the outputs of its programs (``NAME.out``, ``NAME.err``) and their files.
    record : dict
        What is in ``run.json``; see ``docs/formats/bundle.md``.
    """

    directory: Path
    record: dict[str, Any]

    @property
    def level(self) -> Level:
        """The value of each factor."""
        level: Level = self.record["level"]
        return level

    @property
    def levels(self) -> list[Level]:
        """The level; of a run of stretches, that of each state."""
        return list(
            {repr(each["level"]): each["level"] for each in self.record.get("stretches", [self.record])}.values()
        )

    @property
    def control(self) -> str:
        """Which control run this is: "no traffic", "no instruments"; "" for a run of the study itself."""
        return str(self.record["control"])

    @property
    def wall_s(self) -> float:
        """Seconds from the start of the workload to its end."""
        return float(self.record["workload_s"])

    def text(self, program: str) -> str:
        """Return the standard output of a program.

        Raises
        ------
        AbsentError
            It did not run, as instruments in a run without them.
        """
        if program not in self.record["programs"]:
            raise AbsentError(f"{program}: did not run")
        return self._file(program, "out").read_text(errors="replace")

    def errors(self, program: str) -> str:
        """Return the standard error of a program."""
        self.text(program)
        return self._file(program, "err").read_text(errors="replace")

    def _file(self, program: str, suffix: str) -> Path:
        # In a run of stretches an instrument starts several times.
        output = self.record["programs"][program].get("output", program)
        return self.directory / f"{output}.{suffix}"

    def result(self, program: str) -> Any:
        """Return the JSON that a program printed."""
        return self._results[program] if program in self._results else self._parsed(program)

    @cached_property
    def _results(self) -> dict[str, Any]:
        return {}

    def _parsed(self, program: str) -> Any:
        text = self.text(program)
        try:
            self._results[program] = json.loads(text)
        except json.JSONDecodeError as error:
            raise ParshallError(f"{program}: its output is not JSON: {error}") from None
        return self._results[program]

    def ledger(self, program: str) -> dict[str, Any]:
        """Return what an instrument counted: ``seen``, ``filtered``, ``thinned``, ``logged``, ``lost``."""
        self.text(program)
        ledger: dict[str, Any] = self.record["ledgers"][program]
        return ledger

    def sent(self, host: str, interface: int = 0, what: str = "packets") -> int:
        """Return the packets that an interface of a host sent during the workload, after its own counters."""
        return self._counted(host, interface, f"tx_{what}")

    def received(self, host: str, interface: int = 0, what: str = "packets") -> int:
        """Return the packets that an interface of a host received during the workload."""
        return self._counted(host, interface, f"rx_{what}")

    def _counted(self, host: str, interface: int, name: str) -> int:
        counters = self.record["hosts"][host]["counters"]
        return int(list(counters.values())[interface][name])

    def cost_s(self, program: str) -> float:
        """Return the CPU time of a program and of its hooks, seconds.

        Both are measured by themselves: the process by the kernel's account of it, each hook by the mean time of its
        program, times the packets that it saw. So neither has the noise of `cpu_percent`, which is of the whole
        machine.
        """
        self.text(program)
        outcome = self.record["programs"][program]
        if outcome.get("cpu_s") is None:
            raise AbsentError(f"{program}: its CPU time was not measured")
        ledger = (self.result(program) if outcome["is_json"] else {}).get("ledger") or {}
        mean_ns = {each["program"]: each["ns_per_run"] for each in (ledger.get("cost") or {}).get("programs", [])}
        hooks_ns = sum(hook["seen"] * mean_ns.get(hook["hook"], 0.0) for hook in ledger.get("hooks", []))
        # Of a stretch, its part: the ledger is of all the time that the hooks were attached.
        share = self.wall_s / ledger["cost"]["wall_s"] if "output" in outcome and hooks_ns else 1.0
        return float(outcome["cpu_s"] + share * hooks_ns / 1e9)

    def context_switches(self, program: str) -> int:
        """Return how often a program and its children gave up a CPU or lost it, from their start to their end."""
        self.text(program)
        found = self.record["programs"][program].get("context_switches")
        if found is None:
            raise AbsentError(f"{program}: its context switches were not counted")
        return int(found)

    def cpu_percent(self, host: str = "", cpu: int | None = None) -> float | None:
        """Return how busy the CPUs were during the workload: 100 % less idle and waiting for disks.

        Parameters
        ----------
        host : str
            A host. Default: the first. Hosts of one testbed share the CPUs of the machine.
        cpu : int, optional
            One CPU: 0 is the first, -1 the last. Default: all together, 100 % being all busy.
        """
        hosts = self.record["hosts"]
        usages = hosts[host or next(iter(hosts))]["cpu"]
        names = sorted((name for name in usages if name != "cpu"), key=lambda name: int(name[3:]))
        usage = usages.get("cpu" if cpu is None else names[cpu])
        if usage is None:
            return None
        by_state = dict(zip(STATES, usage, strict=True))
        return float(100.0 - by_state["idle"] - by_state["iowait"])


def accounts(ledger: Any) -> Iterator[dict[str, Any]]:
    """Yield every account of a ledger: what was seen, filtered, thinned, logged and lost."""
    if isinstance(ledger, dict):
        if ledger.keys() >= _PARTS:
            yield ledger
        for part in ledger.values():
            yield from accounts(part)
    elif isinstance(ledger, list):
        for part in ledger:
            yield from accounts(part)


def lost(account: dict[str, Any]) -> int:
    """Return what an account lost, for all causes."""
    return sum(account["lost"].values())


def balances(ledger: Any) -> bool:
    """Whether every account of a ledger balances: seen = filtered + thinned + logged + lost."""
    return all(
        account["seen"] == account["filtered"] + account["thinned"] + account["logged"] + lost(account)
        for account in accounts(ledger)
    )
