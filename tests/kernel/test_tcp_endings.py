"""How flows end, held against the flags on the wire and the kernel's counters."""

import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from conversation import send_marker, transfer
from ports import PORTS
from retransmission_counters import counters
from tcp_flow_table import ours, reset_at_close, unacknowledged_of
from tcp_logger import check_log, rows_of

from parshall.instruments.tcp import TcpLog
from parshall.testbed import Testbed

pytestmark = pytest.mark.kernel
TCP_USER_TIMEOUT = 18
WORDS = ("fin_sent", "fin_received", "rst_sent", "rst_received")
COUNTERS = (
    *(
        "TCPAbortOnData",
        "TCPAbortOnClose",
        "TCPAbortOnLinger",
        "TCPAbortOnTimeout",
        "TcpEstabResets",
        "TcpAttemptFails",
    ),
    "TcpOutRsts",
)


@dataclass
class Meeting:
    """A client and a server that are connected, and what a test may do to them."""

    left: Any
    right: Any
    link: Any
    port: int
    until: Callable[..., None]
    listener: socket.socket = field(default_factory=socket.socket)
    active: socket.socket = field(default_factory=socket.socket)
    passive: socket.socket = field(default_factory=socket.socket)

    @property
    def address(self) -> str:
        """Where the server listens."""
        return self.link.address(self.right)

    def socket_on(self, host: Any) -> socket.socket:
        """Return a socket of TCP on a host."""
        with host.enter():
            opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.settimeout(10)
        return opened

    def connect(self) -> None:
        """Connect both, and let one byte pass, so that the handshake is over at both ends."""
        self.active.connect((self.address, self.port))
        self.passive, _ = self.listener.accept()
        self.passive.settimeout(10)
        transfer(self.active, self.passive, 1)

    def wait_for(self, host: Any, state: str, end: str = "dport") -> None:
        """Wait until the host has a connection in this state of ss."""
        command = ["ss", "-Htn", "state", state, f"{end} = :{self.port}"]
        self.until(f"{host} is in {state}", lambda: host.run(command).stdout.strip())

    def mute(self, host: Any) -> None:
        """Let nothing of a host reach the other one."""
        other = self.left if host is self.right else self.right
        host.run(["ip", "route", "add", "blackhole", f"{self.link.address(other)}/32"])

    def sees_error(self, end: socket.socket, error: type[OSError]) -> None:
        """Wait until an end has this error."""
        with pytest.raises(error):
            end.recv(1)


def close_in_order(it: Meeting) -> None:
    it.connect()
    # The kernel keeps no socket that its program has closed and whose FIN is acknowledged before the peer's comes.
    it.active.shutdown(socket.SHUT_WR)
    assert it.passive.recv(1) == b""
    it.passive.close()
    assert it.active.recv(1) == b""
    it.active.close()
    # The last acknowledgement ends the server's socket.
    it.until("the server's is gone", lambda: not open_on(it.right, it.port))


def leave_data_unread(it: Meeting) -> None:
    it.connect()
    it.active.sendall(bytes(1000))
    assert it.passive.recv(1, socket.MSG_PEEK)
    it.passive.close()
    it.sees_error(it.active, ConnectionResetError)


def linger_for_nothing(it: Meeting) -> None:
    it.connect()
    reset_at_close(it.active)
    it.active.close()
    it.sees_error(it.passive, ConnectionResetError)


def kill(it: Meeting) -> None:
    it.connect()
    it.left.run(["ss", "-K", "dport", "=", f":{it.port}"])
    it.sees_error(it.passive, ConnectionResetError)


def send_to_one_who_has_closed(it: Meeting) -> None:
    it.left.sysctl("net.ipv4.tcp_fin_timeout", 120)
    it.connect()
    it.active.close()
    it.wait_for(it.left, "fin-wait-2")
    it.passive.sendall(b"too late")
    it.until("it was reset", lambda: counters(it.right)["TcpEstabResets"])


def reset_one_who_has_closed(it: Meeting) -> None:
    it.left.sysctl("net.ipv4.tcp_fin_timeout", 120)
    it.connect()
    it.active.close()
    it.wait_for(it.left, "fin-wait-2")
    reset_at_close(it.passive)
    it.passive.close()
    it.until("it is gone", lambda: not it.left.run(["ss", "-Htn", f"dport = :{it.port}"]).stdout.strip())


