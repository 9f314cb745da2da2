"""Calls of libpcap on a ring beside the same calls on a packet socket, in the same namespace at the same time.

The witness is the system's libpcap: two copies of one program (pcap_driver.c) are told the same calls, one of them by
`parshall pcap`. What they answer must be equal, but for what the manual says that changes.
"""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from capturer import frame
from carrier import has_carrier
from conversation import socket_at
from pcap_frames import MTU_BYTES, PORT, Frame, FrameSender, frames
from test_path_identity import tun
from test_pcap import KIND, TIME_TOLERANCE_MAX_NS, TIME_TOLERANCE_NS, Place, Program, place

from parshall.host import offloads
from parshall.instruments import pcap

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
SOURCE = Path(__file__).with_name("pcap_driver.c")
MANUAL = Path(__file__).parents[2] / "docs/pcap.md"
MARKER_BYTES = 1234
"""Wire length of the frame that ends a reading: no other frame has it."""
WARM_UPS = 3
MARKER = Frame(frame(0, MARKER_BYTES))
CALLS = ["loop", "loops", "dispatch", "dispatch3", "next_ex", "next", "poll", "select"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the program for the system's libpcap, as any program is."""
    program = tmp_path_factory.mktemp("driver") / "pcap_driver"
    words = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", SOURCE, "-o", program, "-l:libpcap.so.0.8"]
    subprocess.run(words, check=True)
    return program


HELD_BY = {
    "packets, order, lengths, link types, files": "conformance.each_call_reads_every_kind_of_frame",
    "VLAN tags": "tags.filters_see_tagged_packets_as_on_a_packet_socket",
    "frames of more than 64 KiB in immediate mode": "conformance.each_call_reads_every_kind_of_frame",
    "time stamps": "conformance.each_call_reads_every_kind_of_frame",
    "delay until the program gets a packet": "at_once.a_reply_comes_at_once_in_immediate_mode",
    '`ps_recv`, "received by filter"': "conformance.filters_accept_the_same_frames_of_every_kind",
    '`ps_drop`, "dropped by kernel"': "limits.counts_of_a_program_that_loses_packets_add_up",
    "setting a filter": "limits.a_filter_changes_while_packets_flow",
    "threads": "threads.threads_count_send_filter_and_break_while_one_reads",
    "a read with a time-out at an idle interface": "conformance.a_read_at_an_idle_interface_ends_after_its_time_out",
    "`-B`, `pcap_set_buffer_size`": "limits.a_large_buffer_is_a_ring_of_the_largest_size",
    "outbound packets": "conformance.each_call_reads_every_kind_of_frame",
    "a loopback": "conformance.other_interfaces_are_read_as_on_a_packet_socket",
    "frames that the program sends by libpcap": "limits.sent_frames_arrive_and_do_not_come_back",
}
"""The test of each row of the manual's table."""


def manual_rows() -> list[str]:
    """What changes for a program, as the manual lists it."""
    section = MANUAL.read_text().split("## What changes for the program\n")[1].split("\n## ")[0]
    return re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)


def by_design(row: str, ring: Any, own: Any) -> None:
    """Fail unless the two differ, and the manual says so in a row of its table."""
    assert row in manual_rows(), f"{MANUAL.name} has no such row: {row}"
    assert ring != own, f"no longer true: {row}"


def test_each_row_of_the_manual_has_a_test() -> None:
    assert manual_rows() == list(HELD_BY)
    for held_by in HELD_BY.values():
        module, name = held_by.split(".")
        assert f"def test_{name}(" in SOURCE.with_name(f"test_pcap_{module}.py").read_text(), held_by


