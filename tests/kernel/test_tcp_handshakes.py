"""Handshakes that never become a connection: how their flows end, and that no connection is split for them."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import connection, transfer
from ports import PORTS
from tcp_logger import check_log, packets_of, rows_of

import parshall
from parshall.instruments.tcp import TcpLog
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
SYN, RST, ACK = 2, 4, 16
IPPROTO_RAW, ETH_P_IP = 255, 0x0800
# A network for tests of benchmarks (RFC 2544): nobody here answers for it.
STRANGERS = "198.18.0.0/15"
ISN = 1_000_000
# As in bpf/tcp_flow.h.
HANDSHAKES_MAX = 65536


def stranger(number: int) -> str:
    """An address of a stranger."""
    return f"198.18.{number >> 8 & 255}.{number & 255}"


class Peers:
    """Strangers who send segments that they made up, and never answer by themselves."""

    def __init__(self, sender: Any, receiver: Any, link: Any, port: int) -> None:
        # What is sent to strangers arrives at the sender's host, which forwards nothing.
        receiver.run(["ip", "route", "add", STRANGERS, "via", link.address(sender)])
        self._destination, self._port = link.address(receiver), port
        with sender.enter():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, IPPROTO_RAW)
            self._tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        self._tap.settimeout(20)

    def send(self, number: int, flags: int, seq: int = ISN, ack: int = 0, port: int = 4000) -> None:
        """Send a segment from a stranger to the listener."""
        addresses = socket.inet_aton(stranger(number)), socket.inet_aton(self._destination)
        segment = struct.pack("!HHIIBBHHH", port, self._port, seq, ack, 5 << 4, flags, 65535, 0, 0)
        pseudo_header = b"".join(addresses) + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(segment))
        total = sum(struct.unpack("!16H", pseudo_header + segment))
        total = (total >> 16) + (total & 0xFFFF)
        checksum = ~(total + (total >> 16)) & 0xFFFF
        segment = segment[:16] + struct.pack("!H", checksum) + segment[18:]
        header = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0) + b"".join(addresses)
        self._socket.sendto(header + segment, (self._destination, 0))

    def await_syn_ack(self, number: int) -> int:
        """Wait until the listener answers a stranger, and return the sequence number of the answer."""
        while True:
            packet = self._tap.recv(65536)
            answers = packet[9] == socket.IPPROTO_TCP and packet[16:20] == socket.inet_aton(stranger(number))
            if answers and packet[33] == SYN | ACK:
                return int.from_bytes(packet[24:28], "big")

    def discard_answers(self) -> None:
        """Discard the answers that have come."""
        self._tap.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._tap.recv(65536)
        self._tap.settimeout(20)

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        self._tap.close()


@contextlib.contextmanager
def listening(ends: Any, port: int) -> Iterator[Peers]:
    """A listener on the right, which nobody accepts from, and strangers on the left."""
    left, right, link = ends
    peers = Peers(left, right, link, port)
    try:
        with right.enter():
            listener = socket.create_server((link.address(right), port), backlog=4096)
        with listener:
            yield peers
    finally:
        peers.close()


def flows_of(path: Path) -> pl.DataFrame:
    """The flow table as far as it is written."""
    return pl.from_arrow(parshall.read(path).flows)


def test_a_reset_ends_a_handshake(ends: Any, until: Any, tmp_path: Path) -> None:
    """At once, while the log runs; but only a reset that TCP would take."""
    port, peers_count = next(PORTS), 300
    with listening(ends, port) as peers, TcpLog(tmp_path / "log", port=[port]) as log:
        for number in range(1, peers_count + 1):
            peers.send(number, SYN)
        for number in range(1, peers_count + 1):
            peers.send(number, RST, ISN + 1)
        peers.send(0, SYN)
        peers.send(0, RST, ISN + 1_000_000)
        until("all but one have ended", lambda: flows_of(log.path).filter("ended").height == peers_count)
    logged, _ = check_log(log.path)
    flows = pl.from_arrow(logged.flows)
    assert flows.height == peers_count + 1
    assert flows.filter(~pl.col("ended"))["remote_address"].to_list() == [stranger(0)]
    assert flows["socket_cookie"].to_list() == [0] * flows.height
    rows = rows_of(logged)
    for flow in flows["flow"].head(5):
        assert set(packets_of(rows, flow)["pkt_flags"]) >= {SYN, RST}


def test_silence_ends_a_handshake_but_not_a_connection(ends: Any, until: Any, tmp_path: Path) -> None:
    """A connection that is accepted and says nothing goes on under the number of its handshake."""
    left, right, link = ends
    port, idle_port = next(PORTS), next(PORTS)
    right.sysctl("net.ipv4.tcp_synack_retries", 1)
    with (
        listening(ends, port) as peers,
        TcpLog(tmp_path / "log", port=[port, idle_port], handshake_silence_s=2.0) as log,
        connection(left, right, link.address(right), idle_port) as (active, passive),
    ):
        for number in range(100):
            peers.send(number, SYN)
        until("the handshakes have ended", lambda: flows_of(log.path).filter("ended").height == 100, 40)
        transfer(passive, active, 10_000)
    logged, _ = check_log(log.path)
    flows = pl.from_arrow(logged.flows)
    assert flows.filter(local_port=port)["ended"].all()
    (server,) = flows.filter(local_port=idle_port).to_dicts()
    assert server["passive"]
    assert not server["began_before"]
    assert server["pid"] == os.getpid()
    rows = packets_of(rows_of(logged), server["flow"])
    assert rows["flow_seq"].to_list() == list(range(1, server["packets_seen"] + 1))
    assert rows["state"][3] == "ESTABLISHED"


@pytest.mark.parametrize("ppl", long_except([1], [1, 2]))
def test_the_oldest_handshake_is_evicted_with_its_account(ends: Any, ppl: int, tmp_path: Path) -> None:
    port, more = next(PORTS), 3000
    settings = {"port": [port], "ppl": ppl, "buffer_bytes": 64 << 20}
    with listening(ends, port) as peers, TcpLog(tmp_path / "log", **settings) as log:
        for number in range(HANDSHAKES_MAX + more):
            peers.send(number % 65536, SYN, port=4000 + number // 65536)
    logged, ledger = check_log(log.path, is_thinned=ppl > 1)
    flows = pl.from_arrow(logged.flows).sort("flow")
    begun = flows.height
    # A host that is too slow may drop SYNs before any socket sees them.
    assert begun > HANDSHAKES_MAX, json_of(ledger)
    assert flows["ended"].to_list() == [True] * (begun - HANDSHAKES_MAX) + [False] * HANDSHAKES_MAX


def json_of(ledger: dict[str, Any]) -> str:
    """The packets of a ledger, for a message."""
    return str([{key: account[key] for key in ("hook", "seen", "unowned")} for account in ledger["hooks"]])


def test_a_syn_ack_that_is_sent_again_makes_no_flow(ends: Any, tmp_path: Path) -> None:
    """The SYN came before the log, which could show only half of the connection."""
    port = next(PORTS)
    with listening(ends, port) as peers:
        peers.send(1, SYN)
        peers.await_syn_ack(1)
        with TcpLog(tmp_path / "log") as log:
            # It was perhaps sent again before the log had begun.
            peers.discard_answers()
            peers.await_syn_ack(1)
    logged, ledger = check_log(log.path)
    assert not [flow for flow in logged.flows.to_pylist() if flow["local_port"] == port]
    assert next(each for each in ledger["hooks"] if each["hook"] == "tcp_egress")["unowned"] >= 1


@pytest.mark.parametrize("becomes", ["a connection", "nothing"])
def test_each_syn_ack_that_is_sent_again_is_a_retransmission(ends: Any, becomes: str, tmp_path: Path) -> None:
    """As many events as SYN-ACKs beyond the first that arrive at the other end, with their numbers."""
    port = next(PORTS)
    with listening(ends, port) as peers, TcpLog(tmp_path / "log", port=port) as log:
        peers.send(1, SYN)
        answers = [peers.await_syn_ack(1) for _ in range(3)]
        if becomes == "a connection":
            peers.send(1, ACK, ISN + 1, answers[0] + 1)
            # It ends as a connection: the reset is answered by nobody.
            peers.send(1, RST, ISN + 1)
    logged, _ = check_log(log.path)
    (flow,) = logged.flows.to_pylist()
    assert (flow["socket_cookie"] != 0) == (becomes == "a connection")
    again = rows_of(logged).filter(flow=flow["flow"], event="retransmit")
    assert again["pkt_seq"].to_list() == answers[1:]
    assert set(again["pkt_ack"]) == {ISN + 1}
    assert set(again["pkt_flags"]) == {SYN | ACK}
    assert set(again["direction"]) == {"out"}
    assert set(again["state"]) == {"NEW_SYN_RECV"}


def test_on_change_logs_the_syn_of_a_passive_open(ends: Any, tmp_path: Path) -> None:
    """The first packet of every flow is a change, that of a connection without a socket, too."""
    left, right, link = ends
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=port, on_change=True) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(active, passive, 10_000)
    logged, _ = check_log(log.path, is_thinned=True)
    for flow in logged.flows.to_pylist():
        first = packets_of(rows_of(logged), flow["flow"]).row(0, named=True)
        assert (first["flow_seq"], first["pkt_flags"] & SYN) == (1, SYN)


def test_with_syncookies_all_but_the_syn_ack_is_seen(ends: Any, tmp_path: Path) -> None:
    """The kernel attaches a SYN-ACK that carries a cookie to no socket, so no program of a cgroup sees it."""
    left, right, link = ends
    port = next(PORTS)
    right.sysctl("net.ipv4.tcp_syncookies", 2)
    with TcpLog(tmp_path / "log", port=port) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(active, passive, 10_000)
    logged, _ = check_log(log.path)
    (server,) = [flow for flow in logged.flows.to_pylist() if flow["local_port"] == port]
    rows = packets_of(rows_of(logged), server["flow"])
    assert server["passive"]
    assert rows["pkt_flags"][:2].to_list() == [SYN, ACK]
    assert rows["direction"][:2].to_list() == ["in", "in"]


def test_outbound_packets_alone_begin_with_the_syn_ack(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=[port], direction="out") as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(passive, active, 10_000)
    logged, _ = check_log(log.path)
    (server,) = [flow for flow in logged.flows.to_pylist() if flow["local_port"] == port]
    assert server["passive"]
    assert not server["began_before"]
    rows = packets_of(rows_of(logged), server["flow"])
    assert rows["pkt_flags"][0] == SYN | ACK
    assert rows["flow_seq"].to_list() == list(range(1, server["packets_seen"] + 1))
