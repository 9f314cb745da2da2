"""Named network namespaces, the way ``ip netns`` makes them, without leaving the process.

A network namespace belongs to a thread, so a thread may visit one while the others stay.
"""

import ctypes
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from parshall import privileges
from parshall.errors import ParshallError, UsageError

NETNS_DIRECTORY = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 4096, 16384, 1 << 20
_MNT_DETACH = 2
_THREAD_NAMESPACE = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def create(name: str) -> Path:
    """Create a network namespace with its loopback interface down, and give it a name.

    Parameters
    ----------
    name : str
        Name, as ``ip netns`` shows it.

    Returns
    -------
    pathlib.Path
        Path that holds the namespace.

    Raises
    ------
    ParshallError
        When the name is taken, or the process lacks CAP_SYS_ADMIN.
    """
    _share_directory()
    path = NETNS_DIRECTORY / name
    try:
        path.touch(mode=0o444, exist_ok=False)
    except OSError as error:
        raise ParshallError(f"namespace {name}: {error.strerror}; choose another name") from error
    failures: list[OSError] = []

    def make() -> None:
        # In a thread of its own, which ends in the new namespace; the caller never moves.
        try:
            _check(_libc.unshare(_CLONE_NEWNET))
            _mount(_THREAD_NAMESPACE, str(path), _MS_BIND)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=make, name="parshall-namespace")
    thread.start()
    thread.join()
    if failures:
        path.unlink()
        raise ParshallError(
            f"namespace {name} cannot be made: {failures[0].strerror}; {privileges.remedy('CAP_SYS_ADMIN')}"
        ) from failures[0]
    return path


def remove(name: str) -> bool:
    """Take the name from a namespace, which ends it as soon as no process is inside.

    Returns
    -------
    bool
        False when there is none of that name, or no permission.
    """
    path = NETNS_DIRECTORY / name
    with suppress(OSError):
        # Fails when a run was killed between making the file and the mount: only a file is there.
        _check(_libc.umount2(os.fsencode(path), _MNT_DETACH))
    try:
        path.unlink()
    except OSError:
        return False
    return True


def find(namespace: str | os.PathLike[str]) -> Path:
    """Return the path of a network namespace that is given by its name (``ip netns``) or its path.

    Raises
    ------
    UsageError
        There is none.
    """
    path = NETNS_DIRECTORY / namespace
    try:
        is_namespace = path.stat().st_dev == Path(_THREAD_NAMESPACE).stat().st_dev
    except OSError as error:
        raise UsageError(
            f"--netns {namespace}: {error.strerror}; `ip netns` lists names, and /proc/PID/ns/net is a path"
        ) from None
    if not is_namespace:
        raise UsageError(f"--netns {namespace}: is no network namespace; `ip netns` lists those with a name")
    return path


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """Move the calling thread, and no other, into a network namespace, and back.

    Processes and threads that are started meanwhile begin in that namespace and stay there.

    Raises
    ------
    ParshallError
        When the namespace is gone, or the process lacks CAP_SYS_ADMIN.
    """
    home = os.open(_THREAD_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            target = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                # To enter it the kernel asks for a capability, also of a thread that is there.
                is_elsewhere = not os.path.samestat(os.fstat(target), os.fstat(home))
                if is_elsewhere:
                    _check(_libc.setns(target, _CLONE_NEWNET))
            finally:
                os.close(target)
        except OSError as error:
            is_forbidden = isinstance(error, PermissionError)
            remedy = privileges.remedy("CAP_SYS_ADMIN") if is_forbidden else "is the testbed still open?"
            raise ParshallError(f"namespace {path} cannot be entered: {error.strerror}; {remedy}") from error
        try:
            yield
        finally:
            if is_elsewhere:
                _check(_libc.setns(home, _CLONE_NEWNET))
    finally:
        os.close(home)


def _share_directory() -> None:
    """Make the directory a shared mount, so that other mount namespaces see names come and go."""
    NETNS_DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = str(NETNS_DIRECTORY)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The lock that ip(8) takes too: two first users would stack two mounts.
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            _mount("", directory, _MS_SHARED | _MS_REC)
        except OSError:
            _mount(directory, directory, _MS_BIND | _MS_REC)
            _mount("", directory, _MS_SHARED | _MS_REC)
    except OSError as error:
        raise ParshallError(
            f"{directory} cannot be made a shared mount: {error.strerror}; {privileges.remedy('CAP_SYS_ADMIN')}"
        ) from error
    finally:
        os.close(handle)


def _mount(source: str, target: str, flags: int) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), b"none", ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
