"""Wait for the end of a measurement, with progress on a terminal."""

import enum
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from parshall.cli.confinement import confine
from parshall.errors import printable
from parshall.host.messages import say, show
from parshall.host.running import Note
from parshall.host.session import Session
from parshall.host.stopping import Stopping

_POLL_INTERVAL_S = 0.05
_PROGRESS_INTERVAL_S = 0.5


class End(enum.Enum):
    """Why a measurement ends."""

    REQUESTED = "by a signal"
    DONE = "the measured program has ended"
    ENDED = "the measurement has ended by itself"
    TIME_OVER = "the duration is over"


class Rate:
    """Packets per second between two statuses."""

    def __init__(self) -> None:
        self._packets, self._elapsed_s = 0, 0.0

    def next(self, packets: int, elapsed_s: float) -> float:
        """Return the rate since the last call."""
        rate_pps = (packets - self._packets) / max(elapsed_s - self._elapsed_s, 1e-9)
        self._packets, self._elapsed_s = packets, elapsed_s
        return rate_pps


def watch(
    command: str,
    session: Session[Any],
    stopping: Stopping,
    progress: Callable[[dict[str, Any], float], str],
    *,
    quiet: bool,
    duration_s: float | None = None,
    is_done: Callable[[], bool] | None = None,
    outputs: Iterable[str | os.PathLike[str]] = (),
) -> End:
    """Wait until a measurement should end, and return the reason; print notices as they arrive.

    It has attached, so privileges that it needs no longer are given up.

    Parameters
    ----------
    command : str
        Name of the command, before each notice.
    progress : callable
        Takes a status and the seconds since the start; returns the progress line, shown twice a second.
    duration_s : float, optional
        How long to wait.
    is_done : callable
        Polled; returns whether the measured program has ended.
    outputs : iterable of path-like
        Files that it may still create, and directories that it may remove.
    """
    with Note(command) as note:
        return _watch(command, session, stopping, progress, quiet, duration_s, is_done, outputs, note)


def _watch(
    command: str,
    session: Session[Any],
    stopping: Stopping,
    progress: Callable[[dict[str, Any], float], str],
    quiet: bool,
    duration_s: float | None,
    is_done: Callable[[], bool] | None,
    outputs: Iterable[str | os.PathLike[str]],
    note: Note,
) -> End:
    # A measurement of paths attaches and counts in a namespace again, at its end at the latest.
    confine(command, outputs, has_child=is_done is not None, enters_namespaces=command == "path")
    shows = not quiet and sys.stderr.isatty()
    started_s = time.monotonic()
    next_progress_s = 0.0
    end = None
    while end is None:
        is_requested = stopping.wait(_POLL_INTERVAL_S)
        elapsed_s = time.monotonic() - started_s
        status = session.status()
        for notice in status.get("notices", ()):
            # Overwrite the progress line.
            say(command, notice, start_of_line="\r\033[K" if shows else "")
        if is_requested:
            end = End.REQUESTED
        elif is_done is not None and is_done():
            end = End.DONE
        elif status["has_ended"]:
            end = End.ENDED
        elif duration_s is not None and elapsed_s >= duration_s:
            end = End.TIME_OVER
        if end is not None or elapsed_s >= next_progress_s:
            next_progress_s = elapsed_s + _PROGRESS_INTERVAL_S
            text = progress(status, elapsed_s)
            note.write(text)
            if shows:
                line = printable(f"{elapsed_s:7.1f} s  {text}")
                print(f"\r{line}", end="\033[K", file=sys.stderr, flush=True)
    if shows:
        show(file=sys.stderr)
    return end
