"""Retransmissions and congestion events, compared with the counters of the kernel."""

import contextlib
import os
import signal
import socket
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import connection, socket_at, socket_statistics, transfer
from ports import PORTS
from retransmission_counters import counters
from tcp_flow_table import backoff_of, ours, reset_at_close, retransmissions_of, the_close
from tcp_logger import Logger, check_log, rows_of, total

from parshall.errors import ParshallError
from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel
SYN, ACK, ECE, CWR, AE = 2, 16, 64, 128, 256


def test_events_of_a_lossy_link_agree_with_the_kernels_counters(bed: Any, tmp_path: Path) -> None:
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, rate_bps=200e6, delay_ms=1, loss=0.02)
    left.sysctl("net.ipv4.tcp_congestion_control", "reno")
    port = next(PORTS)
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
    # Those who watch are told the causes that the log has, of both ends.
    causes = pl.from_arrow(logged.retransmissions).with_columns(pl.col("cause").cast(pl.String).fill_null("unknown"))
    by_cause = dict(causes.group_by("cause").agg(pl.col("segments").sum()).iter_rows())
    told = log.account()["sent_again"]
    assert {cause: segments for cause, segments in told.items() if segments} == by_cause
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


@pytest.mark.parametrize("obstacle", ["filter", "queue"])
def test_every_retransmission_that_the_kernel_counts_is_logged_or_failed(
    ends: Any, until: Any, tmp_path: Path, obstacle: str
) -> None:
    """What this host's own filter or queue takes is counted by the kernel, and what has no route is not."""
    left, right, link = ends
    port, beside_port, interface = next(PORTS), next(PORTS), link.interface(left)
    rule = "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c tcp dport"
    build, remove = {
        "filter": (["nft", f"{rule} {port} drop"], ["nft", "delete table ip t"]),
        # No frame is so short that this queue takes it.
        "queue": (
            ["tc", "qdisc", "replace", "dev", interface, "root", "bfifo", "limit", "20"],
            ["tc", "qdisc", "del", "dev", interface, "root"],
        ),
    }[obstacle]
    with (
        TcpLog(tmp_path / "log", port=[port, beside_port]) as log,
        connection(left, right, link.address(right), port) as (active, passive),
        connection(left, right, link.address(right), beside_port) as beside,
    ):
        transfer(active, passive, 1_000)
        right.run(["ip", "route", "add", "blackhole", f"{link.address(left)}/32"])
        active.sendall(bytes(1_000))
        until("it was sent again", lambda: retransmissions_of(active) >= 1)
        left.run(build)
        again = retransmissions_of(active) + 2
        until("two were dropped here", lambda: retransmissions_of(active) >= again)
        left.run(["ip", "route", "add", "unreachable", f"{link.address(right)}/32"])
        backoff = backoff_of(active) + 1
        until("one had no route", lambda: backoff_of(active) >= backoff)
        left.run(["ip", "route", "del", "unreachable", f"{link.address(right)}/32"])
        left.run(remove)
        right.run(["ip", "route", "del", "blackhole", f"{link.address(left)}/32"])
        passive.recv(1_000, socket.MSG_WAITALL)
        transfer(*beside, 100_000)
    counted = counters(left)
    logged, _ = check_log(log.path)
    client, _ = ours(logged, port)
    other, _ = ours(logged, beside_port)
    for flow in (client, other):
        assert flow["retransmits_total"] == the_close(logged, flow)["total_retrans"]
    # The one beside has no obstacle, but may probe where a CPU waits long.
    assert client["retransmits_total"] + other["retransmits_total"] == counted["TcpRetransSegs"]
    assert client["retransmits_failed"] + other["retransmits_failed"] == counted["TCPRetransFail"] >= 2
    assert client["retransmits_refused"] >= 1
    assert client["retransmits_lost"] == 0
    rows = rows_of(logged).filter(flow=client["flow"], event="retransmit")
    logged_segments = client["retransmits_total"] - client["retransmits_failed"]
    assert rows["gso_segs"].sum() == client["retransmits_logged"] == logged_segments


def duplicates_reported_to(host: Any) -> int:
    """Return how often the peers of a host said that something came twice."""
    counted = counters(host)
    return int(counted["TCPDSACKRecv"] + counted["TCPDSACKOfoRecv"])


