"""Waiting for the end of a measurement, with progress on a terminal."""

import enum
import sys
import time
from collections.abc import Callable
from typing import Any

from parshall.cli.messages import say, shows_progress
from parshall.session import Session
from parshall.stopping import Stopping

_LOOK_INTERVAL_S = 0.05
_PROGRESS_INTERVAL_S = 0.5


class End(enum.Enum):
    """Why a measurement should end."""

    ASKED = "a signal came"
    DONE = "what was measured is done"
    ENDED = "it ended by itself"
    TIME_OVER = "its time is over"


class Rate:
    """Packets per second between one status and the next."""

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
    is_done: Callable[[], bool] = lambda: False,
) -> End:
    """Wait until a measurement should end, and return why; print its notices as they come.

    Parameters
    ----------
    command : str
        Name of the command, before each notice.
    progress : callable
        Takes a status and the seconds since the start, and returns the line that a terminal shows twice a second.
    duration_s : float, optional
        How long to wait.
    is_done : callable
        Asked all the time; whether what was measured is done.
    """
    shows = shows_progress(quiet=quiet)
    started_s = time.monotonic()
    next_progress_s = 0.0
    end = None
    while end is None:
        is_asked = stopping.wait(_LOOK_INTERVAL_S)
        elapsed_s = time.monotonic() - started_s
        status = session.status()
        for notice in status.get("notices", ()):
            # Over the line of progress, not behind it.
            say(command, notice, start_of_line="\r\033[K" if shows else "")
        if is_asked:
            end = End.ASKED
        elif is_done():
            end = End.DONE
        elif status["has_ended"]:
            end = End.ENDED
        elif duration_s is not None and elapsed_s >= duration_s:
            end = End.TIME_OVER
        if shows and (end is not None or elapsed_s >= next_progress_s):
            next_progress_s = elapsed_s + _PROGRESS_INTERVAL_S
            print(f"\r{elapsed_s:7.1f} s  {progress(status, elapsed_s)}", end="\033[K", file=sys.stderr, flush=True)
    if shows:
        print(file=sys.stderr)
    return end
