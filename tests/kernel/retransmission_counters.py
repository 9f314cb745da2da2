"""The kernel's counters of retransmissions, compared with the causes in a log."""

from typing import Any

import polars as pl
from tcp_logger import rows_of

SYN = 2


def counters(host: Any) -> dict[str, int]:
    """Return the TCP counters of a host, without the prefix TcpExt."""
    lines = host.run(["nstat", "-asz"]).stdout.splitlines()
    words = (line.split() for line in lines)
    return {word[0].removeprefix("TcpExt"): int(word[1]) for word in words if word and word[0].startswith("Tcp")}


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
        "TCPLossProbes": segments.get("tlp", 0),
        "TCPFastRetrans": segments.get("fast", 0) + segments.get("rack", 0),
        "TCPSlowStartRetrans": segments.get("rto", 0)
        + segments.get("mtu", 0)
        - len(timed.filter(pl.col("pkt_flags") & SYN == 0)),
        "TCPSynRetrans": handshakes,
    }
    assert {name: counted[name] for name in expected} == expected, found
    assert counted["TCPDSACKRecv"] + counted["TCPDSACKOfoRecv"] == len(rows.filter(event="dsack"))
    assert None not in segments
    return found