class Pair:
    """The driver on a ring, and on packet sockets."""

    def __init__(self, place: Place, driver: Path, stack: ExitStack) -> None:
        pipes = {"stdin": subprocess.PIPE, "stderr": sys.stderr}
        # As `parshall pcap` does, without Python's start.
        self.programs = [
            stack.enter_context(Program(place, False, driver, env=environment, bufsize=1, **pipes))
            for environment in (pcap.environment(), None)
        ]

    def tell(self, line: str) -> None:
        """Tell both a call."""
        for program in self.programs:
            program.process.stdin.write(f"{line}\n")
            program.process.stdin.flush()

    def answers(self) -> list[dict[str, Any]]:
        """Return what both answered: the ring's, the socket's."""
        return [json.loads(program.wait_for("}", of="stdout")) for program in self.programs]

    def both(self, line: str) -> dict[str, Any]:
        """Tell both a call, and return the answer, which must be the same."""
        self.tell(line)
        ring, own = self.answers()
        assert ring == own, line
        return own

    def read(self, how: str, differs: str = "") -> list[list[Any]]:
        """Read up to the marker with a call; return the packet socket's packets, which the ring's must equal.

        With `differs` their bytes are different, as that row of the manual says.
        """
        self.tell(f"read {how} {MARKER_BYTES}")
        ring, own = self.answers()
        packets = [answer.pop("packets") for answer in (ring, own)]
        assert ring == own, how
        contents = [[packet[:3] for packet in each] for each in packets]
        if differs:
            by_design(differs, *contents)
        else:
            assert contents[0] == contents[1], how
        differences_ns = sorted(abs(one[3] - other[3]) for one, other in zip(*packets, strict=True))
        assert differences_ns[len(differences_ns) // 2] < TIME_TOLERANCE_NS
        assert differences_ns[-1] < TIME_TOLERANCE_MAX_NS
        return packets[1]


@pytest.fixture
def pair(place: Place, driver: Path) -> Iterator[Pair]:
    """Give both, ready for calls; they end without an error."""
    with ExitStack() as stack:
        made = Pair(place, driver, stack)
        yield made
        for program in made.programs:
            done = program.end()
            assert (done.returncode, done.stdout) == (0, "")


class Wire:
    """Sends frames to the interface of a place, and out of it."""

    def __init__(self, place: Place) -> None:
        for host, interface in ((place.left, place.link.interface(place.left)), (place.host, place.interface)):
            host.run(["ip", "link", "set", interface, "mtu", str(MTU_BYTES), "gso_max_size", "200000"])
            # Or frames of many segments would be cut on their way.
            with host.enter():
                offloads.switch(interface, True)
            for name in ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv4.conf.all.arp_ignore=8"):
                host.run(["sysctl", "-q", "-w", name], check=False)
        self.incoming = FrameSender(place.left, place.link.interface(place.left))
        self.outgoing = FrameSender(place.host, place.interface)

    def close(self) -> None:
        """Close the sockets."""
        self.incoming.close()
        self.outgoing.close()


@pytest.fixture
def wire(place: Place) -> Iterator[Wire]:
    """Give what sends frames of every kind."""
    made = Wire(place)
    yield made
    made.close()


def opened(pair: Pair, interface: str, *settings: str, number: int = 0) -> None:
    """Open a capture with settings, which are calls."""
    pair.both(f"use {number}")
    for line in (f"create {interface}", *settings, "activate"):
        assert pair.both(line).get("returned", 0) >= 0


# Without a time-out, a packet socket keeps what it has until a block is full.
SETTINGS = {
    "non-blocking": ("set_timeout 20",),
    "headers alone": ("set_timeout 10", "set_snaplen 14"),
    "cut": ("set_snaplen 96", "set_timeout 1"),
    "whole": ("set_snaplen 262144", "set_buffer_size 8000000", "set_timeout 50"),
    "immediate": ("set_immediate_mode 1",),
    "nanoseconds": ("set_tstamp_precision 1", "set_promisc 1", "set_timeout 100"),
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_call_reads_every_kind_of_frame(place: Place, pair: Pair, wire: Wire, settings: str) -> None:
    for number in range(len(CALLS)):
        opened(pair, place.interface, *SETTINGS[settings], number=number)
        pair.both("about")
        pair.both(f"setnonblock {int(settings == 'non-blocking')}")
        pair.both("getnonblock")
    kinds = frames()
    big = kinds.pop("BIG TCP")
    others = [each for kind in kinds.values() for each in kind]
    rows = ["frames of more than 64 KiB in immediate mode" if settings == "immediate" else "", "outbound packets"]
    for sender, row in zip((wire.incoming, wire.outgoing), rows, strict=True):
        for some, differs in ((others, ""), (big, row)):
            sender.send([*some, MARKER])
            for number, how in enumerate(CALLS):
                pair.both(f"use {number}")
                packets = pair.read(how, differs)
                assert len(packets) == len(some) + 1
                if some is others:
                    assert [packet[1] for packet in packets] == [len(each.data) for each in [*others, MARKER]]
                assert pair.both("stats")["dropped"] == 0


FILTERS = [
    "ip", "ip6", "arp", "tcp", "udp", "icmp or icmp6", "ip proto 17", "ip6 proto 17", "proto 17",
    "ip[6:2] & 0x1fff = 0", "ip[6:2] & 0x3fff != 0", f"port {PORT}", f"tcp port {PORT}", "portrange 5000-6000",
    "src host 192.0.2.1", "net 192.0.2.0/24", "net 0.0.0.0/0", "host fd70::2", "ether host 02:70:73:00:08:00",
    "ether proto 0x8864", "mpls", "mpls 16", "mpls and udp", "pppoes", "pppoes 7", f"pppoes and udp port {PORT}",
    "vlan", "vlan 5", "vlan and vlan", "vlan 5 and udp", "llc", "stp", "ether broadcast", "ip multicast",
    "greater 9000", "less 60", "len = 14", "ip[0] = 0x45", "ip[2:2] > 100", "ether[20] = 0x40", "tcp[13] = 0x10",
    "udp[4:2] > 1000", "ip6[40] = 17", "tcp[0] = 0 or tcp[0] != 0", "not (tcp or udp)", "not ip and not ip6",
    "icmp[0] = 8", "geneve", "ip and (udp or tcp) and not port 80", "1 = 1", "1 = 2", "inbound", "outbound",
    # Last, as the kernel runs no loops: libpcap counts all of a packet socket's packets then.
    "ip6 protochain 17",
]  # fmt: skip


@pytest.mark.parametrize("cut", ["set_snaplen 262144", "set_snaplen 40"])
def test_filters_accept_the_same_frames_of_every_kind(place: Place, pair: Pair, wire: Wire, cut: str) -> None:
    opened(pair, place.interface, "set_timeout 10", cut)
    every_kind = [each for name, kind in frames().items() if name != "BIG TCP" for each in kind]
    numbers = set()
    for at, expression in enumerate(FILTERS):
        # The marker first, whose header is where it is whatever follows.
        line = f"filter {at % 2} len = {MARKER_BYTES} or ({expression})"
        answer = pair.both(line)
        assert answer["returned"] == 0, (expression, answer)
        # libpcap filters the first blocks itself, what is cut from a frame and its direction unknown.
        for _ in range(WARM_UPS):
            wire.incoming.send([MARKER])
            pair.read("dispatch")
        for sender in (wire.incoming, wire.outgoing):
            sender.send([*every_kind, MARKER])
            numbers.add(len(pair.read("dispatch")))
        pair.tell("stats")
        ring, own = pair.answers()
        if expression == FILTERS[-1]:
            by_design('`ps_recv`, "received by filter"', ring, own)
        else:
            assert ring == own, expression
    assert len(numbers) > 10


WRONG = {
    "before it is activated": [
        "stats", "about", "once dispatch", "once loop", "once next_ex", "filter 1 udp", "setdirection 1", "inject 00",
        "sendpacket 00", "setnonblock 1", "getnonblock", "set_datalink 1", "lists", "breakloop",
    ],
    "settings": [
        "set_snaplen 0", "set_snaplen -1", "set_snaplen 1", "set_timeout -1", "set_timeout 0", "set_promisc 7",
        "set_immediate_mode 2", "set_buffer_size 0", "set_buffer_size -1", "set_tstamp_type 0", "set_tstamp_type 1",
        "set_tstamp_type 99", "set_tstamp_precision 5", "set_tstamp_precision 1", "can_set_rfmon", "set_rfmon 0",
        "activate", "about", "lists",
    ],
    "when it is activated": [
        "activate", "activate", "set_snaplen 5", "set_timeout 5", "set_promisc 1", "set_immediate_mode 1",
        "set_buffer_size 5", "set_tstamp_type 1", "set_tstamp_precision 1", "set_rfmon 1", "can_set_rfmon",
        "set_datalink 1", "set_datalink 7", "set_datalink 143", "setdirection 0", "setdirection 1", "setdirection 2",
        "setdirection 7", "setdirection -1", "filter 1 frob", "filter 1 udp and", "filter 1 ip proto 999",
        "filter 1 ether[0:3] = 1", "filter 1 vlan 5000", "filter 0 tcp and udp", "filter 1 port http", "filter 1 ",
        "filter 1 wlan type mgt", "filter 1 host no.such.host.invalid", "bad_filter 0", "bad_filter 1", "bad_filter 2",
        "bad_filter 3", "inject ", "sendpacket ", "inject 0011", "stats", "lists", "about", "setnonblock 1",
        "once dispatch", "once next_ex", "once next", "getnonblock",
        "setnonblock 0", "close", "stats",
    ],
}  # fmt: skip


@pytest.mark.parametrize("lines", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_as_by_libpcap(place: Place, pair: Pair, lines: list[str]) -> None:
    pair.both(f"create {place.interface}")
    for line in lines:
        pair.both(line)


@pytest.mark.parametrize("line", ["create nosuch0", "open_live nosuch0 100 0 100", "create ", "open_live any 100 0 10"])
def test_what_cannot_be_opened_is_said_as_by_libpcap(place: Place, pair: Pair, line: str) -> None:
    pair.both(line)
    for then in ("activate", "about", "stats"):
        pair.both(then)


@contextmanager
def datagrams(place: Place, interface: str) -> Iterator[Callable[[], None]]:
    """Give a function that sends datagrams with payloads of many sizes, and the marker, to an interface."""
    address, head_bytes = ("127.0.0.1", 42) if interface == "lo" else ("10.9.8.2", 28)
    with ExitStack() as stack:
        if interface != "lo":
            stack.enter_context(tun(place.host, interface))
        sender = stack.enter_context(socket_at(place.host, "0.0.0.0", socket.SOCK_DGRAM))
        # A closed port would answer.
        receiver = stack.enter_context(socket_at(place.host, "127.0.0.1", socket.SOCK_DGRAM))
        receiver.bind(("127.0.0.1", PORT))

        def send() -> None:
            for size in (0, 1, 100, 1000, 1400, MARKER_BYTES - head_bytes):
                sender.sendto(b"d" * size, (address, PORT))

        yield send


@pytest.mark.parametrize("interface", ["lo", "tun7"])
@pytest.mark.parametrize("how", CALLS)
def test_other_interfaces_are_read_as_on_a_packet_socket(place: Place, pair: Pair, interface: str, how: str) -> None:
    with datagrams(place, interface) as send:
        opened(pair, interface, "set_timeout 10")
        pair.both("about")
        pair.both("lists")
        for line in ("filter 1 udp", f"filter 0 port {PORT}", "filter 1 udp[4:2] > 400"):
            assert pair.both(line)["returned"] == 0
            send()
            assert len(pair.read(how)) >= 3
            pair.tell("stats")
            ring, own = pair.answers()
            if interface == "lo":
                by_design("a loopback", ring, own)
            else:
                assert ring == own


@pytest.mark.parametrize("kind", ["break", "signal"])
def test_signals_interrupt_a_loop_as_on_a_packet_socket(place: Place, pair: Pair, kind: str) -> None:
    opened(pair, place.interface, "set_timeout 10")
    pair.both(f"filter 1 {KIND}")
    # A timer sends signals; only those whose handler breaks the loop end it before its packets have come.
    pair.tell(f"interrupted {kind} 3")
    if kind == "signal":
        place.sender.send([frame(number, 60) for number in range(3)])
    ring, own = pair.answers()
    assert [len(each.pop("packets")) for each in (ring, own)] == ([3, 3] if kind == "signal" else [0, 0])
    assert ring == own
    assert ring["returned"] == (0 if kind == "signal" else -2)


@pytest.mark.parametrize("how", ["next_ex", "dispatch"])
def test_a_read_at_an_idle_interface_ends_after_its_time_out(place: Place, pair: Pair, how: str) -> None:
    opened(pair, place.interface, "set_timeout 20")
    pair.both(f"filter 1 {KIND}")
    pair.tell(f"once {how}")
    on_ring = json.loads(pair.programs[0].wait_for("}", of="stdout"))
    assert (on_ring["returned"], on_ring.get("packets", [])) == (0, [])
    # The packet socket's may wait for it.
    place.sender.send([frame(0, 60)])
    own = json.loads(pair.programs[1].wait_for("}", of="stdout"))
    assert own["returned"] in (0, 1)


@pytest.mark.parametrize("command", ["link set {0} down; link set {0} up", "link delete {}", "link set {} name other0"])
@pytest.mark.parametrize("how", ["loop", "dispatch", "next_ex"])
def test_an_interface_that_changes_ends_a_reading_as_on_a_packet_socket(
    place: Place, pair: Pair, until: Callable[..., None], command: str, how: str
) -> None:
    opened(pair, place.interface, "set_timeout 10")
    pair.both(f"filter 1 {KIND}")
    place.sender.send([frame(number, 60) for number in range(3)] + [MARKER.data])
    assert len(pair.read(how)) == 4
    pair.tell(f"read {how} {MARKER_BYTES}")
    for line in command.format(place.interface).split("; "):
        place.host.run(["ip", *line.split()])
    if "down" in command:
        for end in ((place.host, place.interface), (place.left, place.link.interface(place.left))):
            until("the carrier is back", lambda end=end: has_carrier(*end))
    if "delete" not in command:
        place.sender.send([frame(4, MARKER_BYTES)])
    ring, own = pair.answers()
    packets = [[packet[:3] for packet in each.pop("packets")] for each in (ring, own)]
    assert packets[0] == packets[1] and len(packets[0]) == int("delete" not in command)
    assert ring == own
