"""The CPU time of a run by state, and the stretch in which the machine was busy."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from parshall.cpu.states import IDLE, Usage, usage_between


@dataclass(frozen=True)
class Summary:
    """Smallest, largest and mean share of each state over some intervals.

    Attributes
    ----------
    first, intervals : int
        Index of the first interval in the profile, and number of intervals.
    minimum, maximum, average : tuple of float
        Percent for each state.
    """

    first: int
    intervals: int
    minimum: Usage
    maximum: Usage
    average: Usage


def longest_stretch(lines: Sequence[Usage], limit: float) -> range:
    """Return the longest run of lines whose idle share is below `limit` percent; of equal ones, the first.

    It is empty if no line qualifies. (``trimusage.awk`` misses stretches of a single line.)
    """
    longest = range(0)
    begin = 0
    for end in range(len(lines) + 1):
        if end < len(lines) and lines[end][IDLE] < limit:
            continue
        if end - begin > len(longest):
            longest = range(begin, end)
        begin = end + 1
    return longest


def summarise(lines: Sequence[Usage], stretch: range) -> Summary | None:
    """Return the summary of a stretch of lines; None if it is empty."""
    if not stretch:
        return None
    states = list(zip(*(lines[index] for index in stretch), strict=True))
    return Summary(
        first=stretch.start,
        intervals=len(stretch),
        minimum=tuple(map(min, states)),
        maximum=tuple(map(max, states)),
        average=tuple(sum(state) / len(stretch) for state in states),
    )


@dataclass
class Profile:
    """Collects samples of the CPU time.

    Attributes
    ----------
    lines : list of tuple of float
        Percent of all CPUs together, one tuple for each interval.
    per_cpu : dict of str to list
        The same for each CPU; None for intervals without a tick or with the CPU offline.
    """

    lines: list[Usage] = field(default_factory=list)
    per_cpu: dict[str, list[Usage | None]] = field(default_factory=dict)
    _before: dict[str, tuple[int, ...]] | None = None

    def add(self, ticks: dict[str, tuple[int, ...]]) -> Usage | None:
        """Add a sample of `read_ticks`; return the new line, or None for the first sample."""
        before, self._before = self._before, ticks
        if before is None:
            return None
        line = usage_between(before["cpu"], ticks["cpu"])
        if line is None:
            # Too early: the next sample covers this interval, too.
            self._before = before
            return None
        names = [name for name in ticks if name != "cpu"]
        for name in {*names, *self.per_cpu}:
            history = self.per_cpu.setdefault(name, [None] * len(self.lines))
            both = name in before and name in ticks
            history.append(usage_between(before[name], ticks[name]) if both else None)
        self.lines.append(line)
        return line
