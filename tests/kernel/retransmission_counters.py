"""The kernel's counters of retransmissions, compared with the causes in a log."""

from typing import Any

import polars as pl
from tcp_logger import account_text, rows_of

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
        "TCPFastRetrans": segments.get("fast", 0) + segments.get("rack", 0),
        "TCPSlowStartRetrans": segments.get("rto", 0)
        + segments.get("mtu", 0)
        - len(timed.filter(pl.col("pkt_flags") & SYN == 0)),
        "TCPSynRetrans": handshakes,
    }
    # A probe may also send new data. How many did not, the other counters determine.
    assert segments.get("tlp", 0) <= counted["TCPLossProbes"]
    expected["DSACKs"] = len(rows.filter(event="dsack"))
    kernels = {**counted, "DSACKs": counted["TCPDSACKRecv"] + counted["TCPDSACKOfoRecv"]}
    differing = {name: (kernels[name], logged) for name, logged in expected.items() if kernels[name] != logged}
    assert not differing, f"kernel's and log's: {differing}; {account_text(log.ledger)}"
    assert None not in segments
    return found
