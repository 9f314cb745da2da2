"""Remove objects of a killed run; the caller has checked that their owner does not live."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from parshall.host import namespaces

# Environment variable of every process that a testbed starts, with the prefix of the owner's names.
OWNER_VARIABLE = "PARSHALL_OWNER"


def remove_namespace(name: str) -> bool:
    """Kill the processes that the testbed started in a namespace, and remove the namespace."""
    prefix = "-".join(name.split("-")[:3])
    try:
        end_processes(namespaces.NETNS_DIRECTORY / name, prefix)
    except OSError:
        return False
    return namespaces.remove(name)


def end_processes(namespace: Path, prefix: str) -> None:
    """Kill the processes in a namespace that belong to a testbed, even if their parents have ended.

    `prefix` begins the names of the testbed's owner. Raises `OSError` if there is no such namespace.
    """
    inode = namespace.stat().st_ino
    for pid in _processes_in(inode):
        if pid != os.getpid():
            _end(pid, inode, prefix)


def remove_cgroup(directory: str) -> bool:
    """Move the processes of a cgroup to its parent, and remove the cgroup with its children."""
    top = Path(directory)
    try:
        for path, _, _ in os.walk(top, topdown=False):
            for pid in (Path(path) / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    (top.parent / "cgroup.procs").write_text(pid)
            Path(path).rmdir()
    except OSError:
        return False
    return True


def _processes_in(inode: int) -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                if (path / "ns/net").stat().st_ino == inode:
                    yield int(path.name)


def _end(pid: int, inode: int, prefix: str) -> None:
    """Kill a process, after a second check through a pidfd, since the kernel may reuse process IDs."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        process = Path("/proc") / str(pid)
        marker = f"{OWNER_VARIABLE}={prefix}".encode()
        with suppress(OSError):
            ours = marker in (process / "environ").read_bytes().split(b"\0")
            if ours and (process / "ns/net").stat().st_ino == inode:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)
