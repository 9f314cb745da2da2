"""Listeners whose accept queue is full: who they are, and how many SYNs and final ACKs found no room.

The witnesses are the counters of their network namespace (nstat) and the queues as ss shows them.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from accept_queues import delayed_ends, has_queued, listener_at, overflows, queue_of, refuse_final_acks, silence
from changed_programs import compiled
from conversation import connection, transfer
from ports import PORTS
from retransmission_counters import counters
from tcp_flow_table import retransmissions_of
from tcp_logger import Logger, check_log
from test_compilers import GIVEN

import parshall
from parshall.instruments.tcp import TcpLog
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
MPTCP = 262

# Listens, forks workers, and accepts nothing until standard input ends.
SERVER = """
import os, socket, sys
address, port, backlog, workers = sys.argv[1], *map(int, sys.argv[2:])
listener = socket.create_server((address, port), backlog=backlog)
children = []
for _ in range(workers):
    child = os.fork()
    if not child:
        sys.stdin.read()
        os._exit(0)
    children.append(child)
print("listening", flush=True)
sys.stdin.read()
for child in children:
    os.waitpid(child, 0)
"""

BEGIN = "/* When the log begins: finds the connections"
IS_OVER = """static long is_over(__u64 step, void *until_ns) { return bpf_ktime_get_ns() > *(__u64 *)until_ns; }

"""
# The walk waits for a while at the listener of the test.
FOUND = "	if (HAS_MPTCP && sk->sk_protocol == IPPROTO_MPTCP) {\n"
WALK = """	if (sk->__sk_common.skc_state == TCP_LISTEN && sk->__sk_common.skc_num == {port}) {{
		__u64 until_ns = bpf_ktime_get_ns() + 400000000;

		bpf_loop(1 << 23, is_over, &until_ns, 0);
	}}
"""


@contextlib.contextmanager
def server(host: Any, address: str, port: int, backlog: int, workers: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Run a process that listens, and workers that share its listener."""
    command = [sys.executable, "-c", SERVER, *map(str, (address, port, backlog, workers))]
    process = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "listening\n"
        yield process
        process.stdin.close()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def syns_of(clients: Sequence[socket.socket]) -> int:
    """SYNs that clients without an answer have sent."""
    return sum(1 + retransmissions_of(client) for client in clients)


def listeners_of(log: Any, port: int) -> list[dict[str, Any]]:
    """The rows of the listeners at a port."""
    return [row for row in log.listeners.to_pylist() if row["local_port"] == port]


def check_counts(rows: Sequence[dict[str, Any]], host: Any) -> None:
    """Compare the sums of all listeners of a host with the counters of its namespace, to the packet."""
    counted = counters(host)
    refused = sum(row["syns_refused"] + row["acks_refused"] for row in rows)
    assert refused == counted["ListenOverflows"], rows
    # No listener of these tests drops anything for another reason.
    assert refused == counted["ListenDrops"], rows


@pytest.mark.parametrize("family", [4, 6])
def test_syns_that_found_no_room(ends: Any, clients_at: Any, until: Any, tmp_path: Path, family: int) -> None:
    """Also those that are sent again count, as the kernel counts them."""
    left, right, link = ends
    address, port = link.address(right, family), next(PORTS)
    clients = clients_at(left)
    with TcpLog(tmp_path / "log", port=port) as log, listener_at(right, address, port, 2):
        clients.connect(address, port, 3)
        until("three connections wait", has_queued(right, port, 3))
        assert queue_of(right, port) == (3, 2)
        refused = clients.connect(address, port, 4)
        until("each SYN was sent again", lambda: all(retransmissions_of(each) for each in refused))
        silence(left, link.interface(left))
        log.stop()
        sent = syns_of(refused)
    logged, _ = check_log(log.path)
    (row,) = listeners_of(logged, port)
    check_counts([row], right)
    assert 8 <= row["syns_refused"] <= sent
    assert row["acks_refused"] == 0
    assert (row["local_address"], row["ip_version"]) == (address, family)
    assert (row["pid"], row["command"]) == (os.getpid(), Path("/proc/self/comm").read_text().strip())
    assert row["netns_inode"] == Path(right.path).stat().st_ino
    names = ("backlog_connections", "queue_last_connections", "queue_longest_connections")
    assert [row[name] for name in names] == [2, 3, 3]
    assert row["first_refused_time_ns"] < row["last_refused_time_ns"]
    assert logged.flows.num_rows == 14


