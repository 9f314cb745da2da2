"""Captured packets are those that passed: compared with tcpdump on the same interface."""

import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from capturer import (
    EXPERIMENT,
    PARSHALL,
    Capturer,
    Packets,
    Sender,
    account_of,
    classic_packets,
    frame,
    has_tcx,
    packets_of,
    run,
    skip_without_tcx,
    total,
    written_frames,
)
from conversation import connection, transfer

import in_process
from parshall.instruments.capture import Capture, Output, Ring
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
SIZES_BYTES = (60, 61, 67, 68, 128, 590, 1514)


class Pair:
    """Two quiet hosts on a cable, and a sender at each end."""

    def __init__(self, bed: Any, **link: Any) -> None:
        self.left, self.right = bed.host("left"), bed.host("right")
        self.link = bed.link(self.left, self.right, **link)
        self.interface = self.link.interface(self.right)
        self.senders = [
            Sender(host, self.link.interface(host), captured_here=host is self.right)
            for host in (self.left, self.right)
        ]

    def close(self) -> None:
        """Close the senders."""
        for sender in self.senders:
            sender.close()


@pytest.fixture
def pair(bed: Any, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Yield a pair of hosts; a parameter has the options of the link."""
    made = Pair(bed, **getattr(request, "param", {}))
    yield made
    made.close()


@contextmanager
def tcpdump(until: Callable[..., None], pair: Pair, path: Path, *arguments: str) -> Iterator[Callable[[int], None]]:
    """Run tcpdump at the right host; yield a function that waits until it has `count` packets."""
    command = ["tcpdump", "-i", pair.interface, "-U", "--immediate-mode", "-B", "65536", "-w", str(path), *arguments]
    process = pair.right.popen(command, stderr=subprocess.PIPE, text=True)
    assert "listening" in next(line for line in process.stderr if "listening" in line or "error" in line)
    try:
        yield lambda count: until(f"tcpdump has {count} packets", lambda: count_in(path) >= count)
    finally:
        process.terminate()
        process.communicate()


def count_in(path: Path) -> int:
    """Packets in a file that tcpdump is writing."""
    return len(classic_packets(path.read_bytes())) if path.exists() else 0


def numbered(count: int, first: int = 0, **options: Any) -> list[bytes]:
    """Frames of all sizes, numbered from `first` on."""
    numbers = range(first, first + count)
    return [frame(number, SIZES_BYTES[number % len(SIZES_BYTES)], **options) for number in numbers]


@pytest.mark.parametrize(
    ("arguments", "suffix"),
    [
        ((), ".pcapng"),
        (("--direction", "in"), ".pcap"),
        (("--direction", "out"), ".pcapng.zst"),
        (("--hook", "xdp", "--direction", "in"), ".pcapng"),
        (("--snaplen", "68"), ".pcapng.gz"),
        (("--snaplen", "69"), ".pcap.lz4"),
    ],
    ids=["tcx", "in", "out", "xdp", "snaplen", "lz4"],
)
def test_the_file_has_the_packets_of_tcpdump(
    pair: Pair, until: Any, tmp_path: Path, arguments: tuple[str, ...], suffix: str
) -> None:
    if not {"in", "xdp"} & set(arguments):
        skip_without_tcx()
    ours, theirs = tmp_path / f"ours{suffix}", tmp_path / "theirs.pcap"
    arguments_of_tcpdump = ["-s", arguments[1]] if "--snaplen" in arguments else []
    if "--direction" in arguments:
        arguments_of_tcpdump += ["-Q", arguments[arguments.index("--direction") + 1]]
    text = f"ether proto {EXPERIMENT}"
    with (
        tcpdump(until, pair, theirs, *arguments_of_tcpdump, text) as has,
        Capturer(until, pair.right, "-i", pair.interface, "--write", ours, "--json", *arguments) as capture,
    ):
        pair.senders[0].send(numbered(500))
        pair.senders[1].send(numbered(300))
        expected = {"in": 500, "out": 300}.get((arguments_of_tcpdump or ["both"])[-1], 800)
        has(expected)
        result = capture.end()
    assert result.returncode == 0, result.stderr
    written = only_numbered(tmp_path, ours)
    assert written == classic_packets(theirs.read_bytes())
    assert len(written) == expected
    (subscriber,) = account_of(result)["subscribers"]
    assert total(subscriber, "logged") == total(subscriber, "seen") >= expected


def test_without_tcx_it_warns_that_outbound_packets_are_missing(pair: Pair, until: Any, tmp_path: Path) -> None:
    """By default, the best hook of this kernel is used; ledger and warning say what it sees."""
    ours = tmp_path / "ours.pcapng"
    with Capturer(until, pair.right, "-i", pair.interface, "--write", ours, "--json", "-q") as capture:
        pair.senders[1].send(numbered(30))
        pair.senders[0].send(numbered(50))
        until("all has been written", lambda: written_frames(ours) >= (80 if has_tcx() else 50))
        result = capture.end()
    assert result.returncode == 0, result.stderr
    (subscriber,) = account_of(result)["subscribers"]
    hooks = {hook["hook"].removeprefix(f"{pair.interface} ") for hook in subscriber["hooks"]}
    if has_tcx():
        assert hooks == {"in (tcx)", "out (tcx)"}
        assert len(only_numbered(tmp_path, ours)) == 80 and not result.stderr
    else:
        assert hooks == {"in (xdp)"}
        assert len(only_numbered(tmp_path, ours)) == 50
        assert f"what {pair.interface} sends is not captured" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.optional
def test_a_hook_that_the_kernel_lacks_is_refused_in_one_line(pair: Pair, tmp_path: Path) -> None:
    if has_tcx():
        pytest.skip("this kernel has tcx")
    result = run(pair.right, "-i", pair.interface, "--hook", "tcx", "--write", tmp_path / "none.pcapng")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "tcx cannot be attached" in result.stderr and "--hook xdp --direction in" in result.stderr


def only_numbered(tmp_path: Path, path: Path) -> Packets:
    """The numbered frames of a file, whatever else passed."""
    plain = tmp_path / "plain.pcapng"
    reader = {".zst": ["zstd", "-dc"], ".gz": ["gzip", "-dc"], ".lz4": ["lz4", "-dc"]}.get(path.suffix, ["cat"])
    plain.write_bytes(subprocess.run([*reader, path], capture_output=True, check=True).stdout)
    kind = EXPERIMENT.to_bytes(2, "big")
    return [(wire, captured) for wire, captured in packets_of(plain) if captured[12:14] == kind]


def captured(
    pair: Pair, until: Callable[..., None], tmp_path: Path, frames: list[bytes], hook: str, **output: Any
) -> Packets:
    """Send frames, and return the packets of the file that a capture of as many wrote, in this process."""
    file = tmp_path / "ours.pcapng"
    ring = Ring([pair.interface], netns=pair.right.namespace, hook=hook, direction="in")
    with Capture([Output(file, f"ether proto {EXPERIMENT}", **output)], ring, count=len(frames)) as capture:
        pair.senders[0].send(frames)
        until("it has its count", lambda: capture.status()["has_ended"])
    assert capture.summary.failure is None
    return packets_of(file)


@pytest.mark.parametrize("pair", [{"mtu": 3400}], indirect=True, ids=["mtu 3400"])
@pytest.mark.parametrize("hook", ["tcx", "xdp"])
def test_a_packet_of_every_length_is_whole(pair: Pair, until: Any, tmp_path: Path, hook: str) -> None:
    """The programs copy short packets themselves, and long ones with a helper."""
    if hook == "tcx":
        skip_without_tcx()
    frames = [frame(length, length) for length in range(18, 2200)]
    assert captured(pair, until, tmp_path, frames, hook) == [(len(one), one) for one in frames]


SNAPLENS = (1, 31, 32, 33, 63, 64, 65, 1513)
QUICK_SNAPLENS = [*product(["xdp"], SNAPLENS), ("tcx", 1), ("tcx", 33), ("tcx", 1513)]


@pytest.mark.parametrize(("hook", "snaplen"), long_except(QUICK_SNAPLENS, product(["tcx", "xdp"], SNAPLENS)))
def test_a_snapshot_has_exactly_snaplen_bytes(pair: Pair, until: Any, tmp_path: Path, hook: str, snaplen: int) -> None:
    frames = numbered(100)
    packets = captured(pair, until, tmp_path, frames, hook, snaplen=snaplen)
    assert packets == [(len(one), one[:snaplen]) for one in frames]


@pytest.mark.parametrize("pair", [{"mtu": 9000}], indirect=True, ids=["mtu 9000"])
@pytest.mark.parametrize("hook", ["tcx", "xdp"])
def test_jumbo_frames_are_whole(pair: Pair, until: Any, tmp_path: Path, hook: str) -> None:
    """On XDP they come in several buffers."""
    frames = [frame(number, 9014 - number * 37) for number in range(200)]
    assert captured(pair, until, tmp_path, frames, hook) == [(len(one), one) for one in frames]


def test_packets_of_an_interface_without_link_layer_are_whole(bed: Any, until: Any, tmp_path: Path) -> None:
    """Packets of a tun begin with the IP header; offsets in filters begin there, too."""
    tun_set_interface, tun_without_information = 0x400454CA, 0x1001
    host = bed.host("tunnel")
    with host.enter():
        tun = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tun, tun_set_interface, struct.pack("16sH22x", b"tun-test", tun_without_information))
    host.run(["ip", "link", "set", "tun-test", "up"])
    packets = [udp_packet(53 + number % 2, number) for number in range(40)]
    file = tmp_path / "tun.pcapng"
    arguments = ("-i", "tun-test", "--direction", "in", "--filter", "udp dst port 53", "--write", file, "--json")
    with Capturer(until, host, *arguments) as capturer:
        for packet in packets:
            os.write(tun, packet)
        account = account_of(capturer.end())
    os.close(tun)
    assert packets_of(file) == [(len(packet), packet) for packet in packets[::2]]
    assert total(account["subscribers"][0], "filtered") >= 20


def udp_packet(port: int, number: int) -> bytes:
    """An IPv4 packet to a port, without an Ethernet header."""
    addresses = bytes([198, 18, 0, 1, 198, 18, 0, 2])
    payload = number.to_bytes(4, "big") * 5
    header = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(payload), number, 0, 64, 17, 0) + addresses
    return header + struct.pack(">HHHH", 9, port, 8 + len(payload), 0) + payload


@pytest.mark.parametrize("pair", [{"offloads": True}], indirect=True, ids=["offloads"])
def test_a_packet_of_the_stack_may_be_larger_than_any_wire_allows(pair: Pair, until: Any, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.pcapng", tmp_path / "theirs.pcap"
    arguments = ("--direction", "in", "--filter", "tcp")
    with (
        tcpdump(until, pair, theirs, "-Q", "in", "tcp") as has,
        Capturer(until, pair.right, "-i", pair.interface, "--write", ours, "--json", *arguments) as capture,
    ):
        with connection(pair.left, pair.right, pair.link.address(pair.right), 9100) as (active, passive):
            transfer(active, passive, 3_000_000)
        result = capture.end()
        has(total(account_of(result)["subscribers"][0], "logged"))
    written = packets_of(ours)
    # Where two CPUs receive, tcpdump may swap two packets. A diff of the lists would fill screens.
    is_same = sorted(written) == sorted(classic_packets(theirs.read_bytes()))
    assert is_same
    assert max(wire for wire, _ in written) > 60_000


def test_a_stripped_vlan_tag_is_restored(pair: Pair, until: Any, tmp_path: Path) -> None:
    """The kernel strips the tag before tcx programs see the packet."""
    ours, theirs = tmp_path / "ours.pcapng", tmp_path / "theirs.pcap"
    frames = []
    for number in range(100):
        plain = frame(number, 60 + number)
        frames.append(plain[:12] + bytes.fromhex(f"8100{number % 8 << 13 | number + 1:04x}") + plain[12:])
    with (
        tcpdump(until, pair, theirs, "vlan") as has,
        Capturer(until, pair.right, "-i", pair.interface, "--write", ours, "--json") as capture,
    ):
        pair.senders[0].send(frames)
        has(len(frames))
        result = capture.end()
    assert result.returncode == 0
    written = [one for one in packets_of(ours) if one[1][12:14] == b"\x81\x00"]
    assert written == [(len(one), one) for one in frames] == classic_packets(theirs.read_bytes())


def test_other_programs_read_the_file(pair: Pair, until: Any, tmp_path: Path) -> None:
    ours = tmp_path / "ours.pcapng"
    with Capturer(until, pair.right, "-i", pair.interface, "--write", ours, "--count", "50") as capture:
        pair.senders[0].send(numbered(50))
        assert capture.end(number=None).returncode == 0
    result = subprocess.run(["capinfos", "-T", "-r", "-c", ours], capture_output=True, text=True, check=True)
    assert result.stdout.split()[-1] == "50"
    fields = ["-T", "fields", "-e", "frame.len", "-e", "frame.interface_name"]
    result = subprocess.run(["tshark", "-r", ours, *fields], capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert {name for _, name in lines} == {pair.interface}
    assert len(lines) == 50


def test_a_pipe_gets_packets_while_they_arrive(pair: Pair, until: Any, tmp_path: Path) -> None:
    """Standard output has only the capture."""
    with Capturer(until, pair.right, "-i", pair.interface, "-w", "-", "--json", text=False) as capture:
        reader = subprocess.Popen(
            ["tcpdump", "-r", "-", "-c", "40", "-w", "-"],
            stdin=capture.process.stdout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        capture.process.stdout.close()
        pair.senders[0].send(numbered(40))
        read, _ = reader.communicate(timeout=20)
        assert len(classic_packets(read)) == 40
        # The reader has closed the pipe, which ends the capture.
        pair.senders[0].send(numbered(40))
        _, errors = capture.process.communicate(timeout=20)
        assert capture.process.returncode == 0
        # The account includes packets after the reader closed.
        done = subprocess.CompletedProcess([], 0, errors.decode().splitlines()[-1], "")
        (account,) = account_of(done)["subscribers"]
        assert total(account, "seen") > 40


def test_each_filter_fills_its_own_file_in_one_pass(pair: Pair, until: Any, tmp_path: Path) -> None:
    kinds = [EXPERIMENT, EXPERIMENT + 1, 0x9000]
    frames = [frame(number, 64 + number, kind=kinds[number % 3]) for number in range(300)]
    files = [tmp_path / f"{kind}.pcapng" for kind in kinds]
    arguments: list[Any] = []
    for kind, file in zip(kinds, files, strict=True):
        arguments += ["--filter", f"ether proto {kind}", "--write", file]
    all_file = tmp_path / "all.pcapng"
    arguments += ["--filter", "", "--write", all_file, "--json"]
    with Capturer(until, pair.right, "-i", pair.interface, *arguments, subscribers=4) as capture:
        pair.senders[0].send(frames)
        # Each subscriber reads the same packets: what one has written is in the ring for all.
        until("all have been written", lambda: written_frames(all_file, kinds) >= 300)
        result = capture.end()
    ledger = account_of(result)
    for kind, file, account in zip(kinds, files, ledger["subscribers"], strict=False):
        assert [one for _, one in packets_of(file)] == [one for one in frames if one[12:14] == kind.to_bytes(2, "big")]
        assert total(account, "logged") == 100
        assert total(account, "filtered") == total(account, "seen") - 100
    assert total(ledger["subscribers"][3], "filtered") == 0


@pytest.mark.parametrize("backend", ["af-packet", "tpacket-v3", "af-xdp"])
def test_socket_captures_write_the_same_packets(pair: Pair, until: Any, tmp_path: Path, backend: str) -> None:
    ours = tmp_path / "ours.pcapng"
    command = [PARSHALL, "capture", "-i", pair.interface, "--backend", backend, "-w", ours, "--json", "--count", "100"]
    command += ["--filter", f"ether proto {EXPERIMENT}"]
    process = pair.right.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Some per poll, as many as are needed: the capture begins at any packet of the sequence.
    frames: list[bytes] = []

    def has_enough() -> bool:
        if process.poll() is None and len(frames) < 200_000:
            frames.extend(numbered(50, first=len(frames)))
            pair.senders[0].send(frames[-50:])
        return process.poll() is not None

    until("it has reached its count", has_enough)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    written = [one for _, one in packets_of(ours) if one[12:14] == EXPERIMENT.to_bytes(2, "big")]
    first = int.from_bytes(written[0][14:18], "big")
    assert written == frames[first : first + len(written)]
    assert len(packets_of(ours)) == 100
    (account,) = account_of(subprocess.CompletedProcess(command, 0, output, errors))["subscribers"]
    assert total(account, "logged") == 100


def test_socket_captures_have_no_rings(pair: Pair, tmp_path: Path) -> None:
    for arguments in (["--join", "ring"], ["-i", pair.interface, "--name", "ring"]):
        with pair.right.enter():
            result = in_process.parshall("capture", *arguments, "--backend", "af-packet", "-w", tmp_path / "x.pcapng")
        assert result.returncode == 2
        assert result.stderr.startswith("parshall: capture: --backend af-packet: ")
