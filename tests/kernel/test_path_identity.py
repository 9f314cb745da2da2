"""A packet is what it is called, whatever else uses the addresses, numbers and sockets that it has had."""

import ctypes
import fcntl
import json
import os
import platform
import select
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest
from capturer import Capturer
from conversation import connection, socket_at, transfer
from path_noise import noise
from path_run import check_balance, run
from test_path_truth import has_stage, measured, paths_of, to_sink

from host_state import BPF_SYSCALL
from parshall.errors import ParshallError
from parshall.instruments.path import PathProfile
from parshall.instruments.path.stages import ALL_STAGES, LIGHT_STAGES
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
NOISES = ["unix", "netlink", "packet"]
TUNSETIFF, IFF_TUN, IFF_TAP, IFF_NAPI, IFF_NAPI_FRAGS, IFF_NO_PI = 0x400454CA, 1, 2, 0x10, 0x20, 0x1000
IFF_VNET_HDR = 0x4000


def udp(host, count, port=9000, read=True):
    """Send datagrams to this host itself, and read each."""
    with (
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as sender,
        socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as receiver,
    ):
        receiver.settimeout(20)
        receiver.bind(("127.0.0.1", port))
        for number in range(count):
            sender.sendto(number.to_bytes(4, "big") * 25, ("127.0.0.1", port))
            # Read, or there: what waits for a thread of the kernel would find the socket closed.
            if read:
                assert receiver.recv(200)
            else:
                assert select.select([receiver], [], [], 20)[0]


def dropped(summary):
    """Return the followed drops by reason."""
    return {row["name"]: row["followed"] for row in summary.drops if row["followed"]}


@pytest.fixture
def alone(bed):
    """A host without a neighbour."""
    return bed.host("alone")


@contextmanager
def tun(host, name="tun0", kind=IFF_TUN):
    """Make a TUN or TAP interface with the address 10.9.8.1, and yield its file."""
    with host.enter(), Path("/dev/net/tun").open("r+b", buffering=0) as file:
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), kind | IFF_NO_PI))
        host.run(["sysctl", "-q", "-w", f"net.ipv6.conf.{name}.disable_ipv6=1"], check=False)
        host.run(["ip", "address", "add", "10.9.8.1/24", "dev", name])
        host.run(["ip", "link", "set", name, "up"])
        yield file