def close_alone(it: Meeting) -> None:
    it.connect()
    it.active.close()
    assert it.passive.recv(1) == b""
    it.until("it is acknowledged", lambda: not it.left.run(["ss", "-Htn", "state", "fin-wait-1"]).stdout.strip())


def refuse_to_linger(it: Meeting) -> None:
    it.connect()
    it.active.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, -1)
    it.active.shutdown(socket.SHUT_WR)
    it.wait_for(it.left, "fin-wait-2")
    it.active.close()
    it.until("it was reset", lambda: counters(it.right)["TcpEstabResets"])


def stay(it: Meeting) -> None:
    it.connect()


def close_by_half(it: Meeting) -> None:
    it.connect()
    it.active.shutdown(socket.SHUT_WR)
    assert it.passive.recv(1) == b""
    it.wait_for(it.left, "fin-wait-2")


def get_no_answer(it: Meeting) -> None:
    it.connect()
    it.active.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 300)
    it.mute(it.right)
    it.active.sendall(b"anybody there?")
    it.sees_error(it.active, TimeoutError)


def get_only_rejections(it: Meeting) -> None:
    it.connect()
    it.active.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 300)
    reject(it)
    it.active.sendall(b"anybody there?")
    it.sees_error(it.active, ConnectionRefusedError)


def keep_alive_in_vain(it: Meeting) -> None:
    it.connect()
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        it.active.setsockopt(socket.IPPROTO_TCP, option, 1)
    it.mute(it.right)
    it.active.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    it.sees_error(it.active, TimeoutError)
    # It sends a reset as it gives up.
    it.sees_error(it.passive, ConnectionResetError)


def be_refused(it: Meeting) -> None:
    it.listener.close()
    with pytest.raises(ConnectionRefusedError):
        it.active.connect((it.address, it.port))


def reject(it: Meeting) -> None:
    """Let the server's host answer with ICMP messages."""
    rules = "add table ip t; add chain ip t in { type filter hook input priority 0; };"
    it.right.run(["nft", f"{rules} add rule ip t in tcp dport {it.port} reject with icmp type port-unreachable"])


def be_rejected(it: Meeting) -> None:
    reject(it)
    # The kernel only notes the first message, which comes while it sends, and obeys the one to the second SYN.
    it.active.setblocking(True)
    with pytest.raises(ConnectionRefusedError):
        it.active.connect((it.address, it.port))


def open_in_vain(it: Meeting) -> None:
    it.mute(it.right)
    it.active.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 300)
    with pytest.raises(TimeoutError):
        it.active.connect((it.address, it.port))


def give_up_opening(it: Meeting) -> None:
    it.mute(it.right)
    it.active.setblocking(False)
    it.active.connect_ex((it.address, it.port))
    it.wait_for(it.left, "syn-sent")
    it.active.close()


def stop_listening(it: Meeting) -> None:
    it.active.connect((it.address, it.port))
    it.active.sendall(b"x")
    it.until("the data was acknowledged", lambda: not unacknowledged_of(it.active))
    it.listener.close()
    it.sees_error(it.active, ConnectionResetError)


def die_while_closing(it: Meeting) -> None:
    it.connect()
    it.active.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 300)
    it.mute(it.right)
    it.active.close()
    it.until("it has given up", lambda: counters(it.left)["TCPAbortOnTimeout"])


@dataclass(frozen=True)
class Case:
    """What is done, and per end the ending, the segments (`WORDS`), and what the kernel counts."""

    act: Callable[[Meeting], None]
    client: str
    server: str | None = None
    client_counts: dict[str, int] = field(default_factory=dict)
    server_counts: dict[str, int] = field(default_factory=dict)
    is_clear_at_close: bool = True


