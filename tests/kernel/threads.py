"""The threads of this process by the names that Parshall gives them; callers do the waiting."""

import contextlib
from pathlib import Path


def threads_named(name: str) -> list[Path]:
    """Return the /proc directories of this process's threads of a name, in the order in which they began.

    A thread gives itself its name when it runs, and hands it on to the ones that it starts for a while. One that
    ends while its name is read is not among them.
    """
    found = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text() == f"{name}\n":
                found.append(task)
    return found
