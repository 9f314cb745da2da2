"""Retransmissions and congestion events, compared with the counters of the kernel."""

import contextlib
import socket
import time
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, socket_statistics, transfer
from tcp_flow_table import backoff_of, ours, retransmissions_of, the_close
from tcp_logger import check_log, rows_of, total

from parshall.errors import ParshallError
from parshall.tcp import TcpLog

pytestmark = pytest.mark.kernel
_ports = count(23300)
SYN, ACK, ECE, CWR, AE = 2, 16, 64, 128, 256


def test_events_of_a_lossy_link_agree_with_the_kernels_counters(bed: Any, tmp_path: Path) -> None:
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, rate_bps=200e6, delay_ms=1, loss=0.02)
    left.sysctl("net.ipv4.tcp_congestion_control", "reno")
    port = next(_ports)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(active, passive, 3_000_000)
            deadline_s = time.monotonic() + 20
            while "unacked" in (state := socket_statistics(left, port)):
                assert time.monotonic() < deadline_s
            in_all = retransmissions_of(active)
    logged, _ = check_log(log.path)
    client, _ = ours(logged, port)
    rows = rows_of(logged).filter(flow=client["flow"])
    again = rows.filter(event="retransmit")
    close = the_close(logged, client)
    assert in_all > 10
    # "retrans:now/total"; only the FIN follows, which may be lost, too.
    assert int(state["retrans"].split("/")[1]) == in_all
    assert again["gso_segs"].sum() == close["total_retrans"] >= in_all
    # Each event has the header of a sent packet.
    header = ["pkt_seq", "pkt_ack", "pkt_flags", "payload_bytes"]
    sent = rows.filter(event="packet", direction="out")
    assert again.join(sent, on=header, how="anti").is_empty()
    assert (again["pkt_flags"] & ACK == ACK).all()
    assert again["pkt_ack"].to_list() == again["rcv_nxt"].to_list()
    counted = {
        words[0]: int(words[1])
        for words in map(
            str.split, left.run(["nstat", "-asz", "TcpRetransSegs", "TcpExtTCPLostRetransmit"]).stdout.splitlines()
        )
        if words and words[0].startswith("Tcp")
    }
    assert counted["TcpRetransSegs"] == close["total_retrans"]
    # Every retransmitted segment was sent before.
    sent = rows.filter(event="packet", direction="out")
    assert set(again["pkt_seq"]) <= set(sent["pkt_seq"])
    changes = rows.filter(event="congestion_state")["ca_state"].to_list()
    assert "Recovery" in changes
    assert all(left != right for left, right in pairwise(changes))
    # Every packet shows the state that the last change before it led to.
    ordered = rows.sort("time_ns")
    current = "Open"
    for row in ordered.iter_rows(named=True):
        if row["event"] == "congestion_state":
            current = row["ca_state"]
        elif row["event"] == "packet" and row["state"] == "ESTABLISHED":
            assert row["ca_state"] == current
    assert rows.filter(event="packet")["total_retrans"].is_sorted()
    assert total(log.summary.ledger, "logged", ["tcp_retransmit"]) >= len(again)


def test_failed_retransmissions_are_not_counted(ends: Any, until: Any, tmp_path: Path) -> None:
    """Some kernels also report failed attempts: without a route nothing is sent."""
    left, right, link = ends
    port = next(_ports)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(active, passive, 1_000)
            # First the ACKs are lost, so that TCP retransmits; then the route is missing, so that it cannot.
            right.run(["ip", "route", "add", "blackhole", f"{link.address(left)}/32"])
            active.sendall(bytes(1_000))
            until("it was sent again", lambda: retransmissions_of(active) >= 1)
            left.run(["ip", "route", "add", "unreachable", f"{link.address(right)}/32"])
            failed = backoff_of(active) + 2
            until("two attempts failed", lambda: backoff_of(active) >= failed)
            left.run(["ip", "route", "del", "unreachable", f"{link.address(right)}/32"])
            right.run(["ip", "route", "del", "blackhole", f"{link.address(left)}/32"])
            passive.recv(1_000, socket.MSG_WAITALL)
    logged, _ = check_log(log.path)
    client, _ = ours(logged, port)
    rows = rows_of(logged).filter(flow=client["flow"])
    again = rows.filter(event="retransmit")
    assert again["gso_segs"].sum() == the_close(logged, client)["total_retrans"] > 0
    sent = rows.filter(event="packet", direction="out", payload_bytes=1_000)
    assert len(again.filter(payload_bytes=1_000)) == len(sent) - 2


def test_a_retransmission_has_the_flags_of_its_header_with_accurate_ecn(ends: Any, until: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(_ports)
    # 3 asks for accurate ECN (AE, CWR and ECE in the SYN), which older kernels do not know.
    left.sysctl("net.ipv4.tcp_ecn", 1)
    with contextlib.suppress(ParshallError):
        left.sysctl("net.ipv4.tcp_ecn", 3)
    knows_ae = left.sysctl("net.ipv4.tcp_ecn") == "3"
    left.sysctl("net.ipv4.tcp_ecn_fallback", 0)
    right.run(["ip", "route", "add", "blackhole", f"{link.address(left)}/32"])
    with TcpLog(tmp_path / "log", port=[port]) as log, left.enter(), socket.socket() as active:
        active.setblocking(False)
        assert active.connect_ex((link.address(right), port)) != 0
        # The kernel counts a retransmission before it makes the event of it: with the second, the first is in the log.
        until("it was sent again twice", lambda: retransmissions_of(active) >= 2)
    logged, _ = check_log(log.path)
    rows = rows_of(logged).filter(flow=ours(logged, port)[0]["flow"])
    first, second = rows.filter(event="packet", direction="out")["pkt_flags"].head(2)
    (again,) = rows.filter(event="retransmit")["pkt_flags"].head(1)
    assert first & (AE | CWR | ECE) == (AE | CWR | ECE if knows_ae else CWR | ECE)
    assert again == second
    assert again & SYN