def checksum_of(data):
    """The checksum of the Internet, RFC 1071, of an even number of bytes."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")


def over_ipv4(source, destination, protocol, transport):
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    words = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(transport), 7, 0, 64, protocol, 0) + addresses
    return words[:10] + checksum_of(words) + words[12:] + transport


def datagram(source, destination, port, payload=b"x" * 40):
    """A UDP datagram over IPv4, without a checksum of UDP."""
    transport = struct.pack("!HHHH", 40000, port, 8 + len(payload), 0) + payload
    return over_ipv4(source, destination, 17, transport)


def segment(source, destination, port, payload):
    """A TCP segment over IPv4 with data and ACK."""
    transport = struct.pack("!HHIIHHHH", 40000, port, 1, 1, 0x5018, 1000, 0, 0) + payload
    ends = socket.inet_aton(source) + socket.inet_aton(destination)
    checksum = checksum_of(ends + struct.pack("!HH", 6, len(transport)) + transport)
    return over_ipv4(source, destination, 6, transport[:16] + checksum + transport[18:])


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
@pytest.mark.parametrize("kind", NOISES)
def test_datagrams_that_were_read_are_delivered_whatever_is_closed_beside_them(alone, tmp_path, one_cpu, kind, log):
    stages = ALL_STAGES if log else None
    with noise(alone, kind, cpu=one_cpu), measured(tmp_path, alone, {"stages": stages}, log=log) as found:
        udp(alone, 3000)
    assert dropped(found["summary"]) == {}
    paths = found["summary"].paths
    assert paths["delivered"] == 3000 and paths["dropped"] == 0, paths
    # Over the loopback interface each begins anew when it comes in.
    assert paths["sent"] == 3000, paths


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
def test_segments_that_were_read_are_delivered_whatever_is_closed_beside_them(alone, tmp_path, one_cpu, log):
    stages = ALL_STAGES if log else None
    with noise(alone, *NOISES, cpu=one_cpu), measured(tmp_path, alone, {"stages": stages}, log=log) as found:
        with connection(alone, alone, "127.0.0.1", 5050) as (active, passive):
            for _ in range(300):
                active.sendall(b"x" * 100)
                assert passive.recv(100)
                passive.sendall(b"y" * 300)
                assert active.recv(300)
            transfer(active, passive, 3_000_000)
    assert dropped(found["summary"]) == {}
    paths = found["summary"].paths
    assert paths["delivered"] == paths["sent"] > 600, paths
    assert paths["dropped"] == 0, paths


@pytest.mark.parametrize("times", long_except([4], [4, 10]))
@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
def test_what_begins_while_programs_are_detached_ends_no_packet_of_before(bed, alone, tmp_path, one_cpu, log, times):
    """The buffers that were read go to packets of another namespace, which are dropped."""
    stages = {"stages": LIGHT_STAGES}
    with noise(bed.host("other"), "refused", cpu=one_cpu):
        for _ in range(times):
            with measured(tmp_path, alone, stages, log=log) as found:
                udp(alone, 300)
            assert dropped(found["summary"]) == {}
            assert found["summary"].paths["delivered"] == 300, found["summary"].paths


@contextmanager
def generic_xdp(until, host):
    """Have a generic XDP program at the loopback interface, which lacks room in front of the data of its packets."""
    capturing = Capturer(until, host, "-i", "lo", "--hook", "xdp", "--direction", "in", "-w", "/dev/null")
    try:
        assert "xdpgeneric" in host.run(["ip", "link", "show", "dev", "lo"]).stdout
        yield
    finally:
        capturing.end()


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
def test_a_packet_to_which_generic_xdp_gives_another_buffer_is_followed(alone, tmp_path, until, one_cpu, log):
    stages = ALL_STAGES if log else None
    with (
        generic_xdp(until, alone),
        noise(alone, *NOISES, cpu=one_cpu),
        measured(tmp_path, alone, {"stages": stages}, log=log) as found,
    ):
        udp(alone, 500)
        with socket_at(alone, "127.0.0.1", socket.SOCK_DGRAM) as sender:
            for _ in range(100):
                sender.sendto(bytes(100), ("127.0.0.1", 9))
        with connection(alone, alone, "127.0.0.1", 5050) as (active, passive):
            transfer(active, passive, 1_000_000)
    paths = found["summary"].paths
    assert dropped(found["summary"]) == {"NO_SOCKET": 100}
    assert paths["sent"] == paths["delivered"] + 100, paths
    # Datagrams, the errors of ICMP, and segments.
    assert paths["delivered"] > 500 + 100 + 10, paths
    assert paths.get("consumed", 0) == paths.get("unknown", 0) == 0, paths
    if log:
        received = to_sink(found["log"])
        assert paths_of(received) == {"delivered": 500, "sent": 500}
        read = received.filter(pc.equal(received["path"], "delivered"))
        assert set(read["source"].to_pylist()) == {"127.0.0.1"}
        assert pc.all(pc.is_valid(read["data_ready_ns"])).as_py()


@contextmanager
def passing_xdp(host, interface):
    """Have a generic XDP program at an interface that lets everything pass."""
    pass_and_exit = bytes.fromhex("b700000002000000 9500000000000000")
    instructions, license_text = ctypes.create_string_buffer(pass_and_exit), ctypes.create_string_buffer(b"MIT")
    bpf_prog_load, bpf_link_create, of_type_xdp, attach_to_xdp, generic, takes_frags = 5, 28, 6, 37, 2, 32

    def call(command, attributes):
        libc = ctypes.CDLL(None, use_errno=True)
        made = libc.syscall(BPF_SYSCALL[platform.machine()], command, attributes.ljust(128, b"\0"), 128)
        assert made >= 0, os.strerror(ctypes.get_errno())
        return made

    places = (ctypes.addressof(instructions), ctypes.addressof(license_text))
    program = call(bpf_prog_load, struct.pack("=IIQQ20xI", of_type_xdp, 2, *places, takes_frags))
    with host.enter():
        number = socket.if_nametoindex(interface)
        link = call(bpf_link_create, struct.pack("=IIII", program, number, attach_to_xdp, generic))
    try:
        yield
    finally:
        os.close(link)
        os.close(program)


def test_packets_that_pass_generic_xdp_in_one_poll_keep_their_headers(router, tmp_path):
    """All of them are in new buffers before the first one goes on."""
    sink = router.sink
    sink.run(["ethtool", "-K", router.sink_if, "gro", "on"])
    # A poll comes when this time has passed, and finds what came meanwhile.
    hold = "mount -t sysfs none /sys; cd /sys/class/net/$0; echo 2000000 > gro_flush_timeout; echo 9 > $1"
    sink.run(["unshare", "--mount", "sh", "-e", "-c", hold, router.sink_if, "napi_defer_hard_irqs"])
    with passing_xdp(sink, router.sink_if), ExitStack() as stack:
        to = str(router.sink_address)
        senders = [stack.enter_context(socket_at(router.source, "0.0.0.0", socket.SOCK_DGRAM)) for _ in range(8)]
        receivers = [stack.enter_context(socket_at(sink, to, socket.SOCK_DGRAM)) for _ in range(4)]
        for at, receiver in enumerate(receivers):
            receiver.bind((to, 9000 + at))
        with measured(tmp_path, sink, {"stages": ALL_STAGES}) as found:
            for _ in range(40):
                for at, sender in enumerate(senders):
                    sender.sendto(bytes(60), (to, 9000 + at))
                for receiver in receivers:
                    receiver.settimeout(20)
                    receiver.recv(100)
    rows = found["log"].packets
    rows = rows.filter(pc.and_(pc.equal(rows["protocol"], 17), pc.greater_equal(rows["destination_port"], 9000)))
    ends = Counter(zip(rows["destination_port"].to_pylist(), rows["path"].to_pylist(), strict=True))
    assert ends == {(9000 + at, "delivered" if at < 4 else "dropped"): 40 for at in range(8)}
    flows = Counter(zip(rows["source_port"].to_pylist(), rows["destination_port"].to_pylist(), strict=True))
    assert len(flows) == 8 and {*flows.values()} == {40}, flows


@pytest.mark.parametrize("log", long_except([True], [False, True]), ids=["histograms", "log"])
def test_what_generic_xdp_gave_a_buffer_in_another_namespace_ends_no_packet_of_this_one(
    bed, alone, tmp_path, until, one_cpu, log
):
    other = bed.host("other")
    with generic_xdp(until, other), noise(other, "refused", cpu=one_cpu):
        for _ in range(5):
            with measured(tmp_path, alone, {"stages": LIGHT_STAGES}, log=log) as found:
                udp(alone, 1000)
            assert dropped(found["summary"]) == {}
            assert found["summary"].paths["delivered"] == 1000, found["summary"].paths


def test_what_passes_a_stage_again_keeps_the_first_time(alone, tmp_path, one_cpu):
    """Two reads copy parts of one segment."""
    gap_s = 0.3
    stages = ["netif_rx", "receive", "local_in", "copy", "start_xmit"]
    with (
        measured(tmp_path, alone, {"stages": stages}) as found,
        connection(alone, alone, "127.0.0.1", 5050) as (active, passive),
    ):
        active.sendall(bytes(100))
        assert len(passive.recv(1)) == 1
        time.sleep(gap_s)  # the distance between the reads, not a wait for anything
        assert len(passive.recv(100)) == 99
    packets = found["log"].packets
    is_delivered = pc.equal(packets["path"].cast("string"), "delivered")
    segments = packets.filter(pc.and_(pc.equal(packets["payload_bytes"], 100), is_delivered))
    (copied_ns,) = segments["copy_ns"].to_pylist()
    assert copied_ns < gap_s / 2 * 1e9


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
def test_each_packet_of_a_tun_is_seen(alone, tmp_path, one_cpu, log):
    """They begin at `receive`, and their answers by ICMP come back to the same file."""
    with tun(alone) as file:
        stages = ALL_STAGES if log else None
        with measured(tmp_path, alone, {"stages": stages}, log=log) as found:
            for _ in range(500):
                file.write(datagram("10.9.8.2", "10.9.8.1", 9999))
    assert dropped(found["summary"]) == {"NO_SOCKET": 500}
    assert found["summary"].paths["dropped"] == 500


def test_packets_whose_headers_gro_gets_in_pages_pass_filters_and_have_identities(alone, tmp_path):
    """A TAP device with IFF_NAPI_FRAGS gives them to GRO as some drivers of cards do."""
    with tun(alone, "tap0", IFF_TAP | IFF_NAPI | IFF_NAPI_FRAGS) as file:
        mac = json.loads(alone.run(["ip", "-j", "link", "show", "tap0"]).stdout)[0]["address"]
        frame = bytes.fromhex(mac.replace(":", "")) + b"\2\0\0\0\0\1\x08\0"
        with measured(tmp_path, alone, {"filter": "udp dst port 9999"}) as found:
            for _ in range(50):
                whole = frame + datagram("10.9.8.2", "10.9.8.1", 9999)
                os.writev(file.fileno(), [whole[:60], whole[60:]])
    packets = found["log"].packets
    assert paths_of(packets) == {"dropped": 50}
    assert set(packets["destination_port"].to_pylist()) == {9999}


def test_packets_of_which_gro_gets_no_header_pass_filters_and_have_identities(alone, tmp_path):
    """As virtio_net gives them: the header of Ethernet is copied, and all else is in pages."""
    with tun(alone, "tap0", IFF_TAP | IFF_NAPI | IFF_VNET_HDR) as file:
        alone.run(["ip", "link", "set", "tap0", "mtu", "9000"])
        mac = json.loads(alone.run(["ip", "-j", "link", "show", "tap0"]).stdout)[0]["address"]
        frame = bytes.fromhex(mac.replace(":", "")) + b"\2\0\0\0\0\1\x08\0"
        # struct virtio_net_hdr: no offloads, and 14 bytes that the driver is to copy.
        header = struct.pack("<BBHHHH", 0, 0, len(frame), 0, 0, 0)
        # More than a page, since the kernel copies all of shorter ones.
        whole = header + frame + segment("10.9.8.2", "10.9.8.1", 9999, bytes(5000))
        with measured(tmp_path, alone, {"filter": "tcp dst port 9999", "stages": ALL_STAGES}) as found:
            for _ in range(50):
                file.write(whole)
    packets = found["log"].packets
    assert paths_of(packets) == {"dropped": 50}
    assert set(packets["destination_port"].to_pylist()) == {9999}
    assert set(packets["payload_bytes"].to_pylist()) == {5000}


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
def test_what_is_no_ip_and_what_has_a_tag_in_its_frame_is_dropped(alone, tmp_path, log):
    """A log compares headers with those of the begin, histograms compare none: both have the same drops."""
    count = 50
    words = struct.pack("!10I", *range(1, 11))
    with tun(alone, "tap0", IFF_TAP) as file:
        mac = json.loads(alone.run(["ip", "-j", "link", "show", "tap0"]).stdout)[0]["address"]
        ends = bytes.fromhex(mac.replace(":", "")) + b"\2\0\0\0\0\1"
        frames = [
            # Of a protocol without a handler: the first looks like IPv4, the second like no IP, as ARP and LLDP do.
            ends + b"\x88\xb5" + b"\x45" + words,
            ends + b"\x88\xb5" + b"\0" + words,
            # A tag of priority without a VLAN, which the kernel takes off.
            ends + b"\x81\0\x60\0\x08\0" + datagram("10.9.8.2", "10.9.8.1", 9999),
        ]
        with measured(tmp_path, alone, {"stages": ALL_STAGES if log else None}, log=log) as found:
            for frame in frames:
                for _ in range(count):
                    file.write(frame)
    drops = dropped(found["summary"])
    assert drops == {"UNHANDLED_PROTO": 2 * count, "NO_SOCKET": count}, (drops, found["summary"].paths)
    if log:
        packets = found["log"].packets
        ours = packets.filter(pc.equal(packets["destination_port"], 9999))
        assert paths_of(ours) == {"dropped": count}


def test_a_filter_takes_what_has_a_tag_in_its_frame(alone, tmp_path):
    with tun(alone, "tap0", IFF_TAP) as file:
        mac = json.loads(alone.run(["ip", "-j", "link", "show", "tap0"]).stdout)[0]["address"]
        ends = bytes.fromhex(mac.replace(":", "")) + b"\2\0\0\0\0\1"
        with measured(tmp_path, alone, {"filter": "udp dst port 9999"}, log=False) as found:
            for port in [9999, 9998] * 20:
                file.write(ends + b"\x81\0\x60\0\x08\0" + datagram("10.9.8.2", "10.9.8.1", port))
    assert dropped(found["summary"]) == {"NO_SOCKET": 20}


@pytest.mark.parametrize("rate", ["1gbit", "20mbit"])
def test_what_is_sent_to_a_closed_port_is_not_delivered_by_its_answer(alone, tmp_path, one_cpu, rate):
    """Answers of ICMP make other sockets ready, in the buffer that the datagram has left.

    At the lower rate a timer sends packets on while the noise runs: they come while a program of ours looks at what the
    noise frees.
    """
    alone.run(
        ["tc", "qdisc", "replace", "dev", "lo", "root", "tbf", *["rate", rate, "burst", "2000", "limit", "4000000"]]
    )
    alone.sysctl("net.ipv4.icmp_ratelimit", 0)
    alone.sysctl("net.ipv4.icmp_msgs_per_sec", 1_000_000)
    alone.sysctl("net.ipv4.icmp_msgs_burst", 1_000_000)
    count = 4000
    # Nearly all of them wait at once, and hardly any is to displace another one.
    with (
        noise(alone, "unix", cpu=one_cpu),
        measured(tmp_path, alone, {"stages": ALL_STAGES, "packets_max": 1 << 18}) as found,
        socket_at(alone, "127.0.0.1", socket.SOCK_DGRAM) as sender,
    ):
        sender.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        sender.connect(("127.0.0.1", 9))
        refused = 0
        for _ in range(count):
            try:
                sender.send(bytes(100))
            except ConnectionRefusedError:
                refused += 1
        # Packets of one CPU keep their order: behind this one, all have passed.
        udp(alone, 1)
    packets = found["log"].packets
    there = packets.filter(pc.and_(pc.equal(packets["protocol"], 17), pc.equal(packets["destination_port"], 9)))
    assert refused > 0
    counts = paths_of(there)
    # Of those that wait, some may share a place in the table: the displaced one begins anew where it is sent.
    displaced = there.filter(pc.equal(there["path"], "displaced"))
    said = (counts, count - refused, found["summary"].missed, dropped(found["summary"]), displaced.to_pylist())
    assert displaced.num_rows <= min(10, found["summary"].paths.get("displaced", 0)), said
    assert displaced["queue_ns"].null_count == 0, said
    assert counts.get("delivered", 0) == 0 and set(counts) - {"displaced"} == {"sent", "dropped"}, said
    # Each began once on its way out, and once when it came in.
    assert counts["sent"] == counts["dropped"] == count - refused, said
    (drops,) = (row for row in found["summary"].drops if row["name"] == "NO_SOCKET")
    assert drops["followed"] == counts["dropped"], said


def test_what_a_full_tun_drops_is_dropped(alone, tmp_path, one_cpu):
    with tun(alone):
        alone.run(["ip", "link", "set", "tun0", "txqueuelen", "10"])
        alone.run(["tc", "qdisc", "replace", "dev", "tun0", "root", "noqueue"], check=False)
        with (
            measured(tmp_path, alone, {"stages": ALL_STAGES}) as found,
            socket_at(alone, "10.9.8.1", socket.SOCK_DGRAM) as sender,
        ):
            for _ in range(110):
                sender.sendto(bytes(100), ("10.9.8.7", 9000))
    packets = found["log"].packets
    there = packets.filter(pc.equal(packets["destination_port"], 9000))
    counts = paths_of(there)
    (drops,) = (row for row in found["summary"].drops if row["name"] == "FULL_RING")
    assert counts["dropped"] == drops["followed"] >= 100, (counts, found["summary"].drops)
    assert counts["dropped"] + counts["sent"] + counts.get("open", 0) == 110, counts


def test_an_interface_of_another_namespace_with_the_same_number_is_another(bed, tmp_path):
    """As on each host of containers: every eth0 has a number that another one has."""
    hosts = [bed.host(name) for name in ("a", "b", "c", "d")]
    links = [bed.link(*hosts[:2], backend="veth"), bed.link(*hosts[2:], backend="veth")]
    names = [links[0].interface(hosts[0]), links[1].interface(hosts[2])]

    def number(host, name):
        return int(host.run(["ip", "-o", "link", "show", name]).stdout.split(":")[0])

    assert number(hosts[0], names[0]) == number(hosts[2], names[1])
    with hosts[0].enter():
        profile = PathProfile(
            tmp_path / "log.arrow", interface=[names[0]], stages=["netif_rx", "receive", "start_xmit"]
        )
    with socket_at(hosts[2], "0.0.0.0", socket.SOCK_DGRAM) as sender:
        for _ in range(200):
            sender.sendto(bytes(100), (str(links[1].address(hosts[3])), 9000))
    with socket_at(hosts[0], "0.0.0.0", socket.SOCK_DGRAM) as sender:
        for _ in range(50):
            sender.sendto(bytes(100), (str(links[0].address(hosts[1])), 9000))
    summary = profile.stop()
    check_balance(summary.ledger)
    assert summary.paths["sent"] == 50, summary.paths


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
def test_an_orderly_end_of_a_connection_drops_nothing(alone, tmp_path, until, log):
    """Neither the end that is left unread, nor the one that comes when its connection is in TIME_WAIT already."""

    def is_half_closed():
        return alone.run(["ss", "-tanHO", "state", "fin-wait-2"]).stdout != ""

    with (
        measured(tmp_path, alone, {"stages": ALL_STAGES if log else None}, log=log) as found,
        socket_at(alone, "127.0.0.1", socket.SOCK_STREAM) as listener,
    ):
        listener.bind(("127.0.0.1", 5100))
        listener.listen()
        for number in range(40):
            active = socket_at(alone, "127.0.0.1", socket.SOCK_STREAM)
            active.connect(("127.0.0.1", 5100))
            passive, _ = listener.accept()
            active.sendall(b"question")
            assert passive.recv(100) == b"question"
            # The end that closes first never reads the FIN of the other one.
            first, second = (active, passive) if number % 2 else (passive, active)
            first.close()
            assert second.recv(10) == b""
            if number > 30:
                until("the first end was acknowledged", is_half_closed)
            second.close()
    assert [row for row in found["summary"].drops if row["followed"]] == []
    assert found["summary"].paths["dropped"] == 0


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
def test_a_datagram_that_is_closed_unread_was_delivered_and_not_read(alone, tmp_path, log):
    stages = ALL_STAGES if log else None
    with measured(tmp_path, alone, {"stages": stages}, log=log) as found:
        for port in range(9000, 9050):
            udp(alone, 1, port=port, read=False)
    paths = found["summary"].paths
    assert (paths["delivered"], paths["dropped"]) == (50, 0), paths


@pytest.mark.parametrize("keeps", [False, True], ids=["a connection each", "one connection"])
def test_a_read_takes_no_longer_than_its_data_was_there(alone, tmp_path, one_cpu, keeps):
    """What a connection leaves behind is not of the next one, whose socket has its address."""
    gap_s, rounds = 0.03, 60

    def serve(listener):
        for _ in range(1 if keeps else rounds):
            passive, _ = listener.accept()
            with passive:
                while passive.recv(100):
                    passive.sendall(b"answer")

    with ExitStack() as stack:
        listener = stack.enter_context(socket_at(alone, "127.0.0.1", socket.SOCK_STREAM))
        listener.bind(("127.0.0.1", 5600))
        listener.listen()
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        found = stack.enter_context(measured(tmp_path, alone, {"reads": True, "stages": ALL_STAGES}))
        active = None
        for _ in range(rounds):
            if active is None or not keeps:
                active = socket_at(alone, "127.0.0.1", socket.SOCK_STREAM)
                active.connect(("127.0.0.1", 5600))
            active.sendall(b"question")
            assert active.recv(100) == b"answer"
            if not keeps:
                active.close()
            time.sleep(gap_s)  # the distance between requests, not a wait for anything
        active.close()
        server.join()
    if not has_stage(found, "data_ready"):
        pytest.skip("this kernel lacks the stage at which data is ready")
    reads = found["log"].reads
    waited_ns = reads["read_ns"].to_pylist()
    # One at each end of a request; what the other end has closed is no read.
    each = Counter(reads["socket_cookie"].to_pylist())
    odd = [row for row in reads.to_pylist() if each[row["socket_cookie"]] != (rounds if keeps else 1)]
    assert (len(waited_ns), odd) == (2 * rounds, []), (os.getpid(), found["summary"].ledger)
    # Half of them, for a busy host may let the reader wait for its CPU.
    assert statistics.median(waited_ns) < gap_s * 1e9 / 2, sorted(waited_ns)


def test_reads_of_other_namespaces_are_not_logged(bed, tmp_path, one_cpu):
    here, there = bed.host("here"), bed.host("there")
    with measured(tmp_path, here, {"reads": True, "stages": ALL_STAGES}) as found:
        for _ in range(20):
            udp(there, 20)
            udp(here, 5)
    if not has_stage(found, "data_ready"):
        pytest.skip("this kernel lacks the stage at which data is ready")
    assert found["log"].reads.num_rows == 100


def test_reads_bring_the_stage_at_which_they_begin(alone):
    with PathProfile(netns=alone.namespace, reads=True, filter="udp") as profile:
        udp(alone, 20)
    assert not profile.summary.unavailable
    (whole,) = (row for row in profile.summary.reads if row["kind"] == "whole")
    assert whole["events"] == 20


def test_noise_in_windows_counts_no_gap_between_them(alone):
    done = run("--netns", alone.namespace, "--noise", "--share", "30%", "--duration", "6", "--json", "-q")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["windows"] > 0
    for row in summary["noise"]:
        # The programs were attached once more, on trial.
        gaps_s = (row["gap_mean_ns"] or 0) * (row["events"] - summary["windows"] - 1) / 1e9
        # Under load it takes as long to attach as to measure, and the noise is attached first.
        assert gaps_s <= summary["attached_s"], row
        if row["kind"] == "net_rx_delay":
            assert row["max_ns"] < summary["attached_s"] * 1e9, row


# Words that an interface of each kind needs.
UPPER = {"macvlan": "mode bridge", "ipvlan": "mode l2", "vlan": "id 5"}


@pytest.mark.optional
@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
@pytest.mark.parametrize("kind", UPPER)
def test_what_leaves_by_an_interface_on_another_one_is_sent_once(ends, tmp_path, kind, log):
    """Both interfaces count it; the lower one is its `interface_out`."""
    left, right, link = ends
    lower, other = link.interface(left), link.interface(right)
    for host, name, address in ((left, lower, "10.99.0.1/24"), (right, other, "10.99.0.2/24")):
        try:
            host.run(f"ip link add link {name} name upper type {kind} {UPPER[kind]}".split())
        except ParshallError as error:
            pytest.skip(f"not in this kernel: {error}")
        host.run(["ip", "address", "add", address, "dev", "upper"])
        host.run(["ip", "link", "set", "upper", "up"])

    def sent_by(name):
        (shown,) = json.loads(left.run(["ip", "-s", "-j", "link", "show", name]).stdout)
        return shown["stats64"]["tx"]["packets"]

    options = {"filter": "udp port 9000", "stages": ALL_STAGES if log else None}
    with (
        socket_at(right, "10.99.0.2", socket.SOCK_DGRAM) as sink,
        socket_at(left, "10.99.0.1", socket.SOCK_DGRAM) as source,
    ):
        sink.settimeout(20)
        sink.bind(("10.99.0.2", 9000))
        source.sendto(b"are you there", ("10.99.0.2", 9000))
        sink.recv(100)
        before = {name: sent_by(name) for name in ("upper", lower)}
        with measured(tmp_path, left, options, log=log) as found:
            for _ in range(20):
                source.sendto(b"once", ("10.99.0.2", 9000))
                assert sink.recv(100) == b"once"
        grown = {name: sent_by(name) - count for name, count in before.items()}
    assert min(grown.values()) >= 20
    assert found["summary"].paths["sent"] == 20, found["summary"].paths
    if log:
        rows = found["log"].packets
        rows = rows.filter(pc.equal(pc.cast(rows["path"], "string"), "sent"))
        with left.enter():
            assert set(rows["interface_out"].to_pylist()) == {socket.if_nametoindex(lower)}


@pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
def test_what_a_host_sends_is_not_delivered_where_its_arrival_was_not_seen(bed, tmp_path, log):
    """The next host finds the socket of the same sk_buff; over this link no packet passes `gro`."""
    sender, receiver = bed.host("sender"), bed.host("receiver")
    address = str(bed.link(sender, receiver, backend="veth").address(receiver))
    stages = ["gro", "local_out", "queue", "socket_in", "copy"]
    with measured(tmp_path, sender, {"stages": stages, "filter": "udp port 9000"}, log=log) as found:
        with (
            socket_at(sender, "0.0.0.0", socket.SOCK_DGRAM) as sending,
            socket_at(receiver, "0.0.0.0", socket.SOCK_DGRAM) as receiving,
        ):
            receiving.settimeout(20)
            receiving.bind((address, 9000))
            for _ in range(100):
                sending.sendto(bytes(100), (address, 9000))
                assert receiving.recv(200)
    paths = {name: count for name, count in found["summary"].paths.items() if count}
    assert paths == {"unknown": 100}, paths
    assert {row["stage"] for row in found["summary"].times} <= {"queue", "whole"}
