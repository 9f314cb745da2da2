"""Logs that are sent to a store while they are written: complete there, also after a kill, and counted here."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import check_balance, connection, transfer
from ports import PORTS
from tcp_logger import Logger, rows_of

import in_process
import parshall
from output_schemas import validated
from parshall.fleet.shipping import files_of_log

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


def sent_files(store: Path) -> list[Path]:
    return sorted(store.glob("logs/host=*/*.arrow"))


def test_the_store_has_the_whole_log_of_every_writer(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    """One is killed with files that were not sent; the next one sends these."""
    port, store, path = next(PORTS), tmp_path / "store", tmp_path / "log/day.arrow"
    path.parent.mkdir()
    store.mkdir()
    left, right, address = pair
    words = ("-o", path, "--port", str(port), "--rotate-size", "40000", "--ship", store, "--ship-as", "web1", "--json")

    def talk(wanted: Callable[[], bool]) -> None:
        with connection(left, right, address, port) as (active, passive):
            until("traffic fills files", lambda: transfer(active, passive, 200_000) or wanted(), timeout_s=60)

    with Logger(until, *words) as first:
        talk(lambda: len(sent_files(store)) >= 2)
        first.end(signal.SIGKILL)
    assert files_of_log(path), "the last file was being written"
    with Logger(until, *words) as second:
        talk(lambda: len(sent_files(store)) >= 5)
        answer = second.end(signal.SIGINT)
    assert answer.returncode == 0, answer.stderr
    summary = validated("tcp", answer.stdout)
    shipping = summary["shipping"]
    assert (shipping["files_waiting"], shipping["files_refused"], shipping["failures"]) == (0, 0, 0), shipping
    assert shipping["host"] == "web1" and shipping["files_shipped"] >= 3
    assert not files_of_log(path)
    log = parshall.read(store / "logs/host=web1")
    (gap,) = log.gaps.to_pylist()
    assert gap["cause"] == "killed"
    check_balance(summary["ledger"])
    tables = pl.read_parquet(store / "records/**/*.parquet", hive_partitioning=True)
    assert tables.height == log.records.num_rows
    assert tables["run"].n_unique() == 2
    assert sorted(tables["time_ns"].to_list()) == sorted(rows_of(log)["time_ns"].to_list())
    shown = in_process.parshall("show", store)
    assert shown.returncode == 0 and "1 host, 1 log" in shown.stdout, shown.stderr


def test_a_store_that_is_lost_leaves_the_files_and_a_status(
    pair: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    port, store, path = next(PORTS), tmp_path / "store", tmp_path / "log/day.arrow"
    path.parent.mkdir()
    store.mkdir()
    left, right, address = pair
    words = ("-o", path, "--port", str(port), "--rotate-size", "40000", "--ship", store, "--ship-as", "web1")
    with Logger(until, *words) as logger, connection(left, right, address, port) as (active, passive):
        until("files are sent", lambda: transfer(active, passive, 200_000) or len(sent_files(store)) >= 2, timeout_s=60)
        store.rename(tmp_path / "away")
        store.write_text("in the way")
        until("files wait", lambda: transfer(active, passive, 200_000) or len(files_of_log(path)) >= 4, timeout_s=60)
        answer = logger.end(signal.SIGINT)
    assert answer.returncode == 1, answer.stderr
    (failure,) = (line for line in answer.stderr.splitlines() if "not shipped yet" in line)
    assert failure.startswith(f"parshall: tcp: --ship {store}: ")
    (sent,) = (line for line in answer.stderr.splitlines() if line.startswith("  shipped: "))
    assert "kept here, not shipped" in sent and "failed" in sent
    # All of the log is there, here or in the store.
    log = parshall.read(path)
    assert log.truncation is None and log.ledger["complete"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ship", "x"), "--ship: sends finished files; give --rotate-size or --rotate-time, too"),
        (("--ship-as", "x"), "--ship-as x: is the name of this host for --ship; give that, too"),
        (("--rotate-time", "1h", "--ship", "ftp://x/y"), "--ship ftp://x/y: cannot be reached by ftp"),
    ],
)
def test_what_cannot_be_shipped_is_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    answer = in_process.parshall("tcp", "-o", tmp_path / "log.arrow", *words, cwd=tmp_path)
    assert answer.returncode == 2 and answer.stderr.startswith(f"parshall: tcp: {message}"), answer.stderr
    assert not list(tmp_path.iterdir())
