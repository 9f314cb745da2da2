"""Packets that the kernel cuts and joins: software GSO and fragments, held against its counters and tcpdump."""

import json
import socket
import struct
import threading
import time
from itertools import product

import pyarrow.compute as pc
import pytest
from changed_programs import compiled
from conversation import Tcpdump, connection, send_marker, socket_at, transfer
from path_noise import noise
from ports import PORTS
from test_compilers import GIVEN
from test_path_truth import measured, paths_of

from parshall.instruments.path.stages import ALL_STAGES
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
MODES = pytest.mark.parametrize("log", [False, True], ids=["histograms", "log"])
# Versions of IP with what is measured.
BOTH = pytest.mark.parametrize(
    ("two", "log"),
    long_except([(4, True), (6, False)], product((4, 6), (False, True))),
    indirect=["two"],
    ids={4: "IPv4", 6: "IPv6", False: "histograms", True: "log"}.get,
)
PORT = next(PORTS)
UDP_SEGMENT = 103
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, TCP_RECEIVE_QUEUE, TCP_SEND_QUEUE = 19, 20, 21, 1, 2
TCP_REPAIR_OPTIONS, TCP_REPAIR_WINDOW, TCPOPT_MAXSEG, TCPOPT_WINDOW, WINDOW_BYTES = 22, 29, 2, 3, 1 << 16
DATAGRAMS, FRAGMENTS, PAYLOAD_BYTES = 50, 3, 4000
# Of IPv6 the fragment header names the protocol.
NO_PORTS = {4: "UdpNoPorts", 6: "Udp6NoPorts"}
ONLY_FRAGMENTS = {4: "ip proto 17", 6: "ip6[6] = 44"}


def counters(host):
    """Return the counters of IP, IPv6 and UDP of a host, as the kernel keeps them."""
    lines = host.run(["cat", "/proc/net/snmp"]).stdout.splitlines()
    found = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        protocol = names.split(":")[0]
        pairs = zip(names.split()[1:], values.split()[1:], strict=True)
        found |= {f"{protocol}{name}": int(value) for name, value in pairs}
    for line in host.run(["cat", "/proc/net/snmp6"]).stdout.splitlines():
        name, value = line.split()
        found[name] = int(value)
    return found


def grown(before, after, name):
    """Return by how much a counter grew."""
    return after[name] - before[name]


