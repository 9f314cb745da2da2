"""Requests to stop a measurement: SIGINT, SIGTERM and SIGHUP set a flag and wake the waiting loop."""

import contextlib
import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# `timeout` sends its signal to the process and to its group: what comes so soon is the same request.
_SAME_REQUEST_S = 0.05


def _is_ignored_hangup(number: signal.Signals) -> bool:
    """Whether the parent set SIGHUP to be ignored, as nohup(1) does, so that the process outlives the terminal."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


class Stopping:
    """While entered, the first signal requests a stop; a second one, 50 ms later or more, raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._is_requested = False
        self._requested_s = 0.0
        # Not a threading.Event: the handler interrupts the wait that it should end, and must take no lock.
        self._event = os.eventfd(0, os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._event)
        self._ignores_interrupts = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if not _is_ignored_hangup(number):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._ignores_interrupts:
            return
        now_s = time.monotonic()
        if self._is_requested:
            if now_s - self._requested_s < _SAME_REQUEST_S:
                return
            raise KeyboardInterrupt
        self._requested_s = now_s
        self._is_requested = True
        os.eventfd_write(self._event, 1)

    def ignore_interrupts(self) -> None:
        """Ignore SIGINT from now on: the terminal sends it to the command, too, whose end stops the measurement."""
        self._ignores_interrupts = True

    def is_requested(self) -> bool:
        """Whether a signal has requested a stop."""
        return self._is_requested

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds; return true when a signal has requested a stop."""
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.poll(max(timeout_s, 0) * 1000)
        return self._is_requested


@contextlib.contextmanager
def _handled(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None] | signal.Handlers
) -> Iterator[None]:
    """While entered, a handler has these signals."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextlib.contextmanager
def exiting_on_signals() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP raise SystemExit, so that unfinished work is cleaned up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if not _is_ignored_hangup(number)]
    with _handled(numbers, end):
        yield


@contextlib.contextmanager
def dying_of_signals() -> Iterator[None]:
    """While entered, signals that ask for a stop end the process at once: for what leaves nothing behind.

    An exception would come amid any task of an event loop, which reports it and goes on to its own end.
    """
    with _handled([number for number in _SIGNALS if not _is_ignored_hangup(number)], signal.SIG_DFL):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """While entered, signals that ask for a stop wait, so that what must not end halfway comes to its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread alone
        return
    caught: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    # A handler that was not set by Python is None, and could not be set again.
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not None]
    try:
        with _handled(numbers, remember):
            yield
    finally:
        for caught_number in caught:
            signal.raise_signal(caught_number)
