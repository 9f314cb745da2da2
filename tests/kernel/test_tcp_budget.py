"""A log that keeps its cost below a share of one CPU: what it leaves out, and what it still knows."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from conversation import connection, transfer
from ports import PORTS
from tcp_logger import PACKET_HOOKS, check_log, rows_of, total

import parshall
from parshall.host.rotation import Rotation
from parshall.instruments.tcp import TcpLog
from parshall.instruments.tcp_log import files_of

pytestmark = pytest.mark.kernel

# A row is written while the setting changes.
CHANGE_NS = 200_000_000


@contextmanager
def talking(ends: tuple[Any, Any, Any], port: int) -> Iterator[None]:
    """Data as fast as it goes, until the end of the block."""
    left, right, link = ends
    is_over = threading.Event()

    def talk() -> None:
        with connection(left, right, link.address(right), port) as (active, passive):
            while not is_over.is_set():
                transfer(active, passive, 100_000)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)
    assert not thread.is_alive()


def settings_around(times_ns: np.ndarray, thinning: pl.DataFrame) -> np.ndarray:
    """Return the least thinning around each time: a setting and the next one follow each other at once."""
    changed_ns, every = thinning["time_ns"].to_numpy(), np.maximum(thinning["every"].to_numpy(), 1)
    found = np.full(len(times_ns), np.iinfo(np.int64).max)
    for offset_ns in (-CHANGE_NS, -CHANGE_NS // 2, 0, CHANGE_NS // 2, CHANGE_NS):
        at = np.searchsorted(changed_ns, times_ns + offset_ns, side="right") - 1
        found = np.minimum(found, every[np.clip(at, 0, None)])
    return found


def test_packets_are_thinned_by_number_and_each_change_is_a_row(
    ends: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    port = next(PORTS)
    with TcpLog(tmp_path / "log", port=port, budget=0.02) as log, talking(ends, port):
        until("packets are thinned out", lambda: (log.account()["budget"] or {}).get("packets_per_log_max", 1) > 1)
        until("and some are logged since", lambda: log.account()["budget"]["changes"] > 3)
    logged, ledger = check_log(log.path, is_thinned=True)
    assert total(ledger, "thinned", PACKET_HOOKS) > 0
    thinning = pl.DataFrame(logged.thinning).select(pl.col("time_ns").cast(pl.Int64), every="packets_per_log")
    budget = log.summary.budget
    assert budget["share"] == 0.02 and budget["changes"] == thinning.height - 1
    assert budget["packets_per_log_max"] == thinning["every"].max()
    assert thinning["every"][0] == 1 and thinning["time_ns"].is_sorted()
    assert all(every == 0 or every.bit_count() == 1 for every in thinning["every"])
    assert 0 < budget["observed_s"] <= ledger["cost"]["wall_s"]
    packets = rows_of(logged).filter(event="packet")
    numbers, flows = packets["flow_seq"].to_numpy(), packets["flow"].to_numpy().astype(np.uint64)
    every = settings_around(packets["time_ns"].cast(pl.Int64).to_numpy(), thinning)
    place = (numbers + flows * np.uint64(2654435769) % np.uint64(1 << 32)) % every.astype(np.uint64)
    assert ((numbers <= 4) | (place == 0)).all()
    # The beginning of each flow is there.
    assert set(packets.group_by("flow").agg(pl.col("flow_seq").min())["flow_seq"]) == {1}


def test_what_fits_is_logged_whole_and_has_no_interval(ends: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    port = next(PORTS)
    left, right, link = ends
    with TcpLog(tmp_path / "log", port=port, budget=1.0) as log:
        with connection(left, right, link.address(right), port) as (active, passive):
            transfer(active, passive, 300_000)
        until("a step was decided", lambda: (log.account()["budget"] or {}).get("observed_s", 0) > 0)
    logged, ledger = check_log(log.path)
    assert total(ledger, "thinned", PACKET_HOOKS) == 0 == log.summary.budget["changes"]
    assert logged.thinning["packets_per_log"].to_pylist() == [1]
    (span,) = logged.estimates(3600).to_dicts()
    rows = rows_of(logged).filter(pl.col("event") == "packet", pl.col("srtt_us") > 0)
    assert span["rtt_p50_us_low"] == span["rtt_p50_us"] == span["rtt_p50_us_high"]
    assert span["rtt_p50_us"] == rows["srtt_us"].sort()[int(np.ceil(rows.height / 2)) - 1]
    # Both ends of the connection are flows; SYN and FIN have a number each.
    assert span["acked_bytes_low"] <= 300_000 + 4 and span["acked_bytes_high"] >= 300_000
    assert span["observed_share"] == 1


def test_where_even_skipping_costs_too_much_packets_are_observed_for_a_part_of_the_time(
    ends: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    port = next(PORTS)
    rotation = Rotation(rotate_size_bytes=30_000)
    path = tmp_path / "day.arrow"
    with TcpLog(path, port=port, budget=0.0005, rotation=rotation) as log, talking(ends, port):
        until("it paused and went on", lambda: (log.account()["budget"] or {}).get("changes", 0) > 5)
        until("it goes on in another file", lambda: len(files_of(path)) > 1)
    logged, _ = check_log(path, is_thinned=True)
    assert 0 in logged.thinning["packets_per_log"].to_pylist()
    assert log.summary.budget["observed_s"] < log.summary.ledger["cost"]["wall_s"]
    for file in files_of(path):
        assert parshall.read(file).thinning.num_rows > 0
    spans = logged.estimates(1.0)
    assert spans["observed_share"].min() < 1
    assert (spans["acked_bytes_low"] <= spans["acked_bytes"]).all()
    assert (spans["acked_bytes"] <= spans["acked_bytes_high"]).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "0"), "--budget 0: expected a share of one CPU above 0, at most 1, such as 0.01 or 1%"),
        (("--budget", "200%"), "--budget 200%: expected a share of one CPU above 0"),
        (("--budget", "1"), "--budget 1: a hundredth of a CPU, or all of it? Give 1% or 100%"),
        (
            ("--budget", "1%", "--ppl", "2"),
            "--budget: decides how packets are thinned; leave out --ppl and --on-change",
        ),
        (("--budget", "1%", "--on-change"), "--budget: decides how packets are thinned"),
    ],
)
def test_a_wrong_budget_is_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parshall", "tcp", "-o", str(tmp_path / "log"), *words]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(f"parshall: tcp: {message}")
