"""The flow table of the TCP log: every connection, what it is, how it began and how it ended."""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import connection, socket_statistics, transfer
from tcp_logger import Logger, check_log, packets_of, rows_of, total

from parshall.errors import ParshallError
from parshall.tcp import TcpLog

pytestmark = pytest.mark.kernel
_ports = count(23000)
SYN, RST, ACK, ECE, CWR, AE = 2, 4, 16, 64, 128, 256


def ours(log: Any, port: int) -> list[dict[str, Any]]:
    """The flows with this port, those of the server last."""
    flows = [flow for flow in log.flows.to_pylist() if port in (flow["local_port"], flow["remote_port"])]
    return sorted(flows, key=lambda flow: (flow["local_port"] == port, flow["flow"]))


def the_close(log: Any, flow: dict[str, Any]) -> dict[str, Any]:
    """The one row that tells how a flow ended."""
    (row,) = rows_of(log).filter(flow=flow["flow"], event="close").to_dicts()
    return row


def reset_at_close(each: socket.socket) -> None:
    """Let close() send a reset, and leave no connection in TIME_WAIT."""
    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_idle_flows_of_every_namespace_are_found(ends: Any, tmp_path: Path) -> None:
    """They began before the log, send nothing while it runs, and belong to two processes."""
    left, right, link = ends
    port = next(_ports)
    code = (
        "import socket, sys\n"
        "with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as client:\n"
        "    print('connected', flush=True)\n"
        "    client.recv(1)\n"
    )
    with right.enter():
        listener = socket.create_server((link.address(right), port))
    with listener:
        client = left.popen(
            [sys.executable, "-c", code, link.address(right), str(port)], stdout=subprocess.PIPE, text=True
        )
        passive, _ = listener.accept()
        with passive:
            assert client.stdout.readline() == "connected\n"
            with TcpLog(tmp_path / "log", port=[port]) as log:
                pass
        client.communicate(timeout=10)
    logged, _ = check_log(log.path)
    flows = ours(logged, port)
    assert [flow["pid"] for flow in flows] == [client.pid, os.getpid()]
    for flow, host in zip(flows, (left, right), strict=True):
        assert flow["began_before"]
        assert not flow["ended"]
        assert flow["command"] == Path(sys.executable).resolve().name[:15] or flow["command"].startswith("python")
        assert flow["local_address"] == link.address(host)
        assert flow["netns_inode"] == host.path.stat().st_ino
        assert (flow["packets_seen"], flow["events_seen"]) == (0, 0)
        assert flow["first_time_ns"] <= flow["last_time_ns"]


