"""Rows of the flow table of one port, and what the kernel reports about a socket."""

import socket
import struct
from typing import Any

from tcp_logger import rows_of


def ours(log: Any, port: int) -> list[dict[str, Any]]:
    """The flows with this port, those of the server last."""
    flows = [flow for flow in log.flows.to_pylist() if port in (flow["local_port"], flow["remote_port"])]
    return sorted(flows, key=lambda flow: (flow["local_port"] == port, flow["flow"]))


def the_close(log: Any, flow: dict[str, Any]) -> dict[str, Any]:
    """The close event of a flow."""
    (row,) = rows_of(log).filter(flow=flow["flow"], event="close").to_dicts()
    return row


def reset_at_close(each: socket.socket) -> None:
    """Let close() send a reset, and leave no connection in TIME_WAIT."""
    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def unacknowledged_of(active: socket.socket) -> int:
    """tcpi_unacked of a socket: segments in flight."""
    return struct.unpack_from("I", active.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 24)[0]


def retransmissions_of(active: socket.socket) -> int:
    """tcpi_total_retrans of a socket."""
    return struct.unpack_from("I", active.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]


def backoff_of(active: socket.socket) -> int:
    """tcpi_backoff of a socket: consecutive expirations of its timer."""
    return active.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[4]
