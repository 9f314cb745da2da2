"""Signals that ask a measurement to end."""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from parshall.stopping import Stopping, exiting_on_signals

# Raises the signal at the n-th line that is run in a wait, for every n.
AT_EVERY_LINE = """
import signal, sys
from parshall.stopping import Stopping

def at_line(number):
    lines = 0
    def trace(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        if lines == number:
            lines += 1
            signal.raise_signal(signal.SIGTERM)
        return trace
    with Stopping() as stopping:
        sys.settrace(trace)
        is_asked = stopping.wait(0.001)
        sys.settrace(None)
    return is_asked

number = 1
while at_line(number):
    number += 1
print(number)
"""


def test_a_signal_at_any_moment_ends_the_wait() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EVERY_LINE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 4


def test_a_wait_lasts_until_a_signal() -> None:
    with Stopping() as stopping:
        assert not stopping.wait(0.001) and not stopping.is_requested()
        signal.raise_signal(signal.SIGINT)
        assert stopping.is_requested() and stopping.wait(600)


def test_ignored_interrupts_do_not_stop() -> None:
    with Stopping() as stopping:
        stopping.ignore_interrupts()
        signal.raise_signal(signal.SIGINT)
        assert not stopping.wait(0.001)
        signal.raise_signal(signal.SIGTERM)
        assert stopping.wait(600)


@pytest.mark.parametrize("entering", [Stopping, exiting_on_signals])
def test_under_nohup_sighup_is_ignored(entering: Callable[[], AbstractContextManager[object]]) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with entering() as entered:
            signal.raise_signal(signal.SIGHUP)
            assert not (isinstance(entered, Stopping) and entered.is_requested())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_exits_with_its_status_after_cleanup(number: signal.Signals) -> None:
    previous = signal.getsignal(number)
    taken_back = []
    with pytest.raises(SystemExit) as ended, exiting_on_signals():
        try:
            signal.raise_signal(number)
        finally:
            taken_back.append(number)
    assert ended.value.code == 128 + number
    assert taken_back == [number]
    assert signal.getsignal(number) is previous