@pytest.mark.parametrize(("family", "resets"), long_except([(4, 0), (4, 1)], [(4, 0), (6, 0), (4, 1)]))
def test_final_acks_that_found_no_room(
    bed: Any, clients_at: Any, until: Any, tmp_path: Path, family: int, resets: int
) -> None:
    """Without a reset, their clients take the connection for established; what they send finds no room, either."""
    left, right, link = delayed_ends(bed)
    right.sysctl("net.ipv4.tcp_abort_on_overflow", resets)
    address, port = link.address(right, family), next(PORTS)
    clients = clients_at(left)
    with TcpLog(tmp_path / "log", port=port) as log, listener_at(right, address, port, 4):
        refuse_final_acks(clients, right, address, port, until, sends=not resets)
        silence(left, link.interface(left))
        log.stop()
    (row,) = listeners_of(check_log(log.path)[0], port)
    check_counts([row], right)
    assert row["acks_refused"] >= 2
    assert row["syns_refused"] == 0
    assert row["queue_longest_connections"] == 5


@pytest.mark.parametrize("family", [4, 6])
def test_final_acks_with_syn_cookies(bed: Any, clients_at: Any, until: Any, tmp_path: Path, family: int) -> None:
    """The kernel has no request for them, and finds the accept queue full all the same."""
    left, right, link = delayed_ends(bed)
    address, port = link.address(right, family), next(PORTS)
    clients = clients_at(left)
    with TcpLog(tmp_path / "log", port=port) as log, listener_at(right, address, port, 2):
        clients.connect(address, port, 10)
        until("seven ACKs were refused", lambda: overflows(right) >= 7)
        assert counters(right)["SyncookiesSent"] > 0
        silence(left, link.interface(left))
        log.stop()
    (row,) = listeners_of(check_log(log.path)[0], port)
    check_counts([row], right)
    assert row["acks_refused"] >= 7
    assert (row["queue_last_connections"], row["backlog_connections"]) == (3, 2)


def test_a_syn_that_is_answered_again_was_not_refused(bed: Any, clients_at: Any, until: Any, tmp_path: Path) -> None:
    """The link is so long that each SYN is sent again; when it comes, its request exists, and the queue is full."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, delay_ms=700)
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=port) as log, listener_at(right, "0.0.0.0", port, 2):
        late = clients_at(left).connect(link.address(right), port, 2)
        until("their SYNs have come", lambda: counters(right)["TcpInSegs"] >= 2)
        clients_at(right).connect("127.0.0.1", port, 3)
        until("three connections wait", has_queued(right, port, 3))
        until("two ACKs were refused", lambda: overflows(right) >= 2)
        assert all(retransmissions_of(each) for each in late)
        silence(left, link.interface(left))
        silence(right, "lo")
        log.stop()
    (row,) = listeners_of(check_log(log.path)[0], port)
    check_counts([row], right)
    assert (row["local_address"], row["syns_refused"]) == ("0.0.0.0", 0)


def test_an_ack_that_waits_for_data_was_not_refused(bed: Any, clients_at: Any, until: Any, tmp_path: Path) -> None:
    """With TCP_DEFER_ACCEPT the kernel drops bare ACKs, before it looks at the accept queue."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, delay_ms=300)
    port = next(PORTS)
    listener = listener_at(right, "0.0.0.0", port, 4)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 10)
    with TcpLog(tmp_path / "log", port=port) as log, listener:
        near = clients_at(right).connect("127.0.0.1", port, 4)
        for each in near:
            each.send(b"data")
        until("four connections wait", has_queued(right, port, 4))
        arrived = counters(right)["TcpInSegs"]
        clients_at(left).connect(link.address(right), port, 1)
        until("its SYN has come", lambda: counters(right)["TcpInSegs"] > arrived)
        (last,) = clients_at(right).connect("127.0.0.1", port, 1)
        last.send(b"data")
        until("the queue is full", has_queued(right, port, 5))
        until("all six ACKs were dropped", lambda: counters(right)["TCPDeferAcceptDrop"] >= 6)
        silence(left, link.interface(left))
        silence(right, "lo")
        log.stop()
    (row,) = listeners_of(check_log(log.path)[0], port)
    check_counts([row], right)
    assert row["acks_refused"] == 0


