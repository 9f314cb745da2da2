"""The generator: the bytes of the seed, an account that balances, clear refusals."""

import fcntl
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from carrier import has_carrier
from wire import SOURCE_MAC, departures, gen, generator, said_after_ctrl_c, tapped

import in_process
from parshall.cli.gen_text import account_lines
from parshall.errors import ParshallError, UsageError
from suites import long_except
from workloads import REQUEST

pytestmark = pytest.mark.kernel


WORKLOADS = {
    "fixed": {"sizes": "64"},
    "smaller than a frame": {"sizes": "28"},
    "thesis": {"sizes": "thesis"},
    "largest": {"sizes": "1500"},
    "udp6": {"sizes": "48-1400", "src": "fd00::1", "dst": "fd00:1::/120", "dport": "1-7"},
    "tcp": {"sizes": "imix", "protocol": "tcp", "src": "10.0.0.1-10.0.0.9", "order": "random"},
    "tcp6 tagged": {"sizes": "imix", "protocol": "tcp", "src": "fd00::1", "dst": "fd00::2", "vlan": 5},
    "raw": {"sizes": "40-90", "protocol": "253", "flows": 3, "dst_mac": "02:00:00:00:01:00-02:00:00:00:01:02"},
    "tagged": {"sizes": "46-60", "vlan": "4094.7"},
    "stamped": {"sizes": "thesis", "stamp": True},
    "stamped tcp6": {
        "sizes": "64-100",
        "stamp": True,
        "protocol": "tcp",
        "src": "fd::1",
        "dst": "fd::2",
    },
}


def source_address(frame):
    return frame[26:30]


# The plan of the packets is one for all backends.
QUICK = [*product(["xdp"], WORKLOADS), *product(["af-packet", "af-xdp"], ["largest", "stamped tcp6"])]


@pytest.mark.parametrize("pace", [{}, {"pps": 50e3, "gap": "poisson"}], ids=["flood", "paced"])
@pytest.mark.parametrize(("backend", "name"), long_except(QUICK, product(["xdp", "af-packet", "af-xdp"], WORKLOADS)))
def test_the_packets_of_the_seed_arrive(standing_xdp_link, name, pace, backend):
    from parshall import _native

    count = 200
    with tapped(standing_xdp_link) as tap:
        run = generator(standing_xdp_link, count=count, seed=11, backend=backend, **WORKLOADS[name], **pace)
        account = run.wait().account
        assert (account["sent"], account["not_sent"]) == (count, 0)
        frames = tap(count)
    sent_ns = [0] * count
    if WORKLOADS[name].get("stamp"):
        at = 14 + (40 + 20 if "tcp6" in name else 20 + 8) + 8
        sent_ns = [int.from_bytes(frame[at : at + 8], "big") for frame in frames]
        assert sent_ns == sorted(sent_ns) and 0 <= time.monotonic_ns() - sent_ns[-1] < 30e9
    promised = _native.planned_frames(json.dumps(run.request), sent_ns)
    promised = [frame for _, frame in promised]
    if name == "tcp":
        # The receiving end's GRO lets TCP flows overtake each other, but nothing within a flow.
        promised.sort(key=source_address)
        frames.sort(key=source_address)
    assert promised == frames


def test_a_checksum_of_udp_that_comes_to_0_is_sent_as_ffff(standing_xdp_link, tmp_path, until):
    """RFC 768: 0 means that there is none. One stamp of 65,536 comes to it."""
    _, receiver, link = standing_xdp_link
    file = tmp_path / "extreme.pcap"
    extremes = "udp[6:2] = 0 or udp[6:2] = 0xffff"
    command = ["tcpdump", "-n", "-U", "-Z", "root", "-i", link.interface(receiver), "-w", file, extremes]
    tcpdump = receiver.popen(command, stderr=subprocess.PIPE, text=True)
    assert any("listening on" in line for line in iter(tcpdump.stderr.readline, ""))
    account = generator(standing_xdp_link, sizes="64", stamp=True, count=1_000_000).wait().account
    assert account["arrived"] > 500_000
    until("some came to it", lambda: file.exists() and file.stat().st_size > 24)
    tcpdump.send_signal(signal.SIGINT)
    assert tcpdump.wait(60) == 0
    printed = subprocess.run(["tcpdump", "-n", "-x", "-r", file], capture_output=True, text=True, check=True).stdout
    checksums = re.findall(r"0x0010:(?:\s+\w{4}){5}\s+(\w{4})", printed)
    assert len(checksums) > 0 and set(checksums) == {"ffff"}, printed


