"""Members of a ring's group, spoken for by raw sockets: they may look, and harm nobody but themselves."""

import array
import contextlib
import grp
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from capturer import (
    PARSHALL,
    RUN_DIRECTORY,
    Capturer,
    Sender,
    account_of,
    frame,
    rings,
    subscribers_of,
    total,
)

pytestmark = pytest.mark.kernel
MEMBER = 65534
GROUP = grp.getgrgid(MEMBER).gr_name
LIST = {"request": "list"}
JOIN = {"request": "join", "version": 1}
PART_BYTES = 128 << 10
# Of one member, as docs/security.md has them.
CONNECTIONS = 32
# Numbers of capabilities(7): NET_ADMIN, SYS_ADMIN, PERFMON, BPF.
CAPABILITIES = 1 << 12 | 1 << 21 | 1 << 38 | 1 << 39


class Knock:
    """A connection to a ring's keeper that says whatever it likes."""

    def __init__(self, ring: str, user: int = MEMBER) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        # The keeper sees who we are as we connect.
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(user)
        os.seteuid(user)
        try:
            self.socket.connect(str(RUN_DIRECTORY / f"{ring}.ring"))
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)

    def say(self, what: Any) -> None:
        """Send a message."""
        self.socket.send(what if isinstance(what, bytes) else json.dumps(what).encode())

    def hear(self) -> tuple[dict[str, Any] | None, list[int]]:
        """Return the next message, or None at the end, and the descriptors that came beside it."""
        room = socket.CMSG_SPACE(4 * struct.calcsize("i"))
        try:
            data, beside, _, _ = self.socket.recvmsg(1 << 20, room)
        except ConnectionResetError:
            # Whoever closed had not read all that we said; what it said comes behind.
            data, beside, _, _ = self.socket.recvmsg(1 << 20, room)
        descriptors = array.array("i")
        for _, _, sent in beside:
            descriptors.frombytes(sent)
        return (json.loads(data) if data else None), list(descriptors)

    def refusal(self) -> str:
        """Return why we were refused: the last that is said before the end."""
        message, _ = self.hear()
        assert message is not None
        assert message["answer"] == "refused", message
        return message["message"]

    def close(self) -> None:
        """Go away."""
        self.socket.close()


@pytest.fixture
def ring(bed: Any, until: Any, tmp_path: Path) -> Iterator[tuple[Capturer, Sender]]:
    """Give a capture by root in a slow ring that members of a group may join, and who sends to it."""
    left, right = bed.host("left"), bed.host("right")
    link = bed.link(left, right)
    sender = Sender(left, link.interface(left))
    arguments = ("-i", link.interface(right), "--direction", "in", "-w", tmp_path / "root.pcapng", "--json")
    with (
        contextlib.closing(sender),
        Capturer(until, right, *arguments, "--group", GROUP, "--policy", "slow", "--buffer", "1M") as capture,
    ):
        yield capture, sender
    until("the keeper has gone", lambda: capture.ring not in rings())


