"""The TCP log against independent witnesses: tcpdump on both ends, and ss."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import (
    Packet,
    Tcpdump,
    account,
    connection,
    ledger_of,
    send_marker,
    socket_statistics,
    transfer,
)
from ports import PORTS

import parshall
from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel
# The flags that tcpdump and the log both show: FIN SYN RST PSH ACK URG ECE CWR.
_FLAGS = 0xFF
_SYN_ACK = 0x12
# Before 6.6 the kernel runs no program of a cgroup for a SYN+ACK over IPv6; nothing else could see it there.
HIDES_SYN_ACK_OF_IPV6 = tuple(int(part) for part in platform.release().split(".")[:2]) < (6, 6)


@pytest.fixture
def ends(bed: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Two hosts on a plain link without offloads, where one skb is one packet in both directions."""
    # On one CPU: when two CPUs receive packets of one flow, TCP may meet them in another order than
    # the interface did, and the log has TCP's order.
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, offloads=False)
    for host in (left, right):
        # ethtool switches the device's segmentation off, this the stack's.
        host.run(["ip", "link", "set", "dev", link.interface(host), "gso_max_segs", "1"])
    yield left, right, link
    os.sched_setaffinity(0, allowed)


def packets_of(log: Any, local_address: str, direction: str) -> pl.DataFrame:
    """Packet rows of the flows that have this local address, in the order of the log."""
    flows = pl.from_arrow(log.flows).filter(pl.col("local_address") == local_address)["flow"]
    rows = pl.from_arrow(log.records).filter(
        pl.col("flow").is_in(flows.implode()),
        pl.col("event").cast(pl.String) == "packet",
        pl.col("direction").cast(pl.String) == direction,
    )
    return rows.with_columns(time_s=pl.col("time_ns").dt.epoch("ns") / 1e9)


def assert_same(rows: pl.DataFrame, seen: list[Packet]) -> None:
    """Packet by packet: seq, ack, flags, payload, and time within a millisecond."""
    logged = [
        (row["pkt_seq"], row["pkt_ack"], row["pkt_flags"] & _FLAGS, row["payload_bytes"])
        for row in rows.iter_rows(named=True)
    ]
    assert logged == [(packet.seq, packet.ack, packet.flags & _FLAGS, packet.payload_bytes) for packet in seen]
    assert rows["gso_segs"].to_list() == [1] * len(seen)
    apart_s = [abs(row - packet.time_s) for row, packet in zip(rows["time_s"], seen, strict=True)]
    # A process may be put off the CPU between the two looks at a packet; the bulk may not.
    late = sum(each > 1e-3 for each in apart_s)
    assert late <= max(1, len(apart_s) // 100), f"{late} of {len(apart_s)} are more than 1 ms apart"


@pytest.mark.parametrize("family", [4, 6])
def test_log_and_tcpdump_agree_packet_by_packet(
    ends: tuple[Any, Any, Any], family: int, until: Any, tmp_path: Path
) -> None:
    left, right, link = ends
    port = next(PORTS)
    addresses = {host: link.address(host, family) for host in (left, right)}
    witnesses = {
        host: Tcpdump(host, link.interface(host), port, tmp_path / f"{host.name}.pcap") for host in (left, right)
    }
    with TcpLog(tmp_path / "log.arrow", port=[port]) as log:
        with connection(left, right, addresses[right], port) as (active, passive):
            transfer(active, passive, 1_500_000)
            transfer(passive, active, 300_000)
            for _ in range(50):
                transfer(active, passive, 100)
                transfer(passive, active, 1000)
    send_marker(left, addresses[right], port)
    ledger = ledger_of(log)
    logged = parshall.read(log.path)
    total = 0
    for host, witness in witnesses.items():
        seen = witness.stop(until)
        assert len(seen) > 1000
        for direction in ("in", "out"):
            wanted = [each for each in seen if (each.source_address == addresses[host]) == (direction == "out")]
            if family == 6 and direction == "out" and HIDES_SYN_ACK_OF_IPV6:
                wanted = [each for each in wanted if each.flags & _SYN_ACK != _SYN_ACK]
            assert_same(packets_of(logged, addresses[host], direction), wanted)
            total += len(wanted)
    assert total == account(ledger, "tcp_ingress")["logged"] + account(ledger, "tcp_egress")["logged"]
    assert all(each["packets_seen"] == each["packets_logged"] for each in logged.flows.to_pylist())


def test_with_offloads_log_and_tcpdump_agree_after_summing_segments(bed: Any, until: Any, tmp_path: Path) -> None:
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, offloads=True)
    port = next(PORTS)
    witnesses = {
        host: Tcpdump(host, link.interface(host), port, tmp_path / f"{host.name}.pcap") for host in (left, right)
    }
    with TcpLog(tmp_path / "log.arrow", port=[port]) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(active, passive, 20_000_000)
            transfer(passive, active, 5_000_000)
    send_marker(left, link.address(right), port)
    ledger_of(log)
    logged = parshall.read(log.path)
    for host, witness in witnesses.items():
        seen = witness.stop(until)
        for direction in ("in", "out"):
            wanted = [each for each in seen if (each.source_address == link.address(host)) == (direction == "out")]
            rows = packets_of(logged, link.address(host), direction)
            assert rows["gso_segs"].max() > 1 or direction == "in", "the offloads were on"
            assert rows["payload_bytes"].sum() == sum(each.payload_bytes for each in wanted)
            assert covered(rows["pkt_seq"], rows["payload_bytes"]) == covered(
                [each.seq for each in wanted], [each.payload_bytes for each in wanted]
            )


