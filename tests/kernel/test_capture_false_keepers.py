"""Rings that somebody else keeps: nobody but root and the user itself decides what a capture reads."""

import array
import contextlib
import fcntl
import functools
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from capturer import PARSHALL, RUN_DIRECTORY, Capturer, packets_of, ring_name, run
from hostile_member import JOIN, MEMBER, KeeperConnection
from running_command import read_until

from isolation import isolate
from parshall.errors import ParshallError
from parshall.instruments.capture import Capture, Output

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


def with_own_directory(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a thread whose directory of rings is its own: false ones are in nobody's way."""

    @functools.wraps(test)
    def isolated(*arguments: Any, **named: Any) -> None:
        def run_test() -> None:
            isolate([str(RUN_DIRECTORY)])
            test(*arguments, **named)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(run_test).result()

    return isolated


def is_one_line(ended: "subprocess.CompletedProcess[str]", text: str) -> bool:
    """Whether a command failed with one line that has a text."""
    assert ended.returncode in (1, 2) and ended.stderr.count("\n") == 1, ended
    return text in ended.stderr


@contextlib.contextmanager
def kept_by(user: int, answer: dict[str, Any] | None, descriptors: list[int]) -> Iterator[str]:
    """Keep a false ring as a user; every request gets the same answer, or none."""
    name = ring_name()
    path = RUN_DIRECTORY / f"{name}.ring"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    # The kernel notes who listens.
    os.seteuid(user)
    try:
        listener.listen(8)
    finally:
        os.seteuid(0)
    kept = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                kept.append(connection)
                connection.recv(1 << 20)
                beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
                connection.sendmsg([json.dumps(answer).encode()], beside)

    thread = threading.Thread(target=serve, daemon=True)
    if answer is not None:
        thread.start()
    try:
        yield name
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in kept:
            connection.close()
        if answer is not None:
            thread.join(timeout=10)
        path.unlink()


@with_own_directory
def test_root_uses_no_directory_of_another_user(bed: Any, tmp_path: Path) -> None:
    here = bed.host("here")
    os.chown(RUN_DIRECTORY, MEMBER, MEMBER)
    for words in (["-i", "lo", "-w", tmp_path / "x"], ["--join", "day", "-w", tmp_path / "x"], ["--list"]):
        ended = run(here, *words)
        assert ended.returncode == 2 and is_one_line(ended, f"{RUN_DIRECTORY}: belongs to user {MEMBER}"), ended
        assert "chown root" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@with_own_directory
def test_a_program_of_libpcap_stays_on_packet_sockets_there(bed: Any, tmp_path: Path) -> None:
    here = bed.host("here")
    os.chown(RUN_DIRECTORY, MEMBER, MEMBER)
    command = [PARSHALL, "pcap", "--", "tcpdump", "-i", "lo", "-c", "1", "-w", tmp_path / "x.pcap"]
    with here.enter(), subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        said = read_until(program.stderr, "listening on")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"x", ("127.0.0.1", 9))
        assert program.wait(30) == 0
    assert f"{RUN_DIRECTORY}: belongs to user {MEMBER}" in said and "without the ring" in said
    assert packets_of(tmp_path / "x.pcap")
    assert not list(RUN_DIRECTORY.glob("*.ring"))


@with_own_directory
def test_a_directory_that_others_may_write_to_is_refused(bed: Any, tmp_path: Path) -> None:
    here = bed.host("here")
    RUN_DIRECTORY.chmod(0o777)
    assert is_one_line(run(here, "-i", "lo", "-w", tmp_path / "x"), "other users may write to it")


@with_own_directory
def test_what_is_no_lock_is_not_waited_for(bed: Any, tmp_path: Path) -> None:
    here = bed.host("here")
    os.mkfifo(RUN_DIRECTORY / ".lock")
    assert is_one_line(run(here, "-i", "lo", "-w", tmp_path / "x"), "is no lock of ours")