def test_a_flow_that_began_before_goes_on_under_one_number(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(_ports)
    with connection(left, right, link.address(right), port) as (active, passive):
        transfer(active, passive, 10_000)
        with TcpLog(tmp_path / "log", port=[port]) as log:
            transfer(active, passive, 10_000)
    logged, _ = check_log(log.path)
    flows = ours(logged, port)
    assert len(flows) == 2
    assert all(flow["began_before"] and flow["packets_seen"] and flow["pid"] == os.getpid() for flow in flows)


@pytest.mark.parametrize("family", [4, 6])
def test_a_passive_open_keeps_its_number_from_the_syn_on(ends: Any, family: int, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(_ports)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        with connection(left, right, link.address(right, family), port) as (active, passive):
            transfer(active, passive, 20_000)
    logged, _ = check_log(log.path)
    client, server = ours(logged, port)
    assert (client["passive"], server["passive"]) == (False, True)
    assert not client["began_before"]
    assert not server["began_before"]
    rows = packets_of(rows_of(logged), server["flow"])
    assert rows["flow_seq"].to_list() == list(range(1, server["packets_seen"] + 1))
    assert rows["pkt_flags"][:3].to_list() == [SYN, SYN | ACK, ACK]
    assert rows["direction"][:3].to_list() == ["in", "out", "in"]
    assert rows["state"][:4].to_list() == ["NEW_SYN_RECV"] * 3 + ["ESTABLISHED"]
    # The numbers of the handshake go on in the connection.
    assert rows["pkt_seq"][2] == (rows["pkt_seq"][0] + 1) % 2**32 == rows["pkt_seq"][3]
    for flow in (client, server):
        assert flow["ip_version"] == family
        assert flow["ended"]
        assert flow["pid"] == os.getpid()
        assert flow["uid"] == os.getuid()


def test_the_last_state_of_a_normal_close(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(_ports)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(active, passive, 100_000)
    logged, _ = check_log(log.path)
    client, server = ours(logged, port)
    # The client closes first: its socket goes over to TIME_WAIT, the server's acknowledges the last FIN.
    assert the_close(logged, server)["state"] == "LAST_ACK"
    assert the_close(logged, client)["state"] in ("FIN_WAIT2", "TIME_WAIT", "CLOSING")
    assert the_close(logged, client)["srtt_us"] > 0
    assert the_close(logged, client)["cwnd_segments"] > 0
    assert client["ended"]
    assert server["ended"]


def test_the_last_state_of_a_reset(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(_ports)
    with TcpLog(tmp_path / "log", port=[port]) as log, right.enter():
        with socket.create_server((link.address(right), port)) as listener, left.enter():
            active = socket.create_connection((link.address(right), port), timeout=10)
            passive, _ = listener.accept()
            transfer(active, passive, 10_000)
            reset_at_close(active)
            active.close()
            with pytest.raises(ConnectionResetError):
                passive.recv(1)
            passive.close()
    logged, _ = check_log(log.path)
    client, server = ours(logged, port)
    for flow, direction in ((client, "out"), (server, "in")):
        assert the_close(logged, flow)["state"] == "ESTABLISHED"
        last = packets_of(rows_of(logged), flow["flow"]).row(-1, named=True)
        assert last["pkt_flags"] & RST
        assert last["direction"] == direction
        assert flow["ended"]


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("who", ["a reader that leaves data", "a listener that never accepts"])
def test_a_connection_that_ends_with_a_reset_of_its_own_keeps_its_port(
    ends: Any, until: Any, who: str, family: int, tmp_path: Path
) -> None:
    """The kernel releases the port before it sends the reset, the first packet by which a process is seen."""
    left, right, link = ends
    port, address = next(_ports), link.address(right, family)
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with TcpLog(tmp_path / "log", port=port) as log:
        with right.enter():
            listener = socket.create_server((address, port), family=kind)
        with left.enter():
            active = socket.socket(kind, socket.SOCK_STREAM)
        with listener, active:
            active.settimeout(10)
            active.connect((address, port))
            client_port = active.getsockname()[1]
            active.sendall(bytes(1000))
            if who == "a listener that never accepts":
                until("the data was acknowledged", lambda: not unacknowledged_of(active))
                listener.close()
            else:
                passive, _ = listener.accept()
                assert passive.recv(1, socket.MSG_PEEK)
                passive.close()
            with pytest.raises(ConnectionResetError):
                active.recv(1)
    logged, _ = check_log(log.path)
    client, server = ours(logged, port)
    assert (client["local_port"], client["remote_port"]) == (client_port, port)
    assert (server["local_port"], server["remote_port"]) == (port, client_port)
    assert (server["local_address"], server["remote_address"]) == (address, link.address(left, family))
    # The reset belongs to the flow, as tcpdump would see it.
    assert packets_of(rows_of(logged), server["flow"])["pkt_flags"][-1] & RST


def test_a_log_that_begins_before_the_reset_knows_the_port(ends: Any, until: Any, tmp_path: Path) -> None:
    """Nothing else is seen of the flow than its end, and still the filter finds it by its port."""
    left, right, link = ends
    port, address = next(_ports), link.address(right)
    with right.enter():
        listener = socket.create_server((address, port))
    with left.enter():
        active = socket.socket()
    with listener, active:
        active.connect((address, port))
        client_port = active.getsockname()[1]
        active.sendall(bytes(1000))
        until("the data was acknowledged", lambda: not unacknowledged_of(active))
        # Nobody holds a file of a connection that was not accepted, so it is not found at the start.
        with TcpLog(tmp_path / "log", port=port, direction="out") as log:
            listener.close()
            with pytest.raises(ConnectionResetError):
                active.recv(1)
    logged, _ = check_log(log.path)
    (server,) = [flow for flow in ours(logged, port) if flow["local_port"] == port]
    assert server["remote_port"] == client_port


def test_a_refused_connection_and_another_attempt_of_the_same_socket(ends: Any, tmp_path: Path) -> None:
    """Linux lets a socket connect again after a refusal: two connections, so two flows."""
    left, right, link = ends
    refused, port = next(_ports), next(_ports)
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
    """The kernel sends them from raw sockets of its own, which say that their protocol is TCP and have no ports."""
    left, right, link = ends
    refused = next(_ports)
    with TcpLog(tmp_path / "log") as log:
        for _ in range(3):
            with left.enter(), pytest.raises(ConnectionRefusedError):
                socket.create_connection((link.address(right), refused))
    logged, ledger = check_log(log.path)
    assert len(ours(logged, refused)) == 3
    assert all(flow["local_port"] for flow in logged.flows.to_pylist())
    assert next(each for each in ledger["hooks"] if each["hook"] == "tcp_egress")["unowned"] >= 3


def test_a_syn_without_answer(ends: Any, until: Any, tmp_path: Path) -> None:
    """Nobody answers: SYNs are sent again, each an event, and the last state is SYN_SENT."""
    left, right, link = ends
    port = next(_ports)
    left.sysctl("net.ipv4.tcp_syn_retries", 1)
    if Path("/proc/sys/net/ipv4/tcp_syn_linear_timeouts").exists():  # from Linux 6.5 on
        left.sysctl("net.ipv4.tcp_syn_linear_timeouts", 0)
    right.run(["ip", "route", "add", "blackhole", f"{link.address(left)}/32"])
    with TcpLog(tmp_path / "log", port=[port]) as log, right.enter():
        with socket.create_server((link.address(right), port)), left.enter(), socket.socket() as active:
            # A process that waits is not needed: TCP gives up by itself after 1 + 2 seconds, or
            # when the socket is closed.
            active.setblocking(False)
            assert active.connect_ex((link.address(right), port)) != 0
            until("it was sent again", lambda: retransmissions_of(active) >= 1)
    logged, _ = check_log(log.path)
    client, *servers = ours(logged, port)
    assert not client["passive"]
    assert the_close(logged, client)["state"] == "SYN_SENT"
    rows = rows_of(logged).filter(flow=client["flow"])
    assert rows.filter(event="packet")["pkt_flags"].to_list() == [SYN, SYN]
    (again,) = rows.filter(event="retransmit").to_dicts()
    assert (again["pkt_flags"], again["payload_bytes"]) == (SYN, 0)
    assert again["pkt_seq"] == rows.filter(event="packet")["pkt_seq"][0]
    # The server's side never became a socket; its account is there all the same.
    assert len(servers) == 1
    assert servers[0]["passive"]
    assert servers[0]["packets_seen"] >= 2


def unacknowledged_of(active: socket.socket) -> int:
    """tcpi_unacked of a socket: segments in flight."""
    return struct.unpack_from("I", active.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24)[0]


def retransmissions_of(active: socket.socket) -> int:
    """tcpi_total_retrans of a socket."""
    return struct.unpack_from("I", active.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]


def backoff_of(active: socket.socket) -> int:
    """tcpi_backoff of a socket: how often its timer has gone off since it was heard last."""
    return active.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[4]


def test_an_aborted_handshake_and_a_new_one_between_the_same_ends(ends: Any, tmp_path: Path) -> None:
    """A client that gives up before it is accepted and comes again from the same port: two flows."""
    left, right, link = ends
    port, client_port = next(_ports), next(_ports)
    # No SYN-ACK gets through, so the listener keeps a handshake that comes to nothing.
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


@pytest.mark.parametrize("changed", ["tcp_sack", "tcp_timestamps", "tcp_window_scaling", "tcp_ecn"])
def test_options_are_those_that_were_agreed(ends: Any, changed: str, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(_ports)
    for host in (left, right):
        host.sysctl(f"net.ipv4.{changed}", 1 if changed == "tcp_ecn" else 0)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            active.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            transfer(active, passive, 10_000)
            said = {host: words_of_ss(host, port) for host in (left, right)}
            numbers = {host: socket_statistics(host, port) for host in (left, right)}
    logged, _ = check_log(log.path)
    for flow, host in zip(ours(logged, port), (left, right), strict=True):
        assert flow["sack"] == ("sack" in said[host]) == (changed != "tcp_sack")
        assert flow["timestamps"] == ("ts" in said[host]) == (changed != "tcp_timestamps")
        assert flow["window_scaling"] == ("wscale" in numbers[host]) == (changed != "tcp_window_scaling")
        assert flow["ecn"] == ("ecn" in said[host]) == (changed == "tcp_ecn")
        assert flow["advmss_bytes"] == int(numbers[host]["advmss"])
        assert flow["mss_clamp_bytes"] == 1460
        last = (
            packets_of(rows_of(logged), flow["flow"]).filter(direction="out", state="ESTABLISHED").row(-1, named=True)
        )
        assert last["mss_bytes"] == int(numbers[host]["mss"])
        if changed != "tcp_window_scaling":
            scales = tuple(int(scale) for scale in numbers[host]["wscale"].split(","))
            assert (last["snd_scale"], last["rcv_scale"]) == scales


def words_of_ss(host: Any, port: int) -> set[str]:
    """The words without a value that `ss -ti` says of the connection with this port."""
    text = host.run(["ss", "-tionHO", "state", "established", f"( sport = :{port} or dport = :{port} )"]).stdout
    return set(text.split())


@pytest.mark.parametrize("when", ["before connect", "before accept", "during"])
def test_congestion_control_is_the_one_in_use(ends: Any, when: str, tmp_path: Path) -> None:
    left, right, link = ends
    port, address = next(_ports), link.address(right)
    name = (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
    with TcpLog(tmp_path / "log", port=[port]) as log, right.enter():
        with socket.create_server((address, port)) as listener, left.enter(), socket.socket() as active:
            if when == "before connect":
                active.setsockopt(*name, b"reno")
            if when == "before accept":
                listener.setsockopt(*name, b"reno")
            active.connect((address, port))
            with listener.accept()[0] as passive:
                transfer(active, passive, 10_000)
                if when == "during":
                    passive.setsockopt(*name, b"reno")
                transfer(passive, active, 10_000)
                used = [each.getsockopt(*name, 16).rstrip(b"\0").decode() for each in (active, passive)]
    logged, _ = check_log(log.path)
    assert [flow["congestion_control"] for flow in ours(logged, port)] == used
    assert "reno" in used
    assert logged.flows.num_rows == 2


def test_ipv4_mapped_sockets_are_ipv4_flows(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port, address = next(_ports), link.address(right)
    with TcpLog(tmp_path / "log", port=[port]) as log, right.enter():
        listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        with listener, left.enter(), socket.socket(socket.AF_INET6) as active:
            active.connect((f"::ffff:{address}", port))
            with listener.accept()[0] as passive:
                transfer(active, passive, 20_000)
    logged, _ = check_log(log.path)
    client, server = ours(logged, port)
    for flow in (client, server):
        assert flow["ip_version"] == 4
        assert {flow["local_address"], flow["remote_address"]} == {link.address(left), address}
    assert server["passive"]
    assert packets_of(rows_of(logged), server["flow"])["pkt_flags"][0] == SYN


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
    # "retrans:now/total"; what comes after is the FIN, which may be lost, too.
    assert int(state["retrans"].split("/")[1]) == in_all
    assert again["gso_segs"].sum() == close["total_retrans"] >= in_all
    # Each tells the header of a packet that went out.
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
    # What was sent again had been sent before.
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


def test_retransmissions_that_fail_are_none(ends: Any, until: Any, tmp_path: Path) -> None:
    """Some kernels tell of attempts, too: without a route nothing is sent again."""
    left, right, link = ends
    port = next(_ports)
    with TcpLog(tmp_path / "log", port=[port]) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(active, passive, 1_000)
            # The answers are lost, so that there is something to be sent again; then there is no way to send it.
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


def test_a_retransmission_tells_the_flags_of_its_header_also_those_of_accurate_ecn(
    ends: Any, until: Any, tmp_path: Path
) -> None:
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
        until("it was sent again", lambda: retransmissions_of(active) >= 1)
    logged, _ = check_log(log.path)
    rows = rows_of(logged).filter(flow=ours(logged, port)[0]["flow"])
    first, second = rows.filter(event="packet", direction="out")["pkt_flags"].head(2)
    (again,) = rows.filter(event="retransmit")["pkt_flags"].head(1)
    assert first & (AE | CWR | ECE) == (AE | CWR | ECE if knows_ae else CWR | ECE)
    assert again == second
    assert again & SYN


def test_a_socket_that_connects_again_while_the_log_is_off_is_another_flow(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    refused, port = next(_ports), next(_ports)
    with TcpLog(tmp_path / "log", port=[refused, port]) as log, right.enter():
        with socket.create_server((link.address(right), port)) as listener, left.enter(), socket.socket() as active:
            with pytest.raises(ConnectionRefusedError):
                active.connect((link.address(right), refused))
            log.switch(False)
            active.connect((link.address(right), port))
            log.switch(True)
            with listener.accept()[0] as passive:
                transfer(active, passive, 10_000)
    logged, _ = check_log(log.path)
    (first,) = ours(logged, refused)
    assert first["packets_seen"] == 2
    client, _ = ours(logged, port)
    assert client["remote_port"] == port
    assert client["packets_seen"] > 0


# ---- many short connections ------------------------------------------------------------------

_SERVER = """
import os, socket, struct, sys
address, first, servers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import selectors
selector = selectors.DefaultSelector()
for port in range(first, first + servers):
    listener = socket.create_server((address, port), backlog=1024)
    selector.register(listener, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in selector.select():
        passive, _ = key.fileobj.accept()
        passive.recv(1)
        passive.close()
"""
_CLIENTS = """
import socket, struct, sys
address, first, servers, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
linger = struct.pack("ii", 1, 0)
for number in range(connections):
    client = socket.socket()
    client.connect((address, first + number % servers))
    client.send(b"x")
    client.recv(1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.close()
"""
SERVERS = 16


def memory_mb(pid: int) -> float:
    """Memory of a process, without the mapped ring."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1000


def test_many_short_connections_are_all_in_the_flow_table(ends: Any, until: Any, tmp_path: Path) -> None:
    left, right, link = ends
    connections, first, path = 100_000, 23500, tmp_path / "log"
    where = [link.address(right), str(first), str(SERVERS)]
    filters = [f"--port={first + number}" for number in range(SERVERS)]
    left.sysctl("net.ipv4.ip_local_port_range", "10000 22999")
    server = right.popen([sys.executable, "-c", _SERVER, *where], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    memory = []
    # On a busy machine the reader may wait long for a CPU, so the rings are large.
    with Logger(until, "-o", path, "--buffer", "64M", *filters) as logger:
        began_s = time.monotonic()
        clients = left.popen(
            [sys.executable, "-c", _CLIENTS, *where, str(connections)], stderr=subprocess.PIPE, text=True
        )

        def look() -> bool:
            memory.append(memory_mb(logger.process.pid))
            return clients.poll() is not None

        until("the clients are done", look, timeout_s=connections / 500 + 30)
        took_s = time.monotonic() - began_s
        assert clients.returncode == 0, clients.stderr.read()
        assert logger.end(signal.SIGINT).returncode == 0
    with contextlib.suppress(ProcessLookupError):
        server.terminate()
    server.wait(10)
    server.stdout.close()
    clients.stderr.close()
    logged, ledger = check_log(path)
    cost = ledger["cost"]
    print(f"{connections} connections in {took_s:.1f} s, {cost['log_bytes'] / 1e6:.1f} MB, {cost}")
    assert logged.flows.num_rows == 2 * connections
    flows = pl.from_arrow(logged.flows)
    assert flows["passive"].sum() == connections
    assert flows["ended"].all()
    closes = rows_of(logged).filter(event="close")
    unseen = total(ledger, "missed", ["tcp_close"])
    assert len(closes) == closes["flow"].n_unique() == flows.height - unseen
    assert sum(sum(account["lost"].values()) for account in ledger["hooks"]) == unseen
    # The reference machine's kernel runs no tracing program while a softirq interrupts the first
    # process of the machine: the closes that fall into such a moment, some in a million, go unseen.
    assert unseen <= connections // 10_000
    # Flows that are over are forgotten: were they kept, the second half would cost 60 MB.
    halfway_mb, end_mb = memory[len(memory) // 2], memory[-1]
    assert end_mb - halfway_mb < 30, (
        f"{memory[0]:.0f} MB at the begin, {halfway_mb:.0f} halfway, {end_mb:.0f} at the end"
    )
