"""What `parshall tcp` does when something is wrong: one clear line, the right status, no leftovers."""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conversation import check_balance, connection, transfer
from ports import PORTS
from tcp_logger import (
    PACKET_HOOKS,
    PARSHALL,
    Logger,
    check_log,
    error_line,
    links_of,
    rows_of,
    small_disk,
    total,
)

import in_process
import parshall
from parshall.host import names
from parshall.host.cgroups import TemporaryCgroup
from parshall.host.quantities import many
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root", "nothing_is_left")]
MOUNT = next(names.cgroup2_mounts(), None)
WITHOUT_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


class Traffic:
    """Connections one after another, until stopped."""

    def __init__(self, pair: tuple[Any, Any, str], port: int, payload_bytes: int = 200_000) -> None:
        self._client, server, self._address = pair
        self._payload_bytes = payload_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        # One for all connections: a logger that starts holds our sockets until it has become itself,
        # and a listener that is still held cannot be made anew.
        with server.enter():
            self._listener = socket.create_server((self._address, port))

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._client.enter():
                active = socket.create_connection(self._listener.getsockname(), timeout=60)
            with active, self._listener.accept()[0] as passive:
                for _ in range(5):
                    transfer(active, passive, self._payload_bytes)

    def __enter__(self) -> "Traffic":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End with the last connection closed."""
        self._stop.set()
        self._thread.join(60)
        self._listener.close()


# ---- requests that cannot be met -------------------------------------------------------------

REFUSALS = [
    (["--ppl", "0"], 2, r"--ppl 0: must be above 0; expected a number such as"),
    (["--ppl", "-1"], 2, r"--ppl -1: expected a number"),
    (["--ppl", "5000000000"], 2, r"--ppl 5000000000: expected 1"),
    (["--ppl", "few"], 2, r"--ppl few: expected a number such as 1000, 10k or 2M"),
    (["--port", "0"], 2, r"--port 0: expected a port from 1 to 65535"),
    (["--port", "65536"], 2, r"--port 65536: expected a port from 1 to 65535"),
    (["--port", "http"], 2, r"--port http: expected a port from 1 to 65535"),
    ([f"--port={1 + port}" for port in range(17)], 2, r"--port 17 ports: expected at most 16"),
    ([f"--host=10.0.0.{1 + host}" for host in range(17)], 2, r"--host 17 addresses: expected at most 16"),
    (["--host", "nobody.invalid"], 2, r"--host nobody.invalid: .*give an address, or a name that resolves"),
    (["--duration", "0"], 2, r"--duration 0: must be above 0; expected a time such as 90, 90s"),
    (["--duration", "-3"], 2, r"--duration -3: expected a time"),
    (["--duration", "nan"], 2, r"--duration nan: expected a time"),
    (["--duration", "soon"], 2, r"--duration soon: expected a time"),
    (["--buffer", "0"], 2, r"--buffer 0: must be above 0; expected a size"),
    (["--buffer", "-1"], 2, r"--buffer -1: expected a size"),
    (["--buffer", "512M"], 2, r"--buffer 512M: expected a size from 32K to 256M"),
    (["--netns", "no-such-namespace"], 2, r"--netns no-such-namespace: No such file or directory; `ip netns` lists"),
    (["--netns", "/etc/passwd"], 2, r"--netns /etc/passwd: is not a network namespace"),
    (["--netns", "/proc/self/ns/uts/x"], 2, r"--netns /proc/self/ns/uts/x: Not a directory"),
    (["--direction", "up"], 2, r"--direction up: expected in, out or both"),
    (["--policy", "medium"], 2, r"--policy medium: expected fast or slow"),
    (["--compression", "gzip"], 2, r"--compression gzip: expected auto, lz4, zstd or none"),
    (["--no-such-option"], 2, r"--no-such-option; see `parshall tcp --help`"),
    (["--cgroup", "/x", "true"], 2, r"--cgroup /x: CMD runs in a cgroup of its own; give one or the other"),
    (["--pid", "1", "true"], 2, r"--pid 1: with CMD, its sockets are logged; give one or the other"),
    (["--pid", "99999999"], 2, r"--pid 99999999: no such process"),
    (["--cgroup", "/no-such-group"], 2, rf"cgroup /no-such-group: there is no such .*; give a directory below {MOUNT}"),
    (["--cgroup", "/usr"], 2, rf"cgroup /usr: there is no such control group; give a directory below {MOUNT}"),
    (["--cgroup", f"{MOUNT}/cgroup.procs"], 2, r"cgroup.procs: is not a control group; give a directory"),
    (["--cgroup", f"{MOUNT}/../.."], 2, r"is not a control group; give a directory below"),
    (["no-such-command"], 127, r"no-such-command: no such command; check the name and PATH"),
    (["/no/such/command"], 127, r"/no/such/command: no such command"),
    (["/etc/passwd"], 126, r"/etc/passwd: cannot be run; make it executable"),
    (["/usr"], 126, r"/usr: cannot be run"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "status", "words"), REFUSALS, ids=[" ".join(each[0][:4]) for each in REFUSALS])
def test_a_refusal_is_one_line_and_changes_nothing(
    arguments: list[str], status: int, words: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("an older log")
    answer = in_process.parshall("tcp", "-o", log, *arguments)
    assert answer.stdout == ""
    assert re.search(words, error_line(answer.stderr)), answer.stderr
    assert answer.returncode == status
    assert log.read_text() == "an older log"
    assert list(tmp_path.iterdir()) == [log]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "missing/log",
            r".*/missing/log: cannot be written: No such file or directory.*; name a file in a directory that",
        ),
        (".", r": cannot be written: Is a directory.*; name a file"),
        ("file/log", r".*/file/log: cannot be written: Not a directory.*; name a file"),
    ],
)
def test_an_output_that_cannot_be_created(output: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = in_process.parshall("tcp", "-o", tmp_path / output, "--duration", "1")
    assert re.search(words, error_line(answer.stderr))
    assert answer.returncode == 2


def test_without_privileges(tmp_path: Path) -> None:
    log = tmp_path / "log"
    answer = subprocess.run(
        [*WITHOUT_CAPABILITIES, PARSHALL, "tcp", "-o", log, "--", "true"], capture_output=True, text=True, timeout=60
    )
    error = error_line(answer.stderr)
    assert answer.returncode == 2
    # The first thing that it does for CMD.
    assert "Permission denied; root lacks CAP_SYS_ADMIN here" in error
    assert not log.exists()


def test_without_type_information(tmp_path: Path) -> None:
    log = tmp_path / "log"
    hide = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
    answer = subprocess.run(
        ["unshare", "-m", "sh", "-c", hide, "sh", PARSHALL, "tcp", "-o", log, "--duration", "1"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    error = error_line(answer.stderr)
    assert "type information is missing; boot a kernel built with CONFIG_DEBUG_INFO_BTF=y" in error
    assert answer.returncode == 1
    assert not log.exists()


# ---- the disk, and the end --------------------------------------------------------------------


def test_a_disk_that_fills_up_ends_the_log_and_keeps_what_was_written(pair: Any, until: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    with small_disk(tmp_path / "disk", "2m") as disk, Traffic(pair, port, 2_000_000):
        with Logger(until, "-o", disk / "log", "--port", str(port), "--json") as logger:
            result = logger.end()
        assert shutil.disk_usage(disk).free == 0
        shutil.copy(disk / "log", tmp_path / "log")
    log = parshall.read(tmp_path / "log")
    rows = rows_of(log)
    assert result.returncode == 1
    errors = error_line(result.stderr)
    assert re.search(
        rf"log {disk}/log: No space left on device.* after \d+ bytes; make room, or log to another disk", errors
    )
    assert not log.complete
    assert log.truncation
    account = json.loads(result.stdout)
    assert account["failure"] in errors
    ledger = account["ledger"]
    check_balance(ledger)
    causes = {cause: sum(each["lost"][cause] for each in ledger["hooks"]) for cause in ledger["hooks"][0]["lost"]}
    assert causes.pop("unwritten") > 0
    assert not any(causes.values()), causes
    # What the ledger calls logged is what opens, to the row.
    assert len(rows) == sum(each["logged"] for each in ledger["hooks"] if each["hook"] != "tcp_flow")
    assert len(rows) > 10_000


def test_a_disk_without_any_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4k") as disk:
        (disk / "full").write_bytes(bytes(4096))
        answer = in_process.parshall("tcp", "-o", disk / "log", "--duration", "1")
    assert re.search(r"log .*No space left on device.* after 0 bytes; make room", error_line(answer.stderr))
    assert answer.returncode == 1


def test_after_a_kill_the_log_opens_and_the_hooks_are_gone(pair: Any, until: Any, tmp_path: Path) -> None:
    port, path = next(PORTS), tmp_path / "log"
    with Traffic(pair, port), Logger(until, "-o", path, "--port", str(port)) as logger:
        # Two ticks and a bit.
        until(
            "the log has ticked", lambda: path.exists() and path.stat().st_size > 0 and bool(parshall.read(path).ledger)
        )
        first = len(parshall.read(path).records)
        until("it has ticked again", lambda: len(parshall.read(path).records) > first)
        process = logger.process
        killed_s = time.time()
        process.kill()
        process.wait()
        assert links_of(process.pid) == 0
    log = parshall.read(path)
    assert not log.complete
    rows = rows_of(log)
    last_s = rows["time_ns"].dt.epoch("ns").max() / 1e9
    assert -0.1 < killed_s - last_s < 1.5
    flows = {flow["flow"] for flow in log.flows.to_pylist()}
    # Rows reach the file before the flow table of the same tick.
    known = rows.filter(rows["time_ns"].dt.epoch("ns") / 1e9 < last_s - 1)
    assert set(known["flow"]) <= flows
    assert log.ledger["complete"] is False
    # What still waited in the ring when the ledger was drawn up is not lost: most of it is in the file.
    overwritten = sum(account["lost"]["overwritten"] for account in log.ledger["hooks"])
    assert overwritten == log.ledger["sequence_gaps"] == 0


# Most tests end a log by SIGINT.
@pytest.mark.parametrize(
    "number",
    long_except([signal.SIGTERM, signal.SIGHUP], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]),
    ids=lambda number: number.name,
)
def test_a_signal_ends_the_log_with_its_ledger(pair: Any, number: signal.Signals, until: Any, tmp_path: Path) -> None:
    port, path = next(PORTS), tmp_path / "log"
    with Traffic(pair, port), Logger(until, "-o", path, "--port", str(port)) as logger:
        until("there are records", lambda: path.exists() and path.stat().st_size > 100_000)
        result = logger.end(number)
    assert (result.returncode, result.stdout) == (0, "")
    log, ledger = check_log(path)
    _, first, *table = result.stderr.splitlines()
    assert first == f"{path}: {many(log.flows.num_rows, 'flow')}"
    assert table[0].split() == ["seen", "filtered", "thinned", "logged", "lost"]
    for line, account in zip(table[1:], ledger["hooks"], strict=False):
        lost = sum(account["lost"].values())
        numbers = [account["seen"], account["filtered"], account["thinned"], account["logged"], lost]
        assert line.split() == [account["hook"], *(f"{each:,}" for each in numbers)]
    assert table[-1].startswith("  cost: ")
    assert total(ledger, "logged", PACKET_HOOKS) > 0


@pytest.mark.parametrize("attempts", long_except([1], [1, 5]))
def test_the_flow_accounts_of_a_log_that_ends_amid_short_connections(
    pair: Any, until: Any, tmp_path: Path, attempts: int
) -> None:
    """Sockets come and go while the hooks are taken off: no account is lost with them."""
    for attempt in range(attempts):
        port, path = next(PORTS), tmp_path / f"log{attempt}"
        with Traffic(pair, port, 100), Logger(until, "-o", path, "--port", str(port), "--ppl", "3") as logger:
            until("there are flows", lambda path=path: path.exists() and path.stat().st_size > 20_000)
            assert logger.end(signal.SIGINT).returncode == 0
        check_log(path, is_thinned=True)


# ---- commands ---------------------------------------------------------------------------------


# ---- at rest, at once, for machines ------------------------------------------------------------


def test_a_log_of_no_flows(tmp_path: Path) -> None:
    answer = in_process.parshall(
        "tcp", "-o", tmp_path / "log", "--port", "1", "--host", "192.0.2.1", "--duration", "0.2"
    )
    assert answer.returncode == 0
    assert answer.stderr.splitlines()[1] == f"{tmp_path}/log: 0 flows"
    log, _ = check_log(tmp_path / "log")
    assert (log.flows.num_rows, log.records.num_rows) == (0, 0)


@pytest.mark.usefixtures("one_cpu")
def test_two_loggers_at_once_see_the_same(pair: Any, until: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    paths = [tmp_path / name for name in ("one", "two")]
    with contextlib.ExitStack() as stack:
        loggers = [stack.enter_context(Logger(until, "-o", path, "--port", str(port))) for path in paths]
        with connection(*pair, port) as (active, passive):
            transfer(active, passive, 1_000_000)
        assert [logger.end(signal.SIGINT).returncode for logger in loggers] == [0, 0]
    # In the order of each direction: a packet may come in between the two programs that look at one that goes out.
    what = ["direction", "event", "state", "cwnd_segments", "pkt_seq", "pkt_ack", "payload_bytes"]
    seen = []
    for path in paths:
        log, _ = check_log(path)
        assert log.flows.num_rows == 2
        flows = sorted(log.flows.to_pylist(), key=lambda flow: flow["passive"])
        rows = rows_of(log)
        seen.append(
            [
                rows.filter(flow=flow["flow"]).sort("direction", "event", "flow_seq").select(what).to_dicts()
                for flow in flows
            ]
        )
    assert seen[0] == seen[1]


def test_json_is_one_object_and_nothing_else(pair: Any, until: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    with Logger(until, "-o", tmp_path / "log", "--port", str(port), "--json", "-q") as logger:
        with connection(*pair, port) as (active, passive):
            transfer(active, passive, 10_000)
        result = logger.end(signal.SIGINT)
    assert (result.returncode, result.stderr) == (0, "")
    account = json.loads(result.stdout)
    assert account.keys() == {
        "log",
        "flows",
        "listeners",
        "segments_unlisted",
        "budget",
        "ledger",
        "failure",
        "shipping",
    }
    assert (account["log"], account["flows"], account["failure"]) == (str(tmp_path / "log"), 2, None)
    assert account["ledger"] == check_log(tmp_path / "log")[1]


def test_progress_is_a_live_line_on_a_terminal_and_nothing_elsewhere(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [PARSHALL, "tcp", "-o", tmp_path / "log2", "--duration", "1.2"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        # Beside it, one whose errors are no terminal.
        answer = in_process.parshall("tcp", "-o", tmp_path / "log", "--duration", "1.2")
        assert "\r" not in answer.stderr
        shown = b""
        with contextlib.suppress(OSError):  # the terminal goes with its last user
            while part := screen.read(65536):
                shown += part
        assert process.communicate(timeout=30) == (b"", None)
    assert process.returncode == 0
    lines = [each for each in shown.split(b"\r") if b" records " in each]
    assert len(lines) >= 2
    assert re.search(rb"1\.\d s  [\d,]+ records  [\d,]+ flows  [\d,]+ lost  \d+\.\d MB", lines[-1])
    assert b"cost:" in shown


def test_a_listener_without_connections_is_no_flow(pair: Any, tmp_path: Path) -> None:
    _, right, address = pair
    port = next(PORTS)
    with right.enter(), socket.create_server((address, port)):
        answer = in_process.parshall("tcp", "-o", tmp_path / "log", "--port", str(port), "--duration", "0.2")
    assert answer.returncode == 0
    assert parshall.read(tmp_path / "log").flows.num_rows == 0


def test_an_empty_cgroup(tmp_path: Path) -> None:
    group = TemporaryCgroup(f"empty{os.getpid()}")
    try:
        answer = in_process.parshall(
            "tcp", "-o", tmp_path / "log", "--cgroup", group.path, "--duration", "0.2", "--json"
        )
    finally:
        group.remove()
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["flows"] == 0
    ledger = check_log(tmp_path / "log")[1]
    assert total(ledger, "seen", PACKET_HOOKS) == 0


def test_a_second_log_to_the_same_file_is_refused(pair: Any, until: Any, tmp_path: Path) -> None:
    port, path = next(PORTS), tmp_path / "log"
    with Traffic(pair, port), Logger(until, "-o", path, "--port", str(port)) as logger:
        until("there are records", lambda: path.exists() and path.stat().st_size > 100_000)
        second = in_process.parshall("tcp", "-o", path, "--duration", "1")
        assert logger.end(signal.SIGINT).returncode == 0
    assert error_line(second.stderr) == f"{path}: another process is writing it; name another file"
    assert second.returncode == 1
    check_log(path)
    # When its writer has ended, it may be replaced like any file.
    assert in_process.parshall("tcp", "-o", path, "--port", str(port), "--duration", "0.1").returncode == 0
    assert len(check_log(path)[0].records) == 0
