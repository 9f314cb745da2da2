"""What a command keeps once it is attached: few capabilities, no new privileges, a seccomp filter, in all threads."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_command import RunningCommand, read_until

from parshall.host import names, offloads

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]

# Numbers of capabilities(7): NET_ADMIN, NET_RAW, IPC_LOCK, SYS_ADMIN, PERFMON, BPF.
KEPT = sum(1 << number for number in (12, 13, 14, 21, 38, 39))
KILL, FILES = 1 << 5, 1 << 0 | 1 << 1 | 1 << 3
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def threads_of(process: int) -> list[dict[str, str]]:
    """Return what /proc says of each thread."""
    found = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        # It may have ended: then there is no file, or no process behind it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = (thread / "status").read_text().splitlines()
            found.append(dict(line.split(":\t", 1) for line in lines if ":\t" in line))
    assert found
    return found


def is_confined(process: int, kept: int = KEPT) -> bool:
    """Whether no thread of a process has more than these capabilities, or may get them."""
    threads = threads_of(process)
    return all(
        thread["NoNewPrivs"] == "1"
        and thread["Seccomp"] == "2"
        and all(int(thread[name], 16) & ~kept == 0 for name in SETS)
        for thread in threads
    )


class Command(RunningCommand):
    """A command of Parshall that has reported its start."""

    def __init__(self, host: Any, *words: object, **options: Any) -> None:
        command = [sys.executable, "-m", "parshall", *map(str, words)]
        with host.enter():
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
            )
        assert self.process.stderr is not None
        read_until(self.process.stderr, "started")


COMMANDS = {
    "tcp": ["tcp", "-o", "FILE", "--json"],
    "tcp, sent": ["tcp", "-o", "FILE", "--rotate-size", "1M", "--ship", "STORE", "--json"],
    "tcp, metrics": ["tcp", "-o", "FILE", "--metrics", "0", "--otlp", "http://127.0.0.1:9", "--json"],
    "capture": ["capture", "-i", "IF", "-w", "FILE", "--json"],
    "socket": ["capture", "-i", "IF", "--backend", "tpacket-v3", "-w", "FILE", "--json"],
    "path": ["path", "-o", "FILE", "--json"],
    "path, metrics": ["path", "--budget", "1%", "--metrics", "0", "--otlp", "http://127.0.0.1:9", "--json"],
    "live": ["live", "-o", "DIR", "--path", "10%", "--json"],
    "gen": ["gen", "-i", "IF", "--yes-on", "IF", "--pps", "100", "--duration", "1m", "--json"],
    "receive": ["gen", "-i", "IF", "--receive", "--json"],
    "sizes": ["sizes", "--from", "live", "-i", "IF", "--to", "dist", "-o", "FILE"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_attached_keeps_what_it_needs(
    bed: Any, tmp_path: Path, until: Callable[..., None], command: str
) -> None:
    here, there = bed.host("here"), bed.host("there")
    link = bed.link(here, there)
    (tmp_path / "store").mkdir()
    with there.enter():
        offloads.switch(link.interface(there), True)
    words = {
        "IF": link.interface(here),
        "FILE": str(tmp_path / "file"),
        "STORE": str(tmp_path / "store"),
        "DIR": str(tmp_path),
    }
    with Command(here, *(words.get(word, word) for word in COMMANDS[command])) as running:
        # It ends the process that makes its reports.
        kept = KEPT | KILL if command == "live" else KEPT
        until("no thread has more", lambda: is_confined(running.process.pid, kept))
        ended = running.end(signal.SIGINT)
    assert ended.returncode in (0, 1, 130) and "Traceback" not in ended.stderr, ended
    assert "privileges" not in ended.stderr
    if "--json" in COMMANDS[command] and command not in ("receive", "live"):
        assert json.loads(ended.stdout)


def test_the_measured_command_keeps_its_privileges_and_is_ended(
    bed: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    here = bed.host("here")
    before = threads_of(os.getpid())[0]
    ready = tmp_path / "ready"
    script = f"cat /proc/self/status > {ready}.part; mv {ready}.part {ready}; exec sleep 600"
    with Command(here, "tcp", "-o", tmp_path / "log.arrow", "-d", "600", "--", "sh", "-c", script) as running:
        until("it runs", ready.exists)
        until("no thread has more", lambda: is_confined(running.process.pid, KEPT | KILL | FILES))
        ended = running.end(signal.SIGTERM)
    assert "Traceback" not in ended.stderr, ended
    left = [path for mount in names.cgroup2_mounts() for path in mount.glob(f"parshall-{running.process.pid}-*")]
    assert not left
    status = dict(line.split(":\t", 1) for line in ready.read_text().splitlines() if ":\t" in line)
    assert [status[name] for name in ("CapEff", "NoNewPrivs", "Seccomp")] == [
        before[name] for name in ("CapEff", "NoNewPrivs", "Seccomp")
    ]


def test_files_that_rotate_in_a_directory_of_another_user_can_still_be_made(
    bed: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    here, there = bed.host("here"), bed.host("there")
    link = bed.link(here, there)
    directory = tmp_path / "theirs"
    directory.mkdir(mode=0o700)
    os.chown(directory, 65534, 65534)
    words = ("-i", link.interface(here), "-w", directory / "x.pcap", "--rotate-size", "4k", "--rotate-files", "3")
    with Command(here, "capture", *words) as running:
        until("no thread has more", lambda: is_confined(running.process.pid, KEPT | FILES))
        with there.enter(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(20):
                sender.sendto(bytes(1000), (link.address(here), 9))
        until("it has rotated", lambda: len(list(directory.iterdir())) >= 3)
        assert running.end(signal.SIGINT).returncode == 0
