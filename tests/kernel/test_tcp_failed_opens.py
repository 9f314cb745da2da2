"""Connections that are refused, not answered or aborted, and their flows."""

import socket
from pathlib import Path
from typing import Any

import pytest
from conversation import transfer
from ports import PORTS
from retransmission_counters import counters
from tcp_flow_table import ours, reset_at_close, retransmissions_of, the_close
from tcp_logger import check_log, packets_of, rows_of

from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel
SYN, RST, ACK = 2, 4, 16


def test_a_refused_connection_and_another_attempt_of_the_same_socket(ends: Any, tmp_path: Path) -> None:
    """Linux lets a socket connect again after a refusal: two connections, so two flows."""
    left, right, link = ends
    refused, port = next(PORTS), next(PORTS)
    with TcpLog(tmp_path / "log", port=[refused, port]) as log, right.enter():
        with socket.create_server((link.address(right), port)) as listener, left.enter():
            with socket.socket() as active:
                with pytest.raises(ConnectionRefusedError):
                    active.connect((link.address(right), refused))
                active.connect((link.address(right), port))
                with listener.accept()[0] as passive:
                    transfer(active, passive, 10_000)
    logged, _ = check_log(log.path)
    (first,) = ours(logged, refused)
    assert the_close(logged, first)["state"] == "SYN_SENT"
    assert first["packets_seen"] == 2
    rows = packets_of(rows_of(logged), first["flow"])
    assert rows["pkt_flags"].to_list() == [SYN, RST | ACK]
    assert first["ended"]
    second, server = ours(logged, port)
    assert second["flow"] != first["flow"]
    assert second["remote_port"] == port
    assert packets_of(rows_of(logged), second["flow"])["pkt_flags"][0] == SYN
    assert not second["began_before"]
    assert second["socket_cookie"] == first["socket_cookie"]
    assert server["passive"]


def test_the_resets_of_closed_ports_make_no_flow(ends: Any, tmp_path: Path) -> None:
    """The kernel sends them from its own raw sockets, whose protocol is TCP and which have no ports."""
    left, right, link = ends
    refused = next(PORTS)
    with TcpLog(tmp_path / "log") as log:
        for _ in range(3):
            with left.enter(), pytest.raises(ConnectionRefusedError):
                socket.create_connection((link.address(right), refused))
    logged, ledger = check_log(log.path)
    assert len(ours(logged, refused)) == 3
    assert all(flow["local_port"] for flow in logged.flows.to_pylist())
    assert next(each for each in ledger["hooks"] if each["hook"] == "tcp_egress")["unowned"] >= 3


def test_a_syn_without_answer(ends: Any, until: Any, tmp_path: Path) -> None:
    """SYNs are retransmitted, each an event; the last state is SYN_SENT."""
    left, right, link = ends
    port = next(PORTS)
    left.sysctl("net.ipv4.tcp_syn_retries", 1)
    if Path("/proc/sys/net/ipv4/tcp_syn_linear_timeouts").exists():  # from Linux 6.5 on
        left.sysctl("net.ipv4.tcp_syn_linear_timeouts", 0)
    right.run(["ip", "route", "add", "blackhole", f"{link.address(left)}/32"])
    with TcpLog(tmp_path / "log", port=[port]) as log, right.enter():
        with socket.create_server((link.address(right), port)), left.enter(), socket.socket() as active:
            # No process needs to wait: TCP times out after 1 + 2 seconds, or
            # when the socket is closed.
            active.setblocking(False)
            assert active.connect_ex((link.address(right), port)) != 0
            until("it was sent again", lambda: retransmissions_of(active) >= 1)
            until("both have arrived", lambda: counters(right)["TcpInSegs"] >= 2)
    logged, _ = check_log(log.path)
    client, *servers = ours(logged, port)
    assert not client["passive"]
    assert the_close(logged, client)["state"] == "SYN_SENT"
    rows = rows_of(logged).filter(flow=client["flow"])
    assert rows.filter(event="packet")["pkt_flags"].to_list() == [SYN, SYN]
    (again,) = rows.filter(event="retransmit").to_dicts()
    assert (again["pkt_flags"], again["payload_bytes"]) == (SYN, 0)
    assert again["pkt_seq"] == rows.filter(event="packet")["pkt_seq"][0]
    # The server's side never became a socket, but has an account.
    assert len(servers) == 1
    assert servers[0]["passive"]
    assert servers[0]["packets_seen"] >= 2


def test_an_aborted_handshake_and_a_new_one_between_the_same_ends(ends: Any, tmp_path: Path) -> None:
    """A client aborts before it is accepted, and connects again from the same port: two flows."""
    left, right, link = ends
    port, client_port = next(PORTS), next(PORTS)
    # No SYN-ACK gets through, so the listener keeps an unfinished handshake.
    right.run(["ip", "route", "add", "blackhole", f"{link.address(left)}/32"])
    with TcpLog(tmp_path / "log", port=[port]) as log, right.enter():
        with socket.create_server((link.address(right), port)) as listener:
            for attempt in range(2):
                with left.enter():
                    active = socket.socket()
                with active:
                    active.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    reset_at_close(active)
                    active.bind((link.address(left), client_port))
                    active.settimeout(10)
                    if attempt == 0:
                        active.setblocking(False)
                        active.connect_ex((link.address(right), port))
                    else:
                        right.run(["ip", "route", "del", "blackhole", f"{link.address(left)}/32"])
                        active.connect((link.address(right), port))
                        with listener.accept()[0] as passive:
                            transfer(active, passive, 1000)
    logged, _ = check_log(log.path)
    servers = [flow for flow in ours(logged, port) if flow["passive"]]
    assert len(servers) == 2
    rows = rows_of(logged)
    for flow in servers:
        assert flow["ended"]
        assert flow["remote_port"] == client_port
        first = packets_of(rows, flow["flow"]).row(0, named=True)
        assert (first["pkt_flags"], first["flow_seq"]) == (SYN, 1)
