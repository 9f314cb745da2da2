"""Rings with several readers: joining, leaving, stalling or dying disturbs no other reader."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from capturer import (
    EXPERIMENT,
    PARSHALL,
    RUN_DIRECTORY,
    Capturer,
    Sender,
    account_of,
    frame,
    packets_of,
    ring_name,
    rings,
    subscribers_of,
    total,
    written_frames,
)

import in_process
from parshall.instruments.capture import rings as listed_rings

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


class Place:
    """An interface at which frames arrive when they are sent."""

    def __init__(self, bed: Any) -> None:
        left, self.host = bed.host("left"), bed.host("right")
        link = bed.link(left, self.host)
        self.interface = link.interface(self.host)
        self.peer, self.peer_interface = left, link.interface(left)
        self.sender = Sender(left, self.peer_interface)
        self.sent = 0

    def send(self, count: int, frame_bytes: int = 200) -> None:
        """Send the next frames."""
        self.sender.send([frame(number, frame_bytes) for number in range(self.sent, self.sent + count)])
        self.sent += count


@pytest.fixture
def place(bed: Any) -> Iterator[Place]:
    """Give an interface in a namespace of its own."""
    made = Place(bed)
    yield made
    made.sender.close()


@pytest.fixture(autouse=True)
def nothing_is_left(until: Any) -> Iterator[None]:
    """Fail when a ring that a test created outlives it."""
    before = set(rings())
    yield
    prefix = f"test-{os.getpid()}-"
    until("all rings are gone", lambda: not [name for name in set(rings()) - before if name.startswith(prefix)])


def run(host: Any, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run `parshall capture` to its end, in this process, which saves the start of one."""
    with host.enter():
        return in_process.parshall("capture", *arguments)


def numbers_of(path: Path) -> list[int]:
    """The numbers of the frames of ours in a file, in its order."""
    kind = EXPERIMENT.to_bytes(2, "big")
    return [int.from_bytes(one[14:18], "big") for _, one in packets_of(path) if one[12:14] == kind]


def capture(place: Place, until: Any, file: Path, *arguments: Any, **options: Any) -> Capturer:
    """Capture what arrives, as creator or as member of a ring."""
    where = () if "join" in options else ("-i", place.interface, "--direction", "in")
    return Capturer(until, place.host, *where, "--write", file, "--json", *arguments, **options)


def test_a_new_member_gets_later_packets_and_the_creator_loses_none(place: Place, until: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pcapng", tmp_path / "second.pcapng"
    with capture(place, until, first) as creator:
        place.send(100)
        with capture(place, until, second, join=creator.ring) as joiner:
            assert len(subscribers_of(creator.ring)) == 2
            place.send(100)
            result = joiner.end()
        place.send(100)
        creator_result = creator.end()
    assert result.returncode == creator_result.returncode == 0, result.stderr + creator_result.stderr
    assert numbers_of(second) == list(range(100, 200))
    assert numbers_of(first) == list(range(300))
    account = account_of(result)["subscribers"][0]
    assert total(account, "logged") == 100
    assert total(account, "filtered") == 0
    assert total(account_of(creator_result)["subscribers"][0], "logged") >= 300


def test_discarded_packets_are_captured_and_reach_no_socket(place: Place, until: Any, tmp_path: Path) -> None:
    """Whether a filter selects them or not: no packet at a mirror port is for this host."""
    every_protocol = 3
    with place.host.enter():
        stack = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(every_protocol))
    with stack:
        stack.bind((place.interface, every_protocol))
        stack.setblocking(False)
        file = tmp_path / "odd.pcapng"
        with capture(place, until, file, "--hook", "xdp", "--discard", "--filter", "ether[17] & 1 = 1") as capturer:
            place.send(100)
            account = account_of(capturer.end())
        assert numbers_of(file) == list(range(1, 100, 2))
        assert total(account["subscribers"][0], "filtered") >= 50
        place.send(1)
        received: list[int] = []

        def is_through() -> bool:
            # Hosts may say something of their own.
            with suppress(BlockingIOError):
                if (one := stack.recv(2048))[12:14] == EXPERIMENT.to_bytes(2, "big"):
                    received.append(int.from_bytes(one[14:18], "big"))
            return bool(received)

        until("packets come through again", is_through)
        assert received == [100]


