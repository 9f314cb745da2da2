"""The time of eBPF programs; /proc/stat counts it in the state that they interrupt."""

from collections.abc import Iterable
from dataclasses import dataclass, field

HookReading = tuple[int, str, int, int]


@dataclass(frozen=True)
class HookTime:
    """The runs of one program during a profile.

    Attributes
    ----------
    number : int
        The kernel's ID of the program.
    name : str
        Its name.
    runs : int
        Number of runs.
    run_ns : int
        Total run time, ns.
    share : float
        Percent of the time of one CPU.
    """

    number: int
    name: str
    runs: int
    run_ns: int
    share: float

    @property
    def ns_per_run(self) -> float:
        """Mean duration of a run, ns."""
        return self.run_ns / self.runs if self.runs else 0.0


@dataclass
class HookProfile:
    """Collects readings of the kernel's run-time statistics.

    A program that is unloaded counts with its last reading.
    """

    _first: dict[int, HookReading] = field(default_factory=dict)
    _last: dict[int, HookReading] = field(default_factory=dict)
    _is_started: bool = False

    def add(self, readings: Iterable[HookReading]) -> None:
        """Add a reading of ``parshall._native.HookTimes``: ID, name, runs and ns of each program."""
        latest = {reading[0]: reading for reading in readings}
        if not self._is_started:
            self._first, self._is_started = latest, True
        self._last |= latest

    def times(self, elapsed_s: float) -> list[HookTime]:
        """Return the programs that ran in the `elapsed_s` seconds from first to last reading, longest time first."""
        found = []
        for number, (_, name, runs, run_ns) in self._last.items():
            _, _, runs_before, run_ns_before = self._first.get(number, (number, name, 0, 0))
            if runs > runs_before:
                spent_ns = run_ns - run_ns_before
                found.append(HookTime(number, name, runs - runs_before, spent_ns, spent_ns / elapsed_s / 1e7))
        return sorted(found, key=lambda hook: hook.run_ns, reverse=True)


def hook_line(hook: HookTime) -> str:
    """Return a program's time as a line of text."""
    return (
        f"hook {hook.name or 'without a name'} (program {hook.number}): {hook.runs:,} runs of "
        f"{hook.ns_per_run:,.0f} ns, {hook.share:.1f} % of a CPU"
    )
