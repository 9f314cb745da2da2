"""Capture files sent anew: their bytes, order and times, whatever sends and however many CPUs."""

import gzip
import os
import random
import signal
import struct
import subprocess
from itertools import cycle, islice, pairwise

import numpy as np
import pytest
from wire import SOURCE_MAC, departures, gen, generator, write_trace

from parshall.errors import ParshallError, UsageError
from parshall.instruments.generate.interface import interface_facts
from peak_memory import peak_memory

BACKENDS = ("xdp", "af-packet", "af-xdp")
CPUS = sorted(os.sched_getaffinity(0))[:2]
# Offset of the number that distinguishes frames.
NUMBER = slice(42, 50)

pytestmark = pytest.mark.kernel


def give_queues(xdp_link, cpus):
    """A queue at both ends for each CPU that sends."""
    for host in xdp_link[1::-1]:
        host.run(["ethtool", "-L", xdp_link[2].interface(host), "rx", str(len(cpus)), "tx", str(len(cpus))])


def numbered(count, longest=1514):
    """Frames of any bytes, from the sender that the tap listens for, of a protocol that no host speaks."""
    chance = random.Random(3)
    head = bytes.fromhex("020000000002" + SOURCE_MAC.replace(":", "") + "88b5")
    frames = [head + chance.randbytes(chance.randint(58, longest) - len(head)) for _ in range(count)]
    return [
        frame[: NUMBER.start] + number.to_bytes(8, "big") + frame[NUMBER.stop :] for number, frame in enumerate(frames)
    ]


@pytest.fixture
def frames():
    """Some of which one is shorter than Ethernet's are."""
    frames = numbered(50)
    frames[8] = frames[8][:14] + bytes(range(1, 7))
    return frames


def on_the_wire(frame):
    """What is too short for Ethernet is padded."""
    return frame.ljust(60, b"\0")


# Of 50 packets, few are on time beside others.
@pytest.mark.alone
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replay_sends_the_bytes_of_the_trace_at_their_times(xdp_link, tap, frames, tmp_path, backend):
    trace, log = tmp_path / "trace.pcap", tmp_path / "log"
    write_trace(trace, frames, gap_us=100)
    arriving = [on_the_wire(frame) for frame in frames]
    account, times = departures(xdp_link, log, replay=trace, backend=backend)
    assert (account["requested"], account["sent"], account["lost"], account["backend"]) == (50, 50, 0, backend)
    gaps_ns = np.arange(1, 50) * 100_000
    assert (np.diff(times.due_ns) == gaps_ns).all()
    times.assert_punctual()
    assert account["sizes"]["ks_distance"] < 1e-3
    assert tap(50) == arriving
    # The mean gap of 2.5 ms becomes one of 5 ms.
    stretched, times = departures(xdp_link, log, replay=trace, backend=backend, pps=200)
    assert np.diff(times.due_ns) == pytest.approx(2 * gaps_ns, abs=2)
    times.assert_punctual()
    assert stretched["digest"] == account["digest"]
    assert tap(50) == arriving
    again, times = departures(xdp_link, log, replay=trace, backend=backend, count=120, gap="fixed", pps=1e3)
    assert again["sent"] == 120 and set(np.diff(times.due_ns)) == {1_000_000}
    times.assert_punctual()
    assert tap(120) == list(islice(cycle(arriving), 120))


def captured(xdp_link, trace, run, count):
    """What tcpdump writes while a replay runs."""
    _, receiver, link = xdp_link
    command = ["tcpdump", "-i", link.interface(receiver), "-U", "-c", str(count), "-w", str(trace)]
    program = receiver.popen([*command, "ether proto 0x88b5"], stderr=subprocess.PIPE, text=True)
    try:
        while "listening on" not in program.stderr.readline():
            assert program.poll() is None, "tcpdump ended"
        run()
        program.wait(timeout=30)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    octets, found, at = trace.read_bytes(), [], 24
    while at < len(octets):
        (bytes_kept,) = struct.unpack_from("<I", octets, at + 8)
        found.append(octets[at + 16 : at + 16 + bytes_kept])
        at += 16 + bytes_kept
    return found


def test_tcpdump_finds_the_file_at_the_other_end(xdp_link, tmp_path):
    frames = numbered(400)
    write_trace(tmp_path / "sent.pcap", frames, gap_us=1)
    found = captured(
        xdp_link,
        tmp_path / "arrived.pcap",
        lambda: generator(xdp_link, replay=tmp_path / "sent.pcap", backend="xdp").wait(),
        400,
    )
    assert found == [on_the_wire(frame) for frame in frames]