def test_only_xdp_discards(place: Place) -> None:
    result = run(place.host, "-i", place.interface, "--discard", "--write", "/dev/null")
    assert result.returncode == 2
    assert "--hook xdp" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("hook", ["tcx", "xdp"])
def test_no_member_loses_packets_while_others_join_and_leave(
    place: Place, until: Any, tmp_path: Path, hook: str
) -> None:
    """Every change of the subscribers replaces the programs, under traffic."""
    first = tmp_path / "first.pcapng"
    stop = threading.Event()

    def send() -> None:
        # A low rate, which leaves CPU time to the others.
        while not stop.wait(0.001):
            place.send(5)

    sending = threading.Thread(target=send)
    with capture(place, until, first, "--hook", hook) as creator:
        sending.start()
        try:
            for number in range(2):
                file = tmp_path / f"{number}.pcapng"
                with capture(place, until, file, "--filter", "greater 60", join=creator.ring) as joiner:
                    until("it has some", lambda file=file: written_frames(file) >= 100)
                    account_of(joiner.end())
                numbers = numbers_of(file)
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        finally:
            stop.set()
            sending.join()
        (account,) = account_of(creator.end())["subscribers"]
    assert numbers_of(first) == list(range(place.sent))
    assert not any(account["interfaces"][0]["lost"].values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["leaves", "is killed"])
def test_members_continue_without_the_creator(place: Place, until: Any, tmp_path: Path, number: int) -> None:
    second = tmp_path / "second.pcapng"
    with capture(place, until, tmp_path / "first.pcapng") as creator:
        with capture(place, until, second, join=creator.ring) as joiner:
            place.send(100)
            creator.end(number)
            until("it has gone", lambda: len(subscribers_of(creator.ring)) == 1)
            place.send(100)
            result = joiner.end()
    assert result.returncode == 0
    assert numbers_of(second) == list(range(200))
    account_of(result)


def test_a_joiner_that_is_killed_leaves_nothing(place: Place, until: Any, tmp_path: Path) -> None:
    first = tmp_path / "first.pcapng"
    with capture(place, until, first) as creator:
        with capture(place, until, tmp_path / "second.pcapng", join=creator.ring) as joiner:
            joiner.end(signal.SIGKILL)
        place.send(100)
        until("it has gone", lambda: len(subscribers_of(creator.ring)) == 1)
        result = creator.end()
    assert numbers_of(first) == list(range(100))
    account_of(result)


def test_members_report_a_killed_keeper_and_end(place: Place, until: Any, tmp_path: Path) -> None:
    files = [tmp_path / "first.pcapng", tmp_path / "second.pcapng"]
    with capture(place, until, files[0]) as creator, capture(place, until, files[1], join=creator.ring) as joiner:
        place.send(100)
        os.kill(creator.keeper(), signal.SIGKILL)
        for one, file in zip((creator, joiner), files, strict=True):
            result = one.end(number=None)
            assert result.returncode == 1
            line = f"parshall: capture: the keeper of ring {creator.ring} died"
            assert [text for text in result.stderr.splitlines() if text.startswith(line)]
            assert not json.loads(result.stdout)["ledger"]["complete"]
            assert numbers_of(file) == list(range(100))
    # Its socket remains, and does not prevent a new ring of that name.
    assert (RUN_DIRECTORY / f"{creator.ring}.ring").exists()
    result = run(place.host, "--join", creator.ring, "-w", tmp_path / "x.pcapng")
    assert result.returncode == 2
    assert "its keeper died" in result.stderr
    again = run(place.host, "-i", place.interface, "--name", creator.ring, "-w", files[0], "--duration", "0.1")
    assert again.returncode == 0, again.stderr
    until("the keeper has removed it", lambda: not (RUN_DIRECTORY / f"{creator.ring}.ring").exists())


