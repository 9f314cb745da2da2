"""Hosts with equal addresses and equal numbers of interfaces, whose packets meet every fate that the kernel counts."""

import ctypes
import fcntl
import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from conversation import socket_at
from test_path_identity import IFF_NO_PI, IFF_TAP, IFF_TUN, TUNSETIFF

from parshall.host import offloads
from parshall.host.namespaces import entered
from parshall.host.netlink import route_socket
from parshall.testbed import Host, Testbed

# Networks of a box, by their third number.
ETH, TUN, VXLAN, SLOW, DOWN, BLACKHOLE, UNREACHABLE, PROHIBITED, NOWHERE = 1, 2, 3, 4, 5, 80, 81, 82, 99
BOX_MAC, PEER_MAC, STRANGE_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:09"
STRANGER = 9
"""The host of a network to whose address the peer sends frames of another host."""
OPEN, CLOSED = 9000, 9001
"""Ports of the box and the peer: read by a program, and without a socket."""
RULES = {"ingress": 9010, "prerouting": 9011, "input": 9012, "forward": 9013, "output": 9014, "postrouting": 9015}
"""A port that a rule drops, by its hook."""
VXLAN_PORT, VXLAN_NUMBER = 4789, 7
TC_INGRESS_BYTES, TC_EGRESS_BYTES = 777 + 14, 777
"""Length of the frames that tc drops: with the header of Ethernet, and without (TAP has one)."""
TUN_QUEUE = 150


@dataclass(frozen=True)
class Features:
    """What a box has beside a veth."""

    is_bridged: bool
    tun_kind: int
    has_vxlan: bool
    forwards: bool
    has_br_netfilter: bool

    @classmethod
    def draw(cls, chance: random.Random) -> "Features":
        """Draw them."""
        return cls(
            is_bridged=chance.random() < 0.3,
            tun_kind=chance.choice([IFF_TUN, IFF_TAP]),
            has_vxlan=chance.random() < 0.5,
            forwards=chance.random() < 0.8,
            has_br_netfilter=chance.random() < 0.3,
        )


class Addresses:
    """The addresses of one test: no other test has them, and all boxes of this one do."""

    def __init__(self, number: int) -> None:
        self.number = number

    def of(self, network: int, host: int, version: int) -> str:
        """Return an address; the box is host 1 of each network, the peer host 2."""
        return f"fd70:{self.number:x}:{network:x}::{host:x}" if version == 6 else f"10.{self.number}.{network}.{host}"

    @property
    def filter(self) -> str:
        """Capture filter of all packets of the test."""
        return f"(ip and net 10.{self.number}.0.0/16) or (ip6 and net fd70:{self.number:x}::/32)"


_QUIET = {
    "net.ipv6.conf.default.accept_ra": 0,
    "net.ipv6.conf.default.autoconf": 0,
    "net.ipv6.conf.default.accept_dad": 0,
    "net.ipv6.conf.default.dad_transmits": 0,
    "net.ipv6.conf.default.addr_gen_mode": 1,
    "net.ipv6.conf.default.mldv2_unsolicited_report_interval": 1,
    "net.ipv6.conf.default.mldv1_unsolicited_report_interval": 1,
    # A busy host delays acknowledgements: nothing is sent again because of that.
    "net.ipv4.tcp_early_retrans": 0,
    "net.ipv4.tcp_rto_min_us": 60_000_000,
    "net.ipv4.ipfrag_time": 1,
    "net.ipv6.ip6frag_time": 1,
    "net.ipv4.conf.all.send_redirects": 0,
    "net.ipv4.conf.default.send_redirects": 0,
}


