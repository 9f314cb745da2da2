"""What test_path_differential.py has found at `parshall path`, each in its smallest form.

The drawn traffic leaves out what fails here, or corrects what it expects, where a comment says so.
"""

import contextlib
import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from path_frames import UDP, Ends
from path_noise import noise
from path_traffic import SO_RCVBUFFORCE, Traffic, queue_too_short, talk
from path_witness import all_counters, counters, grown, tcp_is_quiet
from path_world import CLOSED, ETH, OPEN, SLOW, TC_EGRESS_BYTES, Features, world
from test_path_identity import IFF_TUN

from parshall.instruments.path import PathProfile
from parshall.instruments.path.stages import ALL_STAGES

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
MODES = pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])


@pytest.fixture
def traffic(request: pytest.FixtureRequest) -> Iterator[Traffic]:
    """Give a box with its programs; its parameter says whether it has a bridge."""
    features = Features(
        getattr(request, "param", False), IFF_TUN, has_vxlan=False, forwards=True, has_br_netfilter=False
    )
    with world([features]) as (box,):
        made = Traffic(box)
        try:
            yield made
        finally:
            made.close()


def measured(traffic: Traffic, log: Path | None, work: Callable[[], Any], **options: Any) -> tuple[Any, Counter[str]]:
    """Measure what the box does with some packets; return the summary, and what its counters have grown by."""
    box = traffic.box
    before = all_counters(box.host)
    profile = PathProfile(log, **(options or {"netns": box.host.namespace}))
    work()
    traffic.mark(True)
    traffic.mark(False)
    growth = grown(before, all_counters(box.host))
    return profile.stop(), growth


def followed(summary: Any) -> dict[str, int]:
    """Return the drops that were followed."""
    return {row["name"]: row["followed"] for row in summary.drops if row["followed"]}


@MODES
def test_what_a_packet_socket_sent_is_dropped_at_ingress(
    traffic: Traffic, tmp_path: Path, one_cpu: int, log: bool
) -> None:
    """`sch_handle_ingress` frees it; dhclient, tcpreplay and generators send so."""
    ends = Ends(traffic.address(ETH, 2, 4), traffic.address(ETH, 1, 4))
    packet = ends.packet(UDP, ends.udp(OPEN, bytes(TC_EGRESS_BYTES - 28)))

    def work() -> None:
        for _ in range(20):
            traffic.box.to_wire(packet)

    summary, growth = measured(traffic, tmp_path / "log.arrow" if log else None, work)
    assert growth["tc.eth0.clsact"] == 20
    assert followed(summary) == {"TC_INGRESS": 20}, summary.paths


