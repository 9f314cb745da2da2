"""TCP logs that rotate: their files are one log, equal to a log in one file beside it, and have no hole in silence."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import check_balance, connection, transfer
from ports import PORTS
from tcp_logger import Logger, account_text, check_log, rows_of

import in_process
import parshall
from parshall.errors import ParshallError
from parshall.host.rotation import Rotation
from parshall.host.rows import plain_rows
from parshall.instruments.tcp import TcpLog

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


def files_of(path: Path) -> list[Path]:
    """The files of a log that rotates, in the order of their names."""
    return sorted(path.parent.glob(f"{path.stem}.[0-9]*{path.suffix}"))


def talk(pair: Any, port: int, chunks: int = 50, until: Callable[[], bool] = lambda: True) -> None:
    """Send data over one connection, and more until a condition holds."""
    left, right, address = pair
    with connection(left, right, address, port) as (active, passive):
        for _ in range(chunks):
            transfer(active, passive, 20_000)
        while not until():
            transfer(active, passive, 20_000)


def test_a_log_without_rows_hardly_grows(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    """An account takes some kilobytes: one a second would be half a gigabyte a day."""
    path = tmp_path / "quiet.arrow"
    with TcpLog(path, port=next(PORTS), netns=pair[0].namespace) as log:
        until("the first account is written", lambda: parshall.read(path).ledger)
        first_bytes = path.stat().st_size
        until("five accounts later", lambda: log.account()["ledger"]["cost"]["wall_s"] > 5)
        assert path.stat().st_size == first_bytes
        assert parshall.read(path).ledger["cost"]["wall_s"] < 3


def test_a_log_without_rows_keeps_to_its_size(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    """Its accounts alone must not fill a disk."""
    path = tmp_path / "quiet.arrow"
    rotation = Rotation(rotate_size_bytes=4096, rotate_files=2)
    with TcpLog(path, port=next(PORTS), netns=pair[0].namespace, rotation=rotation):
        until("it goes on in further files", lambda: any(".000003." in file.name for file in files_of(path)))
        assert len(files_of(path)) <= 2 and sum(file.stat().st_size for file in files_of(path)) < 80_000
    log = parshall.read(path)
    assert log.records.num_rows == 0 and log.truncation is None
    assert {gap["cause"] for gap in plain_rows(log.gaps)} == {"file_missing"}


@pytest.mark.parametrize(
    "rotation", [Rotation(rotate_size_bytes=60_000), Rotation(rotate_time_s=0.3)], ids=["size", "time"]
)
def test_the_files_are_one_log_and_have_what_a_log_in_one_file_has(
    pair: Any, tmp_path: Path, rotation: Rotation
) -> None:
    port = next(PORTS)
    path = tmp_path / "day.arrow"
    here = {"port": port, "netns": pair[0].namespace}
    with TcpLog(tmp_path / "whole.arrow", **here) as whole, TcpLog(path, **here, rotation=rotation) as parts:
        talk(pair, port, until=lambda: len(files_of(path)) >= 4)
        talk(pair, port)
    log, ledger = check_log(path)
    witness, _ = check_log(tmp_path / "whole.arrow")
    assert log.gaps.num_rows == 0
    # The two logs look at a packet one after the other, so their orders and states may differ where two CPUs meet.
    columns = ["direction", "event", "pkt_seq", "pkt_ack", "pkt_flags", "payload_bytes", "gso_segs"]
    packets, expected = (rows_of(each).filter(pl.col("event") == "packet").select(columns) for each in (log, witness))
    assert packets.sort(columns).equals(expected.sort(columns))
    # The sum of the files' accounts is the account that the instrument gives.
    given = parts.summary.ledger
    for account in given["hooks"]:
        (found,) = (each for each in ledger["hooks"] if each["hook"] == account["hook"])
        assert found == account
    assert whole.summary.ledger["complete"]
    for file in files_of(path):
        one = parshall.read(file)
        assert one.truncation is None
        for hook in one.ledger["hooks"]:
            kept_back = hook["filtered"] + hook["thinned"] + sum(hook["lost"].values())
            assert hook["seen"] == kept_back + hook["logged"], account_text(one.ledger)
        logged = sum(hook["logged"] for hook in one.ledger["hooks"] if hook["hook"] != "tcp_flow")
        assert one.records.num_rows == logged, account_text(one.ledger)
        assert set(pl.from_arrow(one.records)["flow"]) <= set(pl.from_arrow(one.flows)["flow"])
        # Anything that reads Arrow opens it.
        assert pl.read_ipc_stream(file).height == logged


def test_only_the_newest_files_stay_and_the_log_says_that_others_are_missing(pair: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    path = tmp_path / "day.arrow"
    with TcpLog(path, port=port, rotation=Rotation(rotate_size_bytes=40_000, rotate_files=3)):
        talk(pair, port, until=lambda: files_of(path)[0].name > "day.000002.arrow")
    assert len(files_of(path)) == 3
    log = parshall.read(tmp_path)
    assert not log.complete
    (gap,) = plain_rows(log.gaps)
    assert (gap["from_time_ns"], gap["cause"]) == (None, "file_missing")
    assert gap["until_time_ns"] <= pl.from_arrow(log.records)["time_ns"].dt.epoch("ns").min()
    check_balance(log.ledger)
    answer = in_process.parshall("report", path, "-o", tmp_path / "report")
    assert answer.returncode == 0, answer.stderr
    assert "Nothing was logged before " in (tmp_path / "report/report.html").read_text()


def test_old_files_go(pair: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    path = tmp_path / "day.arrow"
    old = tmp_path / "day.000004.arrow"
    for file, age_s in ((old, 7200), (tmp_path / "day.000005.arrow", 600)):
        file.write_bytes(b"x")
        at_s = file.stat().st_mtime - age_s
        os.utime(file, (at_s, at_s))
    with TcpLog(path, port=port, rotation=Rotation(rotate_time_s=3600, keep_s=3600)):
        talk(pair, port, chunks=1)
    assert [file.name for file in files_of(path)] == ["day.000005.arrow", "day.000006.arrow"]


def test_a_file_between_two_others_that_is_gone_is_a_gap(pair: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    path = tmp_path / "day.arrow"
    with TcpLog(path, port=port, rotation=Rotation(rotate_size_bytes=40_000)):
        talk(pair, port, until=lambda: len(files_of(path)) >= 4)
    second = files_of(path)[1]
    lost = parshall.read(second)
    whole, rows = parshall.read(path).records.num_rows, lost.records.num_rows
    second.unlink()
    log = parshall.read(path)
    (gap,) = plain_rows(log.gaps)
    assert gap["cause"] == "file_missing"
    times = pl.from_arrow(lost.records)["time_ns"].dt.epoch("ns")
    assert gap["from_time_ns"] <= times.min()
    assert times.max() <= gap["until_time_ns"]
    assert log.records.num_rows == whole - rows
    check_balance(log.ledger)


@pytest.mark.parametrize(("number", "cause"), [(signal.SIGINT, "restarted"), (signal.SIGKILL, "killed")])
def test_a_writer_that_is_started_again_goes_on_and_the_hole_is_in_the_account(
    pair: Any, tmp_path: Path, until: Callable[..., None], number: int, cause: str
) -> None:
    """A flow lives across both writers: it has a number in each."""
    port = next(PORTS)
    path = tmp_path / "day.arrow"
    left, right, address = pair
    words = ("-o", path, "--port", str(port), "--rotate-time", "1h", "--json")
    with connection(left, right, address, port) as (active, passive):
        with Logger(until, *words) as first:
            transfer(active, passive, 100_000)
            until(
                "its rows are in the file",
                lambda: parshall.read(files_of(path)[0]).ledger.get("hooks", [{}])[0].get("logged", 0) > 0,
            )
            first.end(number)
        transfer(active, passive, 100_000)
        with Logger(until, *words) as second:
            transfer(active, passive, 50_000)
            answer = second.end(signal.SIGINT)
    assert answer.returncode == 0, answer.stderr
    log = parshall.read(path)
    (gap,) = plain_rows(log.gaps)
    assert gap["cause"] == cause
    assert gap["from_time_ns"] < gap["until_time_ns"]
    rows = rows_of(log)
    assert (
        rows.filter((pl.col("time_ns") > gap["from_time_ns"]) & (pl.col("time_ns") < gap["until_time_ns"])).is_empty()
        or cause == "killed"
    )
    flows = pl.from_arrow(log.flows)
    assert flows["flow"].n_unique() == flows.height
    assert set(rows["flow"]) <= set(flows["flow"])
    # Each end of the connection, once a writer.
    assert flows.group_by("socket_cookie").len()["len"].to_list() == [2, 2]
    last = json.loads(answer.stdout)["ledger"]
    of_last = parshall.read(files_of(path)[-1]).ledger
    assert of_last["hooks"] == last["hooks"]
    check_balance(log.ledger)


def test_converted_rows_are_those_of_all_files(pair: Any, tmp_path: Path) -> None:
    port = next(PORTS)
    path = tmp_path / "day.arrow"
    with TcpLog(path, port=port, rotation=Rotation(rotate_size_bytes=40_000)):
        talk(pair, port, until=lambda: len(files_of(path)) >= 3)
    answer = in_process.parshall("convert", path, "--to", "csv", "-o", tmp_path / "day.csv")
    assert answer.returncode == 0, answer.stderr
    rows = pl.read_csv(tmp_path / "day.csv")
    assert rows.height == sum(parshall.read(file).records.num_rows for file in files_of(path))


def test_the_rows_of_a_rotating_log_stay_in_one_flow_of_retransmissions(pair: Any, tmp_path: Path) -> None:
    """The judge of retransmissions sees all files as one."""
    port = next(PORTS)
    path = tmp_path / "day.arrow"
    left, right, address = pair
    right.run(["nft", "add", "table", "ip", "loss"])
    right.run(["nft", "add", "chain", "ip", "loss", "in", "{ type filter hook input priority 0; }"])
    rule = ["tcp", "dport", str(port), "numgen", "inc", "mod", "10", "==", "0", "drop"]
    with (
        TcpLog(tmp_path / "whole.arrow", port=port),
        TcpLog(path, port=port, rotation=Rotation(rotate_size_bytes=40_000)),
    ):
        with connection(left, right, address, port) as (active, passive):
            right.run(["nft", "add", "rule", "ip", "loss", "in", *rule])
            while len(files_of(path)) < 4:
                transfer(active, passive, 20_000)
            right.run(["nft", "flush", "chain", "ip", "loss", "in"])
    whole, parts = (pl.from_arrow(parshall.read(each).retransmissions) for each in (tmp_path / "whole.arrow", path))
    assert whole.height > 5
    assert parts.drop("flow", "time_ns").equals(whole.drop("flow", "time_ns"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("-o", "-", "--rotate-time", "1h"),
            "-o -: standard output does not rotate; name a file, or leave out the rotation",
        ),
        (
            ("--rotate-files", "3"),
            "--rotate-files: give --rotate-size or --rotate-time, too; without, there is one file",
        ),
        (("--keep", "1h"), "--keep: give --rotate-size or --rotate-time, too; without, there is one file"),
        (("--rotate-size", "100"), "--rotate-size 100: expected 4096 bytes or more"),
    ],
)
def test_what_cannot_rotate_is_refused_in_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    answer = in_process.parshall("tcp", *words, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr == f"parshall: tcp: {message}\n"
    assert not list(tmp_path.iterdir())


def test_a_file_and_a_series_of_one_name_do_not_come_about(tmp_path: Path) -> None:
    """Reading by the name would take one of them, and leave the other out without a word."""
    path = tmp_path / "day.arrow"
    path.write_bytes(b"x")
    answer = in_process.parshall("tcp", "-o", path, "--rotate-time", "1h", "-d", "1")
    assert answer.returncode == 2
    assert "is a file, and the files of a log that rotates are read by this name; name another file" in answer.stderr
    path.rename(tmp_path / "day.000001.arrow")
    answer = in_process.parshall("tcp", "-o", path, "-d", "1")
    assert answer.returncode == 2
    assert "is the name of a log that rotated, whose files are there; name another file" in answer.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["day.000001.arrow"]


def test_a_directory_with_several_logs_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("a.000001.arrow", "a.000002.arrow", "b.arrow"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        ParshallError, match=r"has 2 logs, expected the files of one; name one of them: .*a\.arrow, .*b\.arrow$"
    ):
        parshall.read(tmp_path)
