"""What runs that were killed left on this host: cgroups and network namespaces whose owner is gone.

Programs, maps and links of eBPF need no cleaning: Parshall pins nothing, so the kernel frees them
with the process.
"""

import contextlib
import importlib
import re
from pathlib import Path

OWNED = re.compile(r"parshall-(?P<pid>\d+)-(?P<start_time_ticks>\d+)-")


def owner_is_gone(name: str, proc: Path = Path("/proc")) -> bool:
    """Say whether a name of ours carries a process that runs no more.

    A process is known by its number and its start time, since numbers are used again. Names that
    are not ours have no owner that could be gone.
    """
    owner = OWNED.match(name)
    if owner is None:
        return False
    try:
        stat = (proc / owner["pid"] / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    # The name of the program, in brackets, may itself hold brackets and spaces.
    start_time_ticks = stat.rpartition(")")[2].split()[19]
    return start_time_ticks != owner["start_time_ticks"]


def stale_cgroups(mount: Path) -> list[Path]:
    """Find the cgroups below this mount whose owner is gone, the innermost first."""
    found = [path for path in mount.rglob("parshall-*") if path.is_dir() and owner_is_gone(path.name)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def remove_cgroup(path: Path) -> None:
    """Remove a cgroup; what still runs in it, a user's command, goes on in the parent.

    Raises
    ------
    OSError
        It may not be removed, or holds cgroups that are not ours.
    """
    for process in (path / "cgroup.procs").read_text().split():
        try:
            (path.parent / "cgroup.procs").write_text(process)
        except ProcessLookupError:
            continue  # it ended meanwhile
    path.rmdir()


def clean() -> list[str]:
    """Remove everything that was left; return the names of what is gone."""
    removed = []
    mount = _cgroup2_mount()
    for path in stale_cgroups(mount) if mount is not None else []:
        remove_cgroup(path)
        removed.append(f"cgroup {path}")
    # Imported here, because it is slow and only --clean needs it.
    with contextlib.suppress(ModuleNotFoundError):
        names = importlib.import_module("parshall.testbed.names")
        removed += [str(name) for name in names.clean() or []]
    return removed


def _cgroup2_mount() -> Path | None:
    try:
        from parshall._native import cgroup2_mount
    except ImportError:
        return None
    mount = cgroup2_mount()
    return Path(mount) if mount is not None else None
