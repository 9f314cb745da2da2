"""Flows that begin at random times: their sizes, their times, and what becomes of those that fail."""

import itertools
import json
import math
import random
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parshall.errors import UsageError
from parshall.lab import flows
from parshall.lab.flows import Sizes, ask, planned

ADDRESS = "127.0.0.1"


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Serve at a port of the test, after a time, or fewer bytes than were asked for."""
    behaviour: dict[str, Any] = {"waits_s": 0.0, "misses_bytes": 0, "flows": 0}
    with socket.create_server((ADDRESS, 0), backlog=1000) as listener:
        monkeypatch.setattr(flows, "PORT", listener.getsockname()[1])

        def send(connection: socket.socket) -> None:
            with connection:
                size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
                behaviour["ended"].wait(behaviour["waits_s"])
                connection.sendall(bytes(size - behaviour["misses_bytes"]))

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                if behaviour["ended"].is_set():
                    connection.close()
                    return
                behaviour["flows"] += 1
                threading.Thread(target=send, args=(connection,)).start()

        behaviour["ended"] = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        yield behaviour
        behaviour["ended"].set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()


@given(st.integers(1, 10_000), st.integers(2, 1000), st.floats(0.3, 3).filter(lambda shape: abs(shape - 1) > 0.01))
def test_sizes_lie_within_their_bounds_and_have_their_mean(least: int, factor: int, shape: float) -> None:
    sizes, chance = Sizes(least, least * factor, shape), random.Random(5)
    drawn = [sizes.draw(chance) for _ in range(2_000)]
    assert least <= min(drawn) and max(drawn) <= least * factor
    # Rounded to bytes, which moves the mean of small ones.
    error = 5 * statistics.stdev(drawn) / math.sqrt(len(drawn)) + 0.5
    assert abs(statistics.fmean(drawn) - sizes.mean) < error


@pytest.mark.parametrize(("least", "most", "shape"), [(0, 10, 1.2), (10, 10, 1.2), (10, 5, 1.2), (1, 2, 0), (1, 2, 1)])
def test_sizes_that_are_none_are_refused(least: int, most: int, shape: float) -> None:
    with pytest.raises(UsageError, match=f"sizes {least} to {most}, shape {shape:g}: expected"):
        Sizes(least, most, shape)


def test_a_day_of_flows_begins_at_once() -> None:
    """Millions of flows that were planned first would take minutes, in which none begins."""
    day, second = (planned(duration_s, 100e6, Sizes(1_000, 1_000_000, 1.2), 7) for duration_s in (86_400, 1))
    begun = list(second)
    assert list(itertools.islice(day, len(begun))) == begun and len(begun) > 1_000


def test_each_flow_brings_its_bytes_and_has_its_time(serving: dict[str, Any]) -> None:
    found = ask(ADDRESS, 1.0, 8e6, Sizes(1_000, 100_000, 1.2), seed=3)
    assert found["opened"] == found["completed"] == serving["flows"] == len(found["flows"])
    assert found["unfinished"] == found["failed"] == 0
    assert found["bytes"] == sum(size for _, size, _ in found["flows"])
    times = [begin_s for begin_s, _, _ in found["flows"]]
    assert times == sorted(times) and times[0] >= 0 and times[-1] < 1
    short = sorted(took for _, size, took in found["flows"] if size <= 10_000)
    assert found["short"]["flows"] == len(short)
    assert found["short"]["p50"] == short[math.ceil(len(short) / 2) - 1]


def test_a_slow_flow_does_not_delay_the_next(serving: dict[str, Any]) -> None:
    """An open loop: as many begin as planned, though none has ended meanwhile."""
    serving["waits_s"] = 1.5
    found = ask(ADDRESS, 1.0, 8e6, Sizes(9_000, 10_000, 1.2), seed=3)
    assert found["opened"] > 50 and found["completed"] == found["opened"]
    assert found["short"]["p50"] >= 1_500


def test_the_same_seed_gives_the_same_flows(serving: dict[str, Any]) -> None:
    plans = [
        [flow[:2] for flow in ask(ADDRESS, 0.2, 8e6, Sizes(1_000, 9_000, 1.2), seed)["flows"]] for seed in (1, 1, 2)
    ]
    assert plans[0] == plans[1] != plans[2]


def test_flows_that_do_not_end_or_fail_are_counted_and_have_no_time(
    serving: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "_LAST_S", 0.1)
    serving["waits_s"] = 60
    found = ask(ADDRESS, 0.2, 8e6, Sizes(1_000, 9_000, 1.2), seed=1)
    assert found["unfinished"] == found["opened"] > 10 and found["completed"] == found["failed"] == 0
    assert found["short"]["p50"] is None and {took for *_, took in found["flows"]} == {None}
    serving.update(waits_s=0, misses_bytes=1)
    monkeypatch.setattr(flows, "_LAST_S", 20)
    found = ask(ADDRESS, 0.2, 8e6, Sizes(1_000, 9_000, 1.2), seed=1)
    assert found["failed"] == found["opened"] and found["unfinished"] == 0


def test_nobody_there_is_a_failure_of_each_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ADDRESS, 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(flows, "PORT", port)
    found = ask(ADDRESS, 0.1, 8e6, Sizes(1_000, 9_000, 1.2), seed=1)
    assert found["failed"] == found["opened"] > 5


def test_the_program_says_what_is_wrong_in_one_line() -> None:
    words = [sys.executable, "-m", "parshall.lab.flows", ADDRESS]
    for more, said in (
        (["--load", "10pps"], "--load 10pps: counts bits"),
        (["-d", "x"], "--duration x: "),
        (["--least", "5", "--most", "5"], "sizes 5 to 5"),
    ):
        answer = subprocess.run([*words, *more], capture_output=True, text=True)
        assert answer.returncode == 2 and said in answer.stderr.splitlines()[-1]
        assert "Traceback" not in answer.stderr and not answer.stdout


def test_a_quantile_counts_what_did_not_end() -> None:
    assert flows._summary([1.0, 2.0, None, 3.0]) == {"flows": 4, "p50": 2.0, "p90": None, "p99": None}
    assert flows._summary([]) == {"flows": 0, "p50": None, "p90": None, "p99": None}
    json.dumps(flows._summary([None]), allow_nan=False)
