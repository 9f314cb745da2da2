"""Frames behind hops that change them, as tcpdump captures them.

The expected frames are those of the plan, changed here byte by byte as the hop changes them.
"""

import itertools
import json
import struct
import subprocess
import time
from dataclasses import dataclass

import pytest
from wire import SOURCE_MAC, generator, write_trace

from parshall.errors import ParshallError

SOCKETS = ("af-packet", "af-xdp")
# Fewer than a veth holds, so that none is lost on a busy machine.
COUNT = 240
FRAMES_TIMEOUT_S = 20
TAG = bytes.fromhex("8100a04d")  # VLAN 77, priority 5
SOURCES = bytes((198, 18, 0)), bytes.fromhex("fd00" + "00" * 12)
OUTER_BYTES = 14 + 20 + 8 + 8

pytestmark = pytest.mark.kernel

WORKLOADS = {
    "one flow": {"sizes": "200"},
    "one flow, paced": {"sizes": "200", "pps": 50e3, "gap": "poisson"},
    "shorter than a frame": {"sizes": "28", "pps": 100e3},
    "stamped": {"sizes": "thesis", "stamp": True},
    "many flows": {"sizes": "imix", "src": "198.18.0.1-198.18.0.9", "order": "random"},
    "ipv6": {"sizes": "48-1400", "src": "fd00::1-fd00::3", "dst": "fd00:1::1"},
    "largest": {"sizes": "1400"},
    "tcp": {"sizes": "40-1200", "protocol": "tcp"},
}
REPLAYED = {"sizes": "40-1200", "src": "198.18.0.1-198.18.0.5"}


def ones(octets):
    """The ones' complement sum: a multiple of 0xffff when the checksum among the bytes is right (RFC 1071)."""
    return int.from_bytes(octets + b"\0" * (len(octets) % 2), "big") % 0xFFFF


def is_ipv6(frame):
    return frame[12:14] == b"\x86\xdd"


def transport_offset(frame):
    return 14 + (40 if is_ipv6(frame) else 20)


def untagged(frame):
    """The frame without its VLAN tag."""
    return frame[:12] + frame[16:] if frame[12:14] == b"\x81\x00" else frame


def whole(frame):
    """The frame without padding."""
    if frame[12:14] == b"\x81\x00":
        return frame[:16] + whole(untagged(frame))[12:]
    length = 54 + int.from_bytes(frame[18:20], "big") if is_ipv6(frame) else 14 + int.from_bytes(frame[16:18], "big")
    return frame[:length]


def pseudo_header(frame):
    at = transport_offset(frame)
    addresses = frame[22:54] if is_ipv6(frame) else frame[26:34]
    protocol = frame[20] if is_ipv6(frame) else frame[23]
    return addresses + struct.pack("!HBB", len(whole(frame)) - at, 0, protocol)


def assert_is_right(frame):
    """Lengths and checksums, by the definitions of RFC 791, 768, 9293 and 8200."""
    frame = whole(untagged(frame))
    at = transport_offset(frame)
    if not is_ipv6(frame):
        assert frame[14] == 0x45 and ones(frame[14:34]) == 0, frame.hex()
    assert ones(pseudo_header(frame) + frame[at:]) == 0, frame.hex()


def with_right_checksums(frame):
    """Headers were changed: checksums as RFC 1624 makes them from new sums."""
    frame = bytearray(frame)
    at = transport_offset(frame)
    if not is_ipv6(frame):
        frame[24:26] = b"\0\0"
        frame[24:26] = (0xFFFF - (ones(bytes(frame[14:34])) or 0xFFFF)).to_bytes(2, "big")
    protocol = frame[20] if is_ipv6(frame) else frame[23]
    place = at + (6 if protocol == 17 else 16)
    frame[place : place + 2] = b"\0\0"
    sum_ = ones(bytes(pseudo_header(frame) + whole(frame)[at:]))
    frame[place : place + 2] = (0xFFFF - (sum_ or 0xFFFF) or (0xFFFF if protocol == 17 else 0)).to_bytes(2, "big")
    return bytes(frame)


def routed(frame, macs):
    """The frame behind a router: new MAC addresses, TTL one less, no padding."""
    frame = bytearray(macs + frame[12:])
    frame[21 if is_ipv6(frame) else 22] -= 1
    return with_right_checksums(whole(bytes(frame)))


@dataclass
class Hop:
    """Where frames are sent to, where they are captured, and how each is changed."""

    destination_mac: str
    host: object
    interface: str
    expected: object
    options: dict