def test_a_full_request_queue_is_another_limit(bed: Any, clients_at: Any, until: Any, tmp_path: Path) -> None:
    """Without SYN cookies, SYNs are dropped for it, too; a log counts those of the accept queue only."""
    left, right, link = delayed_ends(bed)
    right.sysctl("net.ipv4.tcp_syncookies", 0)
    address, port = link.address(right), next(PORTS)
    clients = clients_at(left)
    with TcpLog(tmp_path / "log", port=port) as log, listener_at(right, address, port, 2):
        clients.connect(address, port, 12)
        until("SYNs were dropped", lambda: counters(right)["TCPReqQFullDrop"] >= 8)
        silence(left, link.interface(left))
        log.stop()
    (row,) = listeners_of(check_log(log.path)[0], port)
    counted = counters(right)
    assert row["syns_refused"] + row["acks_refused"] == counted["ListenOverflows"]
    assert counted["ListenDrops"] == counted["ListenOverflows"] + counted["TCPReqQFullDrop"]


def test_equal_listeners_of_two_namespaces(bed: Any, clients_at: Any, until: Any, tmp_path: Path) -> None:
    """Address and port are the same, and one of them is full."""
    full, roomy = bed.host("full"), bed.host("roomy")
    port = next(PORTS)
    with (
        TcpLog(tmp_path / "log", port=port) as log,
        listener_at(full, "127.0.0.1", port, 1),
        listener_at(roomy, "127.0.0.1", port, 100),
    ):
        for host in (full, roomy):
            clients_at(host).connect("127.0.0.1", port, 9)
        until("nine connections wait", has_queued(roomy, port, 9))
        until("SYNs were refused", lambda: overflows(full) >= 7)
        for host in (full, roomy):
            silence(host, "lo")
        log.stop()
    rows = {row["netns_inode"]: row for row in listeners_of(check_log(log.path)[0], port)}
    assert len(rows) == 2
    for host in (full, roomy):
        check_counts([rows[Path(host.path).stat().st_ino]], host)
    row = rows[Path(roomy.path).stat().st_ino]
    # The last of nine found eight.
    assert row["queue_longest_connections"] in (8, 9)
    assert row["first_refused_time_ns"] is None


def test_a_listener_that_replaces_another(ends: Any, clients_at: Any, until: Any, tmp_path: Path) -> None:
    """Both had the same address and port: they are two sockets, so two rows."""
    left, right, link = ends
    address, port = link.address(right), next(PORTS)
    clients = clients_at(left)
    with TcpLog(tmp_path / "log", port=port) as log:
        with listener_at(right, address, port, 1):
            clients.connect(address, port, 6)
            until("SYNs were refused", lambda: overflows(right) >= 4)
            for each in clients.sockets:
                each.close()
        before = overflows(right)
        with listener_at(right, address, port, 50):
            clients.connect(address, port, 5)
            until("five connections wait", has_queued(right, port, 5))
            assert overflows(right) == before
            silence(left, link.interface(left))
            log.stop()
    first, second = listeners_of(check_log(log.path)[0], port)
    assert first["socket_cookie"] != second["socket_cookie"]
    assert (first["ended"], second["ended"]) == (True, False)
    assert (first["backlog_connections"], second["backlog_connections"]) == (1, 50)
    check_counts([first], right)
    check_counts([first, second], right)


