"""What the TCP log leaves out on request: every n-th packet, changes only, filters."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conversation import account, connection, transfer
from ports import PORTS
from tcp_logger import PACKET_HOOKS, check_log, packets_of, rows_of, total

from parshall.host.cgroups import TemporaryCgroup
from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel


def talk(ends: tuple[Any, Any, Any], port: int, payload_bytes: int, family: int = 4) -> None:
    """One connection with data in both directions."""
    left, right, link = ends
    with connection(left, right, link.address(right, family), port) as (active, passive):
        transfer(active, passive, payload_bytes)
        transfer(passive, active, payload_bytes // 2)


def talk_at_once(ends: tuple[Any, Any, Any], ports: list[int], payload_bytes: int) -> None:
    """A connection for each port, all at the same time."""
    threads = [threading.Thread(target=talk, args=(ends, port, payload_bytes)) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("ppl", [2, 10, 1000])
def test_every_nth_packet_of_each_flow_is_logged(ends: Any, ppl: int, tmp_path: Path) -> None:
    ports = [next(PORTS) for _ in range(4)]
    with TcpLog(tmp_path / "log", port=ports, ppl=ppl) as log:
        talk_at_once(ends, ports, 2_500_000)
    logged, ledger = check_log(log.path, is_thinned=True)
    rows = rows_of(logged)
    assert logged.flows.num_rows == 8
    for flow in logged.flows.to_pylist():
        wanted = list(range(ppl, flow["packets_seen"] + 1, ppl))
        assert wanted, "the flow is long enough to be thinned"
        assert packets_of(rows, flow["flow"])["flow_seq"].to_list() == wanted
        assert flow["packets_thinned"] == flow["packets_seen"] - len(wanted)
    assert total(ledger, "thinned", PACKET_HOOKS) > 0


@pytest.mark.parametrize("policy", ["fast", "slow"])
def test_every_nth_packet_also_when_records_are_lost(ends: Any, policy: str, tmp_path: Path) -> None:
    ports = [next(PORTS) for _ in range(4)]
    with TcpLog(tmp_path / "log", port=ports, ppl=2, buffer_bytes=32 << 10, policy=policy) as log:
        talk_at_once(ends, ports, 10_000_000)
    logged, ledger = check_log(log.path, is_thinned=True)
    cause = "dropped" if policy == "slow" else "overwritten"
    assert total(ledger, cause, PACKET_HOOKS) > 0
    rows = rows_of(logged)
    for flow in logged.flows.to_pylist():
        due = set(range(2, flow["packets_seen"] + 1, 2))
        found = set(packets_of(rows, flow["flow"])["flow_seq"])
        assert found <= due
        assert len(due) - len(found) == flow[f"packets_{cause}"]
        assert flow["packets_thinned"] == flow["packets_seen"] - len(due)


def test_on_change_logs_exactly_the_changes_that_a_full_log_shows(bed: Any, one_cpu: int, tmp_path: Path) -> None:
    """Two logs of the same packets at once: the full one gives what the other must have."""
    left, right = bed.host("left"), bed.host("right")
    # A short queue, so that the window goes up and down.
    link = bed.link(left, right, rate_bps=100e6, delay_ms=2, queue_packets=30, cpu=one_cpu)
    left.sysctl("net.ipv4.tcp_congestion_control", "reno")
    port = next(PORTS)
    with (
        TcpLog(tmp_path / "all", port=[port]) as everything,
        TcpLog(tmp_path / "changes", port=[port], on_change=True) as changes,
    ):
        talk((left, right, link), port, 6_000_000)
    full, _ = check_log(everything.path)
    thin, ledger = check_log(changes.path, is_thinned=True)
    assert total(ledger, "thinned", PACKET_HOOKS) > total(ledger, "logged", PACKET_HOOKS) > 10
    all_rows, thin_rows = rows_of(full), rows_of(thin)
    others = {flow["socket_cookie"]: flow["flow"] for flow in thin.flows.to_pylist()}
    assert len(others) == full.flows.num_rows == 2
    what = [
        "flow_seq",
        "direction",
        "cwnd_segments",
        "ssthresh_segments",
        "pkt_seq",
        "pkt_ack",
        "payload_bytes",
        "state",
    ]
    for flow in full.flows.to_pylist():
        last: tuple[Any, Any] = (0, 0)
        wanted = []
        for row in packets_of(all_rows, flow["flow"]).select(what).iter_rows(named=True):
            window = (row["cwnd_segments"], row["ssthresh_segments"])
            # The first packet of a flow is a change; before there is a socket nothing else is.
            if row["state"] == "NEW_SYN_RECV":
                wanted += [row] if row["flow_seq"] == 1 else []
            elif window != last:
                last = window
                wanted.append(row)
        assert packets_of(thin_rows, others[flow["socket_cookie"]]).select(what).to_dicts() == wanted


def test_on_change_and_every_nth_give_both(ends: Any, one_cpu: int, tmp_path: Path) -> None:
    port = next(PORTS)
    with (
        TcpLog(tmp_path / "changes", port=[port], on_change=True) as changes,
        TcpLog(tmp_path / "both", port=[port], on_change=True, ppl=10) as both,
    ):
        talk(ends, port, 500_000)
    few, _ = check_log(changes.path, is_thinned=True)
    many, _ = check_log(both.path, is_thinned=True)
    few_rows, many_rows = rows_of(few), rows_of(many)
    others = {flow["socket_cookie"]: flow["flow"] for flow in many.flows.to_pylist()}
    for flow in few.flows.to_pylist():
        tenth = set(range(10, flow["packets_seen"] + 1, 10))
        changed = set(packets_of(few_rows, flow["flow"])["flow_seq"])
        assert changed
        assert set(packets_of(many_rows, others[flow["socket_cookie"]])["flow_seq"]) == tenth | changed


@pytest.mark.parametrize("direction", ["in", "out"])
def test_one_direction(ends: Any, one_cpu: int, direction: str, tmp_path: Path) -> None:
    port = next(PORTS)
    with (
        TcpLog(tmp_path / "all", port=[port]) as everything,
        TcpLog(tmp_path / "half", port=[port], direction=direction) as half,
    ):
        talk(ends, port, 200_000)
    full, _ = check_log(everything.path)
    part, ledger = check_log(half.path)
    what = ["pkt_seq", "pkt_ack", "pkt_flags", "payload_bytes"]
    cookies = {flow["socket_cookie"]: flow["flow"] for flow in part.flows.to_pylist()}
    all_rows, part_rows = rows_of(full), rows_of(part)
    for flow in full.flows.to_pylist():
        wanted = packets_of(all_rows, flow["flow"]).filter(direction=direction).select(what)
        assert packets_of(part_rows, cookies[flow["socket_cookie"]]).select(what).equals(wanted)
    other = "tcp_egress" if direction == "in" else "tcp_ingress"
    assert account(ledger, other)["seen"] == 0


@pytest.mark.parametrize("family", [4, 6])
def test_ports_and_hosts(ends: Any, family: int, tmp_path: Path) -> None:
    """Three connections to the first address, one to another; filters by port, host and both."""
    left, right, link = ends
    first = link.address(right, family)
    second = "10.77.200.1" if family == 4 else "fd00:77::1"
    for host in (left, right):
        command = ["ip", "-6" if family == 6 else "-4"]
        if host is right:
            host.run([*command, "address", "add", f"{second}/{32 if family == 4 else 128}", "dev", "lo"])
        else:
            host.run([*command, "route", "add", second, "via", first])
    ports = [next(PORTS) for _ in range(4)]
    filters = {
        "port": {"port": ports[:1]},
        "ports": {"port": ports[:2]},
        "host": {"host": [first]},
        "other": {"host": [second]},
        "hosts": {"host": [first, second], "port": ports},
        "both": {"host": [first], "port": [ports[2], ports[3]]},
        "none": {"host": ["192.0.2.1", "2001:db8::1"], "port": [1]},
    }
    wanted = {
        "port": ports[:1], "ports": ports[:2], "host": ports[:3], "other": ports[3:], "hosts": ports,
        "both": [ports[2]], "none": [],
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        logs = {name: stack.enter_context(TcpLog(tmp_path / name, **each)) for name, each in filters.items()}
        for port in ports:
            address = second if port == ports[3] else first
            with connection(left, right, address, port) as (active, passive):
                transfer(active, passive, 20_000)
    for name, log in logs.items():
        logged, ledger = check_log(log.path)
        ours = [each for each in logged.flows.to_pylist() if {each["local_port"], each["remote_port"]} & {*ports}]
        found = {min(each["local_port"], each["remote_port"]) for each in ours}
        assert found == set(wanted[name]), name
        assert len(ours) == 2 * len(wanted[name])
        if name != "hosts":
            assert total(ledger, "filtered", PACKET_HOOKS) > 0, name


def test_a_mapped_address_is_found_by_its_ipv4_address(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port, address = next(PORTS), link.address(right)
    with TcpLog(tmp_path / "log", port=[port], host=[address]) as log, right.enter():
        listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        with listener, left.enter():
            active = socket.create_connection((address, port), timeout=10)
            with active, listener.accept()[0] as passive:
                transfer(active, passive, 1000)
    logged, _ = check_log(log.path)
    assert logged.flows.num_rows == 2
    for flow in logged.flows.to_pylist():
        assert flow["ip_version"] == 4
        assert address in (flow["local_address"], flow["remote_address"])


# Enters the group before it opens a socket, as a program that is started in one does.
_CLIENT = """
import os, socket, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
with socket.create_connection((sys.argv[2], int(sys.argv[3])), timeout=10) as client:
    client.sendall(bytes(50_000))
    client.shutdown(socket.SHUT_WR)
    client.recv(1)
