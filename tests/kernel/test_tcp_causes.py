"""Causes of retransmissions, compared with the kernel's own counters of the namespace."""

import socket
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import connection, transfer
from tcp_flow_table import ours, retransmissions_of
from tcp_logger import check_log, rows_of

from parshall.tcp import TcpLog

pytestmark = pytest.mark.kernel
_ports = count(23500)


def counters(host: Any) -> dict[str, int]:
    """Return the TCP counters of a host's namespace."""
    lines = host.run(["nstat", "-asz"]).stdout.splitlines()
    return {words[0]: int(words[1]) for words in map(str.split, lines) if words and words[0].startswith("Tcp")}


def check_counters(log: Any, flow: int, counted: dict[str, int]) -> pl.DataFrame:
    """Compare the sums per cause with the kernel's, and return the flow's retransmissions."""
    found = pl.from_arrow(log.retransmissions).filter(flow=flow)
    found = found.with_columns(pl.col("cause", "evidence").cast(pl.String))
    rows = rows_of(log).filter(flow=flow)
    timed = rows.filter(event="retransmit").with_columns(pl.col("timer").cast(pl.String)).filter(timer="none")
    segments = dict(found.group_by("cause").agg(pl.col("segments").sum()).iter_rows())
    handshakes = segments.get("syn", 0) + segments.get("synack", 0)
    expected = {
        "TcpRetransSegs": sum(segments.values()),
        "TcpExtTCPLossProbes": segments.get("tlp", 0),
        "TcpExtTCPFastRetrans": segments.get("fast", 0) + segments.get("rack", 0),
        "TcpExtTCPSlowStartRetrans": segments.get("rto", 0) - len(timed.filter(pl.col("pkt_flags") & 2 == 0)),
        "TcpExtTCPSynRetrans": handshakes,
        "TcpExtTCPDSACKRecv": len(rows.filter(event="dsack")),
    }
    assert {name: counted[name] for name in expected} == expected, found
    assert None not in segments
    return found


def test_sums_of_causes_on_a_lossy_link_are_those_of_the_kernel(bed: Any, tmp_path: Path) -> None:
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, rate_bps=200e6, delay_ms=1, loss=0.02)
    port = next(_ports)
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
    port = next(_ports)
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
    # The last one's DSACK came back; those before were lost with the ACKs.
    assert found["spurious"][-1]
    assert found["evidence"][-1] in ("dsack", "undo")
