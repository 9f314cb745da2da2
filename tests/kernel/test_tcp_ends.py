"""How the flows of established connections end: closes and resets."""

import socket
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer
from ports import PORTS
from tcp_flow_table import ours, reset_at_close, the_close, unacknowledged_of
from tcp_logger import check_log, packets_of, rows_of

from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel
RST = 4


def test_the_last_state_of_a_normal_close(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(PORTS)
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
    port = next(PORTS)
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
def test_a_connection_that_sends_a_reset_keeps_its_port(
    ends: Any, until: Any, who: str, family: int, tmp_path: Path
) -> None:
    """The kernel releases the port before it sends the reset, the first packet by which a process is seen."""
    left, right, link = ends
    port, address = next(PORTS), link.address(right, family)
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


def test_a_log_older_than_the_reset_has_the_port(ends: Any, until: Any, tmp_path: Path) -> None:
    """Nothing else is seen of the flow than its end, and still the filter finds it by its port."""
    left, right, link = ends
    port, address = next(PORTS), link.address(right)
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


def test_a_connection_that_no_process_holds_any_more_has_its_account(ends: Any, until: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(PORTS)
    closing = ["ss", "-Htn", "state", "fin-wait-1", f"dport = :{port}"]
    with TcpLog(tmp_path / "log", port=port) as log, right.enter():
        with socket.create_server((link.address(right), port)) as listener, left.enter():
            active = socket.create_connection((link.address(right), port), timeout=10)
            passive, _ = listener.accept()
            transfer(active, passive, 10_000)
            # The last words are never acknowledged, and the kernel tries for minutes.
            right.run(["ip", "link", "set", "dev", link.interface(right), "down"])
            active.send(b"last words")
            active.close()
            until("it is closing", lambda: left.run(closing).stdout.strip())
    assert left.run(closing).stdout.strip()
    passive.close()
    logged, _ = check_log(log.path)
    client, _ = ours(logged, port)
    assert client["packets_seen"] == len(packets_of(rows_of(logged), client["flow"])) > 0
    assert not client["ended"]