@pytest.mark.parametrize("backend", ["af-packet", "af-xdp"])
def test_sockets_send_packets_longer_than_a_page(xdp_link, tap, backend):
    from parshall import _native

    sender, receiver, link = xdp_link
    for host in (sender, receiver):
        host.run(["ip", "link", "set", "dev", link.interface(host), "mtu", "9000"])
    with pytest.raises(UsageError, match="--backend af-packet and af-xdp"):
        generator(xdp_link, sizes="9000", count=1)
    run = generator(xdp_link, sizes="3900-9000", count=300, seed=2, backend=backend)
    account = run.wait().account
    assert (account["sent"], account["lost"], account["error"]) == (300, 0, None)
    assert tap(300) == [frame for _, frame in _native.planned_frames(json.dumps(run.request), [0] * 300)]


def test_every_backend_gives_the_same_digest(standing_xdp_link):
    ways = ("xdp", "af-packet", "af-xdp")
    runs = [generator(standing_xdp_link, sizes="imix", count=5000, seed=8, backend=backend).wait() for backend in ways]
    assert len({run.digest for run in runs}) == 1
    assert [run.account["arrived"] for run in runs] == [5000] * 3


@pytest.mark.parametrize("backend", ["af-packet", "af-xdp"])
def test_sockets_send_to_a_peer_without_napi(xdp_link, backend):
    from parshall.host import offloads

    _, receiver, link = xdp_link
    with receiver.enter():
        offloads.switch(link.interface(receiver), False)
    account = generator(xdp_link, sizes="64", count=4000, pps=20e3, backend=backend).wait().account
    assert account["sent"] == account["arrived"] == 4000


# Each way to send meets an interface that goes, by either pace; the rest of the matrix is long.
FLOOD, PACED = {}, {"pps": 50e3}
AN_INTERFACE_GOES = [(backend, pace) for pace in (FLOOD, PACED) for backend in ("xdp", "af-packet", "af-xdp")]


@pytest.mark.parametrize(("backend", "pace"), long_except(AN_INTERFACE_GOES[:3], AN_INTERFACE_GOES))
def test_an_interface_that_goes_down_ends_the_run_with_its_account(xdp_link, until, backend, pace):
    sender, _, link = xdp_link
    run = generator(xdp_link, sizes="64", backend=backend, **pace)
    until("some packets were sent", lambda: run.status()["packets"] > 500)
    sender.run(["ip", "link", "set", "dev", link.interface(sender), "down"])
    until("it ended by itself", lambda: run.status()["has_ended"])
    account = run.wait().account
    assert re.search(f"went down.*ip link set {link.interface(sender)} up", account["error"])
    assert account["sent"] == account["arrived"] + account["lost"] > 500


@pytest.mark.parametrize(("backend", "pace"), long_except(AN_INTERFACE_GOES[3:], AN_INTERFACE_GOES))
def test_an_interface_that_is_removed_ends_the_run_with_its_account(xdp_link, until, backend, pace):
    sender, _, link = xdp_link
    run = generator(xdp_link, sizes="64", backend=backend, count=10**9, **pace)
    until("some packets were sent", lambda: run.status()["packets"] > 500)
    sender.run(["ip", "link", "del", "dev", link.interface(sender)])
    until("it ended by itself", lambda: run.status()["has_ended"])
    account = run.wait().account
    assert "was removed" in account["error"] and account["arrived"] is None
    assert account["sent"] > 500 and account["sent"] + account["not_sent"] == 10**9


@pytest.mark.parametrize("backend", ["xdp", "af-packet", "af-xdp"])
def test_an_interface_that_is_down_for_a_moment_ends_the_run_too(xdp_link, tap, until, backend):
    sender, _, link = xdp_link
    run = generator(xdp_link, sizes="64", backend=backend, pps=20e3, stamp=True)
    until("some packets were sent", lambda: run.status()["packets"] > 500)
    name = link.interface(sender)
    sender.run(["ip", "-batch", "-"], input=f"link set dev {name} down\nlink set dev {name} up\n")
    until("it ended by itself", lambda: run.status()["has_ended"])
    account = run.wait().account
    assert "went down" in account["error"]
    assert account["sent"] == account["arrived"] + account["lost"] > 500
    numbers = [int.from_bytes(frame[42:50], "big") for frame in tap(account["arrived"])]
    # The arrived packets are the first of the plan, without those sent while it was down.
    assert sum(later - earlier != 1 for earlier, later in pairwise(numbers)) <= 1 and numbers[0] == 0


