"""What `parshall show`, a report and the flow table say of the same connections."""

import socket
import struct
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import connection
from ports import PORTS
from tcp_logger import check_log

import parshall
from parshall.figures.reduction import reduce
from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel
ASKED_BYTES, ANSWERED_BYTES, PAUSE_S = 20_000, 5_000, 1.0


def receive(opened: socket.socket, count: int) -> None:
    """Receive so many bytes."""
    while count:
        count -= len(opened.recv(count))


@pytest.mark.parametrize("is_reset", [False, True], ids=["fin", "reset"])
@pytest.mark.parametrize("ppl", [1, 10])
def test_show_report_and_flow_table_say_the_same(bed: Any, tmp_path: Path, is_reset: bool, ppl: int) -> None:
    a, b = bed.host("a"), bed.host("b")
    link = bed.link(a, b)
    port = next(PORTS)
    for host in (a, b):
        # As on loopback: the question is one segment.
        host.run(["ip", "link", "set", "dev", link.interface(host), "mtu", "65535"], check=False)
    with (
        TcpLog(tmp_path / "log", port=[port], ppl=ppl),
        connection(a, b, link.address(b), port) as (active, passive),
    ):
        time.sleep(PAUSE_S)
        active.sendall(bytes(ASKED_BYTES))
        receive(passive, ASKED_BYTES)
        passive.sendall(bytes(ANSWERED_BYTES))
        receive(active, ANSWERED_BYTES)
        if is_reset:
            # The server does not read these data; the reset is sent in place of a FIN.
            active.sendall(bytes(ASKED_BYTES))
            active.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    log, _ = check_log(tmp_path / "log")
    flows = pl.DataFrame(pl.from_arrow(log.flows)).select("flow", "passive", "bytes_acked", "bytes_received")
    shown, reduced = log.flow_states().table(), reduce(parshall.read(tmp_path / "log")).table
    assert flows.height == 2
    for flow, is_passive, acked, received in flows.rows():
        (show,), (report,) = (table.filter(flow=flow).to_dicts() for table in (shown, reduced))
        what = (is_passive, acked, received, show, report)
        asked, answered = (received, acked) if is_passive else (acked, received)
        # SYN and FIN count one each.
        assert answered - ANSWERED_BYTES in range(3), what
        assert asked - ASKED_BYTES in range(3) or is_reset, what
        # Rows have the FIN that comes last, which the kernel does not count.
        assert show["acked_bytes"] - acked in (0, 1) and show["received_bytes"] - received in (0, 1), what
        assert report["bytes"] - max(acked, received) in (0, 1), what
        # Of ten packets one is logged: the life of a flow is not that of its rows.
        assert report["duration_s"] == pytest.approx(show["duration_s"], abs=1e-6), what
        assert show["duration_s"] > PAUSE_S or ppl > 1, what
