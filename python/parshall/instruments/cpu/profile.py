"""The CPU time of a run by state, and the stretch in which the machine was busy."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from parshall.instruments.cpu.states import IDLE, Usage, usage_between


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


class LongestStretch:
    """The longest run of lines whose idle share is below a limit; of equal ones, the first. It keeps no lines.

    Parameters
    ----------
    limit : float
        Percent. (``trimusage.awk`` misses stretches of a single line.)

    Attributes
    ----------
    summary : Summary or None
        Its summary so far; None while no line qualifies.
    """

    def __init__(self, limit: float) -> None:
        self.summary: Summary | None = None
        self._limit = limit
        self._lines = self._intervals = 0
        self._minimum: Usage = ()
        self._maximum: Usage = ()
        self._sum: Usage = ()
        self._weight = self._longest = 0.0

    def add(self, line: Usage, length_s: float = 1.0) -> None:
        """Add the next line of the profile.

        Parameters
        ----------
        line : tuple of float
            Percent.
        length_s : float
            How long its interval was, seconds: the last one is as short as its end came. Its shares count for as long
            in the average, and as a minimum or maximum only if it was at least half as long as the longest.
        """
        self._lines += 1
        self._longest = max(self._longest, length_s)
        if line[IDLE] >= self._limit:
            self._intervals = 0
            return
        if self._intervals == 0:
            self._minimum = self._maximum = line
            self._sum, self._weight = (0.0,) * len(line), 0.0
        self._intervals += 1
        if 2 * length_s >= self._longest:
            self._minimum = tuple(map(min, self._minimum, line))
            self._maximum = tuple(map(max, self._maximum, line))
        self._sum = tuple(before + length_s * share for before, share in zip(self._sum, line, strict=True))
        self._weight += length_s
        if self.summary is None or self._intervals > self.summary.intervals:
            average = tuple(share / self._weight for share in self._sum)
            first = self._lines - self._intervals
            self.summary = Summary(first, self._intervals, self._minimum, self._maximum, average)


def summarise(lines: Iterable[Usage], limit: float) -> Summary | None:
    """Return the summary of the longest stretch of lines whose idle share is below a limit; None without one."""
    stretch = LongestStretch(limit)
    for line in lines:
        stretch.add(line)
    return stretch.summary


@dataclass
class Profile:
    """Collects samples of the CPU time.

    Attributes
    ----------
    is_kept : bool
        Whether to keep all lines; otherwise `lines` and `per_cpu` have the last one only.
    lines : list of tuple of float
        Percent of all CPUs together, one tuple for each interval.
    per_cpu : dict of str to list
        The same for each CPU; None for intervals without a tick or with the CPU offline.
    """

    is_kept: bool = True
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
        if not self.is_kept:
            self.lines.clear()
            self.per_cpu.clear()
        names = [name for name in ticks if name != "cpu"]
        for name in {*names, *self.per_cpu}:
            history = self.per_cpu.setdefault(name, [None] * len(self.lines))
            both = name in before and name in ticks
            history.append(usage_between(before[name], ticks[name]) if both else None)
        self.lines.append(line)
        return line
