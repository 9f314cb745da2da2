"""Round-trip times of sparse datagrams."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from parshall.lab import echo

ADDRESS = "127.0.0.1"
WAITS_S = 0.05


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Answer at a port of the test, all questions but every n-th, some after a time."""
    behaviour: dict[str, Any] = {"loses": 0, "is_late": False}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as answerer:
        answerer.bind((ADDRESS, 0))
        monkeypatch.setattr(echo, "PORT", answerer.getsockname()[1])

        def serve() -> None:
            while (received := answerer.recvfrom(64))[0]:
                number = int.from_bytes(received[0][:4], "big")
                if behaviour["loses"] and number % behaviour["loses"] == 0:
                    continue
                if behaviour["is_late"]:
                    threading.Timer(WAITS_S, answerer.sendto, received).start()
                else:
                    answerer.sendto(*received)

        serving = threading.Thread(target=serve)
        serving.start()
        yield behaviour
        answerer.sendto(b"", answerer.getsockname())
        serving.join()


def test_every_question_has_its_time(answering: dict[str, Any]) -> None:
    found = echo.ask(ADDRESS, 0.5)
    assert (found["sent"], found["received"]) == (25, 25)
    assert 0 < found["median"] <= found["p90"] <= found["p99"] <= found["max"] < 1000


def test_answers_that_overlap_have_their_own_times(answering: dict[str, Any]) -> None:
    answering["is_late"] = True
    found = echo.ask(ADDRESS, 0.5)
    assert found["received"] == 25
    assert 1000 * WAITS_S <= found["median"] <= found["mean"] * 2


def test_lost_ones_are_counted(answering: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo, "_LAST_S", 0.1)
    answering["loses"] = 5
    found = echo.ask(ADDRESS, 0.5)
    assert (found["sent"], found["received"]) == (25, 20)


def test_where_nobody_answers_there_are_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo, "_LAST_S", 0.1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind((ADDRESS, 0))
        port = closed.getsockname()[1]
    monkeypatch.setattr(echo, "PORT", port)
    assert echo.ask(ADDRESS, 0.1) == {
        "sent": 5, "received": 0, "mean": None, "median": None, "p90": None, "p99": None, "max": None,
    }  # fmt: skip


def test_the_command_prints_one_object(answering: dict[str, Any]) -> None:
    script = f"from parshall.lab import echo; echo.PORT = {echo.PORT}; echo.main()"
    words = [sys.executable, "-c", script, ADDRESS, "-d", "100ms"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["received"] == 5
