"""Named network namespaces, compatible with ``ip netns``, without starting a program.

A network namespace belongs to a thread, so one thread can enter a namespace while the others stay.
"""

import ctypes
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from parshall.errors import ParshallError, UsageError
from parshall.host import privileges
from parshall.host.temporary import lock

NETNS_DIRECTORY = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 4096, 16384, 1 << 20
_MNT_DETACH = 2
_THREAD_NAMESPACE = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)
# Descriptors whose locks say that this process lives, by the names of its namespaces.
_held: dict[str, list[int]] = {}


def create(name: str) -> Path:
    """Create a network namespace with its loopback interface down, and give it a name.

    Parameters
    ----------
    name : str
        Name, as ``ip netns`` shows it.

    Returns
    -------
    pathlib.Path
        Path of the namespace.

    Raises
    ------
    ParshallError
        The name is taken, or the process lacks CAP_SYS_ADMIN.
    """
    _share_directory()
    path = NETNS_DIRECTORY / name
    held: list[int] = []
    try:
        path.touch(mode=0o444, exist_ok=False)
        held.append(lock(path))
    except OSError as error:
        raise ParshallError(f"namespace {name}: {error.strerror}; choose another name") from error
    failures: list[OSError] = []

    def make() -> None:
        # In a separate thread, which ends in the new namespace, so that the caller never moves.
        try:
            _check(_libc.unshare(_CLONE_NEWNET))
            # Before others see it: who cleans up asks for the lock.
            held.append(lock(Path(_THREAD_NAMESPACE)))
            _mount(_THREAD_NAMESPACE, str(path), _MS_BIND)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=make, name="parshall-namespace")
    thread.start()
    thread.join()
    if failures:
        path.unlink()
        _close(held)
        raise ParshallError(
            f"namespace {name}: cannot be created: {failures[0].strerror}; {privileges.remedy('CAP_SYS_ADMIN')}"
        ) from failures[0]
    _held[name] = held
    return path


def remove(name: str) -> bool:
    """Remove the name of a namespace; the kernel removes the namespace when no process is inside.

    Returns
    -------
    bool
        False if there is no such namespace, or no permission.
    """
    path = NETNS_DIRECTORY / name
    # A descriptor would keep the namespace.
    _close(_held.pop(name, []))
    with suppress(OSError):
        # Fails if a run was killed between creating the file and the mount.
        _check(_libc.umount2(os.fsencode(path), _MNT_DETACH))
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def find(namespace: str | os.PathLike[str]) -> Path:
    """Return the path of a network namespace, from its name (``ip netns``) or path.

    Raises
    ------
    UsageError
        There is no such namespace.
    """
    path = NETNS_DIRECTORY / namespace
    try:
        is_namespace = path.stat().st_dev == Path(_THREAD_NAMESPACE).stat().st_dev
    except OSError as error:
        raise UsageError(
            f"--netns {namespace}: {error.strerror}; `ip netns` lists names, and /proc/PID/ns/net is a path"
        ) from None
    if not is_namespace:
        raise UsageError(f"--netns {namespace}: is not a network namespace; `ip netns` lists named ones")
    return path


def other_of(process: int) -> str | None:
    """Return the network namespace of a process, by its name of ``ip netns`` or its inode; None: the caller's."""
    try:
        own, theirs = (Path(f"/proc/{each}/ns/net").stat() for each in ("thread-self", process))
    except OSError:
        return None
    if os.path.samestat(own, theirs):
        return None
    with suppress(OSError):
        for path in sorted(NETNS_DIRECTORY.iterdir()):
            with suppress(OSError):
                if os.path.samestat(path.stat(), theirs):
                    return path.name
    return str(theirs.st_ino)


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """Move only the calling thread into a network namespace, and back at the end of the block.

    Processes and threads that are started inside the block begin in that namespace and stay there.

    Raises
    ------
    ParshallError
        The namespace does not exist, or the process lacks CAP_SYS_ADMIN.
    """
    home = os.open(_THREAD_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            target = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # The kernel requires a capability, even from a thread that is already inside.
                is_elsewhere = not os.path.samestat(os.fstat(target), os.fstat(home))
                if is_elsewhere:
                    _check(_libc.setns(target, _CLONE_NEWNET))
            finally:
                os.close(target)
        except OSError as error:
            is_forbidden = isinstance(error, PermissionError)
            remedy = privileges.remedy("CAP_SYS_ADMIN") if is_forbidden else "check that its testbed is open"
            raise ParshallError(f"namespace {path}: cannot be entered: {error.strerror}; {remedy}") from error
        try:
            yield
        finally:
            if is_elsewhere:
                _check(_libc.setns(home, _CLONE_NEWNET))
    finally:
        os.close(home)


def _share_directory() -> None:
    """Make the directory a shared mount, so that other mount namespaces see new and removed names."""
    NETNS_DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = str(NETNS_DIRECTORY)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # ip(8) takes the same lock: without it, two first users would stack two mounts.
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            _mount("", directory, _MS_SHARED | _MS_REC)
        except OSError:
            _mount(directory, directory, _MS_BIND | _MS_REC)
            _mount("", directory, _MS_SHARED | _MS_REC)
    except OSError as error:
        raise ParshallError(
            f"{directory}: cannot be made a shared mount: {error.strerror}; {privileges.remedy('CAP_SYS_ADMIN')}"
        ) from error
    finally:
        os.close(handle)


def _mount(source: str, target: str, flags: int) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), b"none", ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
