"""Temporary directories that are found after kill -9: their owner holds a lock that the kernel releases."""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"parshall-(calibrate|demo|edges|lab|live|router|sizes|store)-[a-z0-9_]{8}")


class TemporaryDirectory:
    """A directory of this process, removed at the end of the block or by `remove`.

    Parameters
    ----------
    purpose : {"calibrate", "demo", "edges", "lab", "live", "router", "sizes", "store"}
        A part of its name.
    """

    def __init__(self, purpose: str) -> None:
        self.path, self._lock = _made(f"parshall-{purpose}-")
        assert _NAME.fullmatch(self.path.name), "`leftovers` must find it"

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it; a second call does nothing."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _made(prefix: str) -> tuple[Path, int | None]:
    """Return a new directory and its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):
            descriptor = lock(path)
            if path.exists():
                return path, descriptor
            os.close(descriptor)
        # `remove` was faster than the lock.


def lock(path: Path) -> int:
    """Hold what a path names, until the descriptor that is returned is closed or the process has ended."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    # A file system without locks leaves the checks that there are besides.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a living process holds a path by `lock`, in whatever namespaces it is; false when that is unknown."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def leftovers() -> Iterator[Path]:
    """Yield the temporary directories of killed runs of this user."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(tempfile.gettempdir()), key=lambda entry: entry.name):
            if _NAME.fullmatch(entry.name) and _is_left(Path(entry.path)):
                yield Path(entry.path)


def _is_left(path: Path) -> bool:
    try:
        found = path.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not is_locked(path)
    except OSError:
        return False


def remove(path: Path) -> bool:
    """Remove a directory that `leftovers` found; false when that fails, or somebody has locked it since."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # An owner that made it a moment ago waits for this lock, and makes another.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
    return not path.exists()