@pytest.fixture
def two(request, bed, until):
    """Two hosts whose neighbours are known, the receiver's address, the version of IP, and their interfaces."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right, backend="veth")
    address = str(link.address(right))
    if request.param == 6:
        for number, host in enumerate((left, right), 1):
            host.run(["ip", "addr", "add", f"fd00:77::{number}/64", "dev", link.interface(host), "nodad"])
        address = "fd00:77::2"

    def neighbour():
        return left.run(["ip", "neigh", "show", address]).stdout

    came = [-1]

    def is_known():
        # Until the neighbour has answered, a datagram waits; when it has not answered three times, it is lost, even if
        # the neighbour answers the next one. What comes late would be of the test.
        came.append(counters(right)[NO_PORTS[request.param]])
        if came[-1] == 0 and "INCOMPLETE" not in neighbour():
            send(left, address, 1, payload_bytes=10)
        return 1 <= came[-1] == came[-2]

    until("a datagram came", is_known, seen=neighbour)
    interfaces = link.interface(left), link.interface(right)
    return left, right, address, request.param, interfaces


def send(host, address, count, payload_bytes=PAYLOAD_BYTES):
    """Send datagrams."""
    with socket_at(host, "::" if ":" in address else "0.0.0.0", socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            sender.sendto(bytes(payload_bytes), (address, PORT))


@BOTH
def test_a_datagram_of_fragments_is_delivered_once(two, tmp_path, log):
    left, right, address, version, _ = two
    before = counters(right)
    options = {"stages": ALL_STAGES if log else None, "filter": ONLY_FRAGMENTS[version]}
    with socket_at(right, "::" if version == 6 else "0.0.0.0", socket.SOCK_DGRAM) as receiver:
        receiver.bind(("::" if version == 6 else "0.0.0.0", PORT))
        receiver.settimeout(20)
        with measured(tmp_path, right, options, log=log) as found:
            for _ in range(DATAGRAMS):
                send(left, address, 1)
                # Another thread than the sender's: the kernel gives a buffer back on the CPU that made it.
                reader = threading.Thread(target=receiver.recv, args=[1 << 16])
                reader.start()
                reader.join()
    after = counters(right)
    assert grown(before, after, "Ip6ReasmOKs" if version == 6 else "IpReasmOKs") == DATAGRAMS
    assert grown(before, after, "Ip6ReasmReqds" if version == 6 else "IpReasmReqds") == DATAGRAMS * FRAGMENTS
    paths = found["summary"].paths
    counted = (paths["delivered"], paths["dropped"], paths["consumed"])
    assert counted == (DATAGRAMS, 0, 0), (paths, found["summary"].drops, found["summary"].ledger)
    # What reading frees is not seen without the stage `consume`, nor if the address is in use again before.
    assert paths["merged"] + paths["unknown"] + paths["open"] == DATAGRAMS * (FRAGMENTS - 1), paths
    assert not log or paths["merged"] > 0.9 * DATAGRAMS * (FRAGMENTS - 1), paths


@BOTH
def test_a_datagram_of_fragments_is_dropped_once(two, tmp_path, until, log):
    """At a closed port, and where the receiver's buffer is full."""
    left, right, address, version, _ = two
    before = counters(right)
    options = {"stages": ALL_STAGES if log else None, "filter": ONLY_FRAGMENTS[version]}
    with measured(tmp_path, right, options, log=log) as found:
        send(left, address, DATAGRAMS)
        # What still waits for its CPU would come to the socket that opens next.
        no_ports = NO_PORTS[version]
        until("all came", lambda: grown(before, counters(right), no_ports) == DATAGRAMS, seen=lambda: counters(right))
        with socket_at(right, "::" if version == 6 else "0.0.0.0", socket.SOCK_DGRAM) as receiver:
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
            receiver.bind(("::" if version == 6 else "0.0.0.0", PORT))
            send(left, address, DATAGRAMS)
    after = counters(right)
    udp = "Udp6" if version == 6 else "Udp"
    no_port, no_room = grown(before, after, f"{udp}NoPorts"), grown(before, after, f"{udp}RcvbufErrors")
    assert no_port == DATAGRAMS and 0 < no_room < DATAGRAMS
    by_reason = {row["name"]: row["followed"] for row in found["summary"].drops if row["followed"]}
    assert by_reason == {"NO_SOCKET": no_port, "SOCKET_RCVBUFF": no_room}
    paths = found["summary"].paths
    assert paths["dropped"] == no_port + no_room
    assert paths["delivered"] == DATAGRAMS - no_room, paths


@BOTH
def test_fragments_whose_others_do_not_come_are_dropped(two, tmp_path, until, log):
    left, right, address, version, (_, interface) = two
    last = "ip frag-off & 0x3fff != 0 ip frag-off & 0x2000 = 0" if version == 4 else "frag more-fragments 0"
    family = "ip6" if version == 6 else "ip"
    right.sysctl(f"net.ipv{version}.ip{'6' if version == 6 else ''}frag_time", 1)
    rules = "add table netdev t; " + (
        f"add chain netdev t c {{ type filter hook ingress device {interface} priority 0; }}; "
        f"add rule netdev t c meta protocol {family} {last.replace(' = ', ' == ')} drop"
    )
    right.run(["nft", rules])
    before = counters(right)
    queues = "FRAG6" if version == 6 else "FRAG"

    def waiting_bytes():
        [line] = [
            line for line in right.run(["cat", "/proc/net/sockstat" + queues[4:]]).stdout.splitlines() if queues in line
        ]
        return int(line.split()[-1])

    options = {"stages": ALL_STAGES if log else None, "filter": ONLY_FRAGMENTS[version]}
    with measured(tmp_path, right, options, log=log) as found:
        send(left, address, 10)
        # The counters grow before the kernel frees what waits.
        name = "Ip6ReasmFails" if version == 6 else "IpReasmFails"
        until("reassembly gave up", lambda: grown(before, counters(right), name) >= 10 and waiting_bytes() == 0)
    by_reason = {row["name"]: row["followed"] for row in found["summary"].drops if row["followed"]}
    assert by_reason == {"FRAG_REASM_TIMEOUT": 20, "NETFILTER_DROP": 10}, by_reason
    assert found["summary"].paths["delivered"] == 0


def offload(host, interface, *features):
    """Switch off what would leave large packets whole."""
    for feature in features:
        done = host.run(["ethtool", "-K", interface, feature, "off"], check=False)
        assert done.returncode == 0, done.stderr


