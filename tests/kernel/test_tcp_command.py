"""`parshall tcp -- CMD`: only its sockets, its exit status, its signals, and nothing left of its cgroup."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer
from ports import PORTS
from tcp_logger import PACKET_HOOKS, PARSHALL, Logger, check_log, run, small_disk, total

import in_process
from parshall.host import names
from parshall.instruments.tcp import TcpLog
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root", "nothing_is_left")]
MOUNT = next(names.cgroup2_mounts(), None)


STATUSES = [
    ("exit 3", 3),
    ("kill -SEGV $$", 139),
    ("exit 0", 0),
    ("exit 255", 255),
    ("kill -TERM $$", 143),
    ("kill -KILL $$", 137),
]


# Other tests of commands have the statuses of success, SIGTERM and SIGKILL.
@pytest.mark.parametrize(("code", "status"), long_except(STATUSES[:2], STATUSES))
def test_parshall_exits_with_the_status_of_the_command(code: str, status: int, tmp_path: Path) -> None:
    answer = run("tcp", "-o", tmp_path / "log", "--", "sh", "-c", f"echo said; {code}")
    assert (answer.returncode, answer.stdout) == (status, "said\n")
    log, _ = check_log(tmp_path / "log")
    assert log.environment["command"].startswith("sh -c")


def test_only_the_flows_of_a_command_and_its_children_are_logged(tmp_path: Path) -> None:
    """The command talks to itself over the loopback of a namespace of its own; others talk, too."""
    code = (
        "import socket, sys\n"
        "with socket.create_server(('127.0.0.1', 0)) as listener:\n"
        "    with socket.create_connection(listener.getsockname()) as active, listener.accept()[0] as passive:\n"
        "        active.sendall(bytes(1000)); active.shutdown(socket.SHUT_WR)\n"
        "        while passive.recv(65536): pass\n"
    )
    script = f'ip link set lo up && {sys.executable} -c "$0" & wait $!'
    answer = run("tcp", "-o", tmp_path / "log", "--json", "--", "unshare", "-n", "sh", "-c", script, code)
    assert answer.returncode == 0, answer.stderr
    log, ledger = check_log(tmp_path / "log")
    assert log.flows.num_rows == 2
    assert {flow["passive"] for flow in log.flows.to_pylist()} == {True, False}
    assert total(ledger, "filtered", PACKET_HOOKS) == 0
    assert all("-cmd" in flow["cgroup"] for flow in log.flows.to_pylist())


def test_an_interrupt_goes_to_the_command_and_parshall_exits_with_its_status(until: Any, tmp_path: Path) -> None:
    """As the terminal does it: the whole foreground group is sent SIGINT."""
    code = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    with Logger(until, "-o", tmp_path / "log", "--", "sh", "-c", code, start_new_session=True) as logger:
        assert logger.process.stdout.readline() == "ready\n"
        os.killpg(logger.process.pid, signal.SIGINT)
        result = logger.end()
    assert (result.returncode, result.stdout) == (5, "interrupted\n")
    check_log(tmp_path / "log")
    assert "cost:" in result.stderr


def test_a_command_that_ends_by_sigint(until: Any, tmp_path: Path) -> None:
    with Logger(until, "-o", tmp_path / "log", "--", "sleep", "60", start_new_session=True) as logger:
        group = the_cgroup_of(logger.process.pid, until)
        until_some(until, lambda: (group / "cgroup.procs").read_text().split())
        until("the command runs", lambda: runs_sleep(group))
        os.killpg(logger.process.pid, signal.SIGINT)
        result = logger.end()
    assert result.returncode == 130
    check_log(tmp_path / "log")


def test_a_request_to_end_reaches_the_command(until: Any, tmp_path: Path) -> None:
    with Logger(until, "-o", tmp_path / "log", "--", "sleep", "60") as logger:
        group = the_cgroup_of(logger.process.pid, until)
        until("the command runs", lambda: runs_sleep(group))
        result = logger.end(signal.SIGTERM)
    assert result.returncode == 143
    check_log(tmp_path / "log")


@pytest.mark.parametrize("obeys", [True, False])
def test_the_duration_bounds_a_command(obeys: bool, tmp_path: Path) -> None:
    """Whether it ends when asked or not; what it started is killed with it, or this pipe would stay open."""
    trap = "" if obeys else "trap '' TERM; "
    # A child of one that obeys goes on, but not with our pipe.
    quiet = ">/dev/null 2>&1 " if obeys else ""
    started_s = time.monotonic()
    answer = run("tcp", "-o", tmp_path / "log", "--duration", "1", "--", "sh", "-c", f"{trap}sleep 20 {quiet}& wait $!")
    assert time.monotonic() - started_s < 15
    assert answer.returncode == (143 if obeys else 137)
    (line,) = [line for line in answer.stderr.splitlines() if "CMD" in line]
    assert line.startswith("parshall: tcp: CMD was ended after 1 s")
    assert ("SIGKILL" in line) is not obeys
    _, ledger = check_log(tmp_path / "log")
    assert ledger["cost"]["wall_s"] < 3


def test_daemons_of_a_command_continue_in_the_parent_cgroup(tmp_path: Path) -> None:
    script = "sleep 60 >/dev/null 2>&1 & echo $!; exit 4"
    answer = run("tcp", "-o", tmp_path / "log", "--", "sh", "-c", script)
    assert answer.returncode == 4
    daemon = int(answer.stdout)
    try:
        assert "parshall" not in Path(f"/proc/{daemon}/cgroup").read_text()
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_disk_that_fills_up_ends_the_log_with_a_failure(pair: Any, until: Any, tmp_path: Path) -> None:
    """Without its log the command is asked to end: going on would measure nothing."""
    with small_disk(tmp_path / "disk", "64k") as disk:
        code = (
            "import socket\n"
            "with socket.create_server(('127.0.0.1', 0)) as listener:\n"
            "  while True:\n"
            "    with socket.create_connection(listener.getsockname()) as active, listener.accept()[0] as passive:\n"
            "      active.sendall(bytes(1000)); passive.recv(1000)\n"
        )
        script = f'ip link set lo up && exec {sys.executable} -c "$0"'
        answer = run("tcp", "-o", disk / "log", "--", "unshare", "-n", "sh", "-c", script, code)
    assert "No space left on device" in answer.stderr.splitlines()[-1]
    assert answer.returncode not in (0, 2)


def test_a_namespace_by_ip_netns_exec(bed: Any, tmp_path: Path) -> None:
    """`ip netns exec` puts a new /sys in place, in which no control groups are mounted."""
    host = bed.host("alone")
    code = (
        "import socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as listener:\n"
        "    with socket.create_connection(listener.getsockname()) as active, listener.accept()[0] as passive:\n"
        "        active.sendall(bytes(1000)); passive.recv(1000)\n"
    )
    host.run(["ip", "link", "set", "lo", "up"])
    inside = ["ip", "netns", "exec", host.path.name]
    assert "cgroup2" not in spoken([*inside, "cat", "/proc/self/mountinfo"]).stdout
    log_file = tmp_path / "log"
    answer = spoken([*inside, PARSHALL, "tcp", "-o", log_file, "--", sys.executable, "-c", code])
    assert answer.returncode == 0, answer.stderr
    log, ledger = check_log(log_file)
    assert {flow["passive"] for flow in log.flows.to_pylist()} == {True, False}
    assert all("-cmd" in flow["cgroup"] for flow in log.flows.to_pylist())
    assert total(ledger, "filtered", PACKET_HOOKS) == 0
    answer = spoken([*inside, PARSHALL, "tcp", "-o", log_file, "--duration", "0.2"])
    assert answer.returncode == 0, answer.stderr
    probes = {
        probe["name"]: probe for probe in json.loads(spoken([*inside, PARSHALL, "doctor", "--json"]).stdout)["probes"]
    }
    for name in ("cgroup.v2", "program.cgroup_skb_ingress", "program.cgroup_skb_egress"):
        assert probes[name]["status"] == "works", probes[name]


def spoken(command: list[Any]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def test_a_closed_standard_output(tmp_path: Path) -> None:
    """The log must not become standard output, which the command would write into."""
    log_file = tmp_path / "log"
    for arguments in (["--duration", "0.2"], ["--", "sh", "-c", "echo said"]):
        answer = spoken(["sh", "-c", 'exec "$@" >&-', "sh", PARSHALL, "tcp", "-o", log_file, *arguments])
        assert answer.returncode == 0
        assert "nobody foresaw" not in answer.stderr
        assert "cost:" in answer.stderr
        check_log(log_file)


def test_a_log_on_standard_output(tmp_path: Path) -> None:
    """Through a pipe; the account goes elsewhere."""
    script = '"$0" tcp -o - --duration 500ms --json -q | cat > "$1"'
    answer = spoken(["sh", "-c", script, PARSHALL, tmp_path / "log"])
    check_log(tmp_path / "log")
    assert json.loads(answer.stderr)["log"] == "-"
    assert not (Path.cwd() / "-").exists()
    answer = run("tcp", "-o", "-", "--", "true")
    assert (answer.returncode, answer.stdout) == (2, "")


def test_after_a_kill_the_next_run_removes_the_cgroup(until: Any, tmp_path: Path) -> None:
    group, child = a_killed_logger(until, tmp_path)
    answer = run("tcp", "-o", tmp_path / "next", "--", "true")
    assert answer.returncode == 0, answer.stderr
    assert not group.exists()
    # The command belongs to the user and goes on.
    os.kill(child, 0)
    os.kill(child, signal.SIGKILL)


def test_after_a_kill_doctor_removes_the_cgroup(until: Any, tmp_path: Path) -> None:
    group, child = a_killed_logger(until, tmp_path)
    os.kill(child, signal.SIGKILL)
    answer = in_process.parshall("doctor", "--clean")
    assert answer.returncode == 0, answer.stderr
    # What it prints is not judged: another run of Parshall on this machine may have removed the group before.
    assert not group.exists()


def a_killed_logger(until: Any, directory: Path) -> tuple[Path, int]:
    """The control group that a logger of a command left when it was killed, and the command, which goes on."""
    # The command must not hold the logger's output pipes.
    quiet = ["sh", "-c", "exec sleep 60 >/dev/null 2>&1"]
    with Logger(until, "-o", directory / "log", "--", *quiet) as logger:
        group = the_cgroup_of(logger.process.pid, until)
        until("the command runs", lambda: runs_sleep(group))
        (child,) = until_some(until, lambda: (group / "cgroup.procs").read_text().split())
        logger.process.kill()
        logger.process.communicate()
    return group, int(child)


def the_cgroup_of(pid: int, until: Any) -> Path:
    """The control group that a logger made for its command."""
    (group,) = until_some(until, lambda: list(MOUNT.glob(f"parshall-{pid}-*")))
    return group


def until_some(until: Any, look: Any) -> Any:
    """Poll `look` until it returns something, and return that."""
    found: list[Any] = []

    def has_come() -> bool:
        found[:] = look()
        return bool(found)

    until("there is something", has_come)
    return found


def runs_sleep(group: Path) -> bool:
    """Whether the process in the group has already executed the command."""
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    return False


def test_a_polling_interval_out_of_range_is_refused_in_one_line(pair: Any, tmp_path: Path) -> None:
    left, right, address = pair
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=port) as log, connection(left, right, address, port) as (active, passive):
        transfer(active, passive, 1000)
        # Spacing: two flows for so long are more than 100 million nanoseconds.
        time.sleep(0.2)
        transfer(active, passive, 1000)
    answer = in_process.parshall("convert", log.path, "--to", "web10g", "--every", "0.6ns", "-o", tmp_path / "out")
    assert answer.returncode == 2
    assert re.fullmatch(
        r"parshall: convert: --every: 1 ns make \d+ lines or more of this log, \d+ GB, expected at most"
        r" 100000000 lines: poll every \d+ ns or less often\n",
        answer.stderr,
    )
    assert list(tmp_path.iterdir()) == [log.path]
