"""Members of a ring's group, played by raw sockets: they may read, and can harm only themselves."""

import contextlib
import grp
import json
import mmap
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from capturer import (
    EXPERIMENT,
    PARSHALL,
    Capturer,
    Sender,
    account_of,
    frame,
    rings,
    subscribers_of,
    total,
)
from hostile_member import JOIN, LIST, MEMBER, PART_BYTES, KeeperConnection, attack

import in_process
from suites import long_except

pytestmark = pytest.mark.kernel
GROUP = grp.getgrgid(MEMBER).gr_name
# Maximum of one member, as in docs/promises.md.
CONNECTIONS = 32
# Numbers of capabilities(7): NET_ADMIN, SYS_ADMIN, PERFMON, BPF.
CAPABILITIES = 1 << 12 | 1 << 21 | 1 << 38 | 1 << 39
OTHER_MEMBER = MEMBER - 1
# ldh [12]; jeq #EXPERIMENT, 0, 1; ret #96; ret #0
PROGRAM = [0x28 << 48 | 12, 0x15 << 48 | 1 << 32 | EXPERIMENT, 6 << 48 | 96, 6 << 48]
# Half a ring.
MANY_FRAMES = [frame(number, 1000) for number in range(500)]
UNKNOWN_INSTRUCTION = 0xFFFF << 48


@pytest.fixture
def ring(bed: Any, until: Any, tmp_path: Path) -> Iterator[tuple[Capturer, Sender]]:
    """Yield a capture by root in a slow ring that a group may join, and a sender of packets to it."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right)
    sender = Sender(left, link.interface(left))
    arguments = ("-i", link.interface(right), "--direction", "in", "-w", tmp_path / "root.pcapng", "--json")
    with (
        contextlib.closing(sender),
        Capturer(until, right, *arguments, "--group", GROUP, "--policy", "slow", "--buffer", "1M") as capture,
    ):
        yield capture, sender
    until("the keeper has exited", lambda: capture.ring not in rings())


@contextlib.contextmanager
def member_connections(ring: str, count: int) -> Iterator[list[KeeperConnection]]:
    """Open `count` connections as a member; close them at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(KeeperConnection(ring))) for _ in range(count)]


def assert_complete(capture: Capturer, sender: Sender, until: Any) -> None:
    """Send more than a ring holds, by halves, then end the capture: its file must have every packet."""
    file = Path(capture.process.args[capture.process.args.index("-w") + 1])
    for batch in range(1, 4):
        sender.send(MANY_FRAMES)
        until("it has been written", lambda batch=batch: file.stat().st_size > batch * 500_000)
    ended = capture.end()
    assert ended.returncode == 0, ended.stderr
    (subscriber,) = account_of(ended)["subscribers"]
    assert total(subscriber, "logged") >= 3 * len(MANY_FRAMES)
    assert total(subscriber, "dropped") == 0


