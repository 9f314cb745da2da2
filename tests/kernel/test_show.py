"""`parshall show`, held against ss, which asks the kernel itself, and against plain counting."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accept_queues import Clients, listener_at, overflows
from conversation import connection, transfer
from ports import PORTS
from running_command import RunningCommand, read_until
from tcp_logger import PARSHALL, Logger, run

from parshall.host.rotation import Rotation
from parshall.instruments.tcp import TcpLog

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


class Showing(RunningCommand):
    """A `parshall show --follow --json` that runs."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [PARSHALL, "show", *arguments, "--follow", "--json", "--interval", "100ms"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next(self) -> dict[str, Any]:
        """The next table."""
        return json.loads(read_until(self.process.stdout, "\n"))


def ss_of(host: Any, port: int) -> dict[str, int]:
    """What ss says of the established connection to a port, from the side that connected."""
    text = host.run(["ss", "-Htin", "state", "established", f"dport = :{port}"]).stdout
    return {name: int(number) for name, number in re.findall(r"(bytes_acked|bytes_received|cwnd):(\d+)", text)}


@pytest.mark.parametrize("rotation", [Rotation(), Rotation(rotate_time_s=0.5)], ids=["one file", "rotating"])
def test_a_log_that_is_written_is_shown_as_ss_shows_the_connection(
    pair: Any, tmp_path: Path, until: Callable[..., None], rotation: Rotation
) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "live.arrow"
    with TcpLog(path, port=port, netns=left.namespace, rotation=rotation) as log:
        with Showing(path) as showing:
            # It begins at the newest file.
            assert showing.next()["flows"] == []
            with connection(left, right, address, port) as (active, passive):
                for round_number in range(1, 4):
                    transfer(active, passive, 300_000)
                    transfer(passive, active, 50_000)
                    kernel = ss_of(left, port)
                    # The SYN has a number, too.
                    sent, received = round_number * 300_000, round_number * 50_000
                    assert kernel["bytes_acked"] - 1 == sent

                    def is_shown(sent: int = sent, received: int = received) -> bool:
                        flows = showing.next()["flows"]
                        return [(flow["acked_bytes"], flow["received_bytes"]) for flow in flows] == [(sent, received)]

                    until(f"{sent} bytes are shown", is_shown)
                shown = showing.next()
                (flow,) = shown["flows"]
                assert (flow["state"], flow["ended"], flow["remote_port"]) == ("ESTABLISHED", False, port)
                assert not shown["complete"]
            log.stop()
            until("the end is shown", lambda: showing.next()["complete"])
            assert showing.end().returncode == 0


