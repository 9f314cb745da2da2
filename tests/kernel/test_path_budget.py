"""A measurement of paths that keeps its cost below a share of one CPU: its windows, and what they stand for."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars as pl
import pytest
from conversation import socket_at
from path_run import check_balance, complete_log, run

from parshall.instruments.path import PathProfile
from parshall.report.path import write_report

pytestmark = pytest.mark.kernel
PORT = 9010
# A row's time is the kernel's, a window's that of the program that opens it.
CLOCKS_NS = 1_000_000
PACKETS_PER_S = 20_000


@pytest.fixture
def alone(bed: Any) -> Any:
    """Make a host without a neighbour."""
    return bed.host("alone")


@contextmanager
def sending(host: Any) -> Iterator[Callable[[], int]]:
    """Send datagrams to the host itself, which reads each; yields how many were sent so far."""
    sent, is_over = 0, threading.Event()

    def send() -> None:
        nonlocal sent
        with (
            socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as reader,
            socket_at(host, "127.0.0.1", socket.SOCK_DGRAM) as sender,
        ):
            reader.bind(("127.0.0.1", PORT))
            sender.connect(("127.0.0.1", PORT))
            began_s = time.monotonic()
            while not is_over.is_set():
                while sent < (time.monotonic() - began_s) * PACKETS_PER_S:
                    sender.send(bytes(100))
                    reader.recv(200)
                    sent += 1
                is_over.wait(0.002)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield lambda: sent
    finally:
        is_over.set()
        thread.join(60)
    assert not thread.is_alive()


def windows_ns(log: Any) -> np.ndarray:
    """Return from and until of the windows, shape (windows, 2)."""
    table = pl.DataFrame(log.windows).cast(pl.Int64)
    return table.to_numpy()


def test_packets_are_measured_in_windows_that_stand_for_the_whole_time(alone, tmp_path, until) -> None:
    path = tmp_path / "log"
    profile = PathProfile(path, netns=alone.namespace, filter=f"udp dst port {PORT}", budget=0.02)
    with profile, sending(alone) as sent:
        until("programs have come and gone", lambda: profile.account()["attached_s"] > 0.3)
        until("there are packets of a while", lambda: sent() > 8 * PACKETS_PER_S, timeout_s=120)
    summary = profile.summary
    check_balance(summary.ledger)
    wall_s = summary.ledger["cost"]["wall_s"]
    assert summary.is_partial and summary.windows > 2
    assert summary.attached_s < 0.9 * wall_s
    assert summary.budget["share"] == 0.02 and summary.budget["cost_share"] > 0
    log = complete_log(path)
    windows = windows_ns(log)
    assert (windows[:, 1] > windows[:, 0]).all() and (windows[1:, 0] >= windows[:-1, 1] - CLOCKS_NS).all()
    lasted_s = (windows[:, 1] - windows[:, 0]).sum() / 1e9
    # Attaching and detaching are in the one, and not in the other.
    assert 0 < lasted_s <= summary.attached_s
    # Every packet began in a window.
    began_ns = log.packets["time"].cast("int64").to_numpy()
    at = np.searchsorted(windows[:, 0], began_ns + CLOCKS_NS, side="right") - 1
    assert (at >= 0).all()
    assert (began_ns <= windows[at, 1] + CLOCKS_NS).all()
    assert len(began_ns) < 2 * sent()
    text = write_report({"x": log}, tmp_path / "report", "x", images=False).read_text()
    assert re.search(r"The programs were attached for [\d.]+ of [\d.]+ s, in \d+ windows?: packets at other", text)
    if len(windows) > 12:
        estimates = {row["path"]: row for row in summary.estimates}
        for row in estimates.values():
            assert row["low_packets"] <= row["packets"] <= row["high_packets"]
        # A busy machine may stop the sender for a while, so no interval is asked for here.
        assert estimates["delivered"]["packets"] == pytest.approx(sent(), rel=0.5)


def test_what_costs_little_is_measured_all_the_time(alone, tmp_path, until) -> None:
    path = tmp_path / "log"
    with PathProfile(path, netns=alone.namespace, budget=1.0) as profile, sending(alone) as sent:
        until("two windows are over", lambda: profile.account()["attached_s"] > 1.2)
    summary = profile.summary
    assert summary.windows == 1 and not summary.is_partial and summary.estimates == []
    windows = windows_ns(complete_log(path))
    # One after the other, without a gap.
    assert len(windows) >= 2
    assert np.abs(windows[1:, 0] - windows[:-1, 1]).max() < CLOCKS_NS
    assert sum(summary.paths.values()) >= sent() - 1


def test_the_command_says_what_a_budget_came_to(alone) -> None:
    done = run("--netns", alone.namespace, "--budget", "50%", "--duration", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^budget: \d+\.\d\d% of a CPU, of 50\.00%$", done.stderr, re.MULTILINE), done.stderr
    done = run("--netns", alone.namespace, "--budget", "50%", "--duration", "1", "--json", "-q")
    summary = json.loads(done.stdout)
    assert summary["budget"]["share"] == 0.5 and summary["estimates"] == []
