"""What a full accept queue refuses was dropped, also where the kernel frees it without a reason.

The witness is the kernel's own count of the network namespace (ListenOverflows).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from accept_queues import delayed_ends, has_queued, listener_at, overflows, refuse_final_acks, silence
from path_run import check_balance
from ports import PORTS
from retransmission_counters import counters

from parshall.instruments.path import PathLog, PathProfile
from parshall.instruments.path.stages import ALL_STAGES

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
REASON = "TCP_LISTEN_OVERFLOW"


class Found:
    """What was measured, when the block of `measured` has ended."""

    summary: Any
    log: PathLog | None

    def refused(self) -> int:
        """Followed packets that were dropped for a full accept queue, which `all` holds, too."""
        rows = [row for row in self.summary.drops if row["name"] == REASON]
        assert all(row["followed"] <= row["all"] for row in rows)
        return sum(row["followed"] for row in rows)

    def segments(self, port: int) -> Counter[tuple[str, str | None]]:
        """Code path and reason of each logged segment to a port."""
        packets = self.log.packets.filter(pc.equal(self.log.packets["destination_port"], port))
        return Counter(zip(*(packets[name].to_pylist() for name in ("path", "drop_reason")), strict=True))


@contextmanager
def measured(host: Any, path: Path | None, **options: Any) -> Iterator[Found]:
    """Measure the packets of a host; skip where the kernel lacks the hook of sockets."""
    found = Found()
    profile = PathProfile(path, netns=host.namespace, stages=ALL_STAGES, **options)
    try:
        yield found
    finally:
        found.summary = profile.stop()
    if "socket_in" not in found.summary.stages:
        pytest.skip("this kernel lacks the stage at which sockets are known")
    check_balance(found.summary.ledger)
    found.log = PathLog(path) if path else None


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("log", [True, False], ids=["log", "histograms"])
def test_refused_syns_were_dropped(
    ends: Any, clients_at: Any, until: Any, tmp_path: Path, family: int, log: bool
) -> None:
    left, right, link = ends
    address, port = link.address(right, family), next(PORTS)
    clients = clients_at(left)
    path = tmp_path / "path.arrow" if log else None
    with measured(right, path) as found, listener_at(right, address, port, 2):
        clients.connect(address, port, 3)
        until("three connections wait", has_queued(right, port, 3))
        clients.connect(address, port, 10)
        until("SYNs were refused", lambda: overflows(right) >= 10)
        silence(left, link.interface(left))
    assert found.refused() == overflows(right)
    if log:
        segments = found.segments(port)
        assert segments["dropped", REASON] == overflows(right)
        # SYN and ACK of those that wait.
        assert segments["delivered", None] == 6


@pytest.mark.parametrize(("family", "resets"), [(4, 0), (6, 0), (4, 1)])
def test_refused_final_acks_were_dropped(
    bed: Any, clients_at: Any, until: Any, tmp_path: Path, family: int, resets: int
) -> None:
    left, right, link = delayed_ends(bed)
    right.sysctl("net.ipv4.tcp_abort_on_overflow", resets)
    address, port = link.address(right, family), next(PORTS)
    clients = clients_at(left)
    with measured(right, tmp_path / "path.arrow") as found, listener_at(right, address, port, 4):
        refuse_final_acks(clients, right, address, port, until, sends=not resets)
        silence(left, link.interface(left))
    assert found.refused() == found.segments(port)["dropped", REASON] == overflows(right)


def test_an_ack_that_returns_a_cookie_looks_like_any_other(
    bed: Any, clients_at: Any, until: Any, tmp_path: Path
) -> None:
    """The manual says so: only a log of TCP knows which SYNs were answered by a cookie."""
    left, right, link = delayed_ends(bed)
    address, port = link.address(right), next(PORTS)
    clients = clients_at(left)
    with measured(right, tmp_path / "path.arrow") as found, listener_at(right, address, port, 2):
        clients.connect(address, port, 10)
        until("seven ACKs were refused", lambda: overflows(right) >= 7)
        assert counters(right)["SyncookiesSent"] > 0
        silence(left, link.interface(left))
    assert found.refused() == 0


def test_the_queue_of_another_namespace_refuses_nothing_here(
    bed: Any, clients_at: Any, until: Any, tmp_path: Path
) -> None:
    """Address and port are the same, and one of them is full."""
    full, roomy = bed.host("full"), bed.host("roomy")
    port = next(PORTS)
    with (
        measured(roomy, tmp_path / "path.arrow") as found,
        listener_at(full, "127.0.0.1", port, 1),
        listener_at(roomy, "127.0.0.1", port, 100),
    ):
        for host in (full, roomy):
            clients_at(host).connect("127.0.0.1", port, 9)
        until("nine connections wait", has_queued(roomy, port, 9))
        until("SYNs were refused", lambda: overflows(full) >= 7)
    assert found.refused() == 0
    # Each SYN and ACK leaves and comes in.
    assert found.segments(port) == {("delivered", None): 18, ("sent", None): 18}
