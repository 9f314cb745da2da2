"""kill -9 of every process at random moments: nothing stays that matters, and who is left keeps its accounts."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from capturer import Capturer, account_of, rings, subscribers_of

import parshall
from host_state import HostState, processes_left, wait_until_clean
from parshall.cli.doctor import remove_leftovers
from parshall.host.namespaces import NETNS_DIRECTORY
from suites import long_except

pytestmark = pytest.mark.kernel
# A killed process may leave eBPF programs, which carry no owner's name, so those that other tests load would count as
# left; on a busy machine the kernel frees them seconds after their end.
alone = pytest.mark.alone
PARSHALL = Path(sys.executable).with_name("parshall")
LOG = Path(__file__).parents[1] / "data" / "small.arrow"
OLD = b"what the user had"
# From before the first line of Python to after the first seconds of measuring.
MOMENT_MAX_S = 1.5


@dataclass
class Scene:
    """Two hosts with TCP traffic and other packets between them, and a directory with a file that exists."""

    left: Any
    right: Any
    link: Any
    directory: Path

    @property
    def file(self) -> Path:
        """The file that exists."""
        return self.directory / "file"

    def start(self, *arguments: object) -> "subprocess.Popen[bytes]":
        """Start `parshall` on the right host."""
        meant = {
            "FILE": self.file,
            "DIRECTORY": self.directory / "report",
            "INTERFACE": self.link.interface(self.right),
        }
        words = [str(meant.get(str(word), word)) for word in arguments]
        with self.right.enter():
            return subprocess.Popen(
                [PARSHALL, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    def drafts(self) -> list[Path]:
        """What is in the directory beside the file."""
        return [path for path in self.directory.iterdir() if path != self.file]


@pytest.fixture
def scene(bed: Any, until: Any, tmp_path: Path) -> Iterator[Scene]:
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right)
    server = right.popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    right.wait_for_listener(5201)
    address = link.address(right)
    client = left.popen(["iperf3", "-c", address, "-b", "20M", "-l", "1200", "-t", "86400"], stdout=subprocess.DEVNULL)
    directory = tmp_path / "outputs"
    directory.mkdir()
    scene = Scene(left, right, link, directory)
    scene.file.write_bytes(OLD)
    yield scene
    for program in (client, server):
        program.kill()
        program.wait()


def killed(process: "subprocess.Popen[Any]", moment_s: float) -> None:
    """Kill a process after a while."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(moment_s)
    process.kill()
    process.communicate()


def moments(rounds: int) -> Iterator[float]:
    """Seconds after the start, in every part of the time there is."""
    numbers = random.Random(rounds)
    for number in range(rounds):
        yield MOMENT_MAX_S * (number + numbers.random()) / rounds


def cleaned() -> None:
    """Remove what may stay, by what `doctor --clean` calls before it tries each feature, which takes seconds."""
    remove_leftovers()


COMMANDS = {
    "tcp": ["tcp", "-o", "FILE"],
    "tcp of a cgroup": ["tcp", "-o", "FILE", "--cgroup", "/", "--direction", "out"],
    "capture": ["capture", "-i", "INTERFACE", "-w", "FILE"],
    "capture by a socket": ["capture", "-i", "INTERFACE", "--backend", "af-packet", "-w", "FILE"],
    "gen": ["gen", "-i", "INTERFACE", "--pps", "20k", "--duration", "60"],
    "gen by af-packet": ["gen", "-i", "INTERFACE", "--backend", "af-packet", "--pps", "20k", "--duration", "60"],
    "cpu": ["cpu", "-o", "FILE", "--duration", "60"],
    "sizes": ["sizes", "imix", "--to", "sizes", "-n", "100M", "-o", "FILE"],
    "convert": ["convert", LOG, "--to", "parquet", "-o", "FILE"],
    "report": ["report", LOG, "-o", "DIRECTORY"],
}


def is_whole(command: str, file: Path) -> bool:
    """Whether what has come into the place of the old file opens."""
    if command.startswith("tcp"):
        parshall.read(file)
    elif command.startswith("capture"):
        said = subprocess.run(["tcpdump", "-Z", "root", "-r", file, "-w", "/dev/null"], capture_output=True, text=True)
        return said.returncode == 0 or "truncated" in said.stderr
    elif command == "cpu":
        return file.read_text().count("\n") > 0
    return True


@alone
@pytest.mark.parametrize("command", long_except(["capture"], COMMANDS))
def test_a_command_that_is_killed_leaves_nothing_and_destroys_nothing(
    scene: Scene, command: str, rounds: int, until: Any
) -> None:
    before = HostState.now()
    for moment_s in moments(rounds):
        killed(scene.start(*COMMANDS[command]), moment_s)
        # The socket of a ring whose keeper was killed, and what else `doctor --clean` removes, is no harm.
        cleaned()
        assert wait_until_clean(before) == [], f"after {moment_s} s"
        assert "PROMISC" not in scene.right.run(["ip", "link", "show"]).stdout
        if scene.file.read_bytes() != OLD:
            assert is_whole(command, scene.file), f"after {moment_s} s"
            scene.file.write_bytes(OLD)
        for draft in scene.drafts():
            assert re.fullmatch(r"file\.\d+\.part", draft.name) or command == "report", draft
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


