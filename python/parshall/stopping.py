"""Asking a running measurement to end: SIGINT and SIGTERM set a flag that the waiting loop sees."""

import os
import select
import signal
import weakref
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """While entered, the first signal asks to stop, and a second one interrupts as usual.

    Parameters
    ----------
    leave_interrupts_to : object, optional
        When given, SIGINT is left to it (a command in the foreground gets it from the terminal
        too, and its end is ours).
    """

    def __init__(self, leave_interrupts_to: object | None = None) -> None:
        self._is_asked = False
        # Not a threading.Event: a handler runs in the middle of the wait that it should end, and must take no lock.
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell)
        self._ignores_interrupts = leave_interrupts_to is not None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._ignores_interrupts:
            return
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
        os.eventfd_write(self._bell, 1)

    def is_asked(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._is_asked

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds; true when a signal has asked to stop."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.poll(max(timeout_s, 0) * 1000)
        return self._is_asked
