"""Names that identify the owner of an object, so that leftovers of killed runs can be found and removed.

Every object of Parshall on a host is called ``parshall-<pid>-<starttime>-<rest>``: the owning
process and its start time, in clock ticks since boot (field 22 of ``/proc/<pid>/stat``). The kernel
reuses process IDs, but not the pair. An owner in another PID or time namespace has other numbers than we see, so it
also holds a lock on each object (`parshall.host.temporary.lock`), which the kernel releases when it ends. An object is
stale when no process with this ID and start time lives, and nobody holds it.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parshall.host import removal, temporary
from parshall.host.namespaces import NETNS_DIRECTORY

_FULL = re.compile(r"parshall-(?P<pid>[1-9]\d*)-(?P<start>\d+)-(?P<rest>.+)")


@dataclass(frozen=True)
class Owner:
    """A process, identified by its ID and its start time in clock ticks since boot."""

    pid: int
    start_ticks: int

    @property
    def prefix(self) -> str:
        """Prefix of the names of all objects that this process owns."""
        return f"parshall-{self.pid}-{self.start_ticks}"

    def name(self, rest: str) -> str:
        """Return the name of a namespace or cgroup of this process."""
        return f"{self.prefix}-{rest}"

    def is_alive(self) -> bool:
        """Whether the process still lives."""
        return start_ticks(self.pid) == self.start_ticks


@dataclass(frozen=True)
class Leftover:
    """A "namespace", "cgroup" or "directory" that a killed run left here; the name of the last two is the path."""

    kind: str
    name: str


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process, clock ticks since boot; None if it does not live."""
    process = Path("/proc") / str(pid)
    try:
        # The command, in parentheses, may itself contain spaces and parentheses.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        # A zombie has released its resources, unless other threads outlive its first one.
        if fields[0] in "ZX" and len(list((process / "task").iterdir())) <= 1:
            return None
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19])


def current_owner() -> Owner:
    """Return the calling process as an owner."""
    pid = os.getpid()
    ticks = start_ticks(pid)
    assert ticks is not None, "the calling process lives"
    return Owner(pid, ticks)


def owner_of(name: str) -> Owner | None:
    """Return the owner in a full name; None if the name is not one of ours."""
    match = _FULL.fullmatch(name)
    return Owner(int(match["pid"]), int(match["start"])) if match else None


def stale() -> list[Leftover]:
    """List leftovers of killed runs: namespaces, cgroups, and temporary directories."""
    directories = (Leftover("directory", str(path)) for path in temporary.leftovers())
    return [*_stale_namespaces(), *_stale_cgroups(), *directories]


def clean() -> list[Leftover]:
    """Remove leftovers of killed runs, and nothing else.

    Processes that the testbed of a removed namespace started are killed. Processes in a removed cgroup
    belong to the user, and move to the parent cgroup.

    Returns
    -------
    list of Leftover
        The removed objects. Objects that could not be removed (no permission) stay in `stale()`.
    """
    remove: dict[str, Callable[[str], bool]] = {
        "namespace": removal.remove_namespace,
        "cgroup": removal.remove_cgroup,
        "directory": lambda name: temporary.remove(Path(name)),
    }
    return [leftover for leftover in stale() if remove[leftover.kind](leftover.name)]


def cgroup2_mounts() -> Iterator[Path]:
    """Yield the mount points of the cgroup-v2 hierarchy, from the mount table.

    If there is none, as below the ``/sys`` that ``ip netns exec`` mounts, yield a private mount of this process, if
    it may create one; its path is valid while this process lives.
    """
    is_mounted = False
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            # The kernel writes blanks in paths as octal escapes.
            is_mounted = True
            yield Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split()[4]))
    if not is_mounted:
        from parshall import _native

        # An analysis-only installation lacks the function.
        mount = getattr(_native, "cgroup2_mount", lambda: None)()
        if mount is not None:
            yield Path(mount)


def _is_stale(path: Path) -> bool:
    owner = owner_of(path.name)
    return owner is not None and not owner.is_alive() and not temporary.is_locked(path)


def _stale_namespaces() -> Iterator[Leftover]:
    if NETNS_DIRECTORY.is_dir():
        for path in sorted(NETNS_DIRECTORY.iterdir()):
            if _is_stale(path):
                yield Leftover("namespace", path.name)


def _stale_cgroups() -> Iterator[Leftover]:
    for mount in cgroup2_mounts():
        for directory, children, _ in os.walk(mount, topdown=False):
            for child in sorted(children):
                path = Path(directory) / child
                if _is_stale(path):
                    yield Leftover("cgroup", str(path))
        return