def covered(starts: Any, lengths: Any) -> list[tuple[int, int]]:
    """The ranges of sequence numbers that segments cover together (no wrap within a test)."""
    first = min(starts)
    ranges: list[tuple[int, int]] = []
    for start, length in sorted(
        ((start - first) % 2**32, length) for start, length in zip(starts, lengths, strict=True)
    ):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], start + length))
        else:
            ranges.append((start, start + length))
    return ranges


def test_state_agrees_with_ss(ends: tuple[Any, Any, Any], tmp_path: Path) -> None:
    left, right, link = ends
    port = next(PORTS)
    left.sysctl("net.ipv4.tcp_slow_start_after_idle", 0)
    moments = []
    with TcpLog(tmp_path / "log.arrow", port=[port]) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            for payload_bytes in (10_000, 200_000, 1_000_000, 3_000_000, 50_000):
                transfer(active, passive, payload_bytes)
                # All is acknowledged when ss says so; nothing moves until the next byte is sent.
                while "unacked" in (state := socket_statistics(left, port)):
                    pass
                again = socket_statistics(left, port)
                if all(state.get(key) == again.get(key) for key in ("cwnd", "ssthresh", "rtt", "segs_out")):
                    moments.append((int(state["data_segs_out"]), state))
                transfer(active, passive, 1)
    ledger_of(log)
    sent = packets_of(parshall.read(log.path), link.address(left), "out").filter(pl.col("payload_bytes") > 0)
    assert len(moments) >= 3
    for data_segments, state in moments:
        # The next segment with data leaves with the state that ss saw.
        row = sent.row(data_segments, named=True)
        rtt_ms, rttvar_ms = (float(part) for part in state["rtt"].split("/"))
        assert row["cwnd_segments"] == int(state["cwnd"])
        assert row["ssthresh_segments"] == (int(state["ssthresh"]) if "ssthresh" in state else None)
        assert row["srtt_us"] == pytest.approx(rtt_ms * 1000, abs=1.01)
        assert row["rttvar_us"] == pytest.approx(rttvar_ms * 1000, abs=1.01)
        assert row["rto_us"] == pytest.approx(float(state["rto"]) * 1000, abs=1001)
        assert row["mss_bytes"] == int(state["mss"])
        assert row["min_rtt_us"] == pytest.approx(float(state["minrtt"]) * 1000, abs=1.01)
        assert row["state"] == "ESTABLISHED"