def test_listeners_of_one_port_and_their_processes(ends: Any, clients_at: Any, until: Any, tmp_path: Path) -> None:
    """A fork server has one listener, though several processes hold it; it is that of the process that made it."""
    left, right, link = ends
    address, port = link.address(right), next(PORTS)
    clients = clients_at(left)
    # One is older than the log.
    for number, order in enumerate(("before", "after")):
        path = tmp_path / f"log-{order}"
        with contextlib.ExitStack() as stack:
            if order == "after":
                log = stack.enter_context(TcpLog(path, port=port + number))
            process = stack.enter_context(server(right, address, port + number, 1, workers=3))
            if order == "before":
                log = stack.enter_context(TcpLog(path, port=port + number))
            expected = overflows(right) + 3
            # Those that fit come first: then only SYNs are refused, also where the ACKs are late.
            clients.connect(address, port + number, 2)
            until("two connections wait", has_queued(right, port + number, 2))
            clients.connect(address, port + number, 3)
            until("SYNs were refused", lambda expected=expected: overflows(right) >= expected)
            log.stop()
        (row,) = listeners_of(check_log(path)[0], port + number)
        assert row["pid"] == process.pid
        assert row["command"].startswith("python")
        assert row["syns_refused"] >= 3


def test_a_log_of_one_process_has_its_listeners(ends: Any, clients_at: Any, until: Any, tmp_path: Path) -> None:
    """Filters select listeners as they select flows."""
    left, right, link = ends
    address = link.address(right)
    ports = [next(PORTS) for _ in range(3)]
    clients = clients_at(left)
    with contextlib.ExitStack() as stack:
        wanted, _ = (stack.enter_context(server(right, address, port, 1)) for port in ports[:2])
        log = stack.enter_context(TcpLog(tmp_path / "log", pid=wanted.pid))
        stack.enter_context(listener_at(right, address, ports[2], 1))
        for port in ports:
            clients.connect(address, port, 2)
            until("two connections wait", has_queued(right, port, 2))
            clients.connect(address, port, 2)
        until("SYNs were refused", lambda: overflows(right) >= 6)
        silence(left, link.interface(left))
        log.stop()
    (row,) = check_log(log.path)[0].listeners.to_pylist()
    assert (row["pid"], row["local_port"]) == (wanted.pid, ports[0]), row
    assert 2 <= row["syns_refused"] < overflows(right)


@pytest.mark.skipif(GIVEN is not None, reason="the objects are given")
@pytest.mark.parametrize("protocol", [socket.IPPROTO_TCP, MPTCP])
def test_who_holds_a_listener_is_known_where_all_packets_come_before_the_walk(
    ends: Any, clients_at: Any, until: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protocol: int
) -> None:
    """The walk over what processes hold begins when the log does, and may take longer than a burst of connections."""
    left, right, link = ends
    if protocol == MPTCP and not Path("/proc/sys/net/mptcp/enabled").exists():
        pytest.skip("this kernel has no MPTCP")
    address, port = link.address(right), next(PORTS)
    changes = [(FOUND, WALK.format(port=port) + FOUND), (BEGIN, IS_OVER + BEGIN)]
    monkeypatch.setenv("PARSHALL_BPF_OBJECTS", str(compiled(tmp_path, "tcp", {"tcp.bpf.c": changes})))
    with right.enter():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    clients = clients_at(left)
    with listener:
        listener.bind((address, port))
        listener.listen(1)
        with TcpLog(tmp_path / "log", port=[port]) as log:
            clients.connect(address, port, 3, protocol)
            until("a SYN was refused", lambda: overflows(right) >= 1)
            silence(left, link.interface(left))
            log.stop()
    (row,) = listeners_of(check_log(log.path)[0], port)
    assert (row["pid"], (row["command"] or "")[:6]) == (os.getpid(), Path("/proc/self/comm").read_text()[:6]), row