def segments(tap, until):
    """Return the numbers of segments with data that tcpdump saw, without those of the marker."""
    return sum(1 for packet in tap.stop(until) if packet.payload_bytes and packet.source_port != PORT)


def check_pieces(found, witness, code, first_stage, waits):
    """Fail unless the pieces are those of the witness, each with the times of the packet that was cut."""
    summary = found["summary"]
    assert summary.paths[code] >= witness > 100, (summary.paths, witness)
    assert summary.paths["segmented"] > 10, summary.paths
    if "log" not in found:
        return
    packets = found["log"].packets
    data = packets.filter(pc.and_(pc.equal(packets["destination_port"], PORT), pc.greater(packets["payload_bytes"], 0)))
    paths = paths_of(data)
    assert paths[code] == witness and set(paths) == {code, "segmented"}, paths
    pieces = data.filter(pc.equal(data["path"], code))
    assert set(pieces["first_stage"].to_pylist()) == {first_stage}
    assert set(pieces["gso_segs"].to_pylist()) == {1}
    for stage in waits:
        # Of a list that is dequeued at once, the tracepoint of the kernel names the first only. A timer that is late
        # finds tokens for two packets.
        allowed = witness / 2 if stage == "qdisc_dequeue" else 0
        assert pieces[f"{stage}_ns"].null_count <= allowed, stage
    wholes = data.filter(pc.equal(data["path"], "segmented"))
    assert pc.min(wholes["gso_segs"]).as_py() > 1
    # Each piece has the beginning of a packet that was cut, or is one that was sent as it is.
    cut = dict(zip(wholes["time"].to_pylist(), wholes["gso_segs"].to_pylist(), strict=True))
    seen = {}
    for begin in pieces["time"].to_pylist():
        seen[begin] = seen.get(begin, 0) + 1
    assert {begin: count for begin, count in seen.items() if count > 1} == cut


@pytest.fixture
def disturbed(two, one_cpu):
    """Beside the packets that are judged: churn of buffers on the same CPU, and another connection."""
    left, right, address, *_ = two
    with noise(left, "unix", "netlink", "packet", cpu=one_cpu), connection(left, right, address, next(PORTS)) as beside:
        thread = threading.Thread(target=transfer, args=[*beside, 2_000_000])
        thread.start()
        yield
        thread.join()


@BOTH
@pytest.mark.parametrize("shaper", [False, True], ids=["driver", "tbf"])
def test_pieces_of_a_sent_packet_have_its_times(two, request, tmp_path, until, log, shaper):
    left, right, address, _, (interface, other) = two
    if shaper:
        rate = ["rate", "200mbit", "burst", "3200", "limit", "1000000"]
        left.run(["tc", "qdisc", "replace", "dev", interface, "root", "tbf", *rate])
    else:
        offload(left, interface, "tso")
    request.getfixturevalue("disturbed")
    tap = Tcpdump(right, other, PORT, tmp_path / "right.pcap")
    options = {"stages": ALL_STAGES if log else None, "filter": f"tcp port {PORT}"}
    with (
        measured(tmp_path, left, options, log=log) as found,
        connection(left, right, address, PORT) as (active, passive),
    ):
        transfer(active, passive, 1_000_000)
    send_marker(left, address, PORT)
    waits = ["queue", "start_xmit"] + (["qdisc_dequeue"] if shaper else [])
    check_pieces(found, segments(tap, until), "sent", "local_out", waits)


def restored(host, own, peer, send_seq, receive_seq):
    """Make an established connection with these sequence numbers, as checkpoint/restore does."""
    each = socket_at(host, own[0], socket.SOCK_STREAM)
    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    each.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    for queue, seq in ((TCP_SEND_QUEUE, send_seq), (TCP_RECEIVE_QUEUE, receive_seq)):
        each.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
        each.setsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ, struct.pack("=I", seq))
    each.bind(own)
    each.connect(peer)
    # Without a handshake, nobody has agreed on the maximum segment and on scales of windows.
    options = struct.pack("=IIII", TCPOPT_MAXSEG, 1448, TCPOPT_WINDOW, 7 | 7 << 16)
    each.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_OPTIONS, options)
    windows = struct.pack("=IIIII", receive_seq, WINDOW_BYTES, WINDOW_BYTES, WINDOW_BYTES, receive_seq)
    each.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_WINDOW, windows)
    return each


