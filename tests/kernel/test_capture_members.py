"""Members of a ring's group, played by raw sockets: they may read, and can harm only themselves."""

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
from hostile_member import JOIN, LIST, MEMBER, PART_BYTES, KeeperConnection, attack

pytestmark = pytest.mark.kernel
GROUP = grp.getgrgid(MEMBER).gr_name
# Maximum of one member, as in docs/security.md.
CONNECTIONS = 32
# Numbers of capabilities(7): NET_ADMIN, SYS_ADMIN, PERFMON, BPF.
CAPABILITIES = 1 << 12 | 1 << 21 | 1 << 38 | 1 << 39


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
    """Send six times half a ring, then end the capture: its file must have every packet."""
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
        listed = subprocess.run([PARSHALL, "capture", "--list", "--json"], capture_output=True, text=True, timeout=60)
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


def test_hostile_messages_change_nothing_for_others(ring: tuple[Capturer, Sender], until: Any) -> None:
    """Connections send anything, read now and then, and close at any moment."""
    capture, sender = ring
    count = int(os.environ.get("PARSHALL_HOSTILE_MESSAGES", "1500"))
    keeper = Path(f"/proc/{capture.keeper()}")
    _, answered = attack(capture.ring, Random(count), lambda sent_messages: sent_messages < count)
    assert answered > count / 10
    status = dict(line.split(":", 1) for line in (keeper / "status").read_text().splitlines())
    assert int(status["VmHWM"].split()[0]) < 256 << 10, status["VmHWM"]
    until("all others have left", lambda: len(subscribers_of(capture.ring)) == 1, 60)
    assert_complete(capture, sender, until)
