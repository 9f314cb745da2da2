"""Spans of a log that are saved, and their reports."""

import contextlib
import os
import secrets
import shutil
import stat
import threading
from datetime import datetime
from pathlib import Path

from parshall import _native
from parshall.errors import ParshallError, UsageError
from parshall.live.reporting import Reporter


class Saved:
    """Saves spans of a log.

    Parameters
    ----------
    directory : path-like
        Each span is a directory in it.
    reporter : Reporter, optional
        Makes their reports.
    """

    def __init__(self, directory: str | os.PathLike[str], reporter: Reporter | None = None) -> None:
        self._directory = Path(directory)
        self._reporter = reporter
        self._spans: dict[str, Path] = {}
        self._lock = threading.Lock()
        self.reports: dict[str, Path] = {}
        """The reports that were made, by random keys."""

    def save(self, log: Path, begin_ns: int, end_ns: int) -> tuple[Path, str | None]:
        """Copy the files of a log that have rows between two times; of a file, all.

        Returns
        -------
        path : Path
            The directory that was made.
        problem : str or None
            What is missing.
        """
        chosen = _files_between(_native.log_files(log) or [log], begin_ns, end_ns)
        if not chosen:
            raise UsageError("nothing of that time is kept any more; save a later one")
        path = self._made()
        lost = 0
        try:
            for file in chosen:
                try:
                    _copy(file, path / file.name)
                except FileNotFoundError:
                    # Rotation was faster.
                    lost += 1
            if lost == len(chosen):
                raise UsageError("nothing of that time is kept any more; save a later one")
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        with self._lock:
            self._spans[path.name] = path
        return path, f"{lost} of {len(chosen)} files were removed meanwhile" if lost else None

    def _made(self) -> Path:
        name = f"live-{datetime.now():%Y%m%d-%H%M%S}"
        for number in range(1, 1000):
            path = self._directory / (name if number == 1 else f"{name}-{number}")
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path.resolve()
        raise ParshallError(f"{self._directory}: cannot make a directory for what is saved; name another one with -o")

    def report(self, name: str) -> str:
        """Make the report of a span that was saved, and return the key of its page."""
        with self._lock:
            path = self._spans.get(name)
        if path is None:
            raise UsageError("nothing was saved under this name")
        if self._reporter is None:
            raise UsageError("nothing makes reports here")
        page = self._reporter.make(path)
        key = secrets.token_urlsafe(24)
        with self._lock:
            self.reports[key] = page
        return key


def _copy(file: Path, target: Path) -> None:
    """Copy a file of a log; a link may lead to what its owner may not read."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as source:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{file}: is not a regular file, and is not saved")
        with target.open("xb") as copy:
            shutil.copyfileobj(source, copy)


def _files_between(files: list[Path], begin_ns: int, end_ns: int) -> list[Path]:
    """Return the files with rows between two times: each was last written when the next one began."""
    chosen = []
    began_ns = 0
    for file in files:
        try:
            written_ns = file.stat().st_mtime_ns
        except FileNotFoundError:
            continue
        if began_ns <= end_ns and written_ns >= begin_ns:
            chosen.append(file)
        began_ns = written_ns
    return chosen
