"""Captures of libpcap in several threads: on a ring beside the same program on a packet socket."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from capturer import frame
from test_pcap import KIND, Place, Program, counts, place

from suites import long_except

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
OTHER_KIND = 0x88B6
OTHER = f"{KIND} or ether proto {OTHER_KIND}"
LAST = 0xFFFF_FFFF
SOURCE = Path(__file__).with_name("pcap_threads.c")


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the program for the system's libpcap, as any program is."""
    program = tmp_path_factory.mktemp("threads") / "pcap_threads"
    words = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", SOURCE, "-o", program, "-l:libpcap.so.0.8"]
    subprocess.run(words, check=True)
    return program


@contextmanager
def traffic(place: Place) -> Iterator[list[int]]:
    """Send frames of both kinds; the number of those of the first kind is in the list at the end."""
    is_over, sent = threading.Event(), [0]

    def flow() -> None:
        while not is_over.wait(0.0005):
            number = sent[0]
            place.sender.send([frame(number, 60), frame(number, 60, kind=OTHER_KIND), frame(number + 1, 60)])
            sent[0] += 2

    sending = threading.Thread(target=flow)
    sending.start()
    try:
        yield sent
    finally:
        is_over.set()
        sending.join()


def answer(program: Program) -> Any:
    """Wait for the end, and return what was printed."""
    done = program.end(timeout_s=120)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "without the ring" not in done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", ["stats", "filters"])
def test_threads_count_send_filter_and_break_while_one_reads(place: Place, threads: Path, mode: str) -> None:
    for on_ring in place.both_ways():
        with Program(place, on_ring, threads, place.interface, KIND, OTHER, mode) as program:
            said = program.wait_for("ready")
            assert bool(place.rings()) == on_ring, said
            with traffic(place) as sent:
                program.wait_for("done")
            place.sender.send([frame(LAST, 60)])
            found = answer(program)
        assert found["breaks"] > 0 and found["calls"] > 10_000
        assert 0 < found["delivered"] <= sent[0]
        # libpcap's own counts are not exact when two threads ask, and it loses packets when the filter changes.
        if on_ring:
            assert (found["delivered"], found["dropped"]) == (sent[0], 0)
            assert found["received"] >= sent[0] + 1
        if on_ring and mode == "stats":
            assert found["received"] == sent[0] + 1


CALLS = ("loop", "dispatch", "next_ex", "next")
MODES = ("idle", "traffic", "disabled", "callback", "exit")
# Each way to be cancelled, and each call.
CANCELLED = [*product(["loop"], MODES), *product(CALLS[1:], ["idle"])]


@pytest.mark.parametrize(("call", "mode"), long_except(CANCELLED, product(CALLS, MODES)))
def test_a_thread_that_reads_can_be_cancelled(place: Place, threads: Path, mode: str, call: str) -> None:
    for on_ring in place.both_ways():
        with Program(place, on_ring, threads, place.interface, KIND, OTHER, mode, call) as program:
            program.wait_for("ready")
            # The first capture may have ended already, so the ring is looked for in the second one.
            with nullcontext() if mode == "idle" else traffic(place):
                said = program.wait_for("again")
            assert bool(place.rings()) == on_ring, said
            place.sender.send([frame(number, 60) for number in (1, 2, LAST)])
            assert answer(program) == {"is_cancelled": True, "received": True}


def test_a_signal_handler_counts_whatever_its_thread_does(place: Place) -> None:
    """Interrupt tcpdump, whose handler of SIGUSR1 calls `pcap_stats`, while it waits for packets and reads them."""
    for on_ring in place.both_ways():
        # Without -Z it gives the output, a device of all, to its own user.
        words = ("tcpdump", "-Z", "root", "-i", place.interface, "-w", "/dev/null", KIND)
        with Program(place, on_ring, *words) as program:
            program.wait_for("listening on")
            with traffic(place) as sent:
                for _ in range(200):
                    program.process.send_signal(signal.SIGUSR1)
                    program.wait_for("dropped by kernel")
            place.sender.send([frame(0, 60)])
            assert counts(program.end(signal.SIGINT).stderr)[1:] == [sent[0] + 1, 0]
