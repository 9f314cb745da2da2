"""Programs that are started so that they end with who started them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parshall.host import programs
from parshall.host.programs import in_starter, start


def test_a_program_gets_its_arguments_streams_and_environment_as_they_are(tmp_path: Path) -> None:
    words = ["sh", "-c", 'printf "%s|" "$@" "$OWN" "$PWD"; cat', "name", "a b", "", "$HOME", "--"]
    pipe = subprocess.PIPE
    program = in_starter(
        lambda: start(words, env={"OWN": "x y", "PATH": os.defpath}, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True)
    )
    output, _ = program.communicate("in")
    assert output == f"a b||$HOME|--|x y|{tmp_path}|in"
    assert program.args == words and program.returncode == 0


def test_a_program_is_known_by_its_own_name_and_status() -> None:
    program = in_starter(lambda: start(["sleep", "60"]))
    try:
        # It was the shell's, until that became the program.
        while (name := Path(f"/proc/{program.pid}/comm").read_text()) != "sleep\n":
            assert name in ("setpriv\n", "sh\n", "python3\n"), name
    finally:
        program.kill()
    assert program.wait(10) == -9
    assert in_starter(lambda: start(["sh", "-c", "exit 7"])).wait(10) == 7


@pytest.mark.parametrize(
    ("name", "error"),
    [("no-such-program", FileNotFoundError), ("./nothing", FileNotFoundError), ("./text", PermissionError)],
)
def test_what_cannot_be_run_is_an_error_at_the_start(tmp_path: Path, name: str, error: type[OSError]) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "directory").mkdir()
    with pytest.raises(error) as raised:
        start([name], cwd=tmp_path)
    assert raised.value.filename == name
    with pytest.raises(PermissionError):
        start(["./directory"], cwd=tmp_path)


def test_without_setpriv_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda _: None)
    with pytest.raises(OSError, match="setpriv is missing, install util-linux"):
        start(["true"])


def test_a_program_whose_parent_has_ended_before_it_could_begin_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent is another process by then."""
    monkeypatch.setattr(programs.os, "getpid", lambda: 1 << 22)
    program = start(["touch", "made"], cwd=tmp_path)
    monkeypatch.undo()
    assert program.wait(10) == 1
    assert not (tmp_path / "made").exists()


# Interrupts are for this process, which handles them; its programs are in groups of their own.
STARTS = """
import signal
from parshall.host.programs import in_starter, start

signal.signal(signal.SIGINT, lambda *_: None)
print("handles", flush=True)
statuses = [in_starter(lambda: start(["true"], process_group=0)).wait() for _ in range(100)]
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(*sorted(set(statuses)))
"""


def test_ctrl_c_while_a_program_starts_does_not_end_it() -> None:
    running = subprocess.Popen([sys.executable, "-P", "-c", STARTS], process_group=0, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "handles\n"
    interrupts = 0
    while running.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGINT)
        interrupts += 1
        time.sleep(0.0005)  # the distance between interrupts, not a wait for anything
    assert running.communicate()[0] == "0\n"
    assert interrupts > 100