@pytest.mark.parametrize("policy", ["fast", "slow"])
def test_the_account_counts_what_a_stopped_reader_loses(place: Place, until: Any, tmp_path: Path, policy: str) -> None:
    """With the fast policy it alone loses packets; with the slow policy all lose the same."""
    files = [tmp_path / "first.pcapng", tmp_path / "second.pcapng"]
    arguments = ("--policy", policy, "--buffer", "1M")
    with capture(place, until, files[0], *arguments) as creator:
        with capture(place, until, files[1], join=creator.ring) as stopped:
            place.send(50)
            stopped.process.send_signal(signal.SIGSTOP)
            # Three times the capacity of the ring.
            for _ in range(6):
                place.send(400, frame_bytes=1400)
                # A busy machine may keep the other reader from its CPU, too.
                until("the other reads", lambda: policy == "slow" or written_frames(files[0]) == place.sent)
            stopped.process.send_signal(signal.SIGCONT)
            until("it reads again", lambda: written_frames(files[1]) > 50)
            place.send(50)
            stopped_result = stopped.end()
        creator_result = creator.end()
    cause = "overwritten" if policy == "fast" else "dropped"
    for result, file, loses in ((creator_result, files[0], policy == "slow"), (stopped_result, files[1], True)):
        assert result.returncode == 0
        (account,) = account_of(result)["subscribers"]
        lost = total(account, cause)
        assert (lost > 0) == loses, account
        assert sum(account["interfaces"][0]["lost"].values()) == lost
        numbers = numbers_of(file)
        assert numbers == sorted(set(numbers))
        assert place.sent - len(numbers) == lost


@pytest.mark.parametrize("policy", ["fast", "slow"])
def test_a_slow_reader(place: Place, until: Any, tmp_path: Path, policy: str) -> None:
    """With the fast policy it alone loses packets; with the slow policy all get the same packets."""
    file, crawled, fifo = tmp_path / "all.pcapng", tmp_path / "crawled.pcapng", tmp_path / "fifo"
    os.mkfifo(fifo)
    pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    received: list[bytes] = []

    def drain() -> None:
        os.set_blocking(pipe, True)
        while piece := os.read(pipe, 65536):
            received.append(piece)

    with (
        capture(place, until, file, "--policy", policy, "--buffer", "1M") as creator,
        capture(place, until, fifo, join=creator.ring) as crawler,
    ):
        # Three times the capacity of the ring, of which it reads a quarter in time.
        for _ in range(250):
            place.send(50)
            with suppress(BlockingIOError):
                received.append(os.read(pipe, 4096))
        rest = threading.Thread(target=drain)
        rest.start()
        crawler_result, creator_result = crawler.end(), creator.end()
        rest.join()
    os.close(pipe)
    crawled.write_bytes(b"".join(received))
    crawler_account = account_of(crawler_result)["subscribers"][0]
    creator_account = account_of(creator_result)["subscribers"][0]
    assert len(numbers_of(crawled)) <= total(crawler_account, "logged") < place.sent
    if policy == "fast":
        assert total(crawler_account, "overwritten") > 0
        assert total(crawler_account, "dropped") == total(creator_account, "dropped") == 0
        assert set(numbers_of(crawled)) <= set(range(place.sent))
    else:
        assert total(crawler_account, "dropped") > 0
        assert total(crawler_account, "overwritten") == total(creator_account, "overwritten") == 0
        assert numbers_of(crawled) == numbers_of(file)


