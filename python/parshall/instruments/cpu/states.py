"""The kernel's counters of CPU time, and the shares between two samples."""

from pathlib import Path

from parshall.errors import ParshallError

# In the order of /proc/stat; the first seven are those of cpusage on Linux. Guest time is
# part of user and nice there, so it is not counted again.
STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
IDLE = STATES.index("idle")

# Percent of the time for each state.
Usage = tuple[float, ...]


def read_ticks(path: Path = Path("/proc/stat")) -> dict[str, tuple[int, ...]]:
    """Return the clock ticks of each state, for ``cpu`` (all of them) and each ``cpuN``."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ParshallError(f"{path}: cannot be read: {error.strerror}; is /proc mounted?") from error
    ticks = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, *values = line.split()
        if not name.startswith("cpu"):
            break
        if len(values) < len(STATES) or not all(value.isdecimal() for value in values):
            raise ParshallError(f"{path}:{number}: {line!r}: expected cpu and {len(STATES)} numbers or more")
        ticks[name] = tuple(map(int, values[: len(STATES)]))
    if "cpu" not in ticks:
        raise ParshallError(f"{path}: no line for all CPUs; expected one that begins with cpu")
    return ticks


def usage_between(before: tuple[int, ...], after: tuple[int, ...]) -> Usage | None:
    """Return the percentages of the states between two samples; None when no tick passed.

    The kernel documents that the iowait counter may decrease; such a step counts as 0.
    """
    passed = [max(0, late - early) for early, late in zip(before, after, strict=True)]
    total = sum(passed)
    if total == 0:
        return None
    return tuple(100 * ticks / total for ticks in passed)