ESTAB, OUT = {"TcpEstabResets": 1}, {"TcpOutRsts": 1}
CASES = [
    Case(close_in_order, "fin", "fin"),
    Case(leave_data_unread, "reset_received", "aborted", ESTAB, {"TCPAbortOnClose": 1} | ESTAB | OUT),
    Case(linger_for_nothing, "aborted", "reset_received", {"TCPAbortOnData": 1} | ESTAB | OUT, ESTAB),
    Case(kill, "aborted", "reset_received", ESTAB | OUT, ESTAB),
    Case(
        send_to_one_who_has_closed,
        *("aborted", "reset_received", {"TCPAbortOnData": 1} | OUT, ESTAB),
        is_clear_at_close=False,
    ),
    Case(
        reset_one_who_has_closed,
        *("reset_received", "aborted", {}, {"TCPAbortOnData": 1} | ESTAB | OUT),
        is_clear_at_close=False,
    ),
    Case(close_alone, "fin_sent", "open"),
    Case(refuse_to_linger, "aborted", "reset_received", {"TCPAbortOnLinger": 1} | OUT, ESTAB),
    Case(stay, "open", "open"),
    Case(close_by_half, "open", "open"),
    Case(get_no_answer, "timeout", "open", {"TCPAbortOnTimeout": 1} | ESTAB),
    Case(get_only_rejections, "timeout", "open", {"TCPAbortOnTimeout": 1} | ESTAB),
    Case(keep_alive_in_vain, "timeout", "reset_received", {"TCPAbortOnTimeout": 1} | ESTAB | OUT, ESTAB),
    Case(be_refused, "reset_received", None, {"TcpAttemptFails": 1}, OUT),
    Case(be_rejected, "unreachable", None, {"TcpAttemptFails": 1}),
    Case(open_in_vain, "timeout", "open", {"TCPAbortOnTimeout": 1, "TcpAttemptFails": 1}),
    Case(give_up_opening, "aborted", "open"),
    Case(stop_listening, "reset_received", "aborted", ESTAB, ESTAB | OUT),
    Case(die_while_closing, "timeout", "open", {"TCPAbortOnTimeout": 1}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.act.__name__)
def test_the_ending_is_what_wire_and_counters_show(ends: Any, until: Any, case: Case, tmp_path: Path) -> None:
    left, right, link = ends
    it = Meeting(left, right, link, next(PORTS), until)
    with ExitStack() as stack:
        it.listener, it.active = it.socket_on(right), it.socket_on(left)
        it.listener.bind((it.address, it.port))
        it.listener.listen()
        dumps = [stack.enter_context(wire(host, link.interface(host), it.port, tmp_path)) for host in (left, right)]
        before = [counted(host) for host in (left, right)]
        with TcpLog(tmp_path / "log", port=it.port) as log:
            case.act(it)
        after = [counted(host) for host in (left, right)]
        # Past any route that a case has made.
        for host, other in ((left, right), (right, left)):
            host.run(["ip", "route", "flush", "type", "blackhole"])
            send_marker(host, link.address(other), it.port)
        for dump in dumps:
            until("both markers have passed", lambda dump=dump: dump.read_text().count("UDP") >= 2)
        wires = [dump.read_text() for dump in dumps]
        for end in (it.active, it.passive, it.listener):
            end.close()
    for begun, ended, counts in zip(before, after, (case.client_counts, case.server_counts), strict=True):
        assert {name: ended[name] - begun[name] for name in COUNTERS if ended[name] != begun[name]} == counts
    logged, _ = check_log(log.path)
    flows = ours(logged, it.port)
    assert [flow["ending"] for flow in flows] == [case.client, *([case.server] if case.server else [])]
    closes = rows_of(logged).with_columns(pl.col("ending").cast(pl.String))
    assert closes.filter(pl.col("event") != "close")["ending"].null_count() == len(
        closes.filter(pl.col("event") != "close")
    )
    for flow, host, other, lines in zip(flows, (left, right), (right, left), wires, strict=False):
        sent, received = (flags_from(link.address(each), lines) for each in (host, other))
        on_wire = ("F" in sent, "F" in received, "R" in sent, "R" in received)
        assert tuple(flow[word] for word in WORDS) == on_wire
        row = closes.filter(flow=flow["flow"], event="close")["ending"].to_list()
        is_clear = case.is_clear_at_close or host is right
        assert row == ([] if flow["ending"] == "open" else [flow["ending"] if is_clear else None])


def counted(host: Any) -> dict[str, int]:
    """The counters that say how connections end."""
    found = counters(host)
    return {name: found[name] for name in COUNTERS}


@contextmanager
def wire(host: Any, interface: str, port: int, directory: Path) -> Iterator[Path]:
    """Let tcpdump write a line for each packet of a port."""
    path = directory / f"{host.name}.txt"
    with path.open("wb") as lines:
        command = ["tcpdump", "--immediate-mode", "-lnni", interface, "port", str(port)]
        process = host.popen(command, stdout=lines, stderr=subprocess.PIPE, text=True)
        try:
            assert any("listening on" in line for line in process.stderr)
            yield path
        finally:
            process.terminate()
            process.communicate(timeout=30)


def flags_from(address: str, lines: str) -> str:
    """The flags of all segments that came from an address, as tcpdump writes them."""
    sent = [line for line in lines.splitlines() if f" IP {address}." in line and "Flags [" in line]
    return "".join(line.split("Flags [")[1].split("]")[0] for line in sent)


def by_fin(active: socket.socket, passive: socket.socket) -> tuple[str, str]:
    # As above.
    active.shutdown(socket.SHUT_WR)
    assert passive.recv(1) == b""
    passive.close()
    assert active.recv(1) == b""
    active.close()
    return "fin", "fin"


def by_client(active: socket.socket, passive: socket.socket) -> tuple[str, str]:
    reset_at_close(active)
    active.close()
    with pytest.raises(ConnectionResetError):
        passive.recv(1)
    passive.close()
    return "aborted", "reset_received"


def by_server(active: socket.socket, passive: socket.socket) -> tuple[str, str]:
    active.sendall(b"x")
    assert passive.recv(1, socket.MSG_PEEK)
    passive.close()
    with pytest.raises(ConnectionResetError):
        active.recv(1)
    active.close()
    return "reset_received", "aborted"


def meet(left: Any, right: Any, address: str, port: int, seed: int) -> list[Counter[str]]:
    """Open and end connections one after another; return how the client's and the server's ended."""
    chance = Random(seed)
    found = [Counter(), Counter()]
    with right.enter():
        listener = socket.create_server((address, port))
    with listener, left.enter():
        for _ in range(60):
            active = socket.create_connection((address, port), timeout=10)
            passive, _ = listener.accept()
            passive.settimeout(10)
            for each, ending in zip(found, chance.choice([by_fin, by_client, by_server])(active, passive), strict=True):
                each[ending] += 1
    return found


@pytest.mark.parametrize("options", [{}, {"ppl": 7}, {"direction": "out"}], ids=["all", "thinned", "out"])
def test_connections_of_equal_hosts_at_once(until: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """Two pairs of hosts have the same addresses, use the same port, and differ in how their connections end."""
    port = next(PORTS)
    with ExitStack() as stack:
        pairs = []
        for _ in range(2):
            bed = stack.enter_context(Testbed())
            left, right = bed.host("left"), bed.host("right")
            pairs.append((left, right, bed.link(left, right).address(right)))
        before = [counted(host) for pair in pairs for host in pair[:2]]
        threads = stack.enter_context(ThreadPoolExecutor())
        with TcpLog(tmp_path / "log", port=port, **options) as log:
            meetings = [threads.submit(meet, *pair, port, seed) for seed, pair in enumerate(pairs)]
            expected = [each for meeting in meetings for each in meeting.result()]
            inodes = [host.path.stat().st_ino for pair in pairs for host in pair[:2]]
            until("the last sockets are gone", lambda: not any(open_on(pair[1], port) for pair in pairs))
        after = [counted(host) for pair in pairs for host in pair[:2]]
    logged, _ = check_log(log.path, is_thinned="ppl" in options)
    flows = pl.from_arrow(logged.flows)
    for inode, endings, begun, ended in zip(inodes, expected, before, after, strict=True):
        here = flows.filter(netns_inode=inode)
        assert Counter(here["ending"]) == endings
        delta = {name: ended[name] - begun[name] for name in COUNTERS}
        assert delta["TCPAbortOnData"] + delta["TCPAbortOnClose"] == endings["aborted"] == here["rst_sent"].sum()
        assert delta["TcpOutRsts"] == endings["aborted"]
        assert delta["TcpEstabResets"] == endings["aborted"] + endings["reset_received"]
        assert here["rst_received"].sum() == endings["reset_received"]


def open_on(host: Any, port: int) -> str:
    """The connections that a host still has with a port of its own."""
    return host.run(["ss", "-Htn", f"sport = :{port}"]).stdout.strip()