def mac(host, interface):
    return json.loads(host.run(["ip", "-j", "link", "show", "dev", interface]).stdout)[0]["address"]


def octets(address):
    return bytes.fromhex(address.replace(":", ""))


def up(host, *interfaces):
    for interface in interfaces:
        host.run(["sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6"])
        host.run(["ip", "link", "set", "dev", interface, "up"])


def router(bed, xdp_link):
    _, middle, link = xdp_link
    last = bed.host("last")
    behind = bed.link(middle, last)
    for name, value in [
        ("net.ipv4.ip_forward", 1),
        ("net.ipv6.conf.all.forwarding", 1),
        ("net.ipv4.conf.all.rp_filter", 0),
        ("net.ipv4.conf.default.rp_filter", 0),
        (f"net.ipv4.conf.{link.interface(middle)}.rp_filter", 0),
    ]:
        middle.sysctl(name, value)
    for route in ("198.18.1.0/24", "198.18.2.0/24"):
        middle.run(["ip", "route", "add", route, "via", behind.address(last)])
    for route in ("fd00:1::/64", "fd00:2::/64"):
        middle.run(["ip", "-6", "route", "add", route, "via", behind.address(last, 6)])
    out, there = behind.interface(middle), behind.interface(last)
    macs = octets(mac(last, there)) + octets(mac(middle, out))
    here = mac(middle, link.interface(middle))
    return Hop(here, last, there, lambda frame, number: routed(frame, macs), {})


def nft(host, rules):
    if subprocess.run(["which", "nft"], capture_output=True).returncode:
        pytest.skip("needs nft: apt-get install nftables")
    host.run(["nft", "-f", "-"], input=rules)


def nat(bed, xdp_link):
    hop = router(bed, xdp_link)
    xdp_link[1].sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", 1)
    nft(
        xdp_link[1],
        """
        table inet translation {
            chain before { type nat hook prerouting priority dstnat
                ip daddr 198.18.1.1 meta l4proto { udp, tcp } dnat ip to 198.18.2.2:99
                ip6 daddr fd00:1::1 meta l4proto { udp, tcp } dnat ip6 to [fd00:2::2]:99
            }
        }
        """,
    )
    forward = hop.expected

    def expected(frame, number):
        frame = bytearray(forward(frame, number))
        at = transport_offset(frame)
        to = bytes.fromhex("fd000002" + "0" * 20 + "0002") if is_ipv6(frame) else bytes((198, 18, 2, 2))
        frame[at - len(to) : at] = to
        frame[at + 2 : at + 4] = (99).to_bytes(2, "big")
        return with_right_checksums(bytes(frame))

    hop.expected = expected
    return hop


def payload_rewriter(bed, xdp_link):
    """Every third packet gets other bytes where its payload was."""
    hop = router(bed, xdp_link)
    nft(
        xdp_link[1],
        """
        table inet rewriting {
            chain on_the_way { type filter hook forward priority 0
                numgen inc mod 3 1 @th,192,32 set 0xdeadbeef
            }
        }
        """,
    )
    forward = hop.expected
    # One packet was forwarded before the first workload.
    passed = itertools.count(1)

    def expected(frame, number):
        frame = bytearray(forward(frame, number))
        at = transport_offset(frame) + 24
        if next(passed) % 3 == 1 and at + 4 <= len(frame):
            frame[at : at + 4] = bytes.fromhex("deadbeef")
        return bytes(frame)

    hop.expected = expected
    return hop


def add_or_skip(host, command):
    try:
        host.run(command)
    except ParshallError as error:
        pytest.skip(f"not in this kernel: {error}")


def vlan(bed, xdp_link):
    _, middle, link = xdp_link
    lower = link.interface(middle)
    add_or_skip(middle, ["ip", "link", "add", "link", lower, "name", "tagged", "type", "vlan", "id", "77"])
    up(middle, "tagged")
    options = {"vlan": "77.5"}

    def expected(frame, number):
        assert frame[12:16] == TAG
        return frame[:12] + frame[16:]

    return Hop(mac(middle, lower), middle, "tagged", expected, options)


def tagged_stack(bed, xdp_link):
    """The kernel strips the tag from the frame, and tcpdump restores it."""
    _, middle, link = xdp_link
    lower = link.interface(middle)
    options = {"vlan": "77.5"}
    return Hop(mac(middle, lower), middle, lower, lambda frame, number: frame, options)


