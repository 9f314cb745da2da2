"""What the commands of Parshall on this host do at this moment: notes that each keeps, for ``parshall live``."""

import contextlib
import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from parshall.errors import UsageError, printable
from parshall.host.input_file import open_regular

DIRECTORY = Path("/run/parshall/running")
_NOTE_BYTES_MAX = 64 << 10
# Of a study, each of which is a line. With the longest texts, escaped, they have room in a note.
_STATEMENTS_MAX = 40
_TEXT_CHARS_MAX = 200
_UNIT_CHARS_MAX = 20
_NOTES_MAX = 100


class Note:
    """What this process does, until the end of the block; only root keeps one, and only root reads it.

    Its file is locked, and the kernel releases the lock when the process has ended, however it ends. Others could hold
    a lock of a file that they may open, and so keep the note of a process that has ended.

    Parameters
    ----------
    command : str
        The command, as users call it.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._began_s = time.time()
        self._bytes = 0
        self._file = -1
        self._path: Path | None = None
        # A process in a container has the same user number, and its own /run.
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):
                self._create()

    def _create(self) -> None:
        # As that of the rings, which its programs make, too.
        for path in (DIRECTORY.parent, DIRECTORY):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                path.chmod(0o755)
        for path in _paths():
            # Of processes that were killed.
            with contextlib.suppress(OSError, UsageError), _opened(path) as (_, is_kept):
                if not is_kept:
                    path.unlink()
        path = DIRECTORY / f"{os.getpid()}-{os.urandom(4).hex()}"
        # It has a name when it is locked: before, it would look as if its process had ended.
        self._file = os.open(DIRECTORY, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        directory = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Python follows the link to the file only when it is given a directory.
            os.link(f"/proc/self/fd/{self._file}", path.name, dst_dir_fd=directory, follow_symlinks=True)
        finally:
            os.close(directory)
        self._path = path

    def __enter__(self) -> "Note":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        if self._file >= 0:
            os.close(self._file)
        self._file, self._path = -1, None

    def write(self, text: str, statements: Sequence[Mapping[str, Any]] = ()) -> None:
        """Say what is done now.

        Parameters
        ----------
        text : str
            On one line.
        statements : sequence of mapping
            Those of a study: ``source``, ``low``, ``high``, ``limit`` (or None), ``unit`` and ``is_same``.
        """
        if self._path is None:
            return
        note = {
            "command": self._command,
            "pid": os.getpid(),
            "began_s": self._began_s,
            "text": text[:_TEXT_CHARS_MAX],
            "statements": [_cut(each) for each in statements[:_STATEMENTS_MAX]],
            "more_statements": max(len(statements) - _STATEMENTS_MAX, 0),
        }
        # Bytes of file names that are no text keep their escapes.
        content = json.dumps(note, ensure_ascii=False).encode(errors="backslashreplace")
        # As long as the longest one before, so that a reader does not find the end of an older note.
        padded = content.ljust(self._bytes)
        self._bytes = len(padded)
        with contextlib.suppress(OSError):
            os.pwrite(self._file, padded, 0)


def listed() -> list[dict[str, Any]]:
    """Return the notes of commands that run, the oldest first; texts are on one line.

    Returns
    -------
    list of dict
        ``command``, ``pid``, ``began_s`` (since 1970), ``text``, and ``statements``: rows with ``source``, ``low``,
        ``high``, ``limit``, ``unit`` and ``is_same``; ``more_statements``: how many there are besides.
    """
    found = []
    try:
        paths = _paths()
    except OSError:
        return []
    for path in paths[:_NOTES_MAX]:
        # It may end meanwhile, or have been read while it was written.
        with contextlib.suppress(OSError, UsageError, ValueError, RecursionError), _opened(path) as (file, is_kept):
            if is_kept and (note := _checked(json.loads(file.read(_NOTE_BYTES_MAX)))):
                found.append(note)
    found.sort(key=lambda note: float(note["began_s"]))
    if len(paths) > _NOTES_MAX:
        rest = {"pid": 0, "began_s": time.time(), "statements": [], "more_statements": 0}
        found.append({"command": "", **rest, "text": f"and {len(paths) - _NOTES_MAX} more"})
    return found


def _paths() -> list[Path]:
    """Return the notes; `OSError` where their directory is not root's alone: others could say there what they like."""
    for path in (DIRECTORY.parent, DIRECTORY):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            raise PermissionError(f"{path} is not a directory of root alone")
    return sorted(DIRECTORY.iterdir())


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """Open a note; yields its file, and whether its process keeps it."""
    with open_regular(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield file, True
        else:
            yield file, False


def _checked(note: Any) -> dict[str, Any] | None:
    """Return a note, if it is one."""
    is_note = isinstance(note, dict) and isinstance(note.get("statements"), list)
    if not is_note or not all(_is_finite(note.get(name)) for name in ("pid", "began_s")):
        return None
    statements = [row for row in map(_statement, note["statements"][:_STATEMENTS_MAX]) if row]
    texts = {name: printable(str(note.get(name))[:_TEXT_CHARS_MAX]) for name in ("command", "text")}
    more = note.get("more_statements")
    return {
        "pid": int(note["pid"]),
        "began_s": float(note["began_s"]),
        **texts,
        "statements": statements,
        "more_statements": int(more) if _is_finite(more) else 0,
    }


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _statement(row: Any) -> dict[str, Any] | None:
    if not isinstance(row, dict) or row.get("is_same") not in (None, True, False):
        return None
    numbers = {name: row.get(name) for name in ("low", "high", "limit")}
    # The page's frames have no other numbers.
    numbers = {name: value if _is_finite(value) else None for name, value in numbers.items()}
    texts = {name: printable(text) for name, text in _cut(row).items() if isinstance(text, str)}
    return {**texts, **numbers, "is_same": row["is_same"]}


def _cut(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statement with short texts."""
    texts = {
        "source": str(row.get("source") or "")[:_TEXT_CHARS_MAX],
        "unit": str(row.get("unit") or "")[:_UNIT_CHARS_MAX],
    }
    return {**texts, **{name: row.get(name) for name in ("low", "high", "limit", "is_same")}}