def test_a_killed_reader_does_not_delay_the_others(place: Place, until: Any, tmp_path: Path) -> None:
    first = tmp_path / "first.pcapng"
    with capture(place, until, first, "--policy", "slow", "--buffer", "1M") as creator:
        with capture(place, until, tmp_path / "second.pcapng", join=creator.ring) as killed:
            killed.process.send_signal(signal.SIGSTOP)
            killed.end(signal.SIGKILL)
            until("it has gone", lambda: len(subscribers_of(creator.ring)) == 1)
        # More than the capacity of the ring.
        for _ in range(11):
            place.send(100, frame_bytes=1400)
            sent = place.sent
            # The rest waits for the next flush.
            until("the creator keeps up", lambda sent=sent: written_frames(first) > sent - 200)
        result = creator.end()
    (account,) = account_of(result)["subscribers"]
    assert total(account, "dropped") == 0
    assert numbers_of(first) == list(range(place.sent))


def test_the_65th_subscriber_is_refused_and_the_others_stay(place: Place, until: Any, tmp_path: Path) -> None:
    sixty_four = [argument for number in range(64) for argument in ("--write", tmp_path / f"{number}.pcapng")]
    with Capturer(until, place.host, "-i", place.interface, *sixty_four, "--json", subscribers=64) as creator:
        result = run(place.host, "--join", creator.ring, "-w", tmp_path / "more.pcapng")
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        assert f"ring {creator.ring} has 64 subscribers, and 1 more" in line
        place.send(10)
        ledger = account_of(creator.end())
    assert {total(account, "overwritten") for account in ledger["subscribers"]} == {0}
    assert numbers_of(tmp_path / "63.pcapng") == list(range(10))


def test_joining_an_unknown_ring_is_refused(place: Place, tmp_path: Path) -> None:
    result = run(place.host, "--join", "nobody-has-this", "-w", tmp_path / "x.pcapng")
    assert result.returncode == 2
    assert result.stderr == (
        "parshall: capture: ring nobody-has-this: no such ring; `parshall capture --list` shows those that run\n"
    )


def test_a_taken_name_is_refused_with_a_hint_to_join(place: Place, until: Any, tmp_path: Path) -> None:
    with capture(place, until, tmp_path / "first.pcapng") as creator:
        result = run(place.host, "-i", place.interface, "--name", creator.ring, "-w", tmp_path / "x.pcapng")
        assert result.returncode == 2
        assert f"join it with --join {creator.ring}" in result.stderr
        creator.end()


def test_the_list_shows_who_reads_what(place: Place, until: Any, tmp_path: Path) -> None:
    with capture(place, until, tmp_path / "first.pcapng", "--snaplen", "96", "--policy", "slow") as creator:
        place.send(100)
        shown = run(place.host, "--list").stdout
        assert f"{creator.ring}: {place.interface} in (tcx); slow reader, 32 MiB" in shown
        assert f"process {creator.process.pid}: everything, up to 96 bytes; " in shown
        # From another namespace, whose interface may have the same name.
        there = in_process.parshall("capture", "--list").stdout
        assert f"{creator.ring}: {place.interface} in (tcx) in netns {place.host.namespace}; slow reader" in there
        (ring,) = (one for one in listed_rings() if one["name"] == creator.ring)
        (reader,) = ring["subscribers"]
        account = account_of(creator.end())["subscribers"][0]
    # Nothing came after the list.
    for name, counted in (("seen", "seen"), ("matched", "logged")):
        assert reader[name] == total(account, counted) >= 100
    assert reader["dropped"] == 0


def test_a_second_ring_at_an_interface_warns_of_the_first(place: Place, until: Any, tmp_path: Path, bed: Any) -> None:
    with capture(place, until, tmp_path / "first.pcapng", "-q") as first:
        with capture(place, until, tmp_path / "second.pcapng", "-q") as second:
            hint = f"ring {first.ring} takes packets at {place.interface} already"
            result = second.end()
        assert result.returncode == 0
        (line,) = result.stderr.splitlines()
        assert hint in line and f"--join {first.ring}" in line
        # The same name in another namespace is another interface.
        other = bed.host("other")
        other.run(["ip", "link", "add", place.interface, "type", "veth", "peer", "name", "end"])
        where = ("-i", place.interface, "--name", ring_name(), "--write", tmp_path / "x.pcapng", "--duration", "0.2")
        assert "--join" not in run(other, *where).stderr
        assert first.end().stderr == ""


