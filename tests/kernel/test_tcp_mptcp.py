"""Subflows of MPTCP in the TCP log: the token of their connection, and the process that owns it."""

import contextlib
import re
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer
from ports import PORTS
from tcp_flow_table import ours
from tcp_logger import check_log

from parshall.instruments.tcp import TcpLog
from parshall.report import write_report

pytestmark = pytest.mark.kernel
MPTCP = 262
OTHER_ADDRESS = "198.51.100.7"

MANY_BYTES, FEW_BYTES = 1_000_000, 1_000

# Both ends of a connection. The client connects at the first line of standard input; each further one, and each of the
# server, lets it send some bytes and take as many.
END = """
import socket, sys, threading
role, address, port, protocol, length = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
if role == "server":
    end = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    end.bind((address, port))
    end.listen()
    print("listening", flush=True)
    listener, (end, _) = end, end.accept()
else:
    sys.stdin.readline()
    end = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    end.connect((address, port))
print("connected", flush=True)
for line in sys.stdin:
    sender = threading.Thread(target=end.sendall, args=(bytes(length),))
    sender.start()
    left = length
    while left:
        received = end.recv(left)
        if not received:
            sys.exit(f"{left} bytes are missing at the end")
        left -= len(received)
    sender.join()
    print("exchanged", flush=True)
"""


