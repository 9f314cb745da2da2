"""Small workloads whose fate the kernel counts, drawn at random."""

import contextlib
import ctypes
import itertools
import random
import selectors
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable

from path_frames import NO_PROTOCOL, TCP, UDP, Ends
from path_world import (
    BLACKHOLE,
    CLOSED,
    DOWN,
    ETH,
    NOWHERE,
    OPEN,
    PROHIBITED,
    RULES,
    SLOW,
    STRANGER,
    TC_EGRESS_BYTES,
    TUN,
    TUN_QUEUE,
    UNREACHABLE,
    VXLAN,
    VXLAN_PORT,
    Box,
)

SO_RCVBUFFORCE, SO_ATTACH_FILTER = 33, 26
CHECKSUM_BREAK = 76
"""Bytes up to which the kernel checks a sum at once (include/linux/skbuff.h)."""
_MORE = {"NO_SOCKET", "UDP_CSUM"}
"""Reasons for which more are dropped than the programs know, or the kernel names another one."""
_NUMBERS = itertools.count(1)
_REJECTION = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
_REJECT_ALL = struct.pack("@HP", 1, ctypes.addressof(_REJECTION))


class Traffic:
    """The programs of a box and its peer, and what they know of the packets that they send and read."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.is_disturbed = False
        """Whether there is noise beside it."""
        self.asked: Counter[str] = Counter()
        """Packets for a reason of a drop at the box, or `read box` and `read peer`."""
        self.before_queue: Counter[str] = Counter()
        """Of these, packets of the box that were dropped on the way out."""
        self.had: Counter[str] = Counter()
        """Datagrams that programs have read, and packets that a file of a TUN or TAP device has given."""
        self._lock = threading.Lock()
        self._ports = itertools.count(20000)
        self._sockets: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        for at_box, version in itertools.product((True, False), (4, 6)):
            opened = self.bound(at_box, OPEN, version)
            opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
            opened.setblocking(False)
            self._sockets.append(opened)
            self._selector.register(opened, selectors.EVENT_READ, "read box" if at_box else "read peer")
        self._is_ending = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def close(self) -> None:
        """End the reader."""
        self._is_ending = True
        self._reader.join()
        self._selector.close()
        for opened in self._sockets:
            opened.close()

    def _read(self) -> None:
        while not self._is_ending:
            for key, _ in self._selector.select(0.02):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                        self.had[key.data] += 1

    def has_read_all(self) -> bool:
        """Whether the programs have read what was sent to them."""
        return all(self.had[name] >= self.asked[name] for name in ("read box", "read peer"))

    def unmet(self, drops: Counter[str]) -> list[str]:
        """Return where the kernel and the programs differ, as text."""
        exact = [name for name in self.asked if name.isupper() and name not in _MORE]
        pairs = {name: (drops[name], self.asked[name]) for name in exact}
        pairs |= {name: (self.had[name], self.asked[name]) for name in ("read box", "read peer")}
        return [
            f"{self.box.host.name}: {name}: the kernel has {theirs}, its programs {ours}"
            for name, (theirs, ours) in pairs.items()
            if theirs != ours
        ]

    def ask(self, reason: str, count: int, *, is_before_queue: bool = False) -> None:
        """Note packets that are about to meet a fate."""
        with self._lock:
            self.asked[reason] += count
            if is_before_queue:
                self.before_queue[reason] += count

    def bound(
        self, at_box: bool, port: int, version: int, kind: socket.SocketKind = socket.SOCK_DGRAM
    ) -> socket.socket:
        """Open a socket of the box or its peer at a port."""
        made = self.box.socket(at_box, kind, version)
        if version == 6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("::" if version == 6 else "0.0.0.0", port))
        return made

    def address(self, network: int, host: int, version: int) -> str:
        """Return an address of the box (host 1) or its peer (host 2)."""
        return self.box.addresses.of(network, host, version)

    def port(self) -> int:
        """Return a port that nobody else has."""
        with self._lock:
            return next(self._ports)

    def send(self, at_box: bool, address: str, port: int, count: int, payload_bytes: int = 100) -> None:
        """Send datagrams, and wait until those before have arrived at the other host of the veth."""
        version = 6 if ":" in address else 4
        with self.box.socket(at_box, socket.SOCK_DGRAM, version) as sender:
            for _ in range(count):
                # Errors are those of packets before, or of rules.
                with contextlib.suppress(OSError):
                    sender.sendto(bytes(payload_bytes), (address, port))

    def mark(self, at_box: bool) -> None:
        """Send a datagram behind all others of this CPU, and wait until it is there."""
        version, port = 4, self.port()
        with self.bound(not at_box, port, version) as receiver:
            self.send(at_box, self.address(ETH, 2 if at_box else 1, version), port, 1)
            assert receiver.recv(1000)


def crafted(traffic: Traffic, chance: random.Random) -> None:
    """Packets that were made byte by byte, from the wire or out of the TUN device."""
    box, version, count = traffic.box, chance.choice((4, 6)), chance.randint(1, 20)
    from_wire = chance.random() < 0.6
    here = ETH if from_wire else TUN
    source, own = (traffic.address(here, host, version) for host in (2, 1))
    beyond = traffic.address(TUN if from_wire else ETH, 2, version)
    inwards, across = Ends(source, own), Ends(source, beyond)
    inject = box.to_wire if from_wire else box.to_tun
    payload = bytes(chance.randint(10, 600))

    def to(network: int) -> Ends:
        return Ends(source, traffic.address(network, 7, version))

    def udp(ends: Ends, port: int, **options: object) -> bytes:
        return ends.packet(UDP, ends.udp(port, payload), **options)  # type: ignore[arg-type]

    # Of long datagrams IPv6 looks for the socket first.
    is_long = version == 6 and 8 + len(payload) > CHECKSUM_BREAK
    wrong_checksum = "NO_SOCKET, wrong checksum" if is_long else "UDP_CSUM"
    plain: dict[str, tuple[str, Callable[[int], list[bytes]]]] = {
        "read": ("read box", lambda _: [udp(inwards, OPEN)]),
        "closed": ("NO_SOCKET", lambda _: [udp(inwards, CLOSED)]),
        "checksum, closed": (
            wrong_checksum,
            lambda _: [inwards.packet(UDP, inwards.udp(CLOSED, payload, is_wrong=True))],
        ),
        "checksum of TCP": ("TCP_CSUM", lambda _: [inwards.packet(TCP, inwards.tcp_with_wrong_checksum(CLOSED))]),
        "checksum of ICMP": (
            "ICMP_CSUM",
            lambda at: [inwards.packet(inwards.icmp, inwards.echo_request(at, is_wrong=True))],
        ),
        "echo": ("", lambda at: [inwards.packet(inwards.icmp, inwards.echo_request(at))]),
        "no protocol": ("IP_NOPROTO", lambda _: [inwards.packet(NO_PROTOCOL, payload)]),
        "prerouting": ("NETFILTER_DROP", lambda _: [udp(inwards, RULES["prerouting"])]),
        "input": ("NETFILTER_DROP", lambda _: [udp(inwards, RULES["input"])]),
        "fragments": (
            "read box",
            lambda _: inwards.fragments(inwards.udp(OPEN, bytes(2000)), next(_NUMBERS) % 65536, chance.randint(2, 5)),
        ),
    }
    if from_wire:
        vxlan = struct.pack("!II", 8 << 24, 99 << 8) + bytes(60)
        if box.features.has_vxlan and version == 4:
            plain["vxlan"] = ("VXLAN_VNI_NOT_FOUND", lambda _: [inwards.packet(UDP, inwards.udp(VXLAN_PORT, vxlan))])
    # Fragments of IPv6 that wait may lose their place in the table: test_path_differential_faults.py.
    if version == 4:
        whole = inwards.udp(OPEN, bytes(2000))
        for name, at in (("first fragment", 0), ("last fragment", -1)):
            plain[name] = (
                "FRAG_REASM_TIMEOUT",
                lambda _, at=at: [inwards.fragments(whole, next(_NUMBERS) % 65536, 3)[at]],
            )
    # A packet socket still owns what comes by the wire, and its drops are not seen: the same file.
    if version == 4 and not from_wire:
        plain["checksum of IP"] = ("IP_CSUM", lambda _: [udp(inwards, OPEN, is_wrong=True)])
    if box.features.forwards:
        through = "read tun" if from_wire else "read peer"
        # What such a route of IPv4 drops, and a blackhole of both, the kernel does not count.
        no_route = "IP_INNOROUTES" if version == 6 else "NOT_SPECIFIED"
        plain |= {
            "through": (through, lambda _: [udp(across, OPEN)]),
            "hops": ("IP_INHDR", lambda _: [udp(across, OPEN, hops=1)]),
            "nowhere": ("IP_INNOROUTES", lambda _: [udp(to(NOWHERE), OPEN)]),
            "unreachable": (no_route, lambda _: [udp(to(UNREACHABLE), OPEN)]),
            "blackhole": ("NOT_SPECIFIED", lambda _: [udp(to(BLACKHOLE), OPEN)]),
            "prohibited": (no_route, lambda _: [udp(to(PROHIBITED), OPEN)]),
            "forward": ("NETFILTER_DROP", lambda _: [udp(across, RULES["forward"])]),
            "postrouting": ("NETFILTER_DROP", lambda _: [udp(across, RULES["postrouting"])]),
        }
        if from_wire:
            plain["too big"] = (
                "PKT_TOO_BIG",
                lambda _: [across.packet(UDP, across.udp(OPEN, bytes(1400)), may_be_cut=False)],
            )
    else:
        plain["not for this host"] = ("IP_INADDRERRORS", lambda _: [udp(across, OPEN)])
    kind = chance.choice(list(plain))
    reason, make = plain[kind]
    if reason:
        traffic.ask(reason, count)
    for at in range(count):
        for packet in make(at):
            inject(packet)


def datagrams_read(traffic: Traffic, chance: random.Random) -> None:
    """Datagrams that a program reads, in each direction, also larger than the MTU, and through a tunnel."""
    at_box, version, count = chance.random() < 0.5, chance.choice((4, 6)), chance.randint(1, 60)
    network = chance.choice([ETH, VXLAN]) if traffic.box.features.has_vxlan else ETH
    is_local = chance.random() < 0.3
    host = 2 if at_box is not is_local else 1
    traffic.ask("read box" if host == 1 else "read peer", count)
    size = chance.choice([0, 100, 600, 1200, 4000])
    traffic.send(at_box, traffic.address(network, host, version), OPEN, count, size)


def datagrams_left(traffic: Traffic, chance: random.Random) -> None:
    """Datagrams that are in the queue of a socket that closes."""
    version, port = chance.choice((4, 6)), traffic.port()
    with traffic.bound(True, port, version):
        traffic.send(False, traffic.address(ETH, 1, version), port, chance.randint(1, 30))
        traffic.mark(False)


def datagrams_too_many(traffic: Traffic, chance: random.Random) -> None:
    """More datagrams than a receive buffer takes; those that it took are read."""
    version, port, count = chance.choice((4, 6)), traffic.port(), chance.randint(20, 80)
    with traffic.bound(True, port, version) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        traffic.send(False, traffic.address(ETH, 1, version), port, count, 400)
        traffic.mark(False)
        receiver.setblocking(False)
        had = 0
        with contextlib.suppress(BlockingIOError):
            while receiver.recv(1000):
                had += 1
    assert 0 < had < count
    traffic.ask("SOCKET_RCVBUFF", count - had)


def datagrams_filtered(traffic: Traffic, chance: random.Random) -> None:
    """Datagrams that the filter of a socket rejects."""
    version, port, count = chance.choice((4, 6)), traffic.port(), chance.randint(1, 30)
    with traffic.bound(True, port, version) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, _REJECT_ALL)
        traffic.ask("SOCKET_FILTER", count)
        traffic.send(False, traffic.address(ETH, 1, version), port, count)
        traffic.mark(False)


def datagrams_kept_out(traffic: Traffic, chance: random.Random) -> None:
    """Datagrams that do not reach IP: dropped by a rule, by tc, or because their frames are for another host."""
    version, count = chance.choice((4, 6)), chance.randint(1, 20)
    where = chance.choice(["ingress", "tc", "stranger"])
    own, port, size = traffic.address(ETH, 1, version), OPEN, 100
    if where == "ingress":
        traffic.ask("NETFILTER_DROP", count)
        port = RULES["ingress"]
    elif where == "tc":
        traffic.ask("TC_INGRESS", count)
        size = TC_EGRESS_BYTES - (48 if version == 6 else 28)
    else:
        # A bridge would pass it on to another port, but there is none.
        traffic.ask("NO_TX_TARGET" if traffic.box.features.is_bridged else "OTHERHOST", count)
        own = traffic.address(ETH, STRANGER, version)
    traffic.send(False, own, port, count, size)


def datagrams_refused(traffic: Traffic, chance: random.Random) -> None:
    """Datagrams to a port without a socket, of the box or of the peer."""
    version, count, at_box = chance.choice((4, 6)), chance.randint(1, 30), chance.random() < 0.5
    if not at_box:
        traffic.ask("NO_SOCKET", count)
    traffic.send(at_box, traffic.address(ETH, 2 if at_box else 1, version), CLOSED, count)


def datagrams_not_sent(traffic: Traffic, chance: random.Random) -> None:
    """Datagrams of the box that a rule, tc or a link drops on the way out."""
    version, count = chance.choice((4, 6)), chance.randint(1, 20)
    where = chance.choice(["output", "postrouting", "tc", "down"])
    if where == "tc":
        size = TC_EGRESS_BYTES - (48 if version == 6 else 28)
        traffic.ask("TC_EGRESS", count, is_before_queue=True)
        traffic.send(True, traffic.address(TUN, 2, version), OPEN, count, size)
    elif where == "down":
        traffic.send(True, traffic.address(DOWN, 2, version), OPEN, count)
    else:
        traffic.ask("NETFILTER_DROP", count, is_before_queue=True)
        traffic.send(True, traffic.address(ETH, 2, version), RULES[where], count)


def queue_too_short(traffic: Traffic, chance: random.Random) -> None:
    """More datagrams than a queue discipline takes."""
    traffic.send(True, traffic.address(SLOW, 2, chance.choice((4, 6))), CLOSED, chance.randint(20, 60), 500)


def tun_too_full(traffic: Traffic, chance: random.Random) -> None:
    """More packets than the reader of a TUN device takes."""
    count = TUN_QUEUE + chance.randint(1, 60)
    traffic.send(True, traffic.address(TUN, 2, chance.choice((4, 6))), OPEN, count)


def connections(traffic: Traffic, chance: random.Random) -> None:
    """Connections over TCP that end in order or by a reset, or are refused."""
    version, port, at_box = chance.choice((4, 6)), traffic.port(), chance.random() < 0.5
    network = chance.choice([ETH, VXLAN]) if traffic.box.features.has_vxlan else ETH
    is_local = chance.random() < 0.2
    client_at_box = at_box if is_local else not at_box
    address = traffic.address(network, 1 if at_box else 2, version)
    end = chance.choice(["client first", "server first", "reset", "unread", "refused"])
    if end == "refused":
        for _ in range(chance.randint(1, 5)):
            with traffic.box.socket(client_at_box, socket.SOCK_STREAM, version) as active:
                assert active.connect_ex((address, port))
        return
    with traffic.bound(at_box, port, version, socket.SOCK_STREAM) as listener:
        listener.listen()
        for _ in range(chance.randint(1, 4)):
            active = traffic.box.socket(client_at_box, socket.SOCK_STREAM, version)
            active.connect((address, port))
            passive, _ = listener.accept()
            passive.settimeout(20)
            talk(active, passive, chance, end)


def talk(active: socket.socket, passive: socket.socket, chance: random.Random, end: str) -> None:
    """Send data both ways over a connection, and end it."""
    for _ in range(chance.randint(0, 10)):
        for sender, receiver in ((active, passive), (passive, active)):
            # None of them makes a frame of the length that tc drops.
            size = chance.choice((1, 50, 500, 3000))
            sender.sendall(bytes(size))
            while size:
                received = receiver.recv(size)
                assert received, "the other end ended the connection"
                size -= len(received)
    first, second = (passive, active) if end == "server first" else (active, passive)
    if end == "reset":
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if end == "unread":
        second.sendall(bytes(100))
        assert first.recv(1, socket.MSG_PEEK)
    first.close()
    with contextlib.suppress(ConnectionResetError):
        assert second.recv(1) == b""
    second.close()


STEPS = [
    *(datagrams_kept_out,) * 2,
    *(crafted,) * 8,
    *(datagrams_read,) * 3,
    *(connections,) * 3,
    datagrams_left,
    datagrams_too_many,
    datagrams_filtered,
    datagrams_refused,
    *(datagrams_not_sent,) * 2,
    queue_too_short,
    tun_too_full,
]
"""Workloads, each as often as it is to be drawn."""
