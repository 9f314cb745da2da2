"""``parshall tcp --pid``: the sockets of one process, and no others."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer
from ports import PORTS
from tcp_logger import check_log, rows_of, total

from parshall.errors import UsageError
from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel
SYN, ACK = 2, 16

# A server with one connection that is older than the log. Told to go on, its worker accepts another one, and
# it connects to somebody itself; it says the ports at its ends of the two that it has made or accepted.
SERVER = """
import os, socket, sys
address, port, peer, peer_port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
listener = socket.create_server((address, port))
print("listening", flush=True)
held, _ = listener.accept()
print("held", flush=True)
sys.stdin.readline()
worker = os.fork()
if worker == 0:
    accepted, _ = listener.accept()
    accepted.sendall(b"worker")
    accepted.recv(1)
    os._exit(0)
made = socket.create_connection((peer, peer_port))
made.sendall(b"server")
held.sendall(b"held")
print(made.getsockname()[1], flush=True)
sys.stdin.readline()
made.close()
held.close()
os.waitpid(worker, 0)
"""


@contextlib.contextmanager
def server(host: Any, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run the server on a host; end it when the test fails before it does."""
    command = [sys.executable, "-c", SERVER, *map(str, arguments)]
    process = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "listening\n"
        yield process
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_only_the_sockets_of_a_process(ends: Any, tmp_path: Path) -> None:
    """A connection that it held, one that a worker accepts from its listener, one that it makes."""
    left, right, link = ends
    here, there = link.address(left), link.address(right)
    port, peer_port, foreign_port = next(PORTS), next(PORTS), next(PORTS)
    with left.enter():
        listener = socket.create_server((here, peer_port))
        old, new = (socket.socket() for _ in range(2))
    with listener, old, new, server(right, there, port, here, peer_port) as process:
        old.connect((there, port))
        assert process.stdout.readline() == "held\n"
        with TcpLog(tmp_path / "log", pid=process.pid) as log:
            process.stdin.write("\n")
            process.stdin.flush()
            new.connect((there, port))
            assert new.recv(6) == b"worker"
            passive, _ = listener.accept()
            with passive:
                assert passive.recv(6) == b"server"
                assert old.recv(4) == b"held"
                made_port = int(process.stdout.readline())
            with connection(left, right, there, foreign_port) as (active, answering):
                transfer(active, answering, 100_000)
            # Ports of ours, as the kernel has them.
            old_port, new_port = old.getsockname()[1], new.getsockname()[1]
        new.sendall(b"x")
    logged, ledger = check_log(log.path)
    flows = {(flow["local_port"], flow["remote_port"]): flow for flow in logged.flows.to_pylist()}
    assert set(flows) == {(port, old_port), (port, new_port), (made_port, peer_port)}
    assert all(flow["local_address"] == there for flow in flows.values())
    assert flows[port, old_port]["began_before"]
    assert flows[port, old_port]["pid"] == process.pid
    # Whole from the first packet on, though the listener is older than the log and another process accepts.
    for ends_of, direction, flags in (((port, new_port), "in", SYN), ((made_port, peer_port), "out", SYN)):
        rows = rows_of(logged).filter(flow=flows[ends_of]["flow"], event="packet").sort("flow_seq")
        assert rows["direction"][0] == direction
        assert rows["pkt_flags"][0] & (SYN | ACK) == flags
        assert rows["flow_seq"].to_list() == list(range(1, len(rows) + 1))
    assert flows[port, new_port]["pid"] != process.pid
    assert flows[made_port, peer_port]["pid"] == process.pid
    # The foreign conversation is 100 kB, no more than 1448 bytes a packet, seen at both of its ends.
    assert total(ledger, "filtered", ("tcp_ingress", "tcp_egress")) >= 2 * 69


def test_a_number_that_is_no_process_is_refused(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(UsageError, match=f"--pid {ended.pid}: no such process"):
        TcpLog(tmp_path / "log", pid=ended.pid)
    with pytest.raises(UsageError, match=r"--pid -1: no such process"):
        TcpLog(tmp_path / "log", pid=[os.getpid(), -1])
    asked, thread_ids = threading.Event(), []

    def wait() -> None:
        thread_ids.append(threading.get_native_id())
        asked.wait(30)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        while not thread_ids:
            thread.join(0.01)
        with pytest.raises(UsageError, match=rf"is a thread of process {os.getpid()}; give --pid {os.getpid()}"):
            TcpLog(tmp_path / "log", pid=thread_ids[0])
    finally:
        asked.set()
        thread.join()
    with pytest.raises(UsageError, match=r"--pid 17 processes: expected at most 16"):
        TcpLog(tmp_path / "log", pid=[os.getpid()] * 17)
    assert not (tmp_path / "log").exists()


# Logs its own sockets, by the process ID that it has in its namespace.
CONTAINED = """
import os, signal, socket, subprocess, sys
for _ in range(3):
    subprocess.run(["true"])  # its log's ID is not that of a process outside
command = [sys.executable, "-m", "parshall", "tcp", "--pid", str(os.getpid()), "-o", sys.argv[1]]
log = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
assert "started" in next(line for line in log.stderr if "started" in line)
with socket.create_server(("127.0.0.1", 0)) as listener:
    with socket.create_connection(listener.getsockname()) as active, listener.accept()[0] as passive:
        active.sendall(b"question")
        assert passive.recv(100) == b"question"
log.send_signal(signal.SIGINT)
sys.stderr.write(log.communicate()[1])
sys.exit(log.returncode)
"""


def test_a_process_of_a_container_is_known_by_the_id_that_it_has_there(bed: Any, tmp_path: Path) -> None:
    path = tmp_path / "flows.arrow"
    contained = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", CONTAINED, str(path)]
    done = bed.host("container").run(contained, check=False)
    assert done.returncode == 0, done.stderr
    log, _ = check_log(path)
    assert rows_of(log).height > 0, done.stderr
    assert set(log.flows["pid"].to_pylist()) == {1}