class End:
    """A process with one end of a connection."""

    def __init__(
        self, host: Any, role: str, address: str, port: int, protocol: int = MPTCP, length: int = MANY_BYTES
    ) -> None:
        command = [sys.executable, "-c", END, role, address, str(port), str(protocol), str(length)]
        self.process = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.host, self.pid = host, self.process.pid

    def expect(self, line: str) -> None:
        """Wait for a line of its output."""
        is_there, _, _ = select.select([self.process.stdout], [], [], 100)
        if not is_there:
            sockets = self.host.run(["ss", "-tMinmOa"]).stdout
            pytest.fail(f"process {self.pid} does not say {line!r}; the sockets of its host:\n{sockets}")
        assert self.process.stdout.readline() == f"{line}\n"

    def go_on(self) -> None:
        """Let it take its next step."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def connect(self) -> None:
        """Let a client connect."""
        self.go_on()
        self.expect("connected")

    def close(self) -> None:
        """Let it end."""
        self.process.stdin.close()
        assert self.process.wait(30) == 0

    def __enter__(self) -> "End":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


@contextlib.contextmanager
def conversation(
    ends: Any, port: int, protocols: tuple[int, int] = (MPTCP, MPTCP), length: int = MANY_BYTES
) -> Iterator[tuple[End, End]]:
    """Connect a process of each host; neither has sent anything."""
    left, right, link = ends
    address = link.address(right)
    client_protocol, server_protocol = protocols
    with End(right, "server", address, port, server_protocol, length) as server:
        server.expect("listening")
        with End(left, "client", address, port, client_protocol, length) as client:
            client.connect()
            server.expect("connected")
            yield client, server


def exchange(*ends: End) -> None:
    """Let both ends send and receive."""
    for each in ends:
        each.go_on()
    for each in ends:
        each.expect("exchanged")


def close(*ends: End) -> None:
    """Close both ends."""
    for each in ends:
        each.close()


@pytest.fixture
def two_paths(ends: Any) -> Any:
    """Two hosts of which the first joins a second subflow, from an address of its own, to each connection."""
    left, right, link = ends
    if not Path("/proc/sys/net/mptcp/enabled").exists():
        pytest.skip("this kernel has no MPTCP")
    for host in (left, right):
        host.run(["ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"])
    left.run(["ip", "address", "add", f"{OTHER_ADDRESS}/32", "dev", link.interface(left)])
    right.run(["ip", "route", "add", f"{OTHER_ADDRESS}/32", "via", link.address(left)])
    left.run(["ip", "mptcp", "endpoint", "add", OTHER_ADDRESS, "dev", link.interface(left), "subflow"])
    return ends


def tokens(host: Any, port: int) -> set[int]:
    """Return the tokens of the connections of a host, as ss has them."""
    lines = host.run(["ss", "-MnHiO", f"sport = :{port} or dport = :{port}"]).stdout.splitlines()
    return {int(token, 16) for token in re.findall(r"\btoken:([0-9a-f]+)", "\n".join(lines))}


def established(host: Any, port: int) -> list[str]:
    """Return the established sockets of TCP, as ss has them."""
    return host.run(["ss", "-tnH", "state", "established", f"dport = :{port}"]).stdout.splitlines()


def check_subflows(log: Any, port: int, found: dict[str, Any]) -> None:
    """Compare the subflows of both ends with what ss and the processes said."""
    client, server = ([flow for flow in ours(log, port) if flow[f"{end}_port"] == port] for end in ("remote", "local"))
    for flows, end in ((client, "client"), (server, "server")):
        assert len(flows) == 2, flows
        assert {flow["mptcp_token"] for flow in flows} == found[f"{end}_tokens"]
        assert {flow["pid"] for flow in flows} == {found[f"{end}_pid"]}
        assert len({flow["command"] for flow in flows}) == 1


@pytest.mark.parametrize("is_older", [False, True], ids=["new", "older"])
def test_subflows_have_the_token_and_the_owner_of_their_connection(
    two_paths: Any, is_older: bool, until: Callable[..., None], tmp_path: Path
) -> None:
    left, right, link = two_paths
    port, plain_port = next(PORTS), next(PORTS)
    path, found = tmp_path / "log", {}
    with contextlib.ExitStack() as stack:
        log = None if is_older else stack.enter_context(TcpLog(path, port=[port, plain_port]))
        client, server = stack.enter_context(conversation(two_paths, port))
        exchange(client, server)
        until("two subflows", lambda: len(established(left, port)) == 2)
        log = log or stack.enter_context(TcpLog(path, port=[port, plain_port]))
        with connection(left, right, link.address(right), plain_port) as beside:
            transfer(*beside, 100_000)
        # The second subflow carries what the first has no room for.
        exchange(client, server)
        for end, host, process in (("client", left, client), ("server", right, server)):
            found |= {f"{end}_tokens": tokens(host, port), f"{end}_pid": process.pid}
            assert len(found[f"{end}_tokens"]) == 1
        close(client, server)
        log.stop()
    logged, _ = check_log(path)
    check_subflows(logged, port, found)
    text = write_report({"log": logged}, tmp_path / "report", "log").read_text()
    for token in found["client_tokens"] | found["server_tokens"]:
        assert text.count(f"MPTCP {token:08x}") == 2
    assert {flow["mptcp_token"] for flow in ours(logged, plain_port)} == {None}


@pytest.mark.parametrize("end", ["client", "server"])
@pytest.mark.parametrize("is_older", [False, True], ids=["new", "older"])
def test_a_log_of_a_process_has_all_subflows_of_its_connections(
    two_paths: Any, is_older: bool, end: str, until: Callable[..., None], tmp_path: Path
) -> None:
    left, right, link = two_paths
    port, plain_port, address = next(PORTS), next(PORTS), link.address(right)
    path = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(End(right, "server", address, port))
        server.expect("listening")
        client = stack.enter_context(End(left, "client", address, port))
        pid = {"client": client, "server": server}[end].pid
        log = None if is_older else stack.enter_context(TcpLog(path, pid=pid))
        client.connect()
        server.expect("connected")
        exchange(client, server)
        until("two subflows", lambda: len(established(left, port)) == 2)
        log = log or stack.enter_context(TcpLog(path, pid=pid))
        with connection(left, right, address, plain_port) as beside:
            transfer(*beside, 100_000)
        exchange(client, server)
        wanted = tokens({"client": left, "server": right}[end], port)
        close(client, server)
        log.stop()
    logged, _ = check_log(path)
    flows = logged.flows.to_pylist()
    assert len(flows) == 2, flows
    assert {flow["mptcp_token"] for flow in flows} == wanted
    assert {flow["pid"] for flow in flows} == {pid}


@pytest.mark.parametrize("protocols", [(MPTCP, socket.IPPROTO_TCP), (socket.IPPROTO_TCP, MPTCP)])
def test_where_a_peer_has_no_mptcp_the_connection_is_plain_tcp(
    two_paths: Any, protocols: tuple[int, int], tmp_path: Path
) -> None:
    port = next(PORTS)
    # What fits one segment: Linux 6.18 loses bytes of such a connection when segments arrive out of order.
    ends = conversation(two_paths, port, protocols, FEW_BYTES)
    with TcpLog(tmp_path / "log", port=port) as log, ends as (client, server):
        exchange(client, server)
        close(client, server)
    logged, _ = check_log(log.path)
    flows = ours(logged, port)
    assert [flow["mptcp_token"] for flow in flows] == [None, None]
    assert [flow["pid"] for flow in flows] == [client.pid, server.pid]
