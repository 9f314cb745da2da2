"""``parshall doctor``, as root and as nobody."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parshall.cli.doctor import _command_rows, command
from parshall.host.commands import COMMANDS
from parshall.host.doctor.decisions import RULES, Decision
from parshall.host.doctor.probes import Probe

PARSHALL = Path(sys.executable).with_name("parshall")
NOBODY = 65534
SDK = "installation.mcp"
NEEDED = {
    name for rule in RULES.values() for need in (*rule.needs, *rule.optional) for name in need.one_of if name != SDK
}


def doctor(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command, perhaps through another one."""
    return subprocess.run(
        [*prefix, PARSHALL, "doctor", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


@pytest.fixture
def as_nobody(root) -> tuple[str, ...]:
    """Return the words before a command that run it without privileges."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    reachable = subprocess.run([*prefix, sys.executable, "-c", ""], capture_output=True)
    if reachable.returncode != 0:
        pytest.skip("this checkout, or its interpreter, lies where other users cannot read")
    return prefix


@pytest.fixture(scope="module")
def answer() -> subprocess.CompletedProcess[str]:
    """Return what the command says to machines, once for all tests: it tries every feature."""
    return doctor("--json")


@pytest.mark.kernel
def test_root_gets_every_probe_and_every_command(root, answer):
    report = json.loads(answer.stdout)
    assert report["format"] == "parshall-doctor/1"
    assert [entry["command"] for entry in report["commands"]] == [*COMMANDS, "testbed"]
    cannot = [entry for entry in report["commands"] if entry["status"] == "cannot"]
    assert answer.returncode == (1 if any(entry["cause"] != "not installed" for entry in cannot) else 0)
    assert not [probe for probe in report["probes"] if probe["cause"] == "broken"]


@pytest.mark.kernel
def test_without_privileges_untried_probes_are_counted(as_nobody):
    answer = doctor(prefix=as_nobody)
    assert answer.returncode == 1, "the testbed needs root, so one command cannot work"
    assert answer.stderr == ""
    assert "Not run as root: " in answer.stdout
    assert "this process lacks CAP_BPF" in answer.stdout
    assert "broken" not in answer.stdout


@pytest.mark.kernel
def test_a_refusal_for_lack_of_privileges_is_not_called_unsupported(as_nobody):
    report = json.loads(doctor("--json", prefix=as_nobody).stdout)
    causes = {probe["name"]: probe["cause"] for probe in report["probes"]}
    for name in ("program.xdp", "program.of_tcp", "map.sk_storage", "network.namespace", "socket.af_packet_v3"):
        assert causes[name] == "forbidden", name


def test_in_a_pipe_there_are_neither_colours_nor_wrapped_lines():
    output = doctor().stdout
    assert "\x1b" not in output
    assert not [line for line in output.splitlines() if line != line.rstrip()]
    assert "host.kernel" in output


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--help"], ["tcp", "--nope"], ["model"]])
def test_under_no_color_a_terminal_gets_no_codes(arguments):
    shown, terminal = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "parshall", *arguments], stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    output = b""
    # A terminal whose other end is closed is an error on Linux.
    with contextlib.suppress(OSError):
        while part := os.read(shown, 65536):
            output += part
    os.close(shown)
    process.wait(60)
    assert output and b"\x1b" not in output


@pytest.mark.parametrize(
    ("cause", "status"), [("not installed", 0), ("unsupported", 1), ("forbidden", 1), ("broken", 1)]
)
def test_only_what_was_not_installed_is_no_failure(monkeypatch, capsys, cause, status):
    probes = [Probe(name, "works", None, "", "") for name in NEEDED] + [Probe(SDK, "cannot", cause, "no SDK", "do it")]
    monkeypatch.setattr("parshall.cli.doctor._probe_interruptibly", lambda: probes)
    assert command(as_json=True) == status
    report = json.loads(capsys.readouterr().out)
    assert [entry["command"] for entry in report["commands"] if entry["status"] == "cannot"] == ["mcp"]


def test_what_several_commands_lack_is_said_once():
    lack = ("degraded", None, "no netem", "load it")
    decisions = [
        Decision("tcp", "works", None, "", ""),
        Decision("router", *lack),
        Decision("pcap", "degraded", None, "no tcx", "boot another kernel"),
        Decision("lab", *lack),
        Decision("cpu", "works", None, "", ""),
    ]
    rows = [(name, str(word), detail, remedy) for name, word, detail, remedy in _command_rows(decisions)]
    assert rows == [
        ("tcp", "works", "", ""),
        ("router", "degraded", "no netem", "load it"),
        ("pcap", "degraded", "no tcx", "boot another kernel"),
        ("lab", "degraded", "as router", ""),
        ("cpu", "works", "", ""),
    ]


def test_failed_probes_have_a_remedy(answer):
    report = json.loads(answer.stdout)
    for entry in [*report["probes"], *report["commands"]]:
        assert (entry["status"] == "works") == (entry["cause"] is None), entry
        assert entry["status"] == "works" or entry["remedy"], entry


@pytest.mark.kernel
@pytest.mark.alone
def test_clean_removes_the_cgroup_of_a_dead_run_but_not_its_processes(root):
    from parshall._native import cgroup2_mount

    gone = subprocess.Popen(["true"])
    gone.wait()
    cgroup = Path(cgroup2_mount()) / f"parshall-{gone.pid}-1-test"
    cgroup.mkdir()
    with subprocess.Popen(["sleep", "60"]) as survivor:
        try:
            (cgroup / "cgroup.procs").write_text(str(survivor.pid))
            answer = doctor("--clean")
            assert f"removed: cgroup {cgroup}" in answer.stdout, answer.stderr
            assert not cgroup.exists()
            assert survivor.poll() is None
        finally:
            survivor.kill()
            survivor.wait()
            if cgroup.exists():
                cgroup.rmdir()


@pytest.mark.kernel
@pytest.mark.alone
def test_clean_keeps_the_cgroup_of_a_living_run(root):
    from parshall._native import cgroup2_mount

    start_time_ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    cgroup = Path(cgroup2_mount()) / f"parshall-{os.getpid()}-{start_time_ticks}-test"
    cgroup.mkdir()
    try:
        doctor("--clean")
        assert cgroup.exists()
    finally:
        cgroup.rmdir()


@pytest.mark.alone
@pytest.mark.kernel
def test_ctrl_c_ends_it_while_the_kernel_checks_programs(root, until):
    process = subprocess.Popen([PARSHALL, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    tasks = Path(f"/proc/{process.pid}/task")
    until("the thread that probes is there", lambda: len(list(tasks.iterdir())) > 1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    # Once all is checked, it prints what it found.
    assert (process.returncode, output, errors) == (130, "", "")