def bridged(middle, *ports):
    middle.run(["ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])
    for port in ports:
        middle.run(["ip", "link", "set", "dev", port, "master", "br0"])
    up(middle, "br0")


def bridge(bed, xdp_link):
    _, middle, link = xdp_link
    last = bed.host("last")
    behind = bed.link(middle, last)
    bridged(middle, link.interface(middle), behind.interface(middle))
    return Hop("02:00:00:00:00:77", last, behind.interface(last), lambda frame, number: frame, {})


def tagging_bridge(bed, xdp_link):
    """A bridge that removes the tag."""
    hop = bridge(bed, xdp_link)
    _, middle, link = xdp_link
    add_or_skip(middle, ["ip", "link", "set", "br0", "type", "bridge", "vlan_filtering", "1"])
    (out,) = [name for name in ports(middle) if name != link.interface(middle)]
    middle.run(["bridge", "vlan", "add", "dev", link.interface(middle), "vid", "77"])
    middle.run(["bridge", "vlan", "add", "dev", out, "vid", "77", "untagged"])
    hop.options = {"vlan": "77.5"}
    hop.expected = lambda frame, number: frame[:12] + frame[16:]
    return hop


def ports(middle):
    shown = json.loads(middle.run(["ip", "-j", "link", "show", "master", "br0"]).stdout)
    return [port["ifname"] for port in shown]


def tunnel(bed, xdp_link):
    _, middle, link = xdp_link
    last = bed.host("last")
    behind = bed.link(middle, last)
    for host, other in ((middle, last), (last, middle)):
        host.run(["ip", "link", "set", "dev", behind.interface(host), "mtu", "1600"])
        add = f"ip link add vx0 mtu 1500 type vxlan id 42 dstport 4789 dev {behind.interface(host)}"
        host.run([*add.split(), "local", behind.address(host), "remote", behind.address(other)])
        up(host, "vx0")
    bridged(middle, link.interface(middle), "vx0")
    return Hop("02:00:00:00:00:77", last, "vx0", lambda frame, number: frame, {})


def decapsulating(bed, xdp_link):
    """The end of a tunnel: replayed frames are encapsulated in VXLAN."""
    _, middle, link = xdp_link
    lower = link.interface(middle)
    add = f"ip link add vx0 type vxlan id 42 dstport 4789 dev {lower} local {link.address(middle)}"
    middle.run(add.split())
    up(middle, "vx0")
    return Hop(mac(middle, lower), middle, "vx0", lambda frame, number: frame[OUTER_BYTES:], {})


# Some kernels have no such devices.
OPTIONAL_HOPS = [vlan, tagging_bridge]
HOPS = [router, nat, payload_rewriter, tagged_stack, bridge, tunnel, decapsulating, *OPTIONAL_HOPS]


class Tcpdump:
    """The packets of these tests that tcpdump has captured."""

    def __init__(self, host, interface, path):
        command = [
            "tcpdump",
            "-i",
            interface,
            "-Q",
            "in",
            "-U",
            "--immediate-mode",
            "-B",
            "16384",
            "-s",
            "0",
            "-w",
            str(path),
        ]
        self.program = host.popen(command, stderr=subprocess.PIPE, text=True)
        while "listening on" not in self.program.stderr.readline():
            assert self.program.poll() is None, "tcpdump ended"
        self.path, self.read_bytes = path, 24

    def frames(self, count):
        """Wait for `count` more frames; ignore those of other senders."""
        found, deadline = [], time.monotonic() + FRAMES_TIMEOUT_S
        while len(found) < count:
            octets = self.path.read_bytes()
            at = self.read_bytes
            while at + 16 <= len(octets):
                kept, on_the_wire = struct.unpack_from("<II", octets, at + 8)
                if at + 16 + kept > len(octets):
                    break
                frame = octets[at + 16 : at + 16 + kept]
                assert kept == on_the_wire
                bare = untagged(frame)
                if bare[26:29] == SOURCES[0] or bare[22:36] == SOURCES[1]:
                    found.append(frame)
                at += 16 + kept
            self.read_bytes = at
            if len(found) < count:
                assert time.monotonic() < deadline, f"{len(found)} of {count} frames"
                assert self.program.poll() is None, "tcpdump ended"
                time.sleep(0.005)
        return found

    def close(self):
        """End it."""
        self.program.kill()
        self.program.wait()


def planned(run, sent_ns):
    from parshall import _native

    return [frame for _, frame in _native.planned_frames(json.dumps(run.request), sent_ns)]


def stamps(frames):
    return [int.from_bytes(untagged(frame)[50:58], "big") for frame in frames]


def encapsulated(frame, to_mac, to_address):
    """A frame in VXLAN 42 (RFC 7348), without checksum of UDP."""
    vxlan = struct.pack("!II", 0x08000000, 42 << 8)
    udp = struct.pack("!HHHH", 50000, 4789, 16 + len(frame), 0)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 36 + len(frame), 0, 0x4000, 64, 17, 0)
    ip += bytes((198, 18, 0, 1)) + to_address
    ip = ip[:10] + (0xFFFF - ones(ip)).to_bytes(2, "big") + ip[12:]
    return octets(to_mac) + octets(SOURCE_MAC) + b"\x08\x00" + ip + udp + vxlan + frame


# All that a socket sends, it sends alike.
FEW = ("one flow, paced", "stamped", "ipv6")
CASES = [(hop, "xdp", tuple(WORKLOADS)) for hop in HOPS]
CASES += [(hop, backend, names) for names in (FEW, tuple(WORKLOADS)) for backend in SOCKETS for hop in HOPS]
# What a hop does, it does to the packets of all. Of a socket, two are enough: without a tag and with one.
QUICK = [*CASES[: len(HOPS)], (router, SOCKETS[0], FEW), (tagged_stack, SOCKETS[0], FEW)]


def case_of(make, backend, names):
    marks = [pytest.mark.optional] if make in OPTIONAL_HOPS else []
    marks += [] if (make, backend, names) in QUICK else [pytest.mark.long]
    every = " all" if backend != "xdp" and names != FEW else ""
    return pytest.param(make, backend, names, marks=marks, id=f"{make.__name__}-{backend}{every}")


@pytest.mark.parametrize(("make", "backend", "names"), [case_of(*case) for case in CASES])
def test_behind_a_hop_the_planned_packets_arrive_as_the_hop_changes_them(bed, xdp_link, tmp_path, make, backend, names):
    hop = make(bed, xdp_link)
    common = {"backend": backend, "dst_mac": hop.destination_mac, "seed": 4}
    run = generator(xdp_link, count=1, **REPLAYED, **common, **hop.options)
    run.wait()
    trace = planned(run, [0] * 37)
    workloads = {name: WORKLOADS[name] for name in names}
    if make is decapsulating:
        workloads = {}
        to_address = bytes(map(int, xdp_link[2].address(xdp_link[1]).split(".")))
        trace = [encapsulated(frame, hop.destination_mac, to_address) for frame in trace if len(frame) < 1400]
    write_trace(tmp_path / "replayed.pcap", trace)
    tcpdump = Tcpdump(hop.host, hop.interface, tmp_path / "last.pcap")
    wrong = []
    packets = 0
    try:
        for workload, options in [*workloads.items(), ("replayed", None)]:
            if make is nat and options is not None:
                # Of packets that come at once, the connection tracking takes one for the first of a TCP connection.
                generator(xdp_link, count=1, **options, **common).wait()
                tcpdump.frames(1)
            if options is None:
                run = generator(xdp_link, replay=tmp_path / "replayed.pcap", count=COUNT, gap="none", backend=backend)
            else:
                run = generator(xdp_link, count=COUNT, **options, **common, **hop.options)
            account = run.wait().account
            assert (account["sent"], account["error"]) == (COUNT, None)
            try:
                found = tcpdump.frames(COUNT)
            except AssertionError as error:
                wrong.append(f"{workload}: {error}")
                continue
            packets += COUNT
            has_stamps = options is not None and options.get("stamp")
            frames = planned(run, stamps(found) if has_stamps else [0] * COUNT) if options else (trace * COUNT)[:COUNT]
            expected = [whole(hop.expected(frame, number)) for number, frame in enumerate(frames)]
            # The last sender pads short frames.
            found = [whole(frame) for frame in found]
            if found != expected:
                different = sum(a != b for a, b in zip(found, expected, strict=True))
                first = next(k for k in range(COUNT) if found[k] != expected[k])
                wrong.append(
                    f"{workload}: {different} differ, first {first}:\n{found[first].hex()}\n{expected[first].hex()}"
                )
            elif make is not payload_rewriter:
                for frame in found:
                    assert_is_right(frame)
    finally:
        tcpdump.close()
    assert not wrong, "\n".join(wrong)