@pytest.mark.parametrize("backend", ["xdp", "af-packet", "af-xdp"])
def test_a_temporary_loss_of_carrier_is_counted_and_the_run_continues(xdp_link, until, backend):
    sender, receiver, link = xdp_link
    run = generator(xdp_link, sizes="64", backend=backend, pps=10e3)
    until("some packets were sent", lambda: run.status()["packets"] > 500)
    receiver.run(["ip", "link", "set", "dev", link.interface(receiver), "down"])
    # After one notification of a carrier, the kernel delays the next by a second.
    until("the kernel has reported the carrier", lambda: not has_carrier(sender, link.interface(sender)))
    receiver.run(["ip", "link", "set", "dev", link.interface(receiver), "up"])
    before = run.status()["packets"]
    until("more was sent", lambda: run.status()["packets"] > before + 500)
    run.stop()
    account = run.wait().account
    assert (account["error"], account["carrier_losses"]) == (None, 1)
    assert "lost its carrier once" in "\n".join(account_lines(account))


def test_packets_longer_than_an_ip_length_field_are_refused():
    from parshall import _native

    longest = json.loads(_native.describe_workload(json.dumps(REQUEST | {"sizes": "65535"})))
    assert longest["largest_ip_bytes"] == 65535
    with pytest.raises(UsageError, match="--sizes with packets of 65536 bytes: expected at most 65535"):
        _native.describe_workload(json.dumps(REQUEST | {"sizes": "40-65536"}))


def test_the_command_that_loses_its_interface_fails_and_gives_the_account(xdp_link, tap):
    sender, _, link = xdp_link
    command = gen(xdp_link, "--sizes", "60", "--pps", "10k", "--src-mac", SOURCE_MAC, "--json")
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        tap(500)
        sender.run(["ip", "link", "set", "dev", link.interface(sender), "down"])
        text, errors = program.communicate(timeout=30)
    finally:
        program.kill()
    assert program.returncode == 1
    assert "went down" in errors and errors.count("\n") == 2
    assert json.loads(text)["error"] in errors


def test_the_account_balances_and_the_digest_repeats(standing_xdp_link):
    accounts = [
        generator(standing_xdp_link, count=30_000, sizes="thesis", seed=seed).wait().account for seed in (5, 5, 6)
    ]
    for account in accounts:
        assert account["requested"] == account["sent"] + account["not_sent"] == 30_000
        assert account["sent"] == account["arrived"] + account["lost"]
        assert account["sizes"]["ks_distance"] < 0.02
    assert accounts[0]["digest"] == accounts[1]["digest"] != accounts[2]["digest"]


def test_a_fresh_veth_gets_packets_and_the_digest_of_any_other(bed):
    """Its peer has no NAPI, so live frames would be lost; and its MAC addresses are random."""
    digests = set()
    for name in ("one", "two"):
        sender, receiver = bed.host(f"{name}_sender"), bed.host(f"{name}_receiver")
        sender.run(
            ["ip", "link", "add", "fresh0", "type", "veth", "peer", "name", "fresh1", "netns", receiver.namespace]
        )
        sender.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"])
        sender.run(["ip", "link", "set", "fresh0", "up"])
        receiver.run(["ip", "link", "set", "fresh1", "up"])
        words = ["-i", "fresh0", "--netns", sender.namespace, "--sizes", "thesis", "--count", "10k", "--json"]
        done = in_process.parshall("gen", *words)
        assert done.returncode == 0, done.stderr
        account = json.loads(done.stdout)
        assert (account["backend"], account["sent"], account["lost"]) == ("af-packet", 10_000, 0)
        assert "sends by af-packet, which is slower than xdp: the peer of fresh0 has no NAPI" in done.stderr
        digests.add(account["digest"])
    assert len(digests) == 1


def test_losses_are_unknown_when_other_senders_share_the_interface(standing_xdp_link):
    from parshall.cli.gen_text import account_lines

    with (
        generator(standing_xdp_link, sizes="64", pps=2000, count=2000) as run,
        generator(standing_xdp_link, sizes="64", pps=2000, count=2000) as other,
    ):
        accounts = [run.wait().account, other.wait().account]
    for account in accounts:
        assert account["sent"] == 2000 < account["transmitted"]
        assert account["arrived"] is None and account["lost"] is None
        text = "\n".join(account_lines(account))
        assert f"transmitted {account['transmitted'] - 2000:,} more, from other" in text
        assert "losses are unknown; it counted 0 as dropped" in text


