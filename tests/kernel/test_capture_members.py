"""Members of a ring's group, spoken for by raw sockets: they may look, and harm nobody but themselves."""

import contextlib
import grp
import json
import mmap
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from capturer import (
    PARSHALL,
    Capturer,
    Sender,
    account_of,
    frame,
    rings,
    subscribers_of,
    total,
)
from hostile_member import JOIN, LIST, MEMBER, PART_BYTES, Knock, attack

pytestmark = pytest.mark.kernel
GROUP = grp.getgrgid(MEMBER).gr_name
# Of one member, as docs/security.md has them.
CONNECTIONS = 32
# Numbers of capabilities(7): NET_ADMIN, SYS_ADMIN, PERFMON, BPF.
CAPABILITIES = 1 << 12 | 1 << 21 | 1 << 38 | 1 << 39


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


def test_a_member_cannot_write_to_the_ring_or_delay_others(ring: tuple[Capturer, Sender], until: Any) -> None:
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


def test_members_that_do_not_read_delay_no_other(ring: tuple[Capturer, Sender], until: Any) -> None:
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


def test_the_connections_of_one_member_are_limited_and_others_get_theirs(
    ring: tuple[Capturer, Sender], until: Any
) -> None:
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


def test_silent_and_endless_connections_are_closed(ring: tuple[Capturer, Sender], until: Any) -> None:
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
    # SECCOMP_MODE_FILTER
    assert status["Seccomp"].strip() == "2"
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


def test_hostile_messages_change_nothing_for_others(ring: tuple[Capturer, Sender], until: Any) -> None:
    """Connections that say anything, read now and then, and go at any moment."""
    capture, sender = ring
    count = int(os.environ.get("PARSHALL_HOSTILE_MESSAGES", "3000"))
    keeper = Path(f"/proc/{capture.keeper()}")
    _, answered = attack(capture.ring, Random(count), lambda said: said < count)
    assert answered > count / 10
    status = dict(line.split(":", 1) for line in (keeper / "status").read_text().splitlines())
    assert int(status["VmHWM"].split()[0]) < 256 << 10, status["VmHWM"]
    until("all others have gone", lambda: len(subscribers_of(capture.ring)) == 1, 60)
    honest(capture, sender, until)