@pytest.mark.parametrize("cpu", [CPUS[:1], CPUS], ids=["one CPU", "two CPUs"])
@pytest.mark.parametrize("pace", [{}, {"gap": "poisson", "pps": 50e3}], ids=["flood", "paced"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trace_longer_than_a_block_repeats(xdp_link, tap, tmp_path, backend, pace, cpu):
    # 2.4 MB: the kernel's program has them in three blocks.
    give_queues(xdp_link, cpu)
    frames = numbered(3001)
    write_trace(tmp_path / "trace.pcap", frames)
    run = generator(xdp_link, replay=tmp_path / "trace.pcap", backend=backend, cpu=cpu, count=5003, **pace)
    account = run.wait().account
    assert (account["sent"], account["lost"], account["error"]) == (5003, 0, None)
    found = tap(5003)
    promised = list(islice(cycle(on_the_wire(frame) for frame in frames), 5003))
    if len(cpu) > 1:
        # Between senders there is no order.
        found.sort(key=lambda frame: frame[NUMBER])
        promised.sort(key=lambda frame: frame[NUMBER])
    assert found == promised


def test_digest_and_account_are_the_same_for_every_backend(xdp_link, frames, tmp_path):
    give_queues(xdp_link, CPUS)
    write_trace(tmp_path / "trace.pcap", frames)
    accounts = [
        generator(xdp_link, replay=tmp_path / "trace.pcap", backend=backend, cpu=cpu, count=20_001).wait().account
        for backend in BACKENDS
        for cpu in (CPUS[:1], CPUS)
    ]
    for account in accounts:
        assert (account["sent"], account["lost"]) == (20_001, 0)
        assert account["sizes"] == accounts[0]["sizes"]
        assert account["frame_bytes"] == accounts[0]["frame_bytes"]
    assert len({account["digest"] for account in accounts}) == 1
    frames[20] = frames[20][:-1] + bytes([frames[20][-1] ^ 1])
    write_trace(tmp_path / "trace.pcap", frames)
    other = generator(xdp_link, replay=tmp_path / "trace.pcap", count=20_001).wait()
    assert other.digest != accounts[0]["digest"]


def test_a_flood_of_a_trace_arrives(xdp_link, tmp_path):
    write_trace(tmp_path / "trace.pcap", numbered(1000))
    account = generator(xdp_link, replay=tmp_path / "trace.pcap", count=1_500_000, backend="xdp").wait().account
    assert account["sent"] == 1_500_000
    assert account["sent"] == account["arrived"] + account["lost"] and account["arrived"] > 1_400_000
    assert account["sizes"]["ks_distance"] < 1e-3


def test_a_replay_that_is_stopped_has_sent_the_beginning(xdp_link, until, tmp_path):
    give_queues(xdp_link, CPUS)
    write_trace(tmp_path / "trace.pcap", numbered(777))
    for cpu in (CPUS[:1], CPUS):
        run = generator(xdp_link, replay=tmp_path / "trace.pcap", cpu=cpu, count=10**9)
        until("some packets were sent", lambda run=run: run.status()["packets"] > 20_000)
        run.stop()
        account = run.wait().account
        assert account["sent"] == account["arrived"] + account["lost"] > 20_000
        again = generator(xdp_link, replay=tmp_path / "trace.pcap", count=account["sent"]).wait().account
        assert again["digest"] == account["digest"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interface_that_is_down_for_a_while_ends_a_replay(xdp_link, tap, until, tmp_path, backend):
    sender, _, link = xdp_link
    frames = numbered(300)
    write_trace(tmp_path / "trace.pcap", frames)
    run = generator(xdp_link, replay=tmp_path / "trace.pcap", backend=backend, count=10**6, gap="fixed", pps=30e3)
    until("some packets were sent", lambda: run.status()["packets"] > 3000)
    for state in ("down", "up"):
        sender.run(["ip", "link", "set", "dev", link.interface(sender), state])
    until("it ended by itself", lambda: run.status()["has_ended"])
    account = run.wait().account
    assert "went down" in account["error"] and account["sent"] + account["not_sent"] == 10**6
    assert account["sent"] == account["arrived"] + account["lost"]
    # Without what was sent while it was down, all else is there in its order.
    numbers = [int.from_bytes(frame[NUMBER], "big") for frame in tap(account["arrived"])]
    steps = [(later - earlier) % 300 for earlier, later in pairwise(numbers)]
    assert numbers[0] == 0 and sum(step != 1 for step in steps) <= 1 and len(numbers) > 3000


@pytest.mark.parametrize("backend", ["xdp", "af-packet", "af-xdp"])
def test_a_tag_is_not_a_part_of_what_the_mtu_limits(xdp_link, tap, tmp_path, backend):
    if backend == "xdp":
        needs_a_kernel_that_tells(xdp_link)
    packet = numbered(1)[0]
    tagged = packet[:12] + b"\x81\x00\x00\x07" + packet[12:]
    longest = tagged + bytes(1518 - len(tagged))
    write_trace(tmp_path / "trace.pcap", [longest] * 3)
    account = generator(xdp_link, replay=tmp_path / "trace.pcap", backend=backend).wait().account
    assert (account["sent"], account["lost"], account["arrived"]) == (3, 0, 3), account
    write_trace(tmp_path / "trace.pcap", [longest + b"\0"])
    with pytest.raises(ParshallError, match="packet 1 of 1501 bytes is longer than the MTU of the interface, 1500"):
        generator(xdp_link, replay=tmp_path / "trace.pcap", backend=backend)


def jumbo(xdp_link):
    sender, receiver, link = xdp_link
    for host in (sender, receiver):
        host.run(["ip", "link", "set", "dev", link.interface(host), "mtu", "9000"])


def needs_a_kernel_that_tells(xdp_link):
    sender, _, link = xdp_link
    with sender.enter():
        if interface_facts(link.interface(sender), None).takes_xdp_frames is None:
            pytest.skip("this kernel does not tell whether an interface sends redirected frames (6.3 does)")


def test_frames_up_to_a_page_go_by_live_frames_and_longer_ones_by_a_socket(xdp_link, tap, tmp_path):
    needs_a_kernel_that_tells(xdp_link)
    jumbo(xdp_link)
    frames = numbered(20, longest=3367)
    frames[4] = frames[4][:42] + bytes(range(256)) * 12 + bytes(253)
    assert len(frames[4]) == 3367
    write_trace(tmp_path / "trace.pcap", frames)
    account = generator(xdp_link, replay=tmp_path / "trace.pcap").wait().account
    assert (account["backend"], account["sent"], account["lost"]) == ("xdp", 20, 0)
    assert tap(20) == [on_the_wire(frame) for frame in frames]
    frames[4] += b"\0"
    write_trace(tmp_path / "trace.pcap", frames)
    refusal = "--replay with frame 5 of 3368 bytes: expected frames of at most 3367 bytes.*--backend af-packet"
    with pytest.raises(UsageError, match=refusal):
        generator(xdp_link, replay=tmp_path / "trace.pcap", backend="xdp")
    account = generator(xdp_link, replay=tmp_path / "trace.pcap").wait().account
    assert (account["backend"], account["sent"], account["lost"]) == ("af-packet", 20, 0)
    assert tap(20) == [on_the_wire(frame) for frame in frames]


def test_a_peer_that_takes_no_live_frames_gets_the_trace_from_a_socket(xdp_link, tap, frames, tmp_path):
    from parshall.host import offloads

    needs_a_kernel_that_tells(xdp_link)
    _, receiver, link = xdp_link
    with receiver.enter():
        offloads.switch(link.interface(receiver), False)
    write_trace(tmp_path / "trace.pcap", frames)
    account = generator(xdp_link, replay=tmp_path / "trace.pcap").wait().account
    assert (account["backend"], account["arrived"]) == ("af-packet", 50)
    assert tap(50) == [on_the_wire(frame) for frame in frames]
    with pytest.raises(ParshallError, match="ethtool -K PEER gro on"):
        generator(xdp_link, replay=tmp_path / "trace.pcap", backend="xdp")


def test_a_file_that_cannot_be_replayed_is_refused(xdp_link, frames, tmp_path):
    trace = tmp_path / "trace.pcap"
    write_trace(trace, frames)
    with pytest.raises(UsageError, match="--backend xdp, af-packet or af-xdp"):
        generator(xdp_link, replay=trace, backend="pktgen")
    with pytest.raises(UsageError, match="neither --stamp nor --vlan"):
        generator(xdp_link, replay=trace, stamp=True)
    with trace.open("ab") as file:
        file.write(struct.pack("<IIII", 6, 0, 60, 1000) + bytes(60))
    with pytest.raises(ParshallError, match=r"packet 51 is not whole, 60 of 1000 bytes"):
        generator(xdp_link, replay=trace)


@pytest.mark.parametrize(
    ("frame_bytes", "message"),
    [
        (60, "MiB of memory that a file of its length may; expected a shorter file"),
        (9014, "packet 1 of 9000 bytes is longer"),
    ],
)
def test_a_bomb_is_refused_before_it_fills_the_memory(xdp_link, tmp_path, frame_bytes, message):
    record = struct.pack("<IIII", 0, 0, frame_bytes, frame_bytes) + bytes(frame_bytes)
    member = gzip.compress(record * ((16 << 20) // len(record)), 9)
    head = gzip.compress(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    (tmp_path / "bomb.pcap.gz").write_bytes(head + member * 150)
    command = gen(xdp_link)
    status, output, peak_mib = peak_memory(*command, "--replay", tmp_path / "bomb.pcap.gz", "--count", 10)
    assert status == 2 and message in output and output.count("\n") == 1
    # What the interpreter and its libraries take is not the file's.
    _, _, without_mib = peak_memory(*command, "--replay", tmp_path / "no-such-file", "--count", 10)
    assert peak_mib - without_mib < 192


def test_a_replay_needs_a_file_that_can_be_read_twice(xdp_link, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for trace in ("-", tmp_path / "pipe", "/dev/stdin"):
        with pytest.raises(UsageError, match=rf"--replay {trace}: expected a regular file"):
            generator(xdp_link, replay=trace)
