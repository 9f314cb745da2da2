"""Interfaces that go down, are renamed, move to another namespace or are removed under those who use them."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from host_state import processes_left
from ledgers import unbalanced
from parshall.host import offloads
from suites import long_except

pytestmark = pytest.mark.kernel
PARSHALL = Path(sys.executable).with_name("parshall")

COMMANDS = {
    "capture": ["capture", "-w", "/dev/null", "--json"],
    "capture by a socket": ["capture", "--backend", "af-packet", "-w", "/dev/null", "--json"],
    "capture by XDP": ["capture", "--hook", "xdp", "--direction", "in", "-w", "/dev/null", "--json"],
    "gen by xdp": ["gen", "--backend", "xdp", "--pps", "2k", "-d", "600", "--json"],
    "gen by af-xdp": ["gen", "--backend", "af-xdp", "--pps", "2k", "-d", "600", "--json"],
    "gen by af-packet": ["gen", "--backend", "af-packet", "--pps", "2k", "-d", "600", "--json"],
}
EVENTS = {
    "down": ["link", "set", "dev", "NAME", "down"],
    "down and up": ["link", "set", "dev", "NAME", "down", "up"],
    "renamed": ["link", "set", "dev", "NAME", "name", "renamed0"],
    "moved": ["link", "set", "dev", "NAME", "netns", "THERE"],
    "removed": ["link", "delete", "dev", "NAME"],
}


# Each command and each event once.
QUICK = [
    ("capture", "down"),
    ("capture by a socket", "renamed"),
    ("capture by XDP", "removed"),
    ("gen by xdp", "moved"),
    ("gen by af-xdp", "down and up"),
    ("gen by af-packet", "down"),
]


@pytest.mark.parametrize(("command", "event"), long_except(QUICK, product(COMMANDS, EVENTS)))
def test_a_command_continues_or_reports_the_change_of_its_interface(
    bed: Any, until: Callable[..., None], command: str, event: str
) -> None:
    """The command goes on, or ends by itself with one line; either way with an account that balances."""
    here, other, there = bed.host("here"), bed.host("other"), bed.host("there")
    link = bed.link(here, other)
    interface = link.interface(here)
    with other.enter():
        # Redirected frames reach a veth only where its peer runs NAPI.
        offloads.switch(link.interface(other), True)
    before = set(processes_left())
    words = [COMMANDS[command][0], "-i", interface, *COMMANDS[command][1:]]
    with here.enter():
        program = subprocess.Popen(
            [PARSHALL, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    try:
        line = program.stderr.readline()
        assert "started" in line, line
        changes = [{"NAME": interface, "THERE": f"{there.namespace}"}.get(word, word) for word in EVENTS[event]]
        here.run(["ip", *changes])
        # The kernel tells a socket that its interface is down. A program that sees no packets is not told.
        uses_socket = command.startswith("gen") or command == "capture by a socket"
        must_end = event in ("moved", "removed") or (event == "down" and uses_socket)
        try:
            out, messages = program.communicate(timeout=30 if must_end else 0.5)
        except subprocess.TimeoutExpired:
            assert not must_end, f"it still runs after the interface was {event}"
            program.send_signal(signal.SIGINT)
            out, messages = program.communicate(timeout=30)
        if must_end:
            assert program.returncode == 1, messages
        elif event == "down and up" and uses_socket and program.returncode == 1:
            # It noticed, if it sent or received in between.
            assert "went down while packets were sent" in messages or "Network is down" in messages
        else:
            assert program.returncode == 0, messages
    finally:
        program.kill()
        program.wait()
    lines = [line for line in messages.splitlines() if line]
    assert len(lines) <= 3, lines
    for line in lines:
        assert line.startswith("parshall: ") and "Traceback" not in line and "panicked" not in line, line
    assert program.returncode == 0 or lines, "it ended with a status and without a word"
    if out:
        assert not list(unbalanced(json.loads(out)))
    # As the keeper of a capture.
    until("all that it started has ended", lambda: not set(processes_left()) - before)
