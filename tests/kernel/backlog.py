"""The backlog: the queue of a CPU in which packets wait that come by veth. Its length is one for the machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LENGTH = Path("/proc/sys/net/core/netdev_max_backlog")
USUAL_PACKETS = 1000


@contextmanager
def backlog(packets: int) -> Iterator[None]:
    """Give all CPUs a backlog of that length; only for tests that run alone."""
    before = LENGTH.read_text()
    try:
        LENGTH.write_text(str(packets))
    except OSError as error:
        pytest.skip(f"{LENGTH}: {error.strerror}")
    try:
        yield
    finally:
        LENGTH.write_text(before)


def dropped_packets() -> int:
    """Packets for which the backlogs of all CPUs had no room since the machine was booted."""
    rows = Path("/proc/net/softnet_stat").read_text().splitlines()
    return sum(int(row.split()[1], 16) for row in rows)