def test_a_run_that_is_stopped_gives_the_account_of_what_was_sent(standing_xdp_link, until):
    run = generator(standing_xdp_link, sizes="imix", seed=3, pps=200e3)
    until("some packets were sent", lambda: run.status()["packets"] > 2000)
    run.stop()
    account = run.wait().account
    assert account["requested"] is None and account["sent"] > 2000
    assert account["sent"] == account["arrived"] + account["lost"]
    again = generator(standing_xdp_link, sizes="imix", seed=3, count=account["sent"]).wait().account
    assert again["digest"] == account["digest"]


def test_more_packets_than_the_ring_holds(standing_xdp_link):
    account = generator(standing_xdp_link, sizes="60", count=1_500_000, seed=1).wait().account
    assert account["sent"] == 1_500_000 == account["arrived"] + account["lost"]


def test_packets_leave_when_they_are_due(standing_xdp_link, tmp_path):
    account, times = departures(standing_xdp_link, tmp_path / "log", sizes="64", count=10_000, pps=20e3)
    assert set(np.diff(times.due_ns)) == {50_000}
    times.assert_punctual()
    gaps = account["gaps"]
    assert gaps["error_p99"] is not None and gaps["ks_distance"] is None
    assert gaps["mean_ns"] == pytest.approx(np.diff(times.sent_ns).mean())


def test_packets_due_at_the_same_time_leave_together(standing_xdp_link, tmp_path):
    gap = "bursts:size=2,inside=0ns,period=100us"
    account, times = departures(standing_xdp_link, tmp_path / "log", sizes="64", count=10_000, gap=gap)
    assert set(np.diff(times.due_ns)[::2]) == {0} and set(np.diff(times.due_ns)[1::2]) == {100_000}
    times.assert_punctual()
    first, *_ = account["gaps"]["quantiles_ns"]
    assert first == account["gaps"]["quantiles_ns"][2] == 0


def test_it_refuses_before_it_sends(xdp_link):
    from parshall.host import offloads

    sender, receiver, link = xdp_link
    with pytest.raises(UsageError, match="longer than the MTU"):
        generator(xdp_link, sizes="2000", count=1)
    for count in (0, 1 << 64):
        with pytest.raises(UsageError, match=rf"--count {count}: expected a number from 1 to 2\^64 - 1"):
            generator(xdp_link, sizes="64", count=count)
    with pytest.raises(UsageError, match="the mean is missing"):
        generator(xdp_link, sizes="64", gap="poisson")
    with pytest.raises(ParshallError, match="no such interface"):
        from parshall.instruments.generate import Generator

        Generator("nosuchif", sizes="64", netns=sender.path)
    with receiver.enter():
        offloads.switch(link.interface(receiver), False)
    for sizes in ("64", "2000"):
        with pytest.raises(ParshallError, match=r"has no NAPI.*gro on") as refusal:
            generator(xdp_link, sizes=sizes, count=1, backend="xdp")
        # A fault of the host is reported as such, even if the request is wrong, too.
        assert not isinstance(refusal.value, UsageError)


def test_pktgen_sends_or_is_reported_missing(standing_xdp_link):
    command = gen(standing_xdp_link, "--backend", "pktgen", "--sizes", "64", "--count", "1000")
    result = in_process.parshall(*command[3:])
    if result.returncode == 0:
        assert "requested 1,000, sent 1,000" in result.stdout
    else:
        assert "modprobe pktgen" in result.stderr and result.stderr.count("\n") == 1


@pytest.fixture
def pktgen():
    """Load the kernel's module; skip where the kernel has none."""
    if modprobe := shutil.which("modprobe"):
        subprocess.run([modprobe, "pktgen"], capture_output=True)
    if not Path("/proc/net/pktgen/pgctrl").exists():
        pytest.skip("this kernel has no module pktgen: modprobe pktgen")