class Box:
    """A network namespace with interfaces, a peer beyond them, and what drops packets there."""

    def __init__(self, bed: Testbed, number: int, features: Features, addresses: Addresses) -> None:
        self.number, self.features, self.addresses = number, features, addresses
        self.host, self.peer = bed.host(f"box{number}"), bed.host(f"peer{number}")
        self.outside = "br0" if features.is_bridged else "eth0"
        self._stack = ExitStack()
        self._make_links()
        self._make_tun()
        self._configure()
        self._make_droppers()
        with self.peer.enter():
            self.wire = self._stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            self.wire.bind(("eth0", 0))

    def close(self) -> None:
        """Remove the programs of tc, which a namespace frees late, and close the files that keep it."""
        _qdisc = "qdisc del dev {} clsact"
        self.host.run(["tc", "-batch", "-"], input="".join(f"{_qdisc.format(name)}\n" for name in ("eth0", "tun0")))
        self._stack.close()

    def _make_links(self) -> None:
        for host in (self.host, self.peer):
            for name, value in _QUIET.items():
                host.sysctl(name, value)
        forwards = int(self.features.forwards)
        self.host.sysctl("net.ipv4.ip_forward", forwards)
        self.host.sysctl("net.ipv6.conf.all.forwarding", forwards)
        # With equal numbers at both ends a link may come up a second late.
        lines = [
            f"link add eth{at} index {11 + 2 * at} address {BOX_MAC} type veth peer name eth{at}"
            f" index {12 + 2 * at} address {PEER_MAC} netns {self.peer.namespace}"
            for at in range(3)
        ]
        if self.features.is_bridged:
            for family in ("ip", "ip6"):
                self.host.sysctl(f"net.bridge.bridge-nf-call-{family}tables", int(self.features.has_br_netfilter))
            lines += [
                f"link add br0 index 31 address {BOX_MAC} type bridge stp_state 0 mcast_snooping 0",
                "link set eth0 master br0",
            ]
        _ip(self.host, lines)
        for host in (self.host, self.peer):
            with host.enter():
                for at in range(3):
                    offloads.switch(f"eth{at}", False)
        if self.features.is_bridged:
            with self.host.enter():
                offloads.switch("br0", False)
        if self.features.has_vxlan:
            for host, index, own, other in ((self.host, 32, 1, 2), (self.peer, 33, 2, 1)):
                own_address, other_address = (self.addresses.of(ETH, end, 4) for end in (own, other))
                device = self.outside if host is self.host else "eth0"
                mac = BOX_MAC if host is self.host else PEER_MAC
                words = f"id {VXLAN_NUMBER} local {own_address} remote {other_address} dev {device}"
                text = f"link add vxlan0 index {index} address {mac} mtu 1400 type vxlan {words}"
                _ip(host, [f"{text} dstport {VXLAN_PORT} nolearning"])
                with host.enter():
                    offloads.switch("vxlan0", False)

    def _make_tun(self) -> None:
        with self.host.enter():
            self.tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._stack.callback(os.close, self.tun)
            fcntl.ioctl(self.tun, TUNSETIFF, struct.pack("16sH22x", b"tun0", self.features.tun_kind | IFF_NO_PI))
        address = f" address {BOX_MAC}" if self.features.tun_kind == IFF_TAP else ""
        _ip(self.host, [f"link set tun0 mtu 1280 txqueuelen {TUN_QUEUE}{address}"])

    def _configure(self) -> None:
        networks = {ETH: (self.outside, "eth0"), SLOW: ("eth1", "eth1"), DOWN: ("eth2", "eth2")}
        if self.features.has_vxlan:
            networks[VXLAN] = ("vxlan0", "vxlan0")
        mine, others = [f"link set {name} up" for name in ("eth0", self.outside, "tun0", "eth1", "eth2")], []
        others = ["link set eth0 up", "link set eth1 up"]
        if self.features.has_vxlan:
            mine, others = [*mine, "link set vxlan0 up"], [*others, "link set vxlan0 up"]
        for network, names in networks.items():
            for lines, name, own, other, mac in zip(
                (mine, others), names, (1, 2), (2, 1), (PEER_MAC, BOX_MAC), strict=True
            ):
                for version in (4, 6):
                    bits = 64 if version == 6 else 24
                    lines += [
                        f"address add {self.addresses.of(network, own, version)}/{bits} dev {name}"
                        + (" nodad" if version == 6 else ""),
                        f"neigh replace {self.addresses.of(network, other, version)} lladdr {mac} dev {name}",
                    ]
        for version in (4, 6):
            bits, of = (64, 32) if version == 6 else (24, 16), self.addresses.of
            mine += [f"address add {of(TUN, 1, version)}/{bits[0]} dev tun0" + (" nodad" if version == 6 else "")]
            mine += [
                f"route add {kind} {of(network, 0, version)}/{bits[0]}"
                for kind, network in (
                    ("blackhole", BLACKHOLE),
                    ("unreachable", UNREACHABLE),
                    ("prohibit", PROHIBITED),
                )
            ]
            if self.features.tun_kind == IFF_TAP:
                mine += [f"neigh replace {of(TUN, 2, version)} lladdr {PEER_MAC} dev tun0"]
            everywhere = (
                f"fd70:{self.addresses.number:x}::/32" if version == 6 else f"10.{self.addresses.number}.0.0/16"
            )
            others += [f"neigh replace {of(ETH, STRANGER, version)} lladdr {STRANGE_MAC} dev eth0"]
            others += [f"route add {everywhere} via {of(ETH, 1, version)}"]
        _ip(self.host, mine)
        _ip(self.peer, others)

    def _make_droppers(self) -> None:
        rules = ["add table inet t", "add table netdev t"]
        for hook in RULES:
            table = "netdev t" if hook == "ingress" else "inet t"
            device = "device eth0 " if hook == "ingress" else ""
            rules += [
                f"add chain {table} {hook} {{ type filter hook {hook} {device}priority 0; }}",
                f"add rule {table} {hook} udp dport {RULES[hook]} counter drop",
            ]
        self.host.run(["nft", "-f", "-"], input="\n".join(rules) + "\n")
        limit = ["rate", "4mbit", "burst", "1600", "limit", "5000"]
        self.host.run(["tc", "qdisc", "replace", "dev", "eth1", "root", "tbf", *limit])
        with self.host.enter(), route_socket() as route:
            for name, length, parent in (
                ("eth0", TC_INGRESS_BYTES, 0xFFFFFFF2),
                ("tun0", TC_EGRESS_BYTES + 14 * (self.features.tun_kind == IFF_TAP), 0xFFFFFFF3),
            ):
                (index,) = route.link_lookup(ifname=name)
                route.tc("add", "clsact", index)
                program = _program_that_drops(length)
                try:
                    route.tc("add-filter", "bpf", index, fd=program, name="drop", parent=parent, direct_action=True)
                finally:
                    os.close(program)

    def to_wire(self, packet: bytes) -> None:
        """Send a packet from the peer, below IP."""
        ethernet = bytes.fromhex((BOX_MAC + PEER_MAC).replace(":", ""))
        self.wire.send(ethernet + (b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\0") + packet)

    def to_tun(self, packet: bytes) -> None:
        """Let a packet come out of the TUN or TAP device."""
        ethernet = bytes.fromhex((BOX_MAC + PEER_MAC).replace(":", ""))
        ethernet += b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\0"
        os.write(self.tun, packet if self.features.tun_kind == IFF_TUN else ethernet + packet)

    def read_tun(self) -> int:
        """Read what was sent to the TUN or TAP device, and return the number of packets."""
        for count in range(1 << 30):
            try:
                os.read(self.tun, 2048)
            except BlockingIOError:
                return count
        raise AssertionError("it has no end")

    def socket(self, at_box: bool, kind: socket.SocketKind, version: int) -> socket.socket:
        """Open a socket at the box or its peer."""
        made = socket_at(self.host if at_box else self.peer, "::" if version == 6 else "0.0.0.0", kind)
        made.settimeout(20)
        return made


def _ip(host: Host, lines: list[str]) -> None:
    host.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n")


class _Load(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("instructions", ctypes.c_uint64),
        ("license", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 120),
    ]


def _program_that_drops(length: int) -> int:
    """Load a program of tc that drops frames of one length, and return its file."""
    words = [
        struct.pack("<BBhi", 0x61, 0x10, 0, 0),  # r0 = skb->len
        struct.pack("<BBhi", 0x15, 0x00, 2, length),  # if it is the length, skip two
        struct.pack("<BBhi", 0xB7, 0x00, 0, 0),  # r0 = TC_ACT_OK
        struct.pack("<BBhi", 0x95, 0x00, 0, 0),
        struct.pack("<BBhi", 0xB7, 0x00, 0, 2),  # r0 = TC_ACT_SHOT
        struct.pack("<BBhi", 0x95, 0x00, 0, 0),
    ]
    code, license = ctypes.create_string_buffer(b"".join(words)), ctypes.create_string_buffer(b"GPL")
    request = _Load(3, len(words), ctypes.addressof(code), ctypes.addressof(license))
    bpf, program_load = {"x86_64": 321}.get(os.uname().machine, 280), 5
    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(bpf, program_load, ctypes.byref(request), ctypes.sizeof(request))
    assert file >= 0, os.strerror(ctypes.get_errno())
    return file


@contextmanager
def world(features: list[Features]) -> Iterator[list[Box]]:
    """Make boxes with peers, and remove them."""
    # Beyond those that other tests have: 10.0 to 10.99.
    addresses = Addresses(128 + os.getpid() % 128)
    with Testbed() as bed, ExitStack() as stack:
        made = []
        for number, each in enumerate(features):
            box = Box(bed, number, each, addresses)
            stack.callback(box.close)
            made.append(box)
        yield made


def text_of(host: Host, name: str) -> str:
    """Return a file of /proc/net of a host."""
    with entered(host.path):
        return Path("/proc/thread-self/net", name).read_text()
