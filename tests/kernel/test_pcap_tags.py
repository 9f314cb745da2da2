"""Packets with VLAN tags: programs of libpcap on a ring beside the same programs on packet sockets."""

import contextlib
import grp
import itertools
import os
import re
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest
from capturer import EXPERIMENT, PARSHALL, Sender, frame, packets_of
from hostile_member import MEMBER
from test_path_identity import datagram
from test_pcap import KIND, Place, Program, open_directory, place, stamped

from parshall.instruments import pcap
from suites import long_except

__all__ = ["open_directory", "place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
PORT, OTHER_PORT = 5999, 6000
PCAP_HEAD_BYTES = 24
HOST, PEER = "192.0.2.1", "192.0.2.2"
CUSTOMER, SERVICE, NO_TAG_OF_LINUX = 0x8100, 0x88A8, 0x9100
WARM_UP, INBOUND, OUTBOUND, BRIDGED = 0, 1, 2, 3
DESTINATION, SOURCE = bytes.fromhex("027073000001"), bytes.fromhex("027073000800")

# Tags as they stand in the frame, the outer one first.
TAGS: tuple[tuple[tuple[int, int], ...], ...] = (
    (),
    ((CUSTOMER, 5),),
    ((CUSTOMER, 0x6005),),
    ((CUSTOMER, 6),),
    ((SERVICE, 5),),
    ((SERVICE, 5), (CUSTOMER, 6)),
    ((CUSTOMER, 6), (CUSTOMER, 5)),
    ((NO_TAG_OF_LINUX, 5),),
)

# Its index may point before the tag or behind it: the reader's own process filters.
NOT_MERGED = "ether[ip[0] & 15] = 1"
EXPRESSIONS = (
    f"udp port {PORT}",
    f"host {HOST}",
    "greater 60 and udp",
    "ip and ether[14] = 0x45",
    "ether[12:2] = 0x8100",
    "ether[12:2] = 0x88a8",
    "not ip",
    "vlan",
    "vlan 5",
    "not vlan",
    f"vlan 5 and udp port {PORT}",
    "ip and vlan",
    "udp or vlan",
    "vlan and vlan",
    "vlan and vlan and udp",
    "vlan 6 or udp",
    "ether[10:4] = 0x08000800",
    "ether[11:2] = 8",
    "ether[9:4] & 0xff = 8",
    "len <= 60",
    "len = 64",
    "less 64",
    "vlan and greater 70",
    "tcp[tcpflags] & tcp-syn != 0",
    "udp[8 + (udp[8] & 1)] = 120",
    "ether[ip[0] & 1] = 0x70",
    NOT_MERGED,
    "vlan and ether[ip[0] & 31] != 0",
    "ether[(ip[9] & 16) - 4:2] != 0 and len < 80",
    "inbound and vlan 5",
    f"outbound and udp port {PORT}",
    "inbound or vlan 5",
    "ip6 protochain 17",
)


def ethernet(kind: int, payload: bytes, tags: tuple[tuple[int, int], ...] = ()) -> bytes:
    """A frame with its tags in line, as on the wire."""
    between = b"".join(struct.pack("!HH", *tag) for tag in tags)
    return (DESTINATION + SOURCE + between + kind.to_bytes(2, "big") + payload).ljust(60, b"\0")


def segment(flags: int) -> bytes:
    """A TCP segment over IPv4, of a header without options each."""
    transport = struct.pack("!HHIIBBHHH", 40000, PORT, 7, 9, 5 << 4, flags, 1000, 0, 0)
    head = bytearray(datagram(PEER, HOST, PORT, b"x" * (len(transport) - 8))[:20])
    # The same length, and another protocol; so the checksum changes by the difference.
    checksum = int.from_bytes(head[10:12], "big") + head[9] - socket.IPPROTO_TCP
    head[9], head[10:12] = socket.IPPROTO_TCP, checksum.to_bytes(2, "big")
    return bytes(head) + transport


def frames() -> list[bytes]:
    """Each kind of packet with each kind of tag."""
    transport = struct.pack("!HHHH", 40000, PORT, 28, 0) + b"x" * 20
    kinds = [
        (0x0800, datagram(HOST, PEER, PORT, b"x" * 14)),
        (0x0800, datagram(PEER, HOST, PORT, b"x" * 22)),
        (0x0800, datagram(PEER, HOST, OTHER_PORT, b"x" * 80)),
        (0x0800, segment(0x02)),
        (0x0800, segment(0x10)),
        (0x86DD, struct.pack("!IHBB", 6 << 28, len(transport), 17, 64) + bytes(range(32)) + transport),
        (0x0806, bytes.fromhex("0001080006040001") + SOURCE + bytes(4) + bytes(6) + bytes(4)),
        # LLC: a length in place of the type.
        (38, bytes.fromhex("424203") + bytes(35)),
    ]
    return [ethernet(kind, payload, tags) for (kind, payload), tags in itertools.product(kinds, TAGS)]


class Tagged:
    """Traffic with tags at the interface of a place, in both directions; a bridge sends with tags in the metadata."""

    def __init__(self, place: Place) -> None:
        self.place, host = place, place.host
        for words in (
            "link add name bridge type bridge mcast_snooping 0",
            "link add name feed type veth peer name port",
            f"link set {place.interface} master bridge",
            "link set port master bridge",
            "link set feed up",
            "link set port up",
            "link set bridge up",
        ):
            host.run(["ip", *words.split()])
        # The host itself must not send: its packets would come at any time.
        settings = ("net.ipv6.conf.all.disable_ipv6=1", "net.bridge.bridge-nf-call-iptables=0")
        for setting in (*settings, "net.bridge.bridge-nf-call-ip6tables=0"):
            host.run(["sysctl", "-q", "-w", setting], check=False)
        self.bridged = Sender(host, "feed")

    def send(self, frames: list[bytes], marker: int = 0) -> None:
        """Send them inbound, outbound as they are, and outbound by the bridge; then a marker each."""
        for sender, direction in (
            (self.place.sender, INBOUND),
            (self.place.answerer, OUTBOUND),
            (self.bridged, BRIDGED),
        ):
            sender.send([*frames, frame(marker + direction, 60)])


@pytest.fixture
def tagged(place: Place) -> Iterator[Tagged]:
    """Give traffic with tags."""
    made = Tagged(place)
    with contextlib.closing(made.bridged):
        yield made


def markers(path: Path) -> list[int]:
    """The numbers of the markers in a file."""
    if not path.exists() or path.stat().st_size < PCAP_HEAD_BYTES:
        return []
    kind = EXPERIMENT.to_bytes(2, "big")
    return [int.from_bytes(packet[14:18], "big") for _, _, packet in stamped(path) if packet[12:14] == kind]


def has_all(path: Path, marker: int = 0) -> bool:
    """Whether the markers of a round are there, and so what was sent before."""
    return {marker + INBOUND, marker + OUTBOUND, marker + BRIDGED} <= set(markers(path))


def packets(path: Path) -> list[tuple[int, bytes]]:
    """Wire lengths and bytes in an order of their own: those of two directions may overtake each other."""
    kind = EXPERIMENT.to_bytes(2, "big")
    return sorted((wire, data) for _, wire, data in stamped(path) if data[12:14] != kind)


class Pair:
    """An expression at two tcpdumps at the same time: on the ring, and on a packet socket."""

    def __init__(self, place: Place, directory: Path, number: int, expression: str, *words: str) -> None:
        self.expression = expression
        self.files = [directory / f"{number}-{name}.pcap" for name in ("ring", "socket")]
        command = ["tcpdump", "-Z", "root", "-U", "--immediate-mode", "-i", place.interface, *words, "-w"]
        # Behind `vlan`, other words are about what the tag has in it.
        filters = f"{KIND} or ({expression})"
        # Without Python's start for each of them.
        environments = [pcap.environment(), None]
        self.programs = [
            Program(place, False, *command, file, filters, env=environment)
            for file, environment in zip(self.files, environments, strict=True)
        ]

    def wait_for_start(self) -> None:
        """Wait until both capture."""
        for program in self.programs:
            assert "without the ring" not in program.wait_for("listening on")

    def have_all(self, marker: int = 0) -> bool:
        """Whether both have what was sent."""
        return all(has_all(file, marker) for file in self.files)

    def captured(self) -> list[list[tuple[int, bytes]]]:
        """What is in the file of the ring, and in that of the packet socket."""
        return [packets(file) for file in self.files]


@contextlib.contextmanager
def pairs(
    place: Place, until: Callable[..., None], directory: Path, *expressions: str, words: tuple[str, ...] = ()
) -> Iterator[list[Pair]]:
    """Run a pair for each expression."""
    with ExitStack() as stack:
        made = []
        for number, expression in enumerate(expressions):
            made.append(Pair(place, directory, number, expression, *words))
            for program in made[-1].programs:
                stack.enter_context(program)
        for pair in made:
            pair.wait_for_start()
        # libpcap filters the first packets of a packet socket itself, without direction and interface.
        place.sender.send([frame(WARM_UP, 60)] * 10)
        files = [file for pair in made for file in pair.files]
        until("all capture", lambda: all(markers(file).count(WARM_UP) == 10 for file in files), timeout_s=60)
        yield made
        for pair in made:
            for program in pair.programs:
                assert program.end(signal.SIGINT).returncode == 0


def differences(made: list[Pair]) -> dict[str, tuple[int, int, list[bytes]]]:
    """What differs: numbers of packets, and those that only one of both has."""
    found = {}
    for pair in made:
        ring, own = pair.captured()
        if ring != own:
            found[pair.expression] = (len(ring), len(own), [data for _, data in set(ring) ^ set(own)])
    return found


NINES = [EXPRESSIONS[first : first + 9] for first in range(0, len(EXPRESSIONS), 9)]
# What a snapshot has of a packet matters to the expressions of its length.
QUICK_NINES = [*((nine, ("-O",)) for nine in NINES), (NINES[2], ("-s", "96"))]


@pytest.mark.parametrize(("expressions", "words"), long_except(QUICK_NINES, product(NINES, [("-O",), ("-s", "96")])))
def test_filters_see_tagged_packets_as_on_a_packet_socket(
    place: Place,
    tagged: Tagged,
    until: Callable[..., None],
    open_directory: Path,
    expressions: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    """The optimizer of libpcap mistakes some expressions with `vlan`: then both must."""
    with pairs(place, until, open_directory, *expressions, words=words) as made:
        (ring,) = place.rings().values()
        assert len(ring["subscribers"]) == len(expressions)
        tagged.send(frames())
        until("all have all", lambda: all(pair.have_all() for pair in made), timeout_s=60)
    assert not differences(made)
    # A test of filters that nothing matches, or everything, would show little.
    sent = 3 * len(frames())
    for pair in made:
        assert 0 < len(pair.captured()[0]) < sent, pair.expression


FEATURES = [["txvlan"], ["tx-vlan-stag-hw-insert"], ["txvlan", "tx-vlan-stag-hw-insert"]]


@pytest.mark.parametrize("features", long_except(FEATURES[:2], FEATURES))
def test_a_tag_that_the_stack_writes_into_the_frame_is_in_line(
    place: Place, tagged: Tagged, until: Callable[..., None], open_directory: Path, features: list[str]
) -> None:
    """Without the offload, a packet socket sees the outbound tag in the frame; it may change while captures run."""

    def switch(state: str) -> None:
        for feature in features:
            place.host.run(["ethtool", "-K", place.interface, feature, state])

    marker = 0

    def new_packets(send: Callable[[int], None]) -> list[list[Counter[tuple[int, bytes]]]]:
        """What each pair captures of what is sent, which ends with markers."""
        nonlocal marker
        marker += 10
        before = [[Counter(packets) for packets in pair.captured()] for pair in made]
        send(marker)
        files = [file for pair in made for file in pair.files]
        until("the marker is there", lambda: all(marker + BRIDGED in markers(file) for file in files))
        after = [[Counter(packets) for packets in pair.captured()] for pair in made]
        return [[late - early for early, late in zip(*both, strict=True)] for both in zip(before, after, strict=True)]

    def all_agree() -> bool:
        """Whether each program on the ring, and each filter in a process of its own, knows the change."""
        outbound = new_packets(lambda number: tagged.bridged.send([*frames(), frame(number + BRIDGED, 60)]))
        return all(ring == own for ring, own in outbound)

    def send_all(number: int) -> None:
        tagged.send(frames(), number)
        until("all have all", lambda: all(pair.have_all(number) for pair in made))

    switch("off")
    with pairs(place, until, open_directory, *EXPRESSIONS[:10:2], NOT_MERGED) as made:
        captured = []
        for state in ("off", "on", "off"):
            switch(state)
            # The keeper makes the programs anew when the kernel reports the change.
            until("all know the change", all_agree, timeout_s=60)
            captured.append(new_packets(send_all))
            for pair, (ring, own) in zip(made, captured[-1], strict=True):
                assert ring == own, (state, pair.expression)
    assert captured[0] == captured[2]
    assert all(one != other for one, other in zip(captured[0][:3], captured[1][:3], strict=True))


def test_a_capture_sees_the_whole_frame_beside_programs_of_libpcap(
    place: Place, tagged: Tagged, until: Callable[..., None], open_directory: Path
) -> None:
    """The same expressions in one ring: `parshall capture` finds live what it finds in a file of everything."""
    expressions = EXPRESSIONS[:20:2]
    name = f"test-{os.getpid()}-tags"
    everything = open_directory / "everything.pcap"
    files = [open_directory / f"capture-{number}.pcap" for number in range(len(expressions))]
    filters = [f"{KIND} or ({expression})" for expression in expressions]
    outputs = [word for pair in zip(filters, files, strict=True) for word in ("--filter", pair[0], "-w", str(pair[1]))]
    words = ("-i", place.interface, "--name", name, *outputs, "--filter", "", "-w", str(everything))
    with (
        Program(place, False, PARSHALL, "capture", *words) as capture,
        ExitStack() as stack,
    ):
        until("the ring runs", lambda: place.rings().get(name, {}).get("subscribers"), timeout_s=60)
        made = stack.enter_context(pairs(place, until, open_directory, *expressions))
        assert len(place.rings()[name]["subscribers"]) == 2 * len(expressions) + 1
        tagged.send(frames())
        until("all have all", lambda: all(pair.have_all() for pair in made), timeout_s=60)
        until("the capture has all", lambda: all(has_all(file) for file in (*files, everything)))
        assert capture.end(signal.SIGINT).returncode == 0
    assert not differences(made)
    for file, expression in zip(files, filters, strict=True):
        done = place.host.run(["tcpdump", "-r", str(everything), "-w", f"{file}.read", expression])
        assert done.returncode == 0
        assert packets_of(file) == packets_of(Path(f"{file}.read")), expression
    # The two views differ.
    assert [len(packets(file)) for file in files] != [len(pair.captured()[0]) for pair in made]


def test_a_member_without_capabilities_sees_tagged_packets_as_on_a_packet_socket(
    place: Place, tagged: Tagged, until: Callable[..., None], open_directory: Path
) -> None:
    name = f"test-{os.getpid()}-tags"
    ring = ("-i", place.interface, "--name", name, "--group", grp.getgrgid(MEMBER).gr_name, "-w", "/dev/null")
    as_member = ("setpriv", "--reuid", "nobody", "--regid", MEMBER, "--clear-groups", "--inh-caps=-all")
    # Without a packet socket, those with `vlan` see the whole frame: these have the same answer then.
    of_tags = ("vlan", "vlan 5", "not vlan", f"vlan 5 and udp port {PORT}", "vlan and vlan and udp")
    expressions = (f"udp port {PORT}", "not ip", "ether[12:2] = 0x8100", NOT_MERGED, *of_tags)
    files = [open_directory / f"member-{number}.pcap" for number in range(len(expressions))]
    with ExitStack() as stack:
        stack.enter_context(Program(place, False, PARSHALL, "capture", *ring))
        until("the ring runs", lambda: place.rings().get(name, {}).get("subscribers"), timeout_s=60)
        made = stack.enter_context(pairs(place, until, open_directory, *expressions, words=("-O",)))
        members = []
        for file, expression in zip(files, expressions, strict=True):
            words = ("-O", "-U", "-i", place.interface, "-w", file, f"{KIND} or ({expression})")
            command = (*as_member, "tcpdump", *words)
            member = Program(place, False, *command, env=pcap.environment())
            members.append(stack.enter_context(member))
            # One after the other: few requests of a member may wait at a time.
            assert "without the ring" not in member.wait_for("listening on")
        tagged.send(frames())
        until("all have all", lambda: all(pair.have_all() for pair in made), timeout_s=60)
        until("the members have all", lambda: all(has_all(file) for file in files))
        for member in members:
            assert member.end(signal.SIGINT).returncode == 0
    assert not differences(made)
    for pair, file in zip(made, files, strict=True):
        assert packets(file) == pair.captured()[1], pair.expression


def test_what_is_wrong_with_a_filter_for_tags_is_said_as_by_libpcap(place: Place) -> None:
    said = []
    for on_ring in place.both_ways():
        program = Program(place, on_ring, "tcpdump", "-i", place.interface, "vlan 5000 and udp")
        done = program.end()
        assert done.returncode == 1
        said.append(re.sub(r"^.*listening on.*\n", "", done.stderr, flags=re.M))
    assert said[0] == said[1] and "5000" in said[0]
