"""The security gateway: what comes out is what went in, what was changed or repeated is dropped and counted."""

import json
import socket
import subprocess
import time

import numpy as np
import pytest

from parshall import _native
from parshall.errors import ParshallError, UsageError
from parshall.instruments.generate import Generator
from parshall.router import Gateway, RouterTestbed, Setup, Traffic, measure, new_secret
from parshall.router.gateway import PORT
from parshall.router.tunnel import TUN, tunnel
from parshall.testbed import Testbed

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]

CIPHERS = ("aes-gcm", "chacha20")
COUNT = 300


def udp_socket(host, address, port):
    with host.enter():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    made.bind((address, port))
    made.settimeout(5)
    return made


def wait_until(is_true, timeout_s=5.0):
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, "not within time"
        time.sleep(0.005)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_the_far_end_gets_exactly_the_bytes_that_were_sent(cipher, tmp_path):
    with RouterTestbed(Setup(tunnel=cipher)) as bed, tunnel(bed, cipher=cipher, has_far_end=True) as gateways:
        bed.start_receiving()
        bed.sink.run(["ip", "address", "add", "198.18.1.1/32", "dev", "lo"])
        # The sink has no way back to the test's sources.
        bed.sink.sysctl("net.ipv4.conf.all.rp_filter", 0)
        bed.sink.sysctl(f"net.ipv4.conf.{TUN}.rp_filter", 0)
        receiver = udp_socket(bed.sink, "198.18.1.1", 9)
        file = tmp_path / "outside.pcap"
        command = ["tcpdump", "-i", bed.egress, "-n", "-U", "--immediate-mode", "-s", "0", "-w", str(file), "udp"]
        witness = bed.router.popen(command, stderr=subprocess.PIPE, text=True)
        assert "listening" in witness.stderr.readline()
        generator = Generator(
            bed.inside.interface(bed.source),
            sizes="64-1400",
            pps=3000,
            count=COUNT,
            dst_mac=bed.inside.end(bed.router).mac,
            netns=bed.source.path,
            seed=5,
            yes_on=bed.inside.interface(bed.source),
        )
        request = generator.request
        assert generator.wait().account["sent"] == COUNT
        payloads = [receiver.recv(65536) for _ in range(COUNT)]
        wait_until(lambda: file.stat().st_size > sum(map(len, payloads)))
        witness.terminate()
        witness.communicate()
        near, far = gateways.near.stop(), gateways.far.stop()
        receiver.close()
    frames = [frame for _, frame in _native.planned_frames(json.dumps(request), [0] * COUNT)]
    # Short frames are padded behind the IP packet.
    assert payloads == [frame[42 : 14 + int.from_bytes(frame[16:18], "big")] for frame in frames]
    assert near["read"] == near["sent"] == far["received"] == far["written"] == COUNT
    assert near["read_bytes"] == far["written_bytes"]
    # Nothing of a packet can be read outside.
    outside = file.read_bytes()
    assert not any(payload[:16] in outside for payload in payloads)


class Middle:
    """An attacker between two gateways on one host, who decides what becomes of each datagram."""

    def __init__(self, host, cipher):
        self.host = host
        secret = new_secret()
        settings = {"cipher": cipher, "netns": host.path}
        self.inward = udp_socket(host, "127.0.0.2", PORT)
        self.outward = udp_socket(host, "127.0.0.3", PORT)
        self.near = Gateway("near", f"127.0.0.1:{PORT}", f"127.0.0.2:{PORT}", secret, is_first=True, **settings)
        self.far = Gateway("far", f"127.0.0.4:{PORT}", f"127.0.0.3:{PORT}", secret, is_first=False, **settings)
        for tun in ("near", "far"):
            host.sysctl(f"net.ipv6.conf.{tun}.disable_ipv6", 1)
            host.run(["ip", "link", "set", tun, "up"])
        host.run(["ip", "address", "add", "192.0.2.1/24", "dev", "near"])

    def datagrams(self, count):
        """Return so many datagrams of the near gateway, which it has sent here."""
        sender = udp_socket(self.host, "192.0.2.1", 0)
        for number in range(count):
            sender.sendto(bytes([number]) * 50, ("192.0.2.77", 9))
        sender.close()
        return [self.inward.recv(65536) for _ in range(count)]

    def deliver(self, datagrams):
        """Send datagrams to the far gateway, and return its account when it has received them."""
        before = self.far.status()["received"]
        for datagram in datagrams:
            self.outward.sendto(datagram, ("127.0.0.4", PORT))
        wait_until(lambda: self.far.status()["received"] == before + len(datagrams))
        return self.far.status()

    def close(self):
        """End the gateways."""
        for each in (self.near, self.far):
            each.stop()
        for each in (self.inward, self.outward):
            each.close()


@pytest.fixture(params=CIPHERS)
def middle(request):
    with Testbed() as bed:
        made = Middle(bed.host("both"), request.param)
        yield made
        made.close()