def test_a_member_cannot_write_to_the_ring_or_delay_others(ring: tuple[Capturer, Sender], until: Any) -> None:
    """A member that could write its read position could block a slow ring for all."""
    capture, sender = ring
    with (
        member_connections(capture.ring, 1) as (connection,),
        contextlib.closing(KeeperConnection(capture.ring, 0)) as root,
    ):
        connection.send(JOIN)
        description, descriptors = connection.receive()
        assert description["answer"] == "ring"
        assert description["reader_slot"] is None
        assert len(descriptors) == 1
        with pytest.raises(PermissionError):
            mmap.mmap(descriptors[0], mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        root.send(JOIN)
        description, of_root = root.receive()
        assert description["reader_slot"] is not None
        assert len(of_root) == 2
        for descriptor in (*descriptors, *of_root):
            os.close(descriptor)
        assert_complete(capture, sender, until)


def test_members_that_do_not_read_delay_no_others(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    with member_connections(capture.ring, CONNECTIONS) as connections:
        for connection in connections:
            connection.socket.setblocking(False)
            # Until the socket is full: the answers are longer than the requests.
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while True:
                    connection.send(LIST)
        # A keeper that waited for one of them would not answer in time.
        listed = in_process.parshall("capture", "--list", "--json")
        (ours,) = (one for one in json.loads(listed.stdout) if capture.ring in str(one))
        assert "unreadable" not in ours
        assert_complete(capture, sender, until)


def test_the_connections_of_one_member_are_limited_and_others_get_theirs(
    ring: tuple[Capturer, Sender], until: Any
) -> None:
    capture, sender = ring
    with member_connections(capture.ring, CONNECTIONS):
        with member_connections(capture.ring, 1) as (connection,):
            assert connection.refusal() == (
                f"ring {capture.ring}: user {MEMBER} has {CONNECTIONS} connections to it, and may have {CONNECTIONS}; "
                "end one first"
            )
            assert connection.receive()[0] is None
        # A connection that is refused before its first request gets the reason, too.
        with member_connections(capture.ring, 1) as (connection,):
            with contextlib.suppress(BrokenPipeError):
                connection.send(LIST)
            assert "end one first" in connection.refusal()
        assert len(subscribers_of(capture.ring)) == 1
        assert_complete(capture, sender, until)


@pytest.mark.long
def test_silent_and_endless_connections_are_closed(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    with member_connections(capture.ring, 2) as (silent, unfinished):
        unfinished.send(JOIN)
        _, descriptors = unfinished.receive()
        for descriptor in descriptors:
            os.close(descriptor)
        unfinished.send(b"+" + bytes(1000))
        for connection in (silent, unfinished):
            assert "it waited 10 s for a whole request" in connection.refusal()
            assert connection.receive()[0] is None
        assert_complete(capture, sender, until)


def test_an_overlong_message_is_refused(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    with member_connections(capture.ring, 1) as (connection,):
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.send(b"+" + b"[" * PART_BYTES)
        assert "that is no request, or one that is too long" in connection.refusal()
    with member_connections(capture.ring, 1) as (connection,):
        connection.send(b"no JSON")
        assert "that is no request, or one that is too long" in connection.refusal()
    assert_complete(capture, sender, until)


def test_unfinished_messages_of_all_members_together_are_bounded(ring: tuple[Capturer, Sender], until: Any) -> None:
    """Each has the maximum length: 24 MiB in all, of which 16 are kept."""
    capture, sender = ring
    with member_connections(capture.ring, 24) as connections:
        for connection in connections:
            connection.socket.setblocking(True)
            with contextlib.suppress(ConnectionError):
                for _ in range(7):
                    connection.send(b"+" + b"[" * PART_BYTES)
        until(
            "one has been disconnected",
            lambda: any(select.select([connection.socket], [], [], 0)[0] for connection in connections),
        )
        assert_complete(capture, sender, until)


def test_the_keeper_has_only_the_privileges_it_needs(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    keeper = Path(f"/proc/{capture.keeper()}")
    status = dict(line.split(":", 1) for line in (keeper / "status").read_text().splitlines())
    for capabilities in ("CapPrm", "CapEff", "CapBnd"):
        assert int(status[capabilities], 16) & ~CAPABILITIES == 0, capabilities
    assert int(status["CapInh"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    # SECCOMP_MODE_FILTER
    assert status["Seccomp"].strip() == "2"
    assert (keeper / "cwd").readlink() == Path("/")
    assert capture.process.poll() is None
    # It can still admit members and time the programs.
    joiner = subprocess.Popen(
        [PARSHALL, "capture", "--join", capture.ring, "-w", "/dev/null", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        until("it has joined", lambda: len(subscribers_of(capture.ring)) == 2)
        joiner.send_signal(signal.SIGINT)
        assert joiner.wait(30) == 0
    finally:
        joiner.kill()
        joiner.communicate()
    assert_complete(capture, sender, until)


@pytest.mark.parametrize("count", long_except([500], [500, 5000]))
def test_hostile_messages_change_nothing_for_others(ring: tuple[Capturer, Sender], until: Any, count: int) -> None:
    """Connections send anything, read now and then, and close at any moment."""
    capture, sender = ring
    count = int(os.environ.get("PARSHALL_HOSTILE_MESSAGES", count))
    keeper = Path(f"/proc/{capture.keeper()}")
    _, answered = attack(capture.ring, Random(count), lambda sent_messages: sent_messages < count)
    assert answered > count / 10
    status = dict(line.split(":", 1) for line in (keeper / "status").read_text().splitlines())
    assert int(status["VmHWM"].split()[0]) < 256 << 10, status["VmHWM"]
    until("all others have left", lambda: len(subscribers_of(capture.ring)) == 1, 60)
    assert_complete(capture, sender, until)


def join(connection: KeeperConnection) -> None:
    """Join, and leave the ring unmapped."""
    connection.send(JOIN)
    description, descriptors = connection.receive()
    assert description is not None and description["answer"] == "ring", description
    for descriptor in descriptors:
        os.close(descriptor)


def request(kind: str, *programs: list[int], **settings: Any) -> dict[str, Any]:
    """Return a request to subscribe by these programs."""
    compiled = [{"by_link_type": [[1, program]], "view": "whole"} for program in programs]
    return {"request": kind, "subscriptions": [[{"filter": "", "snaplen": 96}, one] for one in compiled], **settings}


@pytest.mark.parametrize(
    ("programs", "reason"),
    [([PROGRAM] * 64, "64 "), ([[UNKNOWN_INSTRUCTION]], "instruction")],
    ids=["more than there is room for", "a program that is not valid"],
)
def test_a_join_that_is_refused_leaves_the_others_of_its_batch(
    ring: tuple[Capturer, Sender], until: Any, programs: list[list[int]], reason: str
) -> None:
    capture, sender = ring
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(KeeperConnection(capture.ring, 0))) for _ in range(3)]
        for connection in connections:
            join(connection)
        keeper = capture.keeper()
        # So it finds the three requests at once.
        os.kill(keeper, signal.SIGSTOP)
        try:
            for connection, asked in zip(connections, ([PROGRAM], programs, [PROGRAM]), strict=True):
                connection.send(request("subscribe", *asked))
        finally:
            os.kill(keeper, signal.SIGCONT)
        answers = [connection.receive()[0] for connection in connections]
        assert [answer["answer"] for answer in answers] == ["subscribed", "refused", "subscribed"]
        assert reason in answers[1]["message"]
        assert len(subscribers_of(capture.ring)) == 3
        # It may ask again on the same connection, and once only.
        connections[1].send(request("subscribe", PROGRAM))
        answers[1], _ = connections[1].receive()
        connections[1].send(request("subscribe", PROGRAM))
        assert connections[1].refusal().endswith("subscribe once")
        assert len({answer["bits"][0] for answer in answers}) == 3
        sender.send([frame(number, 60) for number in range(5)])
        for connection in connections:
            connection.send({"request": "account"})
            answer, _ = connection.receive()
            assert [sum(hook["matched"] for hook in counts) for counts in answer["counts"]] == [5]
    # They have read nothing, and the ring waits for readers of root.
    until("they have left", lambda: len(subscribers_of(capture.ring)) == 1)
    assert_complete(capture, sender, until)


class OwnBell:
    """What wakes a subscriber in immediate mode: the kernel's ring buffer, whose reader has a page to write."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.read = mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.written = mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ, offset=mmap.PAGESIZE)
        information = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        self.map = int(re.findall(r"^map_id:\s+(\d+)", information, re.MULTILINE)[0])

    def rings(self) -> bool:
        """Whether it was rung since it was silenced."""
        return bool(select.select([self.descriptor], [], [], 0)[0])

    def silence(self) -> None:
        """Read what was written, as a subscriber does."""
        self.read[:8] = self.written[:8]

    def close(self) -> None:
        """Unmap it."""
        self.read.close()
        self.written.close()
        os.close(self.descriptor)


def test_a_user_who_kept_a_bell_can_neither_hear_nor_hold_up_the_next_user(
    ring: tuple[Capturer, Sender], until: Any
) -> None:
    """The place of a subscriber that left is another user's, with a bell of its own."""
    capture, sender = ring

    @contextlib.contextmanager
    def subscribed(user: int) -> Iterator[tuple[int, OwnBell]]:
        with contextlib.closing(KeeperConnection(capture.ring, user, MEMBER if user else 0)) as connection:
            join(connection)
            connection.send(request("subscribe-at-once", PROGRAM, is_immediate=True))
            answer, descriptors = connection.receive()
            assert answer is not None and answer["answer"] == "subscribed", answer
            yield answer["bits"][0], OwnBell(*descriptors)

    with contextlib.ExitStack() as stack:
        kept: list[OwnBell] = []
        heard: list[bytes] = []
        places = set()
        for user in (MEMBER, OTHER_MEMBER, 0, MEMBER):
            with subscribed(user) as (place, bell):
                stack.callback(bell.close)
                places.add(place)
                assert bell.map not in {other.map for other in kept}
                for other in kept:
                    other.silence()
                    # Somewhere else than where the kernel writes.
                    other.read[:8] = bytes([255]) * 8
                for number in range(3):
                    bell.silence()
                    assert not bell.rings()
                    sender.send([frame(number, 60)])
                    until("it rings", bell.rings)
                assert not any(other.written[:8] != before for other, before in zip(kept, heard, strict=True))
                with subscribed(user) as (second_place, second):
                    stack.callback(second.close)
                    assert second_place != place and second.map != bell.map
            until("it has left", lambda: len(subscribers_of(capture.ring)) == 1)
            kept.append(bell)
            heard = [one.written[:8] for one in kept]
        assert len(places) < 4, "no place was given twice"
    assert_complete(capture, sender, until)