@alone
def test_members_keep_their_accounts_when_another_is_killed(scene: Scene, rounds: int, until: Any) -> None:
    """One of three readers is killed at a time; the others, and the keeper, go on."""
    before = HostState.now()
    for moment_s in moments(rounds):
        arguments = ("-i", scene.link.interface(scene.right), "-w", scene.directory / "creator", "--json")
        with Capturer(until, scene.right, *arguments) as creator:
            joiners = [
                Capturer(until, scene.right, "-w", scene.directory / f"joiner-{number}", "--json", join=creator.ring)
                for number in range(2)
            ]
            readers = [creator, *joiners]
            with contextlib.ExitStack() as stack:
                for joiner in joiners:
                    stack.enter_context(joiner)
                victim = readers.pop(random.Random(moment_s).randrange(3))
                killed(victim.process, moment_s)
                until("it is forgotten", lambda: len(subscribers_of(creator.ring)) == 2)
                for reader in readers:
                    said = reader.end()
                    assert said.returncode == 0, said.stderr
                    account_of(said)
        until("the keeper has gone", lambda ring=creator.ring: ring not in rings())
        assert wait_until_clean(before) == [], f"after {moment_s} s"


@alone
def test_readers_end_when_their_keeper_is_killed(scene: Scene, rounds: int, until: Any) -> None:
    """They end in time, say why, and what they wrote opens."""
    before = HostState.now()
    for moment_s in moments(rounds):
        interface = scene.link.interface(scene.right)
        with Capturer(until, scene.right, "-i", interface, "-w", scene.file) as creator:
            keeper = creator.keeper()
            time.sleep(moment_s)
            os.kill(keeper, signal.SIGKILL)
            said = creator.end(number=None)
        assert said.returncode == 1, said.stderr
        assert "the keeper" in said.stderr, said.stderr
        assert is_whole("capture", scene.file)
        cleaned()
        assert wait_until_clean(before) == [], f"after {moment_s} s"


def test_a_testbed_that_is_killed_while_it_is_made_or_ends(rounds: int, until: Any) -> None:
    program = """
import subprocess
from parshall.testbed import Testbed
with Testbed() as bed:
    a, b = bed.host("a"), bed.host("b")
    bed.link(a, b, delay_ms=1)
    a.popen(["sleep", "1000"])
"""
    before = set(processes_left())
    for moment_s in moments(rounds):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        killed(child, moment_s)
        cleaned()
        until(f"its programs have ended, after {moment_s} s", lambda: not set(processes_left()) - before)
        assert not list(NETNS_DIRECTORY.glob(f"parshall-{child.pid}-*"))


ROUTERS = {
    "router measure": ["router", "measure", "--duration", "60", "-o", "TABLE"],
    "model calibrate": ["model", "calibrate", "-o", "CALIBRATION"],
}


@pytest.mark.parametrize("command", long_except(["router measure"], ROUTERS))
def test_a_router_that_is_killed_leaves_nothing_that_is_not_removed(
    command: str, tmp_path: Path, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, temporary = tmp_path / "outputs", tmp_path / "temporary"
    for directory in (outputs, temporary):
        directory.mkdir()
    # That of this process, which removes what is left there, and of the command.
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    files = {"TABLE": str(outputs / "table.parquet"), "CALIBRATION": str(outputs / "here.toml")}
    before = set(processes_left())
    child = subprocess.Popen(
        [PARSHALL, *(files.get(word, word) for word in ROUTERS[command])],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    namespaces = f"parshall-{child.pid}-*"
    try:
        # Either may come first.
        made = lambda: any(NETNS_DIRECTORY.glob(namespaces)) and any(temporary.iterdir())  # noqa: E731
        until("it measures", made, timeout_s=60)
    finally:
        child.kill()
        child.wait()
    cleaned()
    assert not list(NETNS_DIRECTORY.glob(namespaces)) + list(temporary.iterdir())
    # The user removes drafts of outputs (docs/promises.md).
    assert {path.name for path in outputs.iterdir()} <= {f"table.parquet.{child.pid}.part"}
    until("its programs have ended", lambda: not set(processes_left()) - before)


@alone
def test_after_a_kill_the_logged_command_continues_and_its_cgroup_can_be_removed(
    scene: Scene, rounds: int, until: Any
) -> None:
    """As under strace the command is the user's own; it is ended here by its number."""
    before = HostState.now()
    for moment_s in moments(rounds):
        told = scene.directory / "pid"
        told.write_text("")
        logger = scene.start("tcp", "-o", "FILE", "--", "sh", "-c", f"echo $$ >{told}; exec sleep 1000 >/dev/null")
        killed(logger, moment_s)
        if text := told.read_text():
            os.kill(int(text), signal.SIGKILL)
        cleaned()
        assert wait_until_clean(before) == [], f"after {moment_s} s"
