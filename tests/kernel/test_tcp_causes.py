"""Causes of retransmissions, compared with the kernel's own counters of the namespace."""

import socket
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer
from ports import PORTS
from retransmission_counters import check_counters, counters
from tcp_flow_table import ours, retransmissions_of
from tcp_logger import check_log

from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel


@pytest.mark.long
def test_sums_of_causes_on_a_lossy_link_are_those_of_the_kernel(bed: Any, tmp_path: Path) -> None:
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, rate_bps=200e6, delay_ms=1, loss=0.02)
    port = next(PORTS)
    with (
        TcpLog(tmp_path / "log", port=[port]) as log,
        connection(left, right, link.address(right), port) as (active, passive),
    ):
        transfer(active, passive, 3_000_000)
    counted = counters(left)
    logged, _ = check_log(log.path)
    found = check_counters(logged, ours(logged, port)[0]["flow"], counted)
    assert {"fast", "rack"} & set(found["cause"])


def test_lost_acks_make_probe_and_timeout_spurious(ends: Any, until: Any, tmp_path: Path) -> None:
    left, right, link = ends
    port = next(PORTS)
    with (
        TcpLog(tmp_path / "log", port=[port]) as log,
        connection(left, right, link.address(right), port) as (active, passive),
    ):
        transfer(active, passive, 1_000)
        right.run(["ip", "route", "add", "blackhole", f"{link.address(left)}/32"])
        active.sendall(bytes(1_000))
        until("probe and timeout", lambda: retransmissions_of(active) >= 2)
        right.run(["ip", "route", "del", "blackhole", f"{link.address(left)}/32"])
        passive.recv(1_000, socket.MSG_WAITALL)
        until("all is acknowledged", lambda: "unacked" not in left.run(["ss", "-tinHO", f"dport = :{port}"]).stdout)
    counted = counters(left)
    logged, _ = check_log(log.path)
    found = check_counters(logged, ours(logged, port)[0]["flow"], counted)
    assert found["cause"][0] == "tlp"
    assert set(found["cause"][1:]) == {"rto"}
    # The last one's DSACK came back; those before were lost with the ACKs. A DSACK does not say which of several
    # transmissions it answers, and on a link as short as this one the log may take it for the one before.
    spurious = found.filter("spurious")
    assert (spurious["cause"].to_list(), spurious["evidence"].to_list()) == (["rto"], ["dsack"])
