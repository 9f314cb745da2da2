"""The listeners whose accept queue was full, as lines of text."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parshall.errors import printable
from parshall.instruments.tcp import LogSummary


def listener_lines(summary: LogSummary) -> list[str]:
    """Return a line for each listener that refused segments, and a line if some segments were not counted."""
    lines = refusing_lines(summary.listeners)
    if summary.segments_unlisted:
        lines.append(f"listeners: {summary.segments_unlisted:,} segments not counted: the table of listeners was full")
    return lines


def refusing_lines(listeners: Iterable[dict[str, Any]]) -> list[str]:
    """Return a line for each listener (a row of `Log.listeners`) that refused segments, most refusals first."""
    here = Path("/proc/self/ns/net").stat().st_ino

    def refused(row: dict[str, Any]) -> int:
        return int(row["syns_refused"] + row["acks_refused"])

    rows = sorted(filter(refused, listeners), key=refused, reverse=True)
    return [_line(row, here) for row in rows]


def _line(row: dict[str, Any], here: int) -> str:
    address = f"[{row['local_address']}]" if row["ip_version"] == 6 else row["local_address"]
    owner = f" of {printable(row['command'] or '?')} (pid {row['pid']})" if row["pid"] else ""
    namespace = "" if row["netns_inode"] == here else f" in network namespace {row['netns_inode']}"
    refused = f"{row['syns_refused']:,} SYNs, {row['acks_refused']:,} ACKs refused"
    queue = f"accept queue of {row['backlog_connections']:,} full"
    return f"listener {address}:{row['local_port']}{owner}{namespace}: {queue}: {refused}"
