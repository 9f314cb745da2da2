"""Asking a running measurement to end: SIGINT and SIGTERM set a flag that the waiting loop sees."""

import signal
import threading
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
        self._flag = threading.Event()
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
        if self._flag.is_set():
            raise KeyboardInterrupt
        self._flag.set()

    def is_asked(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._flag.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds; true when a signal has asked to stop."""
        return self._flag.wait(timeout_s)