"""


def test_one_cgroup(ends: Any, tmp_path: Path) -> None:
    """Only sockets below the group, of any depth, are logged; those of others are not even seen."""
    left, right, link = ends
    port = next(PORTS)
    group = TemporaryCgroup(f"test{os.getpid()}")
    try:
        below = group.path / "a" / "b"
        below.mkdir(parents=True)
        with TcpLog(tmp_path / "log", cgroup=group.path) as log, right.enter():
            with socket.create_server((link.address(right), port)) as listener:
                for directory in (below, group.path, group.path.parent):
                    client = left.popen(
                        [sys.executable, "-c", _CLIENT, str(directory), link.address(right), str(port)],
                        stderr=subprocess.PIPE, text=True,
                    )  # fmt: skip
                    with listener.accept()[0] as passive:
                        while passive.recv(65536):
                            pass
                    _, errors = client.communicate(timeout=10)
                    assert client.returncode == 0, errors
    finally:
        group.remove()
    logged, ledger = check_log(log.path)
    flows = logged.flows.to_pylist()
    assert [flow["cgroup"] for flow in flows] == [f"/{group.path.name}/a/b", f"/{group.path.name}"]
    assert all(flow["remote_port"] == port and not flow["passive"] for flow in flows)
    assert total(ledger, "filtered", PACKET_HOOKS) == 0
