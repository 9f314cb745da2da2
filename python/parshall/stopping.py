"""Asking a running measurement to end: SIGINT and SIGTERM set a flag that the waiting loop sees."""

import contextlib
import os
import select
import signal
import weakref
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _is_ignored_on_purpose(number: signal.Signals) -> bool:
    """Whether who started us wants us to go on when the terminal goes away, as nohup(1) does."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


class Stopping:
    """While entered, the first signal asks to stop, and a second one interrupts as usual."""

    def __init__(self) -> None:
        self._is_asked = False
        # Not a threading.Event: a handler runs in the middle of the wait that it should end, and must take no lock.
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell)
        self._ignores_interrupts = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if not _is_ignored_on_purpose(number):
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

    def leave_interrupts(self) -> None:
        """Ignore SIGINT from here on: a command in the foreground gets it from the terminal, and its end is ours."""
        self._ignores_interrupts = True

    def is_asked(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._is_asked

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds; true when a signal has asked to stop."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.poll(max(timeout_s, 0) * 1000)
        return self._is_asked


@contextlib.contextmanager
def taking_back() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP end the process as Ctrl-C does: what is half done is taken back first."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if not _is_ignored_on_purpose(number)]
    previous = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