@contextlib.contextmanager
def knocking(ring: str, count: int) -> Iterator[list[Knock]]:
    """Connect so many times as a member; close all of it in the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Knock(ring))) for _ in range(count)]


def honest(capture: Capturer, sender: Sender, until: Any) -> None:
    """End a capture to which more is sent than the ring holds, half of it at a time: all must be in its file."""
    file = Path(capture.process.args[capture.process.args.index("-w") + 1])
    for batch in range(1, 7):
        sender.send([frame(number, 1000) for number in range(500)])
        until("it has been written", lambda batch=batch: file.stat().st_size > batch * 500_000)
    ended = capture.end()
    assert ended.returncode == 0, ended.stderr
    (subscriber,) = account_of(ended)["subscribers"]
    assert total(subscriber, "logged") >= 3000
    assert total(subscriber, "dropped") == 0


def test_a_member_can_write_into_nothing_and_nobody_waits_for_it(ring: tuple[Capturer, Sender], until: Any) -> None:
    """Whoever may say how far it has read can say that it never reads, and silence a slow ring for all."""
    capture, sender = ring
    with knocking(capture.ring, 1) as (knock,), contextlib.closing(Knock(capture.ring, 0)) as root:
        knock.say(JOIN)
        description, descriptors = knock.hear()
        assert description["answer"] == "ring"
        assert description["reader_slot"] is None
        assert len(descriptors) == 1
        with pytest.raises(PermissionError):
            mmap.mmap(descriptors[0], mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        root.say(JOIN)
        description, of_root = root.hear()
        assert description["reader_slot"] is not None
        assert len(of_root) == 2
        for descriptor in (*descriptors, *of_root):
            os.close(descriptor)
        honest(capture, sender, until)


def test_those_who_do_not_read_hold_up_nobody(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    with knocking(capture.ring, CONNECTIONS) as knocks:
        for knock in knocks:
            knock.socket.setblocking(False)
            # As many as there is room for: the answers to them are longer.
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while True:
                    knock.say(LIST)
        # A keeper that waits for one of them is not heard of within its patience.
        listed = subprocess.run([PARSHALL, "capture", "--list", "--json"], capture_output=True, text=True, timeout=60)
        (ours,) = (one for one in json.loads(listed.stdout) if capture.ring in str(one))
        assert "unreadable" not in ours
        honest(capture, sender, until)


def test_a_member_gets_so_many_connections_and_others_get_theirs(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    with knocking(capture.ring, CONNECTIONS):
        with knocking(capture.ring, 1) as (knock,):
            assert knock.refusal() == (
                f"ring {capture.ring}: user {MEMBER} has {CONNECTIONS} connections to it, and may have {CONNECTIONS}; "
                "end one first"
            )
            assert knock.hear()[0] is None
        # One that has not yet asked when it is refused hears why, too.
        with knocking(capture.ring, 1) as (knock,):
            with contextlib.suppress(BrokenPipeError):
                knock.say(LIST)
            assert "end one first" in knock.refusal()
        assert len(subscribers_of(capture.ring)) == 1
        honest(capture, sender, until)


def test_whoever_says_nothing_or_never_ends_is_let_go(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    with knocking(capture.ring, 2) as (silent, unfinished):
        unfinished.say(JOIN)
        _, descriptors = unfinished.hear()
        for descriptor in descriptors:
            os.close(descriptor)
        unfinished.say(b"+" + bytes(1000))
        for knock in (silent, unfinished):
            assert "it waited 10 s for a whole request" in knock.refusal()
            assert knock.hear()[0] is None
        honest(capture, sender, until)


def test_a_long_message_is_not_gathered(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    with knocking(capture.ring, 1) as (knock,):
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                knock.say(b"+" + b"[" * PART_BYTES)
        assert "that is no request, or one that is too long" in knock.refusal()
    with knocking(capture.ring, 1) as (knock,):
        knock.say(b"no JSON")
        assert "that is no request, or one that is too long" in knock.refusal()
    honest(capture, sender, until)


def test_unfinished_messages_of_all_members_together_are_bounded(ring: tuple[Capturer, Sender], until: Any) -> None:
    """Each is as long as one may be: 24 MiB, of which 16 are kept."""
    capture, sender = ring
    with knocking(capture.ring, 24) as knocks:
        for knock in knocks:
            knock.socket.setblocking(True)
            with contextlib.suppress(ConnectionError):
                for _ in range(7):
                    knock.say(b"+" + b"[" * PART_BYTES)
        until("one has been let go", lambda: any(select.select([knock.socket], [], [], 0)[0] for knock in knocks))
        honest(capture, sender, until)


def test_the_keeper_keeps_what_it_needs(ring: tuple[Capturer, Sender], until: Any) -> None:
    capture, sender = ring
    keeper = Path(f"/proc/{capture.keeper()}")
    status = dict(line.split(":", 1) for line in (keeper / "status").read_text().splitlines())
    for capabilities in ("CapPrm", "CapEff", "CapBnd"):
        assert int(status[capabilities], 16) & ~CAPABILITIES == 0, capabilities
    assert int(status["CapInh"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    assert (keeper / "cwd").readlink() == Path("/")
    assert capture.process.poll() is None
    # It still takes in others, and times the programs.
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
    honest(capture, sender, until)


def hostile_message(random: Random) -> bytes:
    """Return what is nearly a request: of every field other values, bytes that are others, parts without an end."""
    # ldh [12]; jeq #0x800, 0, 1; ret #96; ret #0
    program = [0x28 << 48 | 12, 0x15 << 48 | 1 << 32 | 0x800, 6 << 48 | 96, 6 << 48]
    for _ in range(random.randrange(3)):
        program[random.randrange(4)] = random.getrandbits(64)
    numbers = (0, 1, 96, 262_144, 1 << 31, (1 << 64) - 1, -1, 0.5, None, "1", [], {})
    subscription = {"filter": random.choice(["", "ip", "\x1b[31m", "x" * 5000]), "snaplen": random.choice(numbers)}
    programs = [[random.choice((1, 1, 1, 101, 65_535)), program * random.choice((1, 1, 1, 2000))]]
    subscriptions = [[subscription, {"by_link_type": programs}]] * random.choice((1, 1, 2, 17, 70))
    message: Any = random.choice(
        [
            LIST,
            JOIN,
            {"request": "join", "version": random.choice(numbers)},
            {"request": "account"},
            {"request": "leave"},
            {"request": "subscribe", "subscriptions": random.choice([subscriptions, subscriptions, *numbers])},
            {"request": "found", "ring": random.choice(numbers), "version": 1},
            random.choice(numbers),
        ]
    )
    data = bytearray(json.dumps(message).encode()[:PART_BYTES])
    for _ in range(random.choice((0, 0, 0, 1, 5))):
        data[random.randrange(len(data))] = random.getrandbits(8)
    return random.choice((b"", b"", b"", b"", b"", b"+")) + bytes(data)


def test_hostile_messages_change_nothing_for_others(ring: tuple[Capturer, Sender], until: Any) -> None:
    """Connections that say anything, read now and then, and go at any moment."""
    capture, sender = ring
    count = int(os.environ.get("PARSHALL_HOSTILE_MESSAGES", "3000"))
    random = Random(count)
    keeper = Path(f"/proc/{capture.keeper()}")
    knocks: list[Knock] = []
    said = answered = 0
    try:
        while said < count:
            if len(knocks) < 8 or random.random() < 0.01:
                knocks.append(Knock(capture.ring))
                knocks[-1].socket.setblocking(False)
            number = random.randrange(len(knocks))
            knock = knocks[number]
            try:
                knock.say(hostile_message(random))
                said += 1
                if random.random() < 0.5 and select.select([knock.socket], [], [], 0.05)[0]:
                    message, descriptors = knock.hear()
                    answered += message is not None
                    for descriptor in descriptors:
                        os.close(descriptor)
            except BlockingIOError:
                pass
            except OSError:
                knocks.pop(number).close()
            if len(knocks) > 24:
                knocks.pop(random.randrange(len(knocks))).close()
    finally:
        for knock in knocks:
            knock.close()
    assert answered > count / 10
    status = dict(line.split(":", 1) for line in (keeper / "status").read_text().splitlines())
    assert int(status["VmHWM"].split()[0]) < 256 << 10, status["VmHWM"]
    until("all others have gone", lambda: len(subscribers_of(capture.ring)) == 1, 60)
    honest(capture, sender, until)