def test_duplicates_are_seen_or_lost_when_the_retransmission_found_no_room(
    ends: Any, until: Any, tmp_path: Path
) -> None:
    left, right, link = ends
    port, path = next(PORTS), tmp_path / "log"
    options = ["-o", path, "--port", str(port), "--buffer", "32K", "--policy", "slow"]
    with Logger(until, *options) as logger:
        with connection(left, right, link.address(right), port) as (active, passive):
            logger.process.send_signal(signal.SIGSTOP)
            # Each CPU has a ring of its own, and that of the timer must be full.
            allowed = os.sched_getaffinity(0)
            for cpu in allowed:
                os.sched_setaffinity(0, {cpu})
                transfer(active, passive, 3_000_000)
                transfer(passive, active, 3_000_000)
            os.sched_setaffinity(0, allowed)
            right.run(["ip", "route", "add", "blackhole", f"{link.address(left)}/32"])
            # A busy machine has sent others again.
            earlier = retransmissions_of(active)
            active.sendall(bytes(1_000))
            until("it was sent again", lambda: retransmissions_of(active) > earlier)
            right.run(["ip", "route", "del", "blackhole", f"{link.address(left)}/32"])
            # Who reads may acknowledge, and then nothing comes twice.
            until("a duplicate was reported", lambda: duplicates_reported_to(left) > 0)
            passive.recv(1_000, socket.MSG_WAITALL)
            until("all is acknowledged", lambda: "unacked" not in socket_statistics(left, port))
            logger.process.send_signal(signal.SIGCONT)
        assert logger.end(signal.SIGINT).returncode == 0
    counted, other = counters(left), counters(right)
    logged, ledger = check_log(path)
    client, _ = ours(logged, port)
    assert client["retransmits_total"] == counted["TcpRetransSegs"]
    assert client["retransmits_lost"] > 0
    duplicates = [duplicates_reported_to(host) for host in (left, right)]
    again = counted["TcpRetransSegs"] + other["TcpRetransSegs"]
    # Filtered are those of tests beside this one.
    seen, filtered = (total(ledger, what, ["tcp_retransmit"]) for what in ("seen", "filtered"))
    assert seen - filtered == again + sum(duplicates)


def test_syn_acks_that_are_sent_again_are_in_the_connections_account(ends: Any, until: Any, tmp_path: Path) -> None:
    """The kernel adds the SYN-ACKs of the listener to the count of the connection."""
    left, right, link = ends
    port = next(PORTS)
    chain = "add table ip t; add chain ip t c { type filter hook input priority 0; }"
    left.run(["nft", f"{chain}; add rule ip t c tcp sport {port} drop"])
    with TcpLog(tmp_path / "log", port=[port]) as log, socket_at(right, "0.0.0.0", socket.SOCK_STREAM) as listener:
        listener.bind(("0.0.0.0", port))
        listener.listen()
        with socket_at(left, "0.0.0.0", socket.SOCK_STREAM) as active:
            active.setblocking(False)
            active.connect_ex((link.address(right), port))
            until("a SYN-ACK was sent again", lambda: counters(right)["TCPSynRetrans"] >= 1)
            left.run(["nft", "delete table ip t"])
            passive, _ = listener.accept()
            with passive:
                counted = retransmissions_of(passive)
                active.setblocking(True)
                reset_at_close(passive)
    logged, _ = check_log(log.path)
    (server,) = (flow for flow in ours(logged, port) if flow["passive"])
    assert server["retransmits_total"] == server["retransmits_logged"] == counted >= 1


def test_what_is_sent_again_while_nothing_is_observed_is_not_in_the_account(
    ends: Any, until: Any, tmp_path: Path
) -> None:
    left, right, link = ends
    port = next(PORTS)
    route = ["blackhole", f"{link.address(left)}/32"]
    with (
        TcpLog(tmp_path / "log", port=[port]) as log,
        connection(left, right, link.address(right), port) as (active, passive),
    ):
        transfer(active, passive, 1_000)
        unobserved = 0
        for is_observed in (False, True):
            log.switch(is_observed)
            before = retransmissions_of(active)
            right.run(["ip", "route", "add", *route])
            active.sendall(bytes(1_000))
            until("it was sent again", lambda before=before: retransmissions_of(active) > before)
            right.run(["ip", "route", "del", *route])
            passive.recv(1_000, socket.MSG_WAITALL)
            until("all is acknowledged", lambda: "unacked" not in socket_statistics(left, port))
            unobserved = unobserved or retransmissions_of(active)
    logged, _ = check_log(log.path)
    client, _ = ours(logged, port)
    in_all = the_close(logged, client)["total_retrans"]
    assert client["retransmits_total"] == client["retransmits_logged"] == in_all - unobserved > 0


def test_failed_retransmissions_are_not_counted(ends: Any, until: Any, tmp_path: Path) -> None:
    """Some kernels also report failed attempts: without a route nothing is sent."""
    left, right, link = ends
    port = next(PORTS)
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
    port = next(PORTS)
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


def test_what_began_before_the_log_and_is_only_sent_again_balances(pair: Any, tmp_path: Path, until: Any) -> None:
    """No process holds the connection, so that its first packet in the log is one that is sent again."""
    left, right, address = pair
    port = next(PORTS)
    with socket_at(right, address, socket.SOCK_STREAM) as listener:
        listener.bind((address, port))
        listener.listen()
        with socket_at(left, address, socket.SOCK_STREAM) as active:
            active.connect((address, port))
            local_port = active.getsockname()[1]
            passive, _ = listener.accept()
            chain = "add table ip t; add chain ip t i { type filter hook input priority 0; }"
            right.run(["nft", f"{chain}; add rule ip t i tcp dport {port} drop"])
            active.sendall(bytes(100))
    with passive:
        until("it is sent again", lambda: counters(left)["TcpRetransSegs"] > 0)
        with TcpLog(tmp_path / "log", port=[port]) as log:
            before = counters(left)["TcpRetransSegs"]
            until("it is sent again twice", lambda: counters(left)["TcpRetransSegs"] > before + 1)
    logged, _ = check_log(log.path)
    # The connection of a namespace that went lives on for a while.
    (client,) = [flow for flow in ours(logged, port) if flow["local_port"] == local_port and not flow["ended"]]
    assert 2 <= client["retransmits_logged"] == client["retransmits_total"]