FAST_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
/* A minute of waiting passes in a second. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*original)(clockid_t, struct timespec *);
    if (!original)
        original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = original(clock, now);
    if (status == 0 && clock == CLOCK_MONOTONIC)
        now->tv_sec = now->tv_sec * 60 + now->tv_nsec * 60 / 1000000000, now->tv_nsec = now->tv_nsec * 60 % 1000000000;
    return status;
}
"""


@pytest.fixture(scope="module")
def fast_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("clock") / "fast.so"
    words = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-ldl"]
    subprocess.run(words, input=FAST_CLOCK, text=True, check=True)
    return library


@with_own_directory
def test_a_lock_that_somebody_holds_is_waited_for_a_minute(bed: Any, tmp_path: Path, fast_clock: Path) -> None:
    here = bed.host("here")
    environment = {**os.environ, "LD_PRELOAD": str(fast_clock)}
    with (RUN_DIRECTORY / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = run(here, "-i", "lo", "-w", tmp_path / "x", env=environment)
        assert is_one_line(ended, "another process holds .lock in it for more than a minute"), ended
    assert run(here, "-i", "lo", "-w", tmp_path / "x", "-d", "500ms").returncode == 0


@with_own_directory
def test_rings_of_other_users_are_not_joined(bed: Any, tmp_path: Path) -> None:
    here = bed.host("here")
    with kept_by(MEMBER, {"answer": "ring"}, []) as name:
        ended = run(here, "--join", name, "-w", tmp_path / "x")
        assert is_one_line(ended, f"ring {name}: user {MEMBER} keeps it"), ended
        listed = run(here, "--list")
        assert f"user {MEMBER} keeps it" in listed.stdout and listed.returncode == 0, listed


def cut_file(answer: dict[str, Any], _: int) -> int:
    descriptor = os.memfd_create("false")
    os.ftruncate(descriptor, 4096)
    return descriptor


def changed(**changes: Any) -> Callable[[dict[str, Any], int], int]:
    def change(answer: dict[str, Any], descriptor: int) -> int:
        answer.update({name: value for name, value in changes.items() if name in answer})
        answer["layout"].update({name: value for name, value in changes.items() if name in answer["layout"]})
        return os.dup(descriptor)

    return change


FALSE = {
    "a file": (cut_file, "offers memory that is no map"),
    "an odd size": (changed(size_bytes=12345), "describes itself wrongly"),
    "size 0": (changed(size_bytes=0), "describes itself wrongly"),
    "another size": (changed(size_bytes=1 << 19, part_shift=13), "offers memory of another size"),
    "other parts": (changed(part_shift=63), "describes itself wrongly"),
    "no slack": (changed(slack_bytes=0), "describes itself wrongly"),
    "no lanes": (changed(lanes=0), "describes itself wrongly"),
    "many lanes": (changed(lanes=1 << 40), "describes itself wrongly"),
    "more lanes": (changed(lanes=1 << 12), "offers memory of another size"),
    "a slot": (changed(reader_slot=1 << 20), "describes itself wrongly"),
}


@with_own_directory
def test_memory_of_a_ring_is_checked_before_it_is_read(bed: Any, tmp_path: Path, until: Any) -> None:
    here = bed.host("here")
    with Capturer(until, here, "-i", "lo", "--buffer", "1M", "-w", tmp_path / "true.pcap") as creator:
        connection = KeeperConnection(creator.ring, user=0)
        connection.send(JOIN)
        answer, (descriptor,) = connection.receive()
        assert answer is not None and answer["answer"] == "ring"
        for what, (change, text) in FALSE.items():
            false = json.loads(json.dumps(answer))
            memory = change(false, descriptor)
            with kept_by(0, false, [memory]) as name:
                with pytest.raises(ParshallError, match=f"ring {creator.ring} {text}") as caught:
                    Capture([Output(tmp_path / "false.pcap")], join=name)
                assert str(caught.value).isprintable(), what
            os.close(memory)
        os.close(descriptor)
        connection.close()
        creator.end()
    assert not (tmp_path / "false.pcap").exists()


@pytest.mark.long
@with_own_directory
def test_a_keeper_that_accepts_nothing_is_not_waited_for(bed: Any, tmp_path: Path) -> None:
    here = bed.host("here")
    with kept_by(0, None, []) as name, contextlib.ExitStack() as full:
        for _ in range(20):
            one = full.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(str(RUN_DIRECTORY / f"{name}.ring"))
        assert is_one_line(run(here, "--join", name, "-w", tmp_path / "x"), "accepts no connection")
