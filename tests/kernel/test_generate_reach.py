"""The generator asks before it floods what carries the host's own traffic, of every kind that the kernel has."""

import os
import subprocess
import sys

import pytest
from wire import write_trace

from parshall.instruments.generate.surroundings import reasons_to_confirm

pytestmark = pytest.mark.kernel

# A network that the host may have, and its addresses.
DEFAULT_HALVES = ("0.0.0.0/1", "128.0.0.0/1")


@pytest.fixture
def hosts(bed):
    """Two hosts and their link, which leads nowhere else."""
    left, right = bed.host("left"), bed.host("right")
    return left, right, bed.link(left, right)


@pytest.fixture
def to_this_host(hosts):
    """A veth in the left host whose peer is in the namespace of this process; its name and the peer's."""
    left, *_ = hosts
    inside, outside = "out0", f"ps{os.getpid()}"
    made = ["ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", left.namespace]
    subprocess.run(made, check=True)
    yield inside, outside
    left.run(["ip", "link", "del", inside])


def add_or_skip(host, *words):
    made = host.run(["ip", "link", "add", *words], check=False)
    if made.returncode:
        pytest.skip(f"this kernel makes no such interface: {made.stderr.strip()}")


def danger_of(host, interface):
    return " and ".join(reasons_to_confirm(interface, host.path))


def test_an_interface_of_a_testbed_needs_no_confirmation(hosts):
    left, right, link = hosts
    assert danger_of(left, link.interface(left)) == danger_of(right, link.interface(right)) == ""


def test_routers_and_bridges_between_test_hosts_lead_nowhere(bed, hosts):
    left, right, link = hosts
    far = bed.host("far")
    behind = bed.link(right, far)
    right.run(["ip", "link", "add", "br0", "type", "bridge"])
    right.run(["ip", "link", "set", link.interface(right), "master", "br0"])
    right.run(["ip", "link", "set", behind.interface(right), "master", "br0"])
    right.run(["ip", "address", "add", "10.9.9.9/24", "dev", "br0"])
    assert danger_of(left, link.interface(left)) == ""
    # A port of a bridge with addresses of its namespace.
    assert "br0, which it is connected with, has addresses" in danger_of(right, link.interface(right))


@pytest.mark.parametrize(
    ("family", "routes"),
    [
        ("-4", ["default"]),
        ("-4", DEFAULT_HALVES),
        ("-4", ["128.0.0.0/1"]),
        ("-6", ["default"]),
        ("-6", ["2000::/3"]),
    ],
)
@pytest.mark.parametrize("table", ["main", "4711"])
def test_a_default_route_in_parts_and_in_any_table_needs_confirmation(hosts, family, routes, table):
    left, _, link = hosts
    for route in routes:
        left.run(["ip", family, "route", "add", route, "dev", link.interface(left), "table", table])
    assert "a default route uses it" in danger_of(left, link.interface(left))


def test_the_bridge_of_a_port_may_have_the_default_route(hosts):
    left, _, link = hosts
    left.run(["ip", "link", "add", "br0", "type", "bridge"])
    left.run(["ip", "link", "set", "br0", "up"])
    left.run(["ip", "link", "set", link.interface(left), "master", "br0"])
    assert danger_of(left, link.interface(left)) == ""
    left.run(["ip", "route", "add", "default", "dev", "br0"])
    assert "a default route uses br0" in danger_of(left, link.interface(left))


def test_a_process_inside_of_a_test_namespace_needs_no_confirmation(bed):
    host = bed.host("both")
    host.run(["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"])
    for end in ("v0", "v1"):
        host.run(["ip", "link", "set", end, "up"])
    command = [sys.executable, "-m", "parshall", "gen", "-i", "v0", "--count", "5", "--backend", "af-packet"]
    sent = host.run(command, check=False)
    assert sent.returncode == 0, sent.stderr