def test_changed_and_repeated_datagrams_are_dropped_and_counted(middle):
    whole = middle.datagrams(40)
    changed = []
    for number, datagram in enumerate(whole[:30]):
        bytes_ = bytearray(datagram)
        bytes_[number * len(datagram) // 30] ^= 0x10
        changed.append(bytes(bytes_))
    account = middle.deliver([*changed, b"", b"short", whole[0][:-1], whole[0] + b"\0"])
    assert (account["tampered"], account["written"], account["replayed"]) == (34, 0, 0)
    account = middle.deliver(whole)
    assert (account["tampered"], account["written"], account["replayed"]) == (34, 40, 0)
    account = middle.deliver(whole[::-1])
    assert (account["tampered"], account["written"], account["replayed"]) == (34, 40, 40)
    assert account["received"] == sum(account[name] for name in ("written", "tampered", "replayed", "write_failed"))


def test_reordered_datagrams_come_through(middle):
    whole = middle.datagrams(40)
    account = middle.deliver(whole[::-1])
    assert (account["written"], account["replayed"]) == (40, 0)


def test_another_secret_opens_nothing():
    with Testbed() as bed:
        host = bed.host("both")
        ends = [
            Gateway(f"tun{end}", f"127.0.0.1:{4500 + end}", f"127.0.0.1:{4501 - end}", new_secret(),
                    is_first=not end, netns=host.path)
            for end in (0, 1)
        ]  # fmt: skip
        host.sysctl("net.ipv6.conf.tun0.disable_ipv6", 1)
        host.run(["ip", "link", "set", "tun0", "up"])
        host.run(["ip", "address", "add", "192.0.2.1/24", "dev", "tun0"])
        sender = udp_socket(host, "192.0.2.1", 0)
        sender.sendto(b"x" * 50, ("192.0.2.77", 9))
        wait_until(lambda: ends[1].status()["received"] == 1)
        assert ends[1].status()["tampered"] == 1
        sender.close()
        for end in ends:
            end.stop()


def test_a_missing_peer_is_named():
    with RouterTestbed(Setup(tunnel="aes-gcm")) as bed, tunnel(bed, cipher="aes-gcm") as gateways:
        bed.start_receiving()
        sender = udp_socket(bed.router, bed.outside.address(bed.router), 0)
        for _ in range(20):
            sender.sendto(b"x", ("198.18.1.1", 9))
            time.sleep(0.001)
        wait_until(lambda: gateways.near.status()["read"] == 20)
        with pytest.raises(ParshallError, match=rf"peer 10\.77\.2\.2:{PORT}: no program listens there, \d+ datagrams"):
            gateways.near.check_peer()
        account = gateways.near.stop()
        assert account["read"] == account["sent"] == 20 >= account["refused"] > 0
        sender.close()


@pytest.mark.parametrize("cipher", CIPHERS)
def test_each_packet_s_time_is_found_behind_the_tunnel(cipher):
    with RouterTestbed(Setup(tunnel=cipher)) as bed:
        measurement = measure(bed, Traffic("poisson", pps=5000, sizes="64-1400"), 1000)
    ledger = measurement.ledger
    assert ledger["sent"] == 1000 == ledger["received"] + sum(ledger["lost"].values())
    table = measurement.table
    assert 1000 - table.column("departure_ns").null_count == ledger["received"]
    assert (measurement.latency_ns > 0).all()
    # First in, first out.
    departures = table.drop_null().column("departure_ns").to_numpy()
    assert (np.diff(departures) > 0).all()


def test_the_losses_of_an_overloaded_gateway_are_known_by_place():
    with RouterTestbed(Setup(tunnel="aes-gcm")) as bed:
        measurement = measure(bed, Traffic("constant", pps=600e3, sizes="1386"), 100_000)
    ledger, lost = measurement.ledger, sum(measurement.ledger["lost"].values())
    assert ledger["sent"] == ledger["received"] + lost and lost > 10_000
    assert ledger["lost"]["unknown"] <= 0.01 * lost
    assert measurement.table.column("departure_ns").null_count == lost


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"secret": "short"}, "secret of 5 bytes: expected at least 16"),
        ({"local": "nowhere"}, "address nowhere: expected ADDRESS:PORT"),
        ({"local": "192.0.2.9:1"}, "UDP 192.0.2.9:1"),
        ({"tun": ""}, "TUN device"),
        ({"tun": "lo"}, "TUN device lo"),
        ({"cipher": "des"}, "expected aes-gcm or chacha20"),
        ({"cpu": 4000}, "CPU 4000"),
        ({"netns": "/run/netns/none-of-this-name"}, "none-of-this-name"),
    ],
)
def test_a_wrong_gateway_is_refused(wrong, message):
    settings = {"tun": "t", "local": f"127.0.0.1:{PORT}", "peer": "127.0.0.1:1", "secret": new_secret()}
    with Testbed() as bed:
        settings["netns"] = bed.host("alone").path
        with pytest.raises((ParshallError, UsageError), match=message):
            Gateway(**(settings | wrong), is_first=True)


def test_the_device_goes_with_its_gateway():
    with Testbed() as bed:
        host = bed.host("alone")
        for _ in range(3):
            with Gateway("t", f"127.0.0.1:{PORT}", "127.0.0.1:1", new_secret(), is_first=True, netns=host.path):
                assert " t: " in host.run(["ip", "link", "show"]).stdout
            assert " t: " not in host.run(["ip", "link", "show"]).stdout