@pytest.mark.optional
@pytest.mark.parametrize("family", ["ipv4", "ipv6", "tagged"])
def test_pktgen_sends_the_requested_packets(xdp_link, tap, pktgen, family):
    flows = {
        "ipv4": {"src": "10.0.0.1-10.0.0.3", "dst": "10.1.0.1", "dport": "7-8"},
        "ipv6": {"src": "fd00::1", "dst": "fd00:1::1"},
        "tagged": {"vlan": "5.3"},
    }
    account = generator(xdp_link, sizes="imix", count=600, backend="pktgen", **flows[family]).wait().account
    assert (account["sent"], account["arrived"], account["error"]) == (600, 600, None)
    frames = tap(600)
    tag_bytes = 4 if family == "tagged" else 0
    # pktgen puts its own stamp of 16 bytes behind the headers.
    shortest = {"ipv4": 60, "ipv6": 14 + 40 + 8 + 16, "tagged": 14 + 20 + 8 + 16}[family]
    assert {len(frame) - tag_bytes for frame in frames} == {shortest, 590, 1514}
    if family == "tagged":
        assert {frame[12:16] for frame in frames} == {bytes.fromhex("81006005")}
    if family == "ipv4":
        assert {frame[26:30] for frame in frames} == {bytes((10, 0, 0, last)) for last in (1, 2, 3)}
        assert {frame[36:38] for frame in frames} == {b"\0\7", b"\0\10"}


@pytest.mark.optional
def test_pktgen_that_is_stopped_reports_what_it_sent(xdp_link, tap, pktgen):
    run = generator(xdp_link, sizes="64", pps=1000, backend="pktgen")
    tap(500)
    run.stop()
    account = run.wait().account
    # At 1000 packets/s, a run that restarted would report only a few.
    assert account["sent"] == account["arrived"] >= 500
    assert account["elapsed_ns"] > 0.4e9


def test_the_generator_refuses_other_than_test_interfaces(standing_xdp_link):
    sender, *_ = standing_xdp_link
    result = in_process.parshall("gen", "-i", "lo", "--netns", sender.path, "--count", "5")
    assert result.returncode == 2
    assert "--yes-on lo" in result.stderr and result.stderr.count("\n") == 1


def test_ctrl_c_gives_the_account(xdp_link, tap):
    command = gen(xdp_link, "--sizes", "60", "--pps", "50k", "--src-mac", SOURCE_MAC, "--json")
    account = json.loads(said_after_ctrl_c(command, lambda: tap(500)))
    assert account["requested"] is None and account["sent"] >= 500
    assert account["sent"] == account["arrived"] + account["lost"]


def test_the_command_prints_its_account(standing_xdp_link):
    command = gen(
        standing_xdp_link, "--sizes", "thesis", "--pps", "100k", "--gap", "poisson", "--count", "3000", "--seed", "9"
    )
    text = in_process.parshall(*command[3:])
    assert text.returncode == 0, text.stderr
    assert "requested 3,000, sent 3,000, not sent 0" in text.stdout
    limited = gen(standing_xdp_link, "--pps", "10k", "--duration", "10ms")
    assert "requested 100 in 10 ms, sent 100, not sent 0" in in_process.parshall(*limited[3:]).stdout
    # 1.36 / sqrt(3000): of sizes and of gaps.
    assert text.stdout.count("(5 % critical value: 0.02483)") >= 2 and "digest" in text.stdout
    account = json.loads(in_process.parshall(*command[3:], "--json").stdout)
    assert account["digest"] in text.stdout


def test_the_digest_is_not_claimed_for_arrived_packets(standing_xdp_link):
    account = generator(standing_xdp_link, sizes="64", count=10).wait().account
    (line,) = [line for line in account_lines(account) if account["digest"] in line]
    assert "of the planned packets" in line


def captured_span_s(xdp_link, tmp_path, count, *options):
    """Account of a run of the command; packets, and seconds from first to last, by tcpdump at the peer."""
    _, receiver, link = xdp_link
    path = tmp_path / "arrived.pcap"
    command = ["tcpdump", "-i", link.interface(receiver), "-Q", "in", "-s", "64", "-B", "65536", "-w", str(path)]
    command += ["--immediate-mode", "-c", str(count), "udp"]
    program = receiver.popen(command, stderr=subprocess.PIPE, text=True)
    while "listening on" not in program.stderr.readline():
        assert program.poll() is None, "tcpdump ended"
    result = in_process.parshall(*gen(xdp_link, "--json", *options)[3:])
    assert result.returncode == 0, result.stderr
    program.communicate(timeout=30)
    octets, times, at = path.read_bytes(), [], 24
    while at < len(octets):
        seconds, microseconds, kept, _ = struct.unpack_from("<IIII", octets, at)
        times.append(seconds + microseconds / 1e6)
        at += 16 + kept
    return json.loads(result.stdout), len(times), times[-1] - times[0]