@pytest.mark.parametrize(
    ("options", "described"),
    [
        (["-d", "1"], "To send packets from 198.18.0.1 to 198.18.1.1 in frames of 60 bytes on average, as fast as "
                      "possible, for 1 s at most anyway"),
        (["-c", "2k", "--pps", "5k"], "To send 2,000 packets from 198.18.0.1 to 198.18.1.1 in frames of 60 bytes on "
                                      "average, 5,000 a second anyway"),
        ([], "as fast as possible, until it is stopped, anyway"),
        (["--replay", "{trace}", "-c", "100"], "To send 100 packets of {trace} in frames of 60 bytes on average, "
                                               "667 a second anyway"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_would_be_sent(tmp_path, options, described):
    trace = tmp_path / "trace.pcap"
    write_trace(trace, [bytes(60)] * 3, gap_us=1000)
    options = [option.format(trace=trace) for option in options]
    command = [sys.executable, "-m", "parshall", "gen", "-i", "lo", "--backend", "af-packet", *options]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert f"{described.format(trace=trace)}, add --yes-on lo" in refused.stderr


def test_a_peer_in_the_namespace_of_this_host_needs_confirmation(hosts, to_this_host):
    left, right, link = hosts
    inside, outside = to_this_host
    assert "reach the network namespace of this host" in danger_of(left, inside)
    # So is what leads to a host that has such a veth, and what is in a bridge with it.
    assert "reach the network namespace of this host" in danger_of(right, link.interface(right))
    # Its other end leads to the test hosts only.
    assert reasons_to_confirm(outside) == []


def test_an_unknown_namespace_needs_confirmation(hosts):
    left, *_ = hosts
    command = ["unshare", "--net", "sh", "-c", "echo made; read go"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "made\n"
        left.run(["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", str(holder.pid)])
        assert danger_of(left, "v0") == ""
        # A tap there is read by a program, which may send on anywhere.
        subprocess.run(
            ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "ip", "tuntap", "add", "tap0", "mode", "tap"], check=True
        )
        assert "leave through tap0" in danger_of(left, "v0")
        holder.stdin.close()


@pytest.mark.optional
@pytest.mark.parametrize(
    "words",
    [
        ["top", "link", "{lower}", "type", "macvlan"],
        ["top", "link", "{lower}", "type", "ipvlan"],
        ["link", "{lower}", "name", "top", "type", "vlan", "id", "5"],
        ["top", "type", "vxlan", "id", "5", "dev", "{lower}", "remote", "198.18.0.9", "dstport", "4789"],
    ],
    ids=["macvlan", "ipvlan", "vlan", "vxlan"],
)
def test_a_stacked_interface_needs_the_confirmation_of_its_lower_device(hosts, to_this_host, words):
    left, *_ = hosts
    inside, _ = to_this_host
    add_or_skip(left, *(word.format(lower=inside) for word in words))
    assert "reach the network namespace of this host" in danger_of(left, "top")


@pytest.mark.optional
@pytest.mark.parametrize("kind", ["bond", "team"])
def test_a_member_of_a_bond_needs_confirmation(hosts, kind):
    left, _, link = hosts
    add_or_skip(left, "many0", "type", kind)
    left.run(["ip", "link", "set", link.interface(left), "down"])
    left.run(["ip", "link", "set", link.interface(left), "master", "many0"])
    assert "it is a member of many0" in danger_of(left, link.interface(left))


def test_the_command_names_the_reason_and_sends_with_yes_on(hosts):
    left, _, link = hosts
    interface = link.interface(left)
    for half in DEFAULT_HALVES:
        left.run(["ip", "route", "add", half, "dev", interface])
    command = [sys.executable, "-m", "parshall", "gen", "-i", interface, "--netns", left.namespace, "--count", "5"]
    command += ["--backend", "af-packet", "--quiet", "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert f"interface {interface}: a default route uses it; nothing was sent. To send" in refused.stderr
    assert refused.stderr.count("\n") == 1 and f"add --yes-on {interface}" in refused.stderr
    sent = subprocess.run([*command, "--yes-on", interface], capture_output=True, text=True, timeout=60)
    assert sent.returncode == 0, sent.stderr
