"""Signals that ask a measurement to end."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from parshall.host.stopping import Stopping, exiting_on_signals

# Raises the signal at the n-th line that is run in a wait, for every n.
AT_EVERY_LINE = """
import signal, sys
from parshall.host.stopping import Stopping

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

# The same in a request to the kernel: `signal`, at lines all over of the netlink library.
IN_A_REQUEST = """
import contextlib, signal, sys
from parshall.host.stopping import exiting_on_signals
from parshall.host.netlink import route_socket

def request(number, every):
    lines = 0
    def trace(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        if lines == every:
            lines += 1
            signal.raise_signal(number)
        return trace
    links = []
    with contextlib.suppress(SystemExit, KeyboardInterrupt), exiting_on_signals():
        sys.settrace(trace)
        with route_socket() as route:
            links = route.link_lookup(ifname="lo")
        sys.settrace(None)
        return False
    sys.settrace(None)
    answered.append(links == [1])
    return True

answered = []

request(signal.SIGTERM, 1 << 60)  # what is imported late is there now
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    every = 25
    while request(number, every):
        every += 70
# Nearly all of the lines are inside of the request.
assert sum(answered) > 0.8 * len(answered) > 20, (sum(answered), len(answered))
"""


def test_a_signal_does_not_break_off_a_request_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_REQUEST], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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


def test_a_signal_that_comes_twice_at_once_is_one_request() -> None:
    """As `timeout` sends it; a second Ctrl-C of a person comes later, and does not wait for the end."""
    with Stopping() as stopping:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stopping.is_requested()
        began_s = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            while time.monotonic() < began_s + 20:
                signal.raise_signal(signal.SIGINT)
        assert time.monotonic() - began_s < 20
