"""Which packets `parshall path` measures: by interface, filter, address, and each of how many."""

import os
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
from conversation import socket_at
from path_run import check_balance
from ports import PORTS

from parshall.errors import ParshallError
from parshall.instruments.path import PathLog, PathProfile
from parshall.instruments.path.stages import ALL_STAGES

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


@contextmanager
def on_one_cpu():
    """Keep the calling thread on a CPU: thinning counts the packets of each by themselves."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def flood(host, link, receiver, count):
    """Send datagrams by a link."""
    with socket_at(host, "0.0.0.0", socket.SOCK_DGRAM) as sending:
        for _ in range(count):
            sending.sendto(bytes(100), (str(link.address(receiver)), 9000))


def counters_of(host):
    """Return how many packets a host has passed on."""
    names, values = host.run(["cat", "/proc/net/snmp"]).stdout.splitlines()[:2]
    return int(dict(zip(names.split(), values.split(), strict=True))["ForwDatagrams"])


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
@pytest.mark.parametrize("version", [4, 6])
def test_what_a_host_sends_by_an_interface_is_followed_from_the_routing_on(bed, tmp_path, version, log):
    """Before routing a packet has no interface of its own: `local_out` knows where it will go."""
    sender, *receivers = (bed.host(name) for name in "abc")
    links = [bed.link(sender, receiver, backend="veth") for receiver in receivers]
    name = links[0].interface(sender)
    path = tmp_path / "log.arrow" if log else None
    stages = ALL_STAGES if log else None
    with sender.enter():
        number = socket.if_nametoindex(name)
        profile = PathProfile(path, interface=[name], filter="udp port 9000", stages=stages, by="interface")
    for link, receiver, count in zip(links, receivers, (50, 70), strict=True):
        address = str(link.address(receiver, version))
        with socket_at(sender, "::" if version == 6 else "0.0.0.0", socket.SOCK_DGRAM) as sending:
            for _ in range(count):
                sending.sendto(bytes(100), (address, 9000))
    summary = profile.stop()
    check_balance(summary.ledger)
    assert summary.paths["sent"] == 50, summary.paths
    for row in summary.times:
        assert row["packets"] == 50 if row["path"] == "sent" else not row["packets"], row
    assert {"queue", "start_xmit", "whole"} <= {row["stage"] for row in summary.times if row["path"] == "sent"}
    groups = [row["group"] for row in summary.times if row["group"]]
    assert {group["interface"] for group in groups} == {number}
    # The measurement is of its namespace, where the number has a name.
    assert {group["name"] for group in groups} == {name}
    if log:
        rows = PathLog(path).packets
        assert set(rows["interface"].to_pylist()) == {number}
        assert set(rows["first_stage"].cast("string").to_pylist()) == {"local_out"}


@pytest.mark.parametrize("by", ["interface", "connection"])
def test_equal_numbers_and_addresses_of_other_namespaces_are_groups_of_their_own(bed, by):
    """Each host has an interface 1 with the address 127.0.0.1."""
    hosts, port, count_of = [bed.host(name) for name in "ab"], next(PORTS), {}
    with PathProfile(filter=f"udp port {port}", by=by) as profile:
        for host, count in zip(hosts, (50, 70), strict=True):
            with socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as sender:
                sender.bind(("127.0.0.1", 40000))
                for _ in range(count):
                    sender.sendto(bytes(100), ("127.0.0.1", port))
            with host.enter():
                count_of[Path("/proc/thread-self/ns/net").stat().st_ino] = count
    wholes = [row for row in profile.summary.times if row["group"] and row["stage"] == "whole"]
    assert {row["group"]["netns_inode"]: row["packets"] for row in wholes} == count_of, wholes
    texts = [text for text in profile.summary.table(with_groups=True)["group"].to_pylist() if text]
    assert {text.rpartition(" ")[2] for text in texts} == {str(number) for number in count_of}


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
@pytest.mark.parametrize("every", [2, 3, 10])
def test_thinning_takes_each_packet_that_a_host_sends_once(ends, tmp_path, every, log):
    """What is left out stays so until it has left; what is taken has its times since the first stage."""
    left, right, link = ends
    path, stages = (tmp_path / "log.arrow", ALL_STAGES) if log else (None, None)
    with (
        PathProfile(path, netns=left.namespace, filter="udp port 9000", every=every, stages=stages) as profile,
        on_one_cpu(),
    ):
        flood(left, link, right, 600)
    accounts = check_balance(profile.summary.ledger)
    assert profile.summary.paths["sent"] == 600 // every, profile.summary.paths
    queued = [row["packets"] for row in profile.summary.times if (row["path"], row["stage"]) == ("sent", "queue")]
    # What found no place at its first stage, which the ledger says, begins at the next one, and has no time there.
    without_place = sum(sum(account["lost"].values()) for account in accounts.values())
    assert 600 // every - without_place <= sum(queued) <= 600 // every, (profile.summary.times, accounts)
    if log:
        assert set(PathLog(path).packets["first_stage"].cast("string").to_pylist()) == {"local_out"}


def test_what_a_filter_rejects_stays_rejected_when_its_address_is_translated(ends):
    left, right, link = ends
    name, address = link.interface(left), "10.91.2.77"
    left.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"])
    chain = "add table ip t; add chain ip t c { type nat hook postrouting priority 100; }; "
    left.run(["nft", f"{chain} add rule ip t c oifname {name} udp dport 9000 snat to {address}"])
    with PathProfile(netns=left.namespace, filter=f"src host {address} and udp port 9000") as profile:
        flood(left, link, right, 100)
    check_balance(profile.summary.ledger)
    assert not any(profile.summary.paths.values()), profile.summary.paths


def test_what_a_bridge_sends_for_its_host_is_of_the_bridge(ends):
    """Routing chose the bridge; the port is not where the packet begins."""
    left, right, link = ends
    port = link.interface(left)
    try:
        left.run(["ip", "link", "add", "br0", "type", "bridge"])
    except ParshallError as error:
        pytest.skip(f"not in this kernel: {error}")
    left.run(["ip", "addr", "flush", "dev", port])
    left.run(["ip", "link", "set", port, "master", "br0"])
    left.run(["ip", "addr", "add", f"{link.address(left)}/24", "dev", "br0"])
    left.run(["ip", "link", "set", "br0", "up"])
    flood(left, link, right, 1)
    for interface, sent in (("br0", 50), (port, 0)):
        with left.enter():
            profile = PathProfile(interface=[interface], filter="udp port 9000")
        flood(left, link, right, 50)
        summary = profile.stop()
        check_balance(summary.ledger)
        assert summary.paths["sent"] == sent, (interface, summary.paths)


@pytest.mark.parametrize(
    "stages", [["queue", "start_xmit"], ["post_routing", "start_xmit"], ["local_out", "queue", "start_xmit"]]
)
def test_what_a_host_passes_on_is_forwarded_whatever_stages_are_measured(bed, until, stages):
    one, router, other = (bed.host(name) for name in ("one", "router", "other"))
    into, out = bed.link(one, router, backend="veth"), bed.link(router, other, backend="veth")
    router.sysctl("net.ipv4.ip_forward", 1)
    one.run(["ip", "route", "add", str(out.address(other)), "via", str(into.address(router))])
    flood(one, out, other, 1)
    with PathProfile(netns=router.namespace, filter="udp port 9000", stages=stages) as profile:
        flood(router, out, other, 30)
        before = counters_of(router)
        flood(one, out, other, 50)
        until("all are passed on", lambda: counters_of(router) - before >= 50)
    check_balance(profile.summary.ledger)
    paths = profile.summary.paths
    assert (paths["sent"], paths["forwarded"]) == (30, 50), paths


@pytest.mark.parametrize("every", [2, 10])
def test_thinning_keeps_both_kinds_of_packets_that_come_by_turns(bed, every):
    """On the loopback a packet is sent and delivered by turns, on one CPU."""
    host = bed.host("loop")
    with (
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as receiving,
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as sending,
        PathProfile(netns=host.namespace, filter="udp port 9000", every=every) as profile,
        on_one_cpu(),
    ):
        receiving.bind(("127.0.0.1", 9000))
        for _ in range(1000):
            sending.sendto(bytes(100), ("127.0.0.1", 9000))
            receiving.recv(1000)
    check_balance(profile.summary.ledger)
    paths = profile.summary.paths
    assert paths["sent"] + paths["delivered"] == 2000 // every, paths
    # Of as many by coin tosses, fewer than a third are rarer than one in a million.
    assert min(paths["sent"], paths["delivered"]) > 2000 / every / 3, paths