def test_the_listeners_of_a_command(until: Any, tmp_path: Path, bed: Any, clients_at: Any) -> None:
    """CMD has a control group of its own, and only its listeners are in the log."""
    host = bed.host("host")
    port, foreign = next(PORTS), next(PORTS)
    script = SERVER.replace("sys.stdin.read()", "__import__('signal').pause()")
    command = [sys.executable, "-c", script, "127.0.0.1", str(port), "1", "0"]
    with (
        listener_at(host, "127.0.0.1", foreign, 1),
        host.enter(),
        Logger(until, "-q", "--json", "-o", tmp_path / "log", "--", *command) as logger,
    ):
        until("CMD listens", lambda: bool(host.run(["ss", "-ltnH", f"sport = :{port}"]).stdout))
        clients = clients_at(host)
        for each in (foreign, port):
            clients.connect("127.0.0.1", each, 4)
        until("SYNs were refused", lambda: overflows(host) >= 4)
        summary = json.loads(logger.end(signal.SIGTERM).stdout.splitlines()[-1])
    (row,) = parshall.read(tmp_path / "log").listeners.to_pylist()
    assert (row["local_port"], row["backlog_connections"]) == (port, 1)
    assert "-cmd" in row["cgroup"]
    (shown,) = summary["listeners"]
    assert {name: shown[name] for name in ("listener", "syns_refused")} == {
        name: row[name] for name in ("listener", "syns_refused")
    }


def test_the_terminal_names_the_listeners_that_had_no_room(
    ends: Any, clients_at: Any, until: Any, tmp_path: Path
) -> None:
    """One line each; of one that had room there is none."""
    left, right, link = ends
    address, full, roomy = link.address(right), next(PORTS), next(PORTS)
    arguments = ("-o", tmp_path / "log", "--port", str(full), "--port", str(roomy))
    clients = clients_at(left)
    with Logger(until, *arguments) as logger, server(right, "0.0.0.0", full, 1) as process:
        with connection(left, right, address, roomy) as (active, passive):
            transfer(active, passive, 1000)
        clients.connect(address, full, 2)
        until("two connections wait", has_queued(right, full, 2))
        clients.connect(address, full, 4)
        until("SYNs were refused", lambda: overflows(right) >= 4)
        silence(left, link.interface(left))
        refused = overflows(right)
        errors = logger.end(signal.SIGINT).stderr
    lines = [line for line in errors.splitlines() if line.startswith("listener ")]
    (row,) = listeners_of(parshall.read(tmp_path / "log"), full)
    assert lines == [
        f"listener 0.0.0.0:{full} of {row['command']} (pid {process.pid}) in network namespace {row['netns_inode']}: "
        f"accept queue of 1 full: {refused} SYNs, 0 ACKs refused"
    ]
    assert len(listeners_of(parshall.read(tmp_path / "log"), roomy)) == 1


def test_a_listener_of_mptcp(ends: Any, clients_at: Any, until: Any, tmp_path: Path) -> None:
    """Its accept queue is that of the listening subflow; its process holds the MPTCP socket."""
    left, right, link = ends
    if not Path("/proc/sys/net/mptcp/enabled").exists():
        pytest.skip("this kernel has no MPTCP")
    address, port = link.address(right), next(PORTS)
    with right.enter():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
    clients = clients_at(left)
    with listener, TcpLog(tmp_path / "log", port=port) as log:
        listener.bind((address, port))
        listener.listen(1)
        clients.connect(address, port, 2, MPTCP)
        until("two connections wait", has_queued(right, port, 2))
        clients.connect(address, port, 3, MPTCP)
        until("SYNs were refused", lambda: overflows(right) >= 3)
        silence(left, link.interface(left))
        log.stop()
    (row,) = listeners_of(check_log(log.path)[0], port)
    check_counts([row], right)
    assert row["pid"] == os.getpid()
