"""Signals that ask a measurement to end."""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from parshall.stopping import Stopping, taking_back

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


def test_a_signal_at_any_moment_of_a_wait_is_heard() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EVERY_LINE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 4


def test_a_wait_lasts_until_a_signal_asks() -> None:
    with Stopping() as stopping:
        assert not stopping.wait(0.001) and not stopping.is_asked()
        signal.raise_signal(signal.SIGINT)
        assert stopping.is_asked() and stopping.wait(600)


def test_interrupts_may_be_left_to_a_command() -> None:
    with Stopping() as stopping:
        stopping.leave_interrupts()
        signal.raise_signal(signal.SIGINT)
        assert not stopping.wait(0.001)
        signal.raise_signal(signal.SIGTERM)
        assert stopping.wait(600)


@pytest.mark.parametrize("entering", [Stopping, taking_back])
def test_under_nohup_the_end_of_the_terminal_is_no_end(entering: Callable[[], AbstractContextManager[object]]) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with entering() as entered:
            signal.raise_signal(signal.SIGHUP)
            assert not (isinstance(entered, Stopping) and entered.is_asked())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_is_to_be_taken_back_with_its_status(number: signal.Signals) -> None:
    previous = signal.getsignal(number)
    taken_back = []
    with pytest.raises(SystemExit) as ended, taking_back():
        try:
            signal.raise_signal(number)
        finally:
            taken_back.append(number)
    assert ended.value.code == 128 + number
    assert taken_back == [number]
    assert signal.getsignal(number) is previous