@MODES
def test_what_a_packet_socket_sends_is_dropped_by_a_queue_discipline(
    traffic: Traffic, tmp_path: Path, one_cpu: int, log: bool
) -> None:
    """`kfree_skb_list_reason` frees it."""
    ends = Ends(traffic.address(SLOW, 1, 4), traffic.address(SLOW, 2, 4))
    frame = bytes(12) + b"\x08\0" + ends.packet(UDP, ends.udp(CLOSED, bytes(500)))

    def work() -> None:
        with traffic.box.host.enter(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind(("eth1", 0))
            for _ in range(50):
                with contextlib.suppress(OSError):
                    sender.send(frame)

    summary, growth = measured(traffic, tmp_path / "log.arrow" if log else None, work)
    assert growth["tc.eth1.tbf"] > 0
    assert followed(summary) == {"QDISC_DROP": growth["tc.eth1.tbf"]}, summary.paths


@MODES
def test_a_wrong_checksum_that_a_reader_finds_is_a_drop(
    traffic: Traffic, tmp_path: Path, one_cpu: int, log: bool
) -> None:
    """`udp_recvmsg` frees it, and nobody reads it; the row has the reason UDP_CSUM, and `drops` counts it."""
    ends, port = Ends(traffic.address(ETH, 2, 4), traffic.address(ETH, 1, 4)), traffic.port()
    packet = ends.packet(UDP, ends.udp(port, bytes(100), is_wrong=True))

    def work() -> None:
        with traffic.bound(True, port, 4) as receiver:
            for _ in range(20):
                traffic.box.to_wire(packet)
            traffic.mark(False)
            receiver.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                receiver.recv(200)

    summary, growth = measured(traffic, tmp_path / "log.arrow" if log else None, work)
    assert growth["Udp.InCsumErrors"] == 20
    assert followed(summary) == {"UDP_CSUM": 20}
    assert summary.paths["dropped"] == 20, summary.paths


@pytest.mark.parametrize("traffic", [True], indirect=True, ids=["bridge"])
def test_a_packet_of_a_bridge_with_br_netfilter_is_one(traffic: Traffic, tmp_path: Path, one_cpu: int) -> None:
    traffic.box.host.sysctl("net.bridge.bridge-nf-call-iptables", 1)
    summary, growth = measured(
        traffic, tmp_path / "log.arrow", lambda: traffic.send(False, traffic.address(ETH, 1, 4), OPEN, 20)
    )
    assert growth["Ip.InDelivers"] == summary.paths["delivered"] == 21
    assert summary.paths["unknown"] == 0


@MODES
@pytest.mark.parametrize("traffic", [True], indirect=True, ids=["bridge"])
def test_a_packet_that_a_host_sends_by_its_bridge_is_sent_once(
    traffic: Traffic, tmp_path: Path, one_cpu: int, log: bool
) -> None:
    """It leaves by the bridge's port, which is its `interface_out`."""
    summary, growth = measured(
        traffic,
        tmp_path / "log.arrow" if log else None,
        lambda: traffic.send(True, traffic.address(ETH, 2, 4), OPEN, 20),
    )
    assert growth["Ip.OutRequests"] == growth["link.eth0.tx_packets"] == 21
    assert summary.paths["sent"] == 21


def test_what_was_delivered_is_not_dropped_in_measurements_of_all_namespaces(
    traffic: Traffic, until: Callable[..., None], one_cpu: int
) -> None:
    """The default of `parshall path`: TCP that ends in order in another namespace, a container's for one."""
    box, address, port = traffic.box, traffic.address(ETH, 1, 4), traffic.port()

    def work() -> None:
        with traffic.bound(True, port, 4, socket.SOCK_STREAM) as listener:
            listener.listen()
            for _ in range(20):
                active = box.socket(False, socket.SOCK_STREAM, 4)
                active.connect((address, port))
                passive, _ = listener.accept()
                talk(active, passive, random.Random(1), "client first")
        until("the connections have ended", lambda: tcp_is_quiet(box.host) and tcp_is_quiet(box.peer))

    summary, _ = measured(traffic, None, work, filter=box.addresses.filter)
    assert followed(summary) == {}
    assert summary.paths["dropped"] == 0


@pytest.mark.parametrize("family", [4, 6])
def test_datagrams_that_are_closed_unread_are_not_dropped_in_measurements_of_all_namespaces(
    traffic: Traffic, one_cpu: int, family: int
) -> None:
    """UDP frees what is left in the queue of a socket without a reason."""
    port = traffic.port()

    def work() -> None:
        with traffic.bound(True, port, family):
            traffic.send(False, traffic.address(ETH, 1, family), port, 50)

    summary, _ = measured(traffic, None, work, filter=traffic.box.addresses.filter)
    assert followed(summary) == {}
    assert summary.paths["dropped"] == 0


def test_a_waiting_fragment_that_loses_its_place_is_displaced(
    traffic: Traffic, until: Callable[..., None], one_cpu: int
) -> None:
    """`ip6frag_expire_frag_queue` drops it later, which no row says; it also happens in a table with room."""
    ends, host = Ends(traffic.address(ETH, 2, 6), traffic.address(ETH, 1, 6)), traffic.box.host
    before = counters(host)

    def work() -> None:
        for number in range(50):
            traffic.box.to_wire(ends.fragments(ends.udp(OPEN, bytes(2000)), number, 3)[0])
        # Their sk_buffs stay in the queue of a socket, so each needs a place.
        with traffic.bound(True, traffic.port(), 4) as receiver:
            receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
            traffic.send(False, traffic.address(ETH, 1, 4), receiver.getsockname()[1], 3000)
            until("all have timed out", lambda: grown(before, counters(host))["Ip6.ReasmTimeout"] == 50)

    summary, _ = measured(traffic, None, work, netns=host.namespace, packets_max=1024)
    assert summary.paths["merged"] == 0, summary.paths
    assert followed(summary).get("FRAG_REASM_TIMEOUT", 0) + summary.paths["displaced"] >= 50


@pytest.mark.long
def test_what_a_slow_queue_sends_beside_packet_sockets_is_sent(traffic: Traffic, until: Callable[..., None]) -> None:
    """The timer of tbf dequeues it, whatever the CPU was doing, and the kernel counts it as sent."""
    host = traffic.box.host

    def work() -> None:
        for number in range(200):
            queue_too_short(traffic, random.Random(number))
            until("the queue is empty", lambda: not all_counters(host)["backlog"])

    with noise(host, "packet", cpu=0), noise(host, "packet", cpu=max(os.sched_getaffinity(0))):
        summary, growth = measured(traffic, None, work)
    sent = growth["link.eth0.tx_packets"] + growth["link.eth1.tx_packets"]
    assert (summary.paths["sent"], summary.paths["unknown"]) == (sent, 0)


def test_all_stages_are_measured(traffic: Traffic, tmp_path: Path) -> None:
    """The faults are not those of a stage that this kernel lacks."""
    summary, _ = measured(traffic, tmp_path / "log.arrow", lambda: None)
    assert summary.stages == list(ALL_STAGES)
