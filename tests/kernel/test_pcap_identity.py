"""Which interface a program of libpcap reads: by namespace and index, as a packet socket, when names change."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from capturer import PARSHALL, Sender, frame
from test_pcap import KIND, Place, Program, both, check_same, counts, place, stamped

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
INDEX = 4001


@contextmanager
def cable(host: Any, name: str, index: int) -> Iterator[Sender]:
    """Add an interface with an index; give the sender at the other end of its cable."""
    other = f"{name}-end"
    host.run(["ip", "link", "add", name, "index", str(index), "type", "veth", "peer", "name", other])
    for end in (name, other):
        host.run(["ip", "link", "set", end, "up"])
    sender = Sender(host, other)
    try:
        yield sender
    finally:
        sender.close()
        # Its name may be another one by now, and it may be gone.
        with host.enter(), contextlib.suppress(OSError):
            host.run(["ip", "link", "del", socket.if_indextoname(index)])


def rename(host: Any, name: str, new: str) -> None:
    """Give an interface that is up another name (Linux 6.2)."""
    host.run(["ip", "link", "set", name, "name", new])


def written(path: Path) -> list[bytes]:
    """The packets of a file that is being written."""
    return [packet for _, _, packet in stamped(path)] if path.exists() and path.stat().st_size >= 24 else []


def test_a_reader_goes_on_when_its_interface_is_renamed(
    place: Place, until: Callable[..., None], tmp_path: Path
) -> None:
    old, new = place.interface, "renamed0"
    first = [tmp_path / f"{name}.pcap" for name in ("ring", "socket")]
    second = [tmp_path / f"{name}-2.pcap" for name in ("ring", "socket")]
    words = ("tcpdump", "-Z", "root", "-U", "-i")
    programs = both(place, *words, old, "-w", tmp_path / "{}.pcap", KIND)
    with programs[0], programs[1]:
        for program in programs:
            program.wait_for("listening on")
        (ring,) = place.rings().values()
        assert ring["interfaces"] == [old]
        place.sender.send([frame(number, 60) for number in range(3)])
        rename(place.host, old, new)
        # The keeper has seen it when it is asked.
        (ring,) = place.rings().values()
        assert ring["interfaces"] == [new] and all(hook.startswith(f"{new} ") for hook in ring["hooks"])
        later = both(place, *words, new, "-w", tmp_path / "{}-2.pcap", KIND)
        with later[0], later[1]:
            for program in later:
                program.wait_for("listening on")
            (ring,) = place.rings().values()
            assert len(ring["subscribers"]) == 2
            place.sender.send([frame(number, 60) for number in range(3, 7)])
            until("all is written", lambda: all(len(written(file)) == 7 for file in first))
            until("all is written", lambda: all(len(written(file)) == 4 for file in second))
            for files in (first, second):
                check_same(*map(stamped, files))
            # It is the interface that is removed, whatever its readers know it by.
            place.host.run(["ip", "link", "del", new])
            done = [program.end() for program in (*programs, *later)]
    assert [one.returncode for one in done] == [1] * 4
    assert "The interface disappeared" in done[0].stderr and "The interface disappeared" in done[2].stderr
    assert [counts(one.stderr)[1] for one in done] == [7, 7, 4, 4]


def test_another_interface_gets_the_name_of_one_that_is_read(
    place: Place, until: Callable[..., None], tmp_path: Path
) -> None:
    files = {name: [tmp_path / f"{kind}-{name}.pcap" for kind in ("ring", "socket")] for name in ("one", "two")}
    words = ("tcpdump", "-Z", "root", "-U", "-i", "one", "-w")
    with cable(place.host, "one", INDEX) as first_end:
        first = both(place, *words, tmp_path / "{}-one.pcap", KIND)
        with first[0], first[1]:
            for program in first:
                program.wait_for("listening on")
            rename(place.host, "one", "former")
            rename(place.host, "one-end", "former-end")
            with cable(place.host, "one", INDEX + 10) as second_end:
                second = both(place, *words, tmp_path / "{}-two.pcap", KIND)
                with second[0], second[1]:
                    for program in second:
                        assert "without the ring" not in program.wait_for("listening on")
                    assert len(place.rings()) == 2
                    first_end.send([frame(number, 60) for number in range(3)])
                    second_end.send([frame(100 + number, 60) for number in range(7)])
                    until("3 are written", lambda: all(len(written(file)) == 3 for file in files["one"]))
                    until("7 are written", lambda: all(len(written(file)) == 7 for file in files["two"]))
                    for pair in files.values():
                        check_same(*map(stamped, pair))
                    for program in (*first, *second):
                        program.end(signal.SIGINT)


def test_another_interface_gets_the_name_and_the_index_of_one_that_was_removed(
    place: Place, until: Callable[..., None], tmp_path: Path
) -> None:
    """The ring goes on, since it has another interface; it does not see the new one."""
    name = f"test-{os.getpid()}-removed"
    files = [tmp_path / f"{kind}.pcap" for kind in ("ring", "socket")]
    with cable(place.host, "one", INDEX):
        words = ("-i", "one", "-i", place.interface, "--name", name, "-w", "/dev/null")
        capture = Program(place, False, PARSHALL, "capture", *words)
        with capture:
            until("the ring runs", lambda: place.rings().get(name, {}).get("subscribers"))
            assert place.rings()[name]["indices"][0] == INDEX
            place.host.run(["ip", "link", "del", "one"])
            assert place.rings()[name]["interfaces"] == [place.interface]
            with cable(place.host, "one", INDEX) as sender:
                programs = both(place, "tcpdump", "-Z", "root", "-U", "-i", "one", "-w", tmp_path / "{}.pcap", KIND)
                with programs[0], programs[1]:
                    for program in programs:
                        assert "without the ring" not in program.wait_for("listening on")
                    assert len(place.rings()) == 2
                    sender.send([frame(number, 60) for number in range(5)])
                    until("all is written", lambda: all(len(written(file)) == 5 for file in files))
                    check_same(*map(stamped, files))
                    for program in programs:
                        program.end(signal.SIGINT)


def test_equal_names_and_indices_in_two_namespaces_are_two_interfaces(
    place: Place, bed: Any, until: Callable[..., None], tmp_path: Path
) -> None:
    other = bed.host("other")
    name = f"test-{os.getpid()}-here"
    with cable(place.host, "one", INDEX) as here, cable(other, "one", INDEX) as there:
        capture = Program(place, False, PARSHALL, "capture", "-i", "one", "--name", name, "-w", "/dev/null")
        with capture:
            until("the ring runs", lambda: place.rings().get(name, {}).get("subscribers"))
            elsewhere = Place.__new__(Place)
            elsewhere.host, elsewhere.interface = other, "one"
            words = ("-Z", "root", "-U", "-i", "one", "-w")
            joining = (PARSHALL, "pcap", "--join", name, "--", "tcpdump")
            files = [tmp_path / f"{kind}.pcap" for kind in ("ring", "joined", "socket")]
            programs = [
                Program(elsewhere, True, "tcpdump", *words, files[0], KIND),
                Program(elsewhere, False, *joining, *words, files[1], KIND),
                Program(elsewhere, False, "tcpdump", *words, files[2], KIND),
            ]
            with programs[0], programs[1], programs[2]:
                lines = [program.wait_for("listening on") for program in programs]
                assert ["without the ring" in line for line in lines] == [False, True, False]
                assert len(elsewhere.rings()) == 1 and list(place.rings()) == [name]
                here.send([frame(number, 60) for number in range(3)])
                there.send([frame(100 + number, 60) for number in range(7)])
                until("all is written", lambda: all(len(written(file)) == 7 for file in files))
                for file in files[:2]:
                    check_same(stamped(file), stamped(files[2]))
                for program in programs:
                    program.end(signal.SIGINT)


def test_a_ring_whose_interfaces_were_removed_is_not_joined(place: Place, until: Callable[..., None]) -> None:
    with Program(place, True, "tcpdump", "-Z", "root", "-i", place.interface, "-w", "/dev/null") as program:
        program.wait_for("listening on")
        (name,) = place.rings()
        # It holds the ring, and does not see that its interface is removed.
        program.process.send_signal(signal.SIGSTOP)
        place.host.run(["ip", "link", "del", place.interface])
        with place.host.enter():
            joined = subprocess.run(
                [PARSHALL, "capture", "--join", name, "-w", "/dev/null"], capture_output=True, text=True, timeout=60
            )
        assert (joined.returncode, joined.stderr.strip()) == (
            2,
            f"parshall: capture: ring {name}: its interfaces were removed; create a ring",
        )
        program.process.send_signal(signal.SIGCONT)
        assert "The interface disappeared" in program.end().stderr