def test_pieces_behind_a_wrap_of_sequence_numbers_are_those_of_the_packet(router, tmp_path, until):
    """Of a packet that begins before 2^32 and ends behind it."""
    offload(router.source, router.source_if, "tso")
    tap = Tcpdump(router.router, router.in_if, PORT, tmp_path / "router.pcap")
    ends = (str(router.source_address), next(PORTS)), (str(router.sink_address), PORT)
    first = 2**32 - 100_000
    options = {"stages": ALL_STAGES, "filter": f"tcp port {PORT}"}
    with measured(tmp_path, router.source, options) as found:
        active = restored(router.source, *ends, first, 1)
        passive = restored(router.sink, *reversed(ends), 1, first)
        with active, passive:
            for each in (active, passive):
                each.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
            transfer(active, passive, 200_000)
            # Without the handshake of an end, which would send again what it lacks.
            for each in (active, passive):
                each.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    send_marker(router.source, str(router.sink_address), PORT)
    check_pieces(found, segments(tap, until), "sent", "local_out", ["queue", "start_xmit"])
    packets = found["log"].packets
    wholes = packets.filter(pc.equal(packets["path"], "segmented")).to_pylist()
    assert [row for row in wholes if row["tcp_seq"] > first and row["tcp_seq"] + row["payload_bytes"] > 2**32]


@MODES
def test_pieces_of_a_forwarded_packet_have_its_times(router, tmp_path, until, log):
    offload(router.router, router.out_if, "tso")
    large = ["ethtool", "-K", router.source_if, "tx", "on", "sg", "on", "tso", "on", "gso", "on"]
    done = router.source.run(large, check=False)
    assert done.returncode == 0, done.stderr
    tap = Tcpdump(router.sink, router.sink_if, PORT, tmp_path / "sink.pcap")
    address = str(router.sink_address)
    options = {"stages": ALL_STAGES if log else None}
    with (
        measured(tmp_path, router.router, options, log=log) as found,
        connection(router.source, router.sink, address, PORT) as (active, passive),
    ):
        transfer(active, passive, 1_000_000)
    send_marker(router.source, address, PORT)
    check_pieces(found, segments(tap, until), "forwarded", "netif_rx", ["queue", "start_xmit"])


@BOTH
def test_pieces_of_a_large_datagram_have_its_times(two, tmp_path, log):
    left, right, address, version, (interface, _) = two
    offload(left, interface, "tx-udp-segmentation")
    before = counters(right)
    options = {"stages": ALL_STAGES if log else None, "filter": f"udp port {PORT}"}
    with (
        measured(tmp_path, left, options, log=log) as found,
        socket_at(left, "::" if version == 6 else "0.0.0.0", socket.SOCK_DGRAM) as sender,
    ):
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 500)
        for _ in range(30):
            sender.sendto(bytes(5000), (address, PORT))
    assert grown(before, counters(right), "Udp6NoPorts" if version == 6 else "UdpNoPorts") == 300
    paths = found["summary"].paths
    assert (paths["sent"], paths["segmented"]) == (300, 30), paths
    if log:
        packets = found["log"].packets
        pieces = packets.filter(pc.equal(packets["path"], "sent"))
        assert set(pieces["first_stage"].to_pylist()) == {"local_out"}
        assert len(set(pieces["time"].to_pylist())) == 30


@pytest.fixture
def for_one(tmp_path, monkeypatch):
    """Load programs that remember one GSO packet at a time."""
    changes = {"path_segment.h": [("#define GSO_PACKETS_MAX 4096", "#define GSO_PACKETS_MAX 1")]}
    monkeypatch.setenv("PARSHALL_BPF_OBJECTS", str(compiled(tmp_path, "path", changes)))


@pytest.mark.skipif(GIVEN is not None, reason="the objects are given")
@pytest.mark.parametrize("two", [4], indirect=True)
def test_large_datagrams_of_other_namespaces_leave_the_memory_of_large_packets_alone(for_one, two, bed, tmp_path):
    left, _right, address, _, (interface, _) = two
    others = [bed.host("other_sender"), bed.host("other_receiver")]
    link = bed.link(*others, backend="veth")
    offload(left, interface, "tx-udp-segmentation")
    offload(others[0], link.interface(others[0]), "tx-udp-segmentation")
    is_over = threading.Event()

    def disturb(sender):
        while not is_over.is_set():
            sender.sendto(bytes(5000), (str(link.address(others[1])), PORT))

    def sending(host):
        sender = socket_at(host, "0.0.0.0", socket.SOCK_DGRAM)
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 500)
        return sender

    options = {"stages": ALL_STAGES, "filter": f"udp port {PORT}"}
    with (
        sending(others[0]) as disturbing,
        measured(tmp_path, left, options, log=True) as found,
        sending(left) as sender,
    ):
        disturber = threading.Thread(target=disturb, args=[disturbing])
        disturber.start()
        for _ in range(1000):
            sender.sendto(bytes(5000), (address, PORT))
        is_over.set()
        disturber.join()
    packets = found["log"].packets
    pieces = packets.filter(pc.equal(packets["path"], "sent"))
    assert pieces.num_rows == 10_000
    assert set(pieces["first_stage"].to_pylist()) == {"local_out"}


