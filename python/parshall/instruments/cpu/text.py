"""The two formats of ``cpusage``: names and percentages, or numbers between colons."""

import re
from collections.abc import Iterator
from pathlib import Path

from parshall.errors import ParshallError, UsageError
from parshall.host.input_file import brief
from parshall.instruments.cpu.profile import summarise
from parshall.instruments.cpu.states import IDLE, STATES, Usage

# Lines other than those of all CPUs together: the summary, and what --per-cpu and --hooks add.
_OTHER = re.compile(r"---|^(Min|Max|Avg|cpu\d|hook)")
_NAMED = re.compile(r"[a-z]+:\s*(\d+(?:\.\d+)?)%")


def text_line(usage: Usage) -> str:
    """Return ``user: 35.2%, nice: 0.0%, ...,`` as in Figure 5.1 of the thesis."""
    return " ".join(f"{state}: {share:.1f}%," for state, share in zip(STATES, usage, strict=True))


def machine_line(usage: Usage) -> str:
    """Return the shares between colons, as ``cpusage -o`` writes them."""
    return ":".join(f"{share:.1f}" for share in usage)


def read_profile(path: Path) -> tuple[list[str], list[Usage]]:
    """Read the samples of all CPUs from an output of ``cpusage`` or ``parshall cpu``, in either format.

    Returns
    -------
    lines : list of str
        The lines of the file.
    usages : list of tuple of float
        Their shares; 5 states (FreeBSD), 7 (Linux) or 8 (with steal), idle the fourth.

    Raises
    ------
    UsageError
        There is no such file.
    ParshallError
        A line has neither format; the message has its number.
    """
    try:
        content = path.read_text()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; give an output of parshall cpu") from error
    except UnicodeDecodeError as error:
        raise ParshallError(f"{path}: is not text; give an output of parshall cpu") from error
    lines: list[str] = []
    usages: list[Usage] = []
    for number, line in enumerate(content.splitlines(), 1):
        if _OTHER.search(line) or line.strip() in ("", ":"):
            continue
        usage = _shares(line)
        if usage is None or len(usage) <= IDLE or (usages and len(usage) != len(usages[0])):
            expected = f"{len(usages[0])} percentages" if usages else "5 to 8 percentages between colons, or with names"
            raise ParshallError(f"{path}:{number}: {brief(repr(line))}: expected {expected}")
        lines.append(line)
        usages.append(usage)
    if not lines:
        raise ParshallError(f"{path}: no line with percentages; give an output of parshall cpu")
    return lines, usages


def _shares(line: str) -> Usage | None:
    if "%" in line:
        return tuple(float(share) for share in _NAMED.findall(line))
    try:
        return tuple(float(share) for share in line.split(":"))
    except ValueError:
        return None


def summary_lines(usages: list[Usage], limit: float) -> Iterator[str]:
    """Yield the summary of ``trimusage.awk``: Min and Max of all lines, Avg of the longest stretch.

    Without a stretch, there is no Avg. (The script divides by zero.)
    """
    yield "---Summary----"
    states = list(zip(*usages, strict=True))
    yield "Min:" + machine_line(tuple(map(min, states)))
    yield "Max:" + machine_line(tuple(map(max, states)))
    stretch = summarise(usages, limit)
    if stretch:
        yield "Avg:" + machine_line(stretch.average)