LIST = " or ".join(f"port {port}" for port in range(1001, 1200, 2))


def test_a_long_list_beside_short_filters_costs_little_memory(place: Place, until: Any, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.pcapng" for number in range(5)]
    filters = ["tcp port 80", "udp port 53", "icmp", LIST, f"ether proto {EXPERIMENT}"]
    arguments = [word for filter, file in zip(filters, files, strict=True) for word in ("--filter", filter, "-w", file)]
    where = ["-i", place.interface, "--direction", "in"]
    with Capturer(until, place.host, *where, *arguments, "--json", subscribers=5) as creator:
        status = Path(f"/proc/{creator.keeper()}/status").read_text()
        place.send(50)
        result = creator.end()
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    assert peak_kib < 200_000
    assert result.returncode == 0, result.stderr
    assert numbers_of(files[4]) == list(range(50))
    account_of(result)


def children_of(process: int) -> list[int]:
    """The running children of a process."""
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in listed if state_of(int(child)) != "Z"]


def state_of(process: int) -> str:
    """The state letter of /proc/PID/stat; Z when the process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def join_that_stands_still(place: Place, until: Any, creator: Capturer, file: Path) -> tuple[Any, int]:
    """Join with filters that take a while to load, and stop the process that loads them."""
    ports = [f"port {(port * 7919) % 60_000 + 1}" for port in range(200)]
    command = [PARSHALL, "capture", "--join", creator.ring]
    for number in range(10):
        # The last one takes what the test sends.
        wanted = " or ".join(ports[number::10]) + f" or ether proto {EXPERIMENT}"
        command += ["--filter", wanted, "-w", file.with_suffix(f".{number}.pcapng")]
    joiner = place.host.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stopped: list[int] = []

    def stands_still() -> bool:
        assert joiner.poll() is None, joiner.communicate()
        for child in children_of(creator.keeper()):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)
                stopped.append(child)
        return bool(stopped) and state_of(stopped[-1]) == "T"

    until("the programs are being made", stands_still, timeout_s=60)
    return joiner, stopped[-1]


def test_leaving_does_not_wait_for_a_join(place: Place, until: Any, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.pcapng" for name in ("first", "second", "third"))
    with capture(place, until, first) as creator, capture(place, until, second, join=creator.ring) as other:
        joiner, _ = join_that_stands_still(place, until, creator, third)
        place.send(100)
        result = other.end()
        assert result.returncode == 0, result.stderr
        assert numbers_of(second) == list(range(100))
        # The keeper tries again, undisturbed.
        until("it has joined", lambda: len(subscribers_of(creator.ring, joiner.pid)) == 10, timeout_s=60)
        place.send(100)
        joiner.send_signal(signal.SIGINT)
        _, errors = joiner.communicate(timeout=60)
        assert joiner.returncode == 0, errors
        assert numbers_of(tmp_path / "third.9.pcapng") == list(range(100, 200))
        creator_result = creator.end()
    assert numbers_of(first) == list(range(200))
    account_of(result)
    account_of(creator_result)


def test_a_join_whose_programs_do_not_load_is_refused_in_one_line(place: Place, until: Any, tmp_path: Path) -> None:
    first = tmp_path / "first.pcapng"
    with capture(place, until, first) as creator:
        place.send(50)
        joiner, making = join_that_stands_still(place, until, creator, tmp_path / "second.pcapng")
        os.kill(making, signal.SIGKILL)
        _, errors = joiner.communicate(timeout=60)
        assert joiner.returncode == 1
        (line,) = errors.splitlines()
        assert "to merge and load them takes more than" in line
        assert len(subscribers_of(creator.ring)) == 1
        place.send(50)
        result = creator.end()
    assert result.returncode == 0, result.stderr
    assert numbers_of(first) == list(range(100))
    account_of(result)