def test_rates_add_up_to_the_bytes(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    left, right, address = pair
    port, path, sent_bytes = next(PORTS), tmp_path / "live.arrow", 0
    tables = []

    def is_all_shown() -> bool:
        tables.append(showing.next())
        return sum(flow["acked_bytes"] for flow in tables[-1]["flows"]) == sent_bytes

    with TcpLog(path, port=port, netns=left.namespace), Showing(path) as showing:
        # Before the first account nothing is known, and rates are over the life of a flow.
        until("there is an account", lambda: is_all_shown() and tables[-1]["until_time_ns"] > 0)
        del tables[:-1]
        began_s = time.time()
        with connection(left, right, address, port) as (active, passive):
            for _ in range(4):
                transfer(active, passive, 300_000)
                sent_bytes += 300_000
                until("all is shown", is_all_shown)
            ended_s = time.time()
    moved_bytes = 0.0
    for table, before in zip(tables[1:], tables, strict=False):
        elapsed_ns = table["until_time_ns"] - before["until_time_ns"]
        moved_bytes += sum(flow["rate_Mbps"] * 1e6 / 8 * elapsed_ns / 1e9 for flow in table["flows"])
    first = sum(flow["acked_bytes"] + flow["received_bytes"] for flow in tables[0]["flows"])
    last = sum(flow["acked_bytes"] + flow["received_bytes"] for flow in tables[-1]["flows"])
    assert moved_bytes == pytest.approx(last - first)
    assert began_s - 2 < tables[1]["until_time_ns"] / 1e9 < tables[-1]["until_time_ns"] / 1e9 < ended_s


def test_a_finished_log_is_one_table(pair: Any, tmp_path: Path) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "done.arrow"
    with TcpLog(path, port=port, netns=left.namespace):
        for size_bytes in (10_000, 400_000, 20_000):
            with connection(left, right, address, port) as (active, passive):
                transfer(active, passive, size_bytes)
    answer = run("show", path, "-c", "2")
    assert answer.returncode == 0, answer.stderr
    title, account, names, first, second, more = answer.stdout.splitlines()
    assert title.startswith(f"{path}: 3 flows, ")
    seen, filtered, thinned, logged, lost = (
        int(number.replace(",", ""))
        for number in re.match(
            r"seen ([\d,]+) = filtered ([\d,]+) \+ thinned ([\d,]+) \+ logged ([\d,]+) \+ lost ([\d,]+)", account
        ).groups()
    )
    assert seen == filtered + thinned + logged + lost
    columns = names.split()
    # The last column may have several words: on a busy machine a probe may be sent.
    words = [line.split(maxsplit=len(columns) - 1) for line in (first, second)]
    rows = [dict(zip(columns, of, strict=True)) for of in words]
    # FIN has a number, too.
    assert [row["acked"] for row in rows] == ["400k", "20k"]
    assert {row["state"] for row in rows} == {"fin"}
    assert more == "1 more flow; --count or --sort shows others"
    answer = run("show", path, "--json", "--sort", "flow")
    shown = json.loads(answer.stdout)
    assert shown["complete"]
    assert [flow["flow"] for flow in shown["flows"]] == [1, 2, 3]
    # As the kernel counts: SYN and FIN are a byte each.
    assert [flow["acked_bytes"] for flow in shown["flows"]] == [10_002, 400_002, 20_002]


def test_a_terminal_has_the_table_on_its_other_screen(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "live.arrow"
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    text = b""

    def read(wanted: bytes) -> bool:
        nonlocal text
        while select.select([master], [], [], 0.05)[0]:
            text += os.read(master, 65536)
        return wanted in text

    try:
        with TcpLog(path, port=port, netns=left.namespace), connection(left, right, address, port) as (active, passive):
            transfer(active, passive, 100_000)
            process = subprocess.Popen(
                [PARSHALL, "show", path, "--follow", "--interval", "100ms"],
                stdin=slave,
                stdout=slave,
                stderr=subprocess.PIPE,
                env=os.environ | {"COLUMNS": "80", "LINES": "24"},
            )
            until("the flow is on the screen", lambda: read(str(port).encode()))
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
            read(b"")
    finally:
        os.close(master)
        os.close(slave)
    assert (process.returncode, errors) == (0, b"")
    before, _, after = text.rpartition(b"\x1b[?1049l")
    assert before.startswith(b"\x1b[?1049h")
    widths = [len(re.sub(rb"\x1b\[[?\d]*[A-Za-z]", b"", line)) for line in re.split(rb"\r+\n|\x1b\[H", before)]
    assert max(widths) <= 80
    # What was shown last stays.
    assert str(port).encode() in after


def test_names_from_outside_cannot_control_the_terminal(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "live.arrow"
    comm = Path(f"/proc/self/task/{os.getpid()}/comm")
    before = comm.read_text()
    try:
        comm.write_text("\x1b[31mred")
        with TcpLog(path, port=port, netns=left.namespace), connection(left, right, address, port) as (active, passive):
            transfer(active, passive, 1000)
    finally:
        comm.write_text(before.strip())
    answer = run("show", path)
    assert "\x1b" not in answer.stdout
    assert "red" in answer.stdout


def test_a_killed_writer_leaves_the_follower_waiting_and_a_new_one_is_followed(
    pair: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "live.arrow"
    words = ("-o", path, "--port", str(port), "--netns", left.namespace, "--rotate-time", "1h")
    with connection(left, right, address, port) as (active, passive), Logger(until, *words) as first:
        transfer(active, passive, 50_000)
        with Showing(path) as showing:
            until("the first writer's flows are shown", lambda: len(showing.next()["flows"]) == 1)
            first.end(signal.SIGKILL)
            title, _, doubt, *_ = run("show", path).stdout.splitlines()
            assert "it was not finished: its writer still runs, was killed, or ran out of room" in title
            assert doubt == "the account is as of its last full second; the table has what came later, too"
            with Logger(until, *words) as second:
                transfer(active, passive, 50_000)
                until("the second writer's flows are shown, too", lambda: len(showing.next()["flows"]) == 2)
                second.end(signal.SIGINT)
            until("the end is shown", lambda: showing.next()["complete"])
            assert showing.end().returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nosuch.arrow",), "nosuch.arrow: cannot be read: No such file or directory"),
        (("nosuch.arrow", "--follow"), "nosuch.arrow: cannot be read: No such file or directory"),
        (("x", "--sort", "name"), "--sort name: expected one of rate, bytes, acked,"),
        (("x", "-d", "3"), "--duration: is for --follow"),
    ],
)
def test_a_wrong_request_is_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    answer = run("show", *words, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"parshall: show: {message}")
    assert answer.stderr.count("\n") == 1


def test_a_full_accept_queue_has_a_line(
    pair: Any, clients_at: Callable[[Any], Clients], tmp_path: Path, until: Callable[..., None]
) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "live.arrow"
    with TcpLog(path, port=port), listener_at(right, address, port, backlog=1):
        before = overflows(right)
        clients_at(left).connect(address, port, 12)
        until("the kernel has refused some", lambda: overflows(right) > before)
        line = re.compile(
            rf"^listener {re.escape(address)}:{port} of .*: accept queue of 1 full: [\d,]+ SYNs", re.MULTILINE
        )
        until("it is shown", lambda: line.search(run("show", path, "--follow", "-d", "100ms").stdout))
    assert line.search(run("show", path).stdout)
