"""The witness of what the kernel hides: one session takes nothing from another."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hidden_events
from hidden_events import HiddenEvents

pytestmark = pytest.mark.kernel
OPENED = """
import hidden_events, sys
hidden_events.hides_first_process = lambda: True
events = hidden_events.HiddenEvents()
events.open()
print(events.is_open, flush=True)
sys.stdin.read()
events.close()
"""

THREADS = """
import socket, sys, threading

def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", 9))

sys.stdin.readline()
thread = threading.Thread(target=send)
thread.start()
thread.join()
"""


@pytest.fixture
def instances(root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Give tracefs's directory of instances; remove what the test made there."""
    monkeypatch.setattr(hidden_events, "hides_first_process", lambda: True)
    # No instance of this test is taken for one of the session that runs it.
    monkeypatch.setattr(hidden_events, "_NAME", f"test-{os.getpid()}-")
    try:
        place = hidden_events._tracing()
    except OSError as error:
        pytest.skip(f"tracefs cannot be mounted: {error}")
    yield place
    hidden_events._remove_dead(place)
    os.close(place)


def dead(place: int) -> str:
    """Make what a killed session leaves."""
    child = subprocess.Popen(["true"])
    child.wait()
    name = f"{hidden_events._NAME}{child.pid}"
    os.mkdir(name, dir_fd=place)
    return name


def test_what_a_killed_session_left_is_removed(instances: int) -> None:
    left = dead(instances)
    events = HiddenEvents()
    events.open()
    assert events.is_open
    assert left not in os.listdir(instances)
    events.close()
    assert not [name for name in os.listdir(instances) if name.startswith(hidden_events._NAME)]


def test_another_session_removes_it_at_the_same_moment(instances: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left, remove = dead(instances), os.rmdir

    def remove_twice(name: str, dir_fd: int) -> None:
        if name == left:
            remove(name, dir_fd=dir_fd)
        remove(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", remove_twice)
    events = HiddenEvents()
    events.open()
    try:
        events.forget()
        assert events.is_open
    finally:
        events.close()


def test_a_living_session_of_another_pid_namespace_keeps_its_own(instances: int) -> None:
    name = dead(instances)
    os.rmdir(name, dir_fd=instances)
    # Its process has a number there that no process has here.
    number = int(name.removeprefix(hidden_events._NAME))
    changed = f"hidden_events._NAME, hidden_events.os.getpid = {hidden_events._NAME!r}, lambda: {number}\nevents = "
    environment = {**os.environ, "PYTHONPATH": str(Path(hidden_events.__file__).parent)}
    with subprocess.Popen(
        [sys.executable, "-c", OPENED.replace("events = ", changed, 1)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "True\n"
        hidden_events._remove_dead(instances)
        assert name in os.listdir(instances)
        other.stdin.close()
        assert other.wait() == 0
    assert name not in os.listdir(instances)


def test_threads_that_the_process_starts_later_are_watched(instances: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", THREADS], stdin=subprocess.PIPE, text=True) as process:
        monkeypatch.setattr(hidden_events, "_THREADS", Path(f"/proc/{process.pid}/task"))
        events = HiddenEvents()
        events.open()
        try:
            assert events.is_open
            events.forget()
            assert events.count() == 0
            process.communicate("go\n")
            assert process.returncode == 0
            assert events.count() > 0
        finally:
            events.close()


def test_without_tracefs_a_session_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise PermissionError(1, "mount tracefs")

    monkeypatch.setattr(hidden_events, "hides_first_process", lambda: True)
    monkeypatch.setattr(hidden_events, "_tracing", refused)
    events = HiddenEvents()
    events.open()
    events.forget()
    assert not events.is_open
    assert events.count() == 0