@BOTH
def test_pieces_that_a_queue_discipline_drops_are_followed(two, request, tmp_path, until, log):
    """A token bucket segments what is longer than its burst, and drops the segments that find no room."""
    left, right, address, version, (interface, _) = two
    limit = ["rate", "20mbit", "burst", "3200", "limit", "9000"]
    left.run(["tc", "qdisc", "replace", "dev", interface, "root", "tbf", *limit])
    request.getfixturevalue("disturbed")
    before = counters(right)
    options = {"stages": ALL_STAGES if log else None, "filter": f"udp port {PORT}"}

    def is_empty():
        shown = left.run(["tc", "-s", "-j", "qdisc", "show", "dev", interface]).stdout
        return all(each["backlog"] == 0 for each in json.loads(shown))

    with (
        measured(tmp_path, left, options, log=log) as found,
        socket_at(left, "::" if version == 6 else "0.0.0.0", socket.SOCK_DGRAM) as sender,
    ):
        sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 500)
        for _ in range(40):
            sender.sendto(bytes(5000), (address, PORT))
        until("the queue is empty", is_empty)
    arrived = grown(before, counters(right), "Udp6NoPorts" if version == 6 else "UdpNoPorts")
    paths = found["summary"].paths
    assert 0 < arrived < 400
    # Also of datagrams no segment of which found room, where the kernel drops the datagram itself, too.
    assert (paths["sent"], paths["dropped"]) == (arrived, 400 - arrived), (paths, arrived)
    # Without the stage `consume`, others may take the place of a datagram whose segments wait.
    assert paths["segmented"] + (0 if log else paths["unknown"]) == 40, paths
    if log:
        dropped = found["log"].packets.filter(pc.equal(found["log"].packets["path"], "dropped")).to_pylist()
        assert {(row["payload_bytes"], row["drop_reason"]) for row in dropped} == {(500, "QDISC_DROP")}
        assert {row["first_stage"] for row in dropped} == {"local_out"}


@MODES
def test_datagrams_that_gro_puts_into_a_list_have_their_own_times(router, tmp_path, log):
    """The kernel takes the list apart before the driver, and gives the sk_buff of the list to its first datagram."""
    features = [
        (router.in_if, ("gro", "on"), ("rx-gro-list", "on")),
        (router.out_if, ("tx-gso-list", "off")),
    ]
    for interface, *wanted in features:
        for feature, state in wanted:
            done = router.router.run(["ethtool", "-K", interface, feature, state], check=False)
            if done.returncode:
                pytest.skip(f"not in this kernel: {feature} of {interface}: {done.stderr.strip()}")
    # GRO holds packets until this time has passed, so that it puts all of a burst into one list.
    hold = "mount -t sysfs none /sys; cd /sys/class/net/$0; echo 2000000 > gro_flush_timeout; echo 9 > $1"
    router.router.run(["unshare", "--mount", "sh", "-e", "-c", hold, router.in_if, "napi_defer_hard_irqs"])
    bursts, each, gap_s = 30, 10, 0.02
    options = {"stages": ALL_STAGES if log else None, "filter": f"udp port {PORT}"}
    with (
        measured(tmp_path, router.router, options, log=log) as found,
        socket_at(router.source, "0.0.0.0", socket.SOCK_DGRAM) as sender,
    ):
        for _ in range(bursts):
            for _ in range(each):
                sender.sendto(bytes(500), (str(router.sink_address), PORT))
            time.sleep(gap_s)  # the distance between bursts, not a wait for anything
    paths = found["summary"].paths
    assert paths["forwarded"] == bursts * each and paths["merged"] > bursts * each / 2, paths
    if log:
        packets = found["log"].packets
        forwarded = packets.filter(pc.equal(packets["path"], "forwarded"))
        assert max(forwarded["whole_ns"].to_pylist()) < gap_s / 2 * 1e9
