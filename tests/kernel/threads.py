"""The threads of a process by the names that Parshall gives them; callers do the waiting."""

import contextlib
import os
from pathlib import Path

# The kernel keeps so many of a thread's name.
_NAME_CHARACTERS = 15


def threads_named(name: str, process: int | str = "self") -> list[Path]:
    """Return the /proc directories of a process's threads of a name, in the order in which they began.

    A thread gives itself its name when it runs, and hands it on to the ones that it starts for a while. One that
    ends while its name is read is not among them.
    """
    found = []
    for task in sorted(Path(f"/proc/{process}/task").iterdir(), key=lambda task: int(task.name)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text() == f"{name[:_NAME_CHARACTERS]}\n":
                found.append(task)
    return found


def cpu_s(thread: Path) -> float:
    """Return the CPU time that a thread has used."""
    fields = (thread / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pauses(thread: Path) -> int:
    """Return how often a thread has waited."""
    (line,) = (line for line in (thread / "status").read_text().splitlines() if line.startswith("voluntary_ctxt"))
    return int(line.split()[1])