@pytest.mark.parametrize("backend", ["xdp", "af-packet", "af-xdp"])
def test_a_duration_counts_from_the_first_packet(standing_xdp_link, tmp_path, backend):
    options = ["--sizes", "64", "--pps", "2k", "--duration", "1", "--backend", backend]
    account, packets, span_s = captured_span_s(standing_xdp_link, tmp_path, 2000, *options)
    # The last packet is due half a millisecond before the end, however long the start took.
    assert account["sent"] == packets == 2000
    assert span_s == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("backend", ["xdp", "af-packet", "af-xdp"])
def test_a_flood_lasts_for_its_duration(xdp_link, backend):
    account = generator(xdp_link, sizes="64", duration_s=0.5, backend=backend).wait().account
    assert account["error"] is None and account["sent"] > 1000
    # Until all senders have ended, which may have to wait for their CPU.
    assert 0.5e9 <= account["elapsed_ns"] < 1.5e9


def test_a_duration_gives_the_same_packets_each_time(xdp_link):
    runs = [generator(xdp_link, sizes="imix", pps=20e3, gap="poisson", duration_s=0.3).wait() for _ in range(2)]
    assert runs[0].digest == runs[1].digest and runs[0].account["sent"] == runs[1].account["sent"] > 5000


@pytest.mark.parametrize(("gap", "pps", "duration_s"), [(None, 20e6, 0.1), ("poisson", 20e6, 0.1), (None, 100e6, 0.1)])
def test_packets_for_which_a_late_sender_had_no_time_are_not_sent(standing_xdp_link, gap, pps, duration_s):
    """No sender reaches these rates. Of many millions, the mean gap says how many were due."""
    options = {"sizes": "64", "pps": pps, "gap": gap, "duration_s": duration_s}
    accounts = [generator(standing_xdp_link, **options).wait().account for _ in range(2)]
    for account in accounts:
        assert account["requested"] == account["sent"] + account["not_sent"]
        assert 0 < account["sent"] < account["requested"] == pytest.approx(pps * duration_s, rel=0.01)
    # What is due is the plan's, whatever was sent of it.
    assert abs(accounts[0]["requested"] - accounts[1]["requested"]) <= (0 if pps < 50e6 else 1)


def test_a_run_whose_packets_are_all_lost_fails(standing_xdp_link):
    sender, *_ = standing_xdp_link
    with sender.enter(), Path("/dev/net/tun").open("r+b", buffering=0) as tap:
        # Its holder never reads.
        fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", b"silent", 0x1002))  # TUNSETIFF, IFF_TAP | IFF_NO_PI
        sender.run(["ip", "link", "set", "dev", "silent", "up"])
        words = ["-i", "silent", "--netns", sender.path, "--json"]
        words += ["--backend", "af-packet", "--count", "50", "--quiet", "--yes-on", "silent"]
        result = in_process.parshall("gen", *words)
    assert result.returncode == 1
    assert result.stderr.startswith("parshall: gen: interface silent: transmitted none of 50 packets; ")
    assert result.stderr.count("\n") == 1 and json.loads(result.stdout)["lost"] == 50


def test_an_account_warns_first_of_gaps_that_the_host_changed(standing_xdp_link):
    account = generator(standing_xdp_link, sizes="64", count=200_000, pps=100e6, gap="poisson").wait().account
    gaps = account["gaps"]
    assert gaps["late_share"] > 0.5 and not gaps["is_shape_kept"]
    first = next(account_lines(account))
    assert first.startswith("warning   the gaps differ from the requested ones")
    kept = {"late_share": 0.0, "is_shape_kept": True}
    assert next(account_lines(account | {"gaps": gaps | kept})).startswith("packets")


def test_the_cpu_profile_has_the_time_of_the_programs(xdp_link, tmp_path):
    output = tmp_path / "profile.json"
    command = [sys.executable, "-m", "parshall", "cpu", "--hooks", "--json", "--interval", "0.1", "-o", output, "--"]
    command += gen(xdp_link, "--sizes", "64", "--pps", "100k", "--count", "100000", "--json")
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    # Other generators of the host have programs of this name, too.
    hooks = [hook for hook in json.loads(output.read_text())["hooks"] if hook["name"] == "generate"]
    # Readings are a tenth of a second apart, and the program is unloaded when the command ends.
    assert any(hook["runs"] >= 50_000 and 0 < hook["run_ns"] < 2e9 for hook in hooks), hooks
