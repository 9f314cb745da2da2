"""Logs of many hosts in one store: sent whole and once, kept where that fails, read as the logs that they are."""

import dataclasses
import json
import pickle
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from made_log import RETRANSMISSIONS, ledger_of, log_of, many_flows
from test_model_cluster import Cluster, complete, ended, started
from written_log import batch_of, flow_row, random_columns, write_log

import parshall
from in_process import parshall as command
from output_schemas import validated
from parshall.cli.stores import opened_fleet
from parshall.errors import ParshallError, UsageError
from parshall.fleet import Fleet
from parshall.fleet.shipping import Shipper, files_of_log
from parshall.fleet.store import Store
from parshall.host.rotation import Rotation
from parshall.report import digest, digest_of_many, images, write_report

HOUR_NS = 3_600_000_000_000
DAY_NS = int(datetime(2026, 11, 28, tzinfo=UTC).timestamp()) * 10**9
HOURLY = Rotation(rotate_time_s=3600)
ROWS, FLOWS = 40, 3


def write_part(
    directory: Path, number: int, seed: int, *, last: bool = False, rows: int = ROWS, ships: bool = True
) -> Path:
    """Write an hour of a log that rotates: a file with some flows, whose writer goes on unless it is the last."""
    began_ns = DAY_NS + (number - 1) * HOUR_NS
    columns = random_columns(rows, FLOWS, 100 * seed + number, began_ns + 1_000_000)
    path = directory / f"flows.{number:06}.arrow"
    ledger = ledger_of(rows) | {"complete": last, "from_time_ns": began_ns, "until_time_ns": began_ns + HOUR_NS}
    write_log(
        # As the writer does, a file has its name when it is there.
        path.with_suffix(".new"),
        [batch_of(columns)],
        [flow_row(flow, packets_seen=rows, packets_logged=rows) for flow in range(1, FLOWS + 1)],
        ledger,
        part={"run": f"{seed:x}-1", "number": number, "began_ns": began_ns},
        options={"shipped": ships},
    )
    return path.with_suffix(".new").rename(path)


def host_log(directory: Path, seed: int, hours: int = 3) -> Path:
    """Write the log of a host, and return its name."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(1, hours + 1):
        write_part(directory, number, seed, last=number == hours)
    return directory / "flows.arrow"


def shipped(log: Path, url: str | Path, host: str, rotation: Rotation = HOURLY) -> dict[str, Any]:
    """Send a log that has ended, and return the account."""
    said: list[str] = []
    if isinstance(url, Path):
        url.mkdir(exist_ok=True)
    with Shipper(log, str(url), rotation, ship_as=host, say=said.append) as shipper:
        account = shipper.finish()
    return account | {"said": said}


def names_in(store: Path, suffix: str) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob(f"*{suffix}"))


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server that speaks S3, of others."""
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")):
            patch.setenv(name, value)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
        server.stop()


@pytest.fixture
def bucket(s3: str, request: pytest.FixtureRequest) -> str:
    """The URL of an empty bucket."""
    import boto3

    name = f"bucket-{abs(hash(request.node.name)) % 10**9}"
    boto3.client("s3", endpoint_url=f"http://{s3}", region_name="us-east-1").create_bucket(Bucket=name)
    return f"s3://{name}/fleet?endpoint_override={s3}&scheme=http&region=us-east-1"


def test_what_is_finished_is_sent_once_and_goes(tmp_path: Path, until: Callable[..., None]) -> None:
    """The newest file is being written; what the store has needs no room here."""
    log, store = tmp_path / "host/flows.arrow", tmp_path / "store"
    log.parent.mkdir()
    store.mkdir()
    contents = {path.name: path.read_bytes() for path in (write_part(log.parent, number, 1) for number in (1, 2))}
    with Shipper(log, str(store), HOURLY, ship_as="web1", say=pytest.fail) as shipper:
        until("the first file is sent", lambda: shipper.account()["files_shipped"] == 1)
        until("it goes", lambda: [path.name for path in files_of_log(log)] == ["flows.000002.arrow"])
        contents["flows.000003.arrow"] = write_part(log.parent, 3, 1, last=True).read_bytes()
        until("the second file is sent", lambda: shipper.account()["files_shipped"] == 2)
        account = shipper.finish()
    assert (account["files_shipped"], account["files_waiting"], account["failures"]) == (3, 0, 0)
    assert not files_of_log(log) and 0 < account["cpu_s"] < 60
    times = ["20261128000000000", "20261128010000000", "20261128020000000"]
    assert names_in(store, ".arrow") == [f"logs/host=web1/flows.{time}.arrow" for time in times]
    sent = [path.read_bytes() for path in sorted((store / "logs/host=web1").glob("*.arrow"))]
    assert sent == [contents[name] for name in sorted(contents)]
    place = "host=web1/log=flows/run=1-1/date=2026-11-28"
    expected = [f"{kind}/{place}/{time}.parquet" for kind in ("flows", "records") for time in times]
    assert names_in(store, ".parquet") == expected
    objects = (path for path in store.rglob("*") if path.suffix in (".arrow", ".parquet"))
    assert account["bytes_shipped"] == sum(path.stat().st_size for path in objects)


def test_files_of_runs_that_did_not_ship_are_sent_and_stay(tmp_path: Path) -> None:
    """Somebody wanted them here, perhaps under a limit that this run does not have."""
    log = tmp_path / "host/flows.arrow"
    log.parent.mkdir()
    for number in (1, 2, 3):
        write_part(log.parent, number, 1, last=True, ships=number == 2)
    account = shipped(log, tmp_path / "store", "web1")
    assert (account["files_shipped"], account["files_waiting"]) == (3, 0)
    assert [path.name for path in files_of_log(log)] == ["flows.000001.arrow", "flows.000003.arrow"]
    first = log.with_name("flows.000001.arrow")
    assert account["said"] == [f"{first}: of a run without --ship; such files are sent, too, and stay here"]
    assert shipped(log, tmp_path / "store", "web1")["files_shipped"] == 0
    # A limit of this run is one for all of them, as without --ship.
    limited = shipped(log, tmp_path / "store", "web1", Rotation(rotate_time_s=3600, rotate_files=1))
    assert [path.name for path in files_of_log(log)] == ["flows.000003.arrow"] and not limited["said"]


def test_limits_keep_files_that_were_sent(tmp_path: Path) -> None:
    log = host_log(tmp_path / "host", 1, hours=5)
    account = shipped(log, tmp_path / "store", "web1", Rotation(rotate_time_s=3600, rotate_files=2))
    assert account["files_shipped"] == 5
    assert [path.name for path in files_of_log(log)] == ["flows.000004.arrow", "flows.000005.arrow"]
    again = shipped(log, tmp_path / "store", "web1", Rotation(rotate_time_s=3600, rotate_files=2))
    assert (again["files_shipped"], again["bytes_shipped"], again["files_waiting"]) == (0, 0, 0)
    for path in files_of_log(log):
        path.touch()
    shipped(log, tmp_path / "store", "web1", Rotation(rotate_time_s=3600, keep_s=3600))
    assert len(files_of_log(log)) == 2


def test_what_cannot_be_sent_stays_and_is_sent_later(tmp_path: Path, until: Callable[..., None]) -> None:
    store = tmp_path / "store"
    store.mkdir()
    log = host_log(tmp_path / "host", 1)
    said: list[str] = []
    with Shipper(log, str(store), HOURLY, ship_as="web1", say=said.append) as shipper:
        until("two files are sent", lambda: shipper.account()["files_shipped"] == 2)
        # A directory that is gone, and something else in its place.
        away = store.rename(tmp_path / "away")
        store.write_text("in the way")
        write_part(log.parent, 4, 1)
        until("it has failed twice", lambda: shipper.account()["failures"] > 1)
        assert len(said) == 1 and str(store) in said[0] and "1 file not shipped yet" in said[0], said
        assert [path.name for path in files_of_log(log)] == ["flows.000003.arrow", "flows.000004.arrow"]
        assert shipper.account()["files_waiting"] == 1 and shipper.account()["failure"]
        store.unlink()
        # The place of a mount that is gone.
        store.mkdir()
        until("it says so", lambda: "has no logs/host=web1/host.json any more; mount the store again" in said[-1])
        assert not list(store.iterdir())
        store.rmdir()
        away.rename(store)
        until("the third file is sent", lambda: shipper.account()["files_shipped"] == 3)
        # An attempt has succeeded when all its files are sent.
        until("the attempt ends", lambda: shipper.account()["failure"] is None)
    assert not files_of_log(log) and len(names_in(store, ".arrow")) == 4


def test_a_store_that_goes_while_a_file_is_sent_has_one_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, put = tmp_path / "store", Store.put

    def put_too_late(self: Store, local: Path, name: str) -> int:
        if store.is_dir():
            store.rename(tmp_path / "away")
            store.write_text("in the way")
        return put(self, local, name)

    monkeypatch.setattr(Store, "put", put_too_late)
    account = shipped(host_log(tmp_path / "host", 1), store, "web1")
    (said,) = account["said"]
    assert "has no logs/host=web1/host.json any more; mount the store again; 3 files not shipped yet" in said
    assert account["files_waiting"] == 3 and store.read_text() == "in the way"


def test_a_store_that_stays_away_leaves_all_files(tmp_path: Path, s3: str) -> None:
    """Nobody answers at the end either: the files are there for the next run."""
    log = host_log(tmp_path / "host", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"s3://bucket/x?endpoint_override=127.0.0.1:{free.getsockname()[1]}&scheme=http&region=us-east-1"
    with pytest.raises(ParshallError, match=r"^--ship s3://bucket/x.*: .*"):
        Shipper(log, url, HOURLY, ship_as="web1", say=pytest.fail)
    assert len(files_of_log(log)) == 3


def test_a_file_without_a_head_stays_and_holds_nothing_up(tmp_path: Path) -> None:
    log = host_log(tmp_path / "host", 1)
    files_of_log(log)[1].write_bytes(b"")
    account = shipped(log, tmp_path / "store", "web1")
    assert (account["files_shipped"], account["files_refused"], account["files_waiting"]) == (2, 1, 0)
    assert [path.name for path in files_of_log(log)] == ["flows.000002.arrow"]
    assert len(account["said"]) == 1 and "flows.000002.arrow" in account["said"][0]


@pytest.mark.parametrize(
    "part", [{"run": "../../x"}, {"run": ".."}, {"run": 7}, {"began_ns": 1 << 70}, {"began_ns": "x"}, {"began_ns": -1}]
)
def test_a_head_that_would_name_another_place_is_refused(tmp_path: Path, part: dict[str, Any]) -> None:
    log = host_log(tmp_path / "host", 1)
    own = {"run": "1-1", "number": 4, "began_ns": DAY_NS + 3 * HOUR_NS} | part
    batch = batch_of(random_columns(ROWS, FLOWS, 9, DAY_NS))
    write_log(log.parent / "flows.000004.arrow", [batch], [flow_row(1)], ledger_of(ROWS), part=own)
    account = shipped(log, tmp_path / "store", "web1")
    assert (account["files_shipped"], account["files_refused"], account["files_waiting"]) == (3, 1, 0), account
    assert [path.name for path in files_of_log(log)] == ["flows.000004.arrow"]
    (said,) = account["said"]
    assert "its head does not say which part of a log it is" in said or "parshall.part is damaged" in said
    assert {path.parent.parent.name for path in (tmp_path / "store").glob("logs/host=*/*")} == {"logs"}
    assert not list(tmp_path.rglob("x"))


def test_a_damaged_file_stays_and_holds_nothing_up(tmp_path: Path) -> None:
    log = host_log(tmp_path / "host", 1)
    damaged = files_of_log(log)[0]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    account = shipped(log, tmp_path / "store", "web1")
    assert account["files_shipped"] == 2 and account["files_waiting"] == 1, account
    assert files_of_log(log) == [damaged] and str(damaged) in account["failure"]


def test_names_of_logs_are_unique(tmp_path: Path) -> None:
    """A host whose name is that of another one's log."""
    store = tmp_path / "store"
    shipped(host_log(tmp_path / "one", 1), store, "a")
    other = host_log(tmp_path / "two", 2)
    for path in files_of_log(other):
        path.rename(path.with_name(path.name.replace("flows", "more")))
    shipped(other.with_name("more.arrow"), store, "a")
    shipped(host_log(tmp_path / "three", 3), store, "a-flows")
    assert Fleet(store).names == ["a/flows", "a/more", "a-flows"]


def test_a_name_belongs_to_one_machine(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shipped(host_log(tmp_path / "one", 1), store, "web1")
    owner = store / "logs/host=web1/host.json"
    shipped(host_log(tmp_path / "two", 2), store, "web1")
    for text in (json.dumps({"machine": "another"}), "{", "[]", "[" * 5000):
        owner.write_text(text)
        log = host_log(tmp_path / "three", 3)
        with pytest.raises(UsageError, match=r"another machine ships under this name.*--ship-as"):
            shipped(log, store, "web1")
        assert len(files_of_log(log)) == 3


@pytest.mark.parametrize("is_as_long", [False, True])
def test_a_file_of_others_is_not_replaced(tmp_path: Path, is_as_long: bool) -> None:
    """The same name, another content: another log of this host that begins at the same time. None is taken as sent."""
    store = tmp_path / "store"
    shipped(host_log(tmp_path / "one", 1), store, "web1")
    directory = tmp_path / "two"
    directory.mkdir()
    part = write_part(directory, 1, 2, last=True, rows=ROWS + 1)
    if is_as_long:
        (store / "logs/host=web1/flows.20261128000000000.arrow").write_bytes(bytes(part.stat().st_size))
    before = {path: path.read_bytes() for path in store.rglob("*.arrow")}
    account = shipped(directory / "flows.arrow", store, "web1")
    assert (
        account["files_waiting"] == 1
        and "has another logs/host=web1/flows.20261128000000000.arrow" in account["failure"]
    )
    assert {path: path.read_bytes() for path in store.rglob("*.arrow")} == before


@pytest.mark.parametrize(
    ("url", "host", "rotation", "message"),
    [
        ("s3://key:secret@bucket/x", "a", HOURLY, "has credentials in it"),
        ("s3://key@bucket/x", "a", HOURLY, "has credentials in it"),
        ("ftp://host/x", "a", HOURLY, "cannot be reached by ftp; give a directory, or a URL of file, s3"),
        ("store", "a b", HOURLY, "--ship-as a b: is part of names in the store"),
        ("store", "../x", HOURLY, "--ship-as ../x: is part of names in the store"),
        ("store", "a", Rotation(), "--ship: sends finished files; give --rotate-size or --rotate-time"),
        (".", "a", HOURLY, "is the directory of the log itself"),
        ("none/there", "a", HOURLY, "--ship none/there: is no directory; make it, or mount what is to be there"),
    ],
)
def test_a_store_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, host: str, rotation: Rotation, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        Shipper(tmp_path / "flows.arrow", url, rotation, ship_as=host, say=pytest.fail)
    assert message in str(refused.value) and "secret" not in str(refused.value)


def made_fleet(tmp_path: Path, url: str | Path, hosts: int = 3) -> dict[str, Path]:
    """Ship the logs of hosts, and return logs with the same content by their host."""
    logs = {}
    for seed in range(1, hosts + 1):
        host = f"web{seed:02}"
        logs[host] = host_log(tmp_path / "kept" / host, seed)
        account = shipped(host_log(tmp_path / "sent" / host, seed), url, host)
        assert account["files_shipped"] == 3 and not account["said"], account
    return logs


@pytest.fixture
def without_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports be pages only: tests of reports have their images, which take seconds."""
    begin = images.Images.__init__
    monkeypatch.setattr(images.Images, "__init__", lambda self, **_: begin(self, is_wanted=False))


def without_times(page: Path) -> str:
    """Return a page without the line that says when it was written."""
    return "\n".join(line for line in page.read_text().split("\n") if "; report written" not in line)


def check_fleet(tmp_path: Path, url: str, logs: dict[str, Path], cluster: str | None = None) -> None:
    """A store is the logs that were sent to it: in tables, and in the page of a report."""
    fleet = Fleet(url)
    assert fleet.names == list(logs)
    states = fleet.flow_states(cluster=cluster)
    retransmissions = fleet.retransmissions(cluster=cluster)
    for host, path in logs.items():
        log = parshall.read(path)
        of_host = states.filter(pl.col("host") == host)
        assert set(of_host["log"]) == {"flows"}
        assert of_host.drop("host", "log").equals(log.flow_states().table())
        expected = pl.DataFrame(pl.from_arrow(log.retransmissions))
        assert retransmissions.filter(pl.col("host") == host).drop("host", "log").equals(expected)
    digests = fleet.map(digest, cluster=cluster)
    one = write_report(dict(zip(fleet.names, digests, strict=True)), tmp_path / "of-store", "t", images=False)
    here = {host: parshall.read(path) for host, path in logs.items()}
    two = write_report(here, tmp_path / "of-logs", "t", images=False)
    assert without_times(one) == without_times(two)


def test_a_directory_is_the_logs_of_its_hosts(tmp_path: Path) -> None:
    logs = made_fleet(tmp_path, tmp_path / "store")
    check_fleet(tmp_path, str(tmp_path / "store"), logs)
    # What is in it is a log by itself.
    one = parshall.read(tmp_path / "store/logs/host=web02")
    assert one.complete and one.records.equals(parshall.read(logs["web02"]).records)


def test_a_bucket_is_the_logs_of_its_hosts(tmp_path: Path, bucket: str) -> None:
    logs = made_fleet(tmp_path, bucket, hosts=2)
    check_fleet(tmp_path, bucket, logs)


def test_other_tools_read_a_store_as_one_table(tmp_path: Path) -> None:
    """Divided by host, log, run and day, as Hive does it."""
    store = tmp_path / "store"
    logs = made_fleet(tmp_path, store)
    read = {host: parshall.read(path) for host, path in logs.items()}
    records = pl.read_parquet(store / "records/**/*.parquet", hive_partitioning=True)
    flows = pl.read_parquet(store / "flows/**/*.parquet", hive_partitioning=True)
    assert records.height == 3 * 3 * ROWS
    for host, log in read.items():
        of_host = records.filter(pl.col("host") == host)
        of_log = pl.DataFrame(pl.from_arrow(log.records.select(["time_ns", "pkt_seq"])))
        assert of_host.sort("time_ns").select("time_ns", "pkt_seq").rows() == of_log.rows()
        numbers = flows.filter(pl.col("host") == host).select("flow").unique().sort("flow")["flow"]
        assert numbers.to_list() == log.flows["flow"].to_pylist()
    source = f"read_parquet('{store}/records/**/*.parquet', hive_partitioning=true)"
    table = duckdb.sql(f"select host, count(*) from {source} group by host order by host").fetchall()
    assert table == [(host, 3 * ROWS) for host in logs]


def test_a_time_chooses_files(tmp_path: Path) -> None:
    store = tmp_path / "store"
    made_fleet(tmp_path, store, hosts=1)
    at = lambda hour, minute=0: datetime(2026, 11, 28, hour, minute)  # noqa: E731

    def hours(since: datetime | None, until: datetime | None) -> list[str]:
        (log,) = Fleet(store, since=since, until=until).logs
        return [name[-15:-13] for name in log.files]

    assert hours(None, None) == ["00", "01", "02"]
    assert hours(at(1), None) == ["01", "02"] and hours(at(1, 30), None) == ["01", "02"]
    assert hours(None, at(1)) == ["00"] and hours(at(0, 30), at(1, 30)) == ["00", "01"]
    # Nobody knows how long the last file lasts.
    assert hours(at(9), None) == ["02"]
    assert hours(at(1).replace(tzinfo=UTC), None) == ["01", "02"]
    with pytest.raises(UsageError, match="its files begin from 2026-11-28 00:00 to 2026-11-28 02:00 UTC"):
        Fleet(store, until=datetime(2026, 11, 27))


def test_a_name_chooses_hosts(tmp_path: Path, bucket: str) -> None:
    made_fleet(tmp_path, bucket, hosts=3)
    assert [each.host for each in Fleet(bucket, hosts=["web03", "web01"]).logs] == ["web01", "web03"]
    title, *_ = command("show", bucket, "--host", "web02").stdout.splitlines()
    assert title == f"{bucket}: 1 host, 1 log, 3 files, 3 flows, {3 * ROWS} records"
    shown = command("show", bucket, "--host", "web02", "--host", "web9")
    assert shown.returncode == 2
    assert shown.stderr.endswith(f"--host web9: {bucket} has no log of it; its hosts: web01, web02, web03\n")
    log = tmp_path / "web01/flows.000001.arrow"
    with pytest.raises(UsageError, match=f"--host web1: is for a store of logs of hosts; {log} is none"):
        opened_fleet("show", [str(log)], None, None, None, ["web1"])
    for number in range(1, 13):
        name = tmp_path / f"many/logs/host=web{number:02}/flows.20261128000000000.arrow"
        name.parent.mkdir(parents=True)
        name.touch()
    with pytest.raises(UsageError, match=r"its hosts: web01, .*, web10 and 2 more$"):
        Fleet(tmp_path / "many", hosts=["mail"])


@pytest.mark.usefixtures("without_images")
def test_the_report_of_one_host_of_many_has_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 12 hosts none has its own beside the others."""
    store = tmp_path / "store"
    made_fleet(tmp_path, store, hosts=13)
    monkeypatch.chdir(tmp_path)
    for arguments in ([], ["--host", "web07"]):
        assert command("report", store, *arguments).returncode == 0
    every, one = ((tmp_path / name / "report.html").read_text() for name in ("report-store", "report-store-web07"))
    assert f"Parshall: {store}, web07" in one and "web08" in every and "web08" not in one
    of_one, of_every = (set(re.findall(r"<h3[^>]*>([^<]*)", page)) for page in (one, every))
    assert "Congestion window (segments)" in of_one - of_every and "Retransmissions" in of_one & of_every


# That a worker may die, `make test` shows with a sweep: test_model_cluster.py.
@pytest.mark.long
def test_a_worker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    logs = made_fleet(tmp_path, tmp_path / "store", hosts=2)
    cluster = started(tmp_path)
    try:
        complete(cluster, tmp_path)
        fleet = Fleet(tmp_path / "store")
        marks = tmp_path / "marks"
        marks.mkdir()
        killing = threading.Thread(target=kill_at_work, args=(cluster, marks))
        killing.start()
        heights = fleet.map(marking(marks), cluster=cluster.address)
        killing.join()
        assert cluster.workers[0].poll() is not None, "it was killed while it worked"
        assert heights == [parshall.read(path).records.num_rows for path in logs.values()]
        check_fleet(tmp_path, str(tmp_path / "store"), logs, cluster.address)
    finally:
        ended(cluster)


def marking(marks: Path) -> Callable[[Any], int]:
    """Return a function of a log that waits until a worker was killed, on whichever worker it runs."""

    def rows(log: Any) -> int:
        import os

        (marks / str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while not (marks / "killed").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return int(log.records.num_rows)

    return rows


def kill_at_work(cluster: Cluster, marks: Path) -> None:
    victim = cluster.workers[0]
    deadline = time.monotonic() + 60
    while not (marks / str(victim.pid)).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.kill()
    victim.wait()
    (marks / "killed").touch()


@pytest.mark.usefixtures("without_images")
def test_commands_take_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    made_fleet(tmp_path, store, hosts=2)
    shown = command("show", store, "-c", "2")
    assert shown.returncode == 0, shown.stderr
    title, account, *rows = shown.stdout.splitlines()
    assert title == f"{store}: 2 hosts, 2 logs, 6 files, 6 flows, 240 records"
    assert account.startswith("seen 252 = filtered 0 + thinned 0 + logged 252 + lost 0")
    assert rows[0].startswith("host") and rows[1].startswith("web0") and "4 more flows" in rows[-1]
    as_json = validated("show", command("show", store, "--json").stdout)
    assert [each["host"] for each in as_json["hosts"]] == ["web01", "web02"] and len(as_json["flows"]) == 6
    made = command("report", store, "-o", tmp_path / "report", "--json")
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "report/report.html").read_text()
    assert 'href="#web01"' in page and 'href="#web02"' in page
    refused = command("report", store, tmp_path)
    assert (refused.returncode, refused.stderr) == (
        2,
        f"parshall: report: {store}: is a store of logs; name it alone\n",
    )
    refused = command("show", tmp_path / "kept/web01", "--since", "2026-11-28")
    assert refused.returncode == 2 and "--since 2026-11-28: is for a store" in refused.stderr
    refused = command("show", store, "--since", "yesterday")
    assert refused.returncode == 2 and "--since yesterday: expected a date or a time of UTC" in refused.stderr
    assert command("show", store, "--follow").returncode == 2


def test_a_store_says_what_its_logs_lack(tmp_path: Path) -> None:
    """The second host lacks a file, the third one was killed; the first one is whole."""
    store = tmp_path / "store"
    made_fleet(tmp_path, store)
    (store / "logs/host=web02/flows.20261128010000000.arrow").unlink()
    cut = store / "logs/host=web03/flows.20261128020000000.arrow"
    cut.write_bytes(cut.read_bytes()[:-9])
    title, *lines = command("show", store, "-c", "1").stdout.splitlines()
    assert title.endswith("; 2 logs incomplete")
    gap = "from 2026-11-28 01:00:00 UTC to 2026-11-28 02:00:00 UTC (3.6e+03 s): a file of the log is missing."
    assert lines[0] == f"web02: Nothing was logged {gap}"
    assert lines[1].startswith("web03: incomplete: ends early at byte ") and lines[2].startswith("seen ")
    whole, lacking, ended = validated("show", command("show", store, "--json").stdout)["hosts"]
    assert (whole["complete"], whole["gaps"], ended["complete"], ended["gaps"]) == (True, [], False, [])
    times = {"from_time_ns": DAY_NS + HOUR_NS, "until_time_ns": DAY_NS + 2 * HOUR_NS}
    assert (lacking["complete"], lacking["gaps"]) == (False, [times | {"cause": "file_missing"}])


def test_files_that_a_time_leaves_out_are_not_missing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    made_fleet(tmp_path, store, hosts=1)
    chosen = command("show", store, "--since", "2026-11-28T01:30", "--until", "2026-11-28T01:40")
    title, account, *_ = chosen.stdout.splitlines()
    assert title == f"{store}: 1 host, 1 log, 1 file, 3 flows, 40 records" and account.startswith("seen ")
    (store / "logs/host=web01/flows.20261128020000000.arrow").unlink()
    title, gap, *_ = command("show", store, "--since", "2026-11-28T01:30").stdout.splitlines()
    assert title.endswith("; 1 log incomplete")
    assert gap == "web01: Nothing was logged after 2026-11-28 02:00:00 UTC: a file of the log is missing."


@pytest.mark.long
def test_gaps_of_many_hosts_leave_room_for_flows(tmp_path: Path) -> None:
    store = tmp_path / "store"
    made_fleet(tmp_path, store, hosts=22)
    for name in names_in(store, ".20261128010000000.arrow"):
        (store / name).unlink()
    title, *lines = command("show", store, "-c", "1").stdout.splitlines()
    assert title.endswith("; 22 logs incomplete")
    assert lines[19].startswith("web20: Nothing") and lines[20] == "2 more lines about gaps and cuts; --json shows all"


@pytest.mark.usefixtures("without_images")
def test_damage_names_the_file_in_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    made_fleet(tmp_path, store, hosts=1)
    name = names_in(store, ".arrow")[1]
    content = bytearray((store / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (store / name).write_bytes(content)
    shown = command("report", store, "-o", tmp_path / "report")
    assert shown.returncode == 1 and str(store / name) in shown.stderr, shown.stderr
    assert shown.stderr.count("\n") == 1


@pytest.mark.usefixtures("without_images")
def test_files_of_two_machines_are_no_gap(tmp_path: Path) -> None:
    """Copies of one image, with one ID and one name: the report says what it is."""
    store = tmp_path / "store"
    shipped(host_log(tmp_path / "one", 1), store, "web1")
    directory = tmp_path / "two"
    directory.mkdir()
    other = write_part(directory, 1, 2, last=True)
    # It began half an hour later.
    other.rename(store / "logs/host=web1/flows.20261128003000000.arrow")
    shown = command("report", store, "-o", tmp_path / "report")
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "report/report.html").read_text()
    assert "before one of another writer ends: two hosts may ship under one name" in page


def test_many_logs_make_a_page_that_a_browser_opens(tmp_path: Path) -> None:
    """Figures together, a table of all, and the flows that moved most; a file has all flows."""
    logs = {}
    for seed in range(1, 15):
        table = many_flows(150, 5, np.random.default_rng(seed))
        made = log_of(table)
        resent = {"flow": [1, 150], "segments": [2, 3], "spurious": [False, None], "cause": ["rto", "rto"]}
        columns = {name: resent.get(name, [None, None]) for name in RETRANSMISSIONS.names}
        logs[f"host{seed:02}"] = dataclasses.replace(made, retransmissions=pa.table(columns, RETRANSMISSIONS))
    page = write_report(logs, tmp_path, "many", images=False).read_text()
    assert len(re.findall('data-specification="together-', page)) == 2
    assert not re.findall('data-specification="host', page)
    assert len(re.findall(r"<figcaption>.*2 logs that moved fewer bytes are left out\.</figcaption>", page)) == 2
    assert page.count("has no figures of its own") == 14
    assert len(re.findall('<th scope="row"><a href="#host', page)) == 14
    assert len(page) < 6_000_000
    # Workers send no more than that needs.
    digests = {name: digest_of_many(log) for name, log in logs.items()}
    again = write_report(digests, tmp_path / "again", "many", images=False)
    assert without_times(again) == without_times(tmp_path / "report.html")
    whole, slim = (len(pickle.dumps(each)) for each in (digest(logs["host01"]), digests["host01"]))
    assert slim < whole / 2
    # 1,000 flows for 14 logs, of which each has 150.
    assert page.count("The 71 of 150 flows that moved most bytes") == 14
    flows = pl.read_csv(tmp_path / "host03-flows.csv")
    assert flows.height == 150
    parts = re.findall(r'<td data-label="cause">rto</td>\s*<td class="number" data-label="segments">(\d+)</td>', page)
    assert sum(map(int, parts)) == 14 * 5


@pytest.mark.long
def test_a_day_of_64_hosts(tmp_path: Path, bucket: str) -> None:
    """In a bucket, on two workers: the report of all files in one process."""
    logs = {}
    for seed in range(1, 65):
        host = f"host{seed:02}"
        logs[host] = host_log(tmp_path / "kept" / host, seed, hours=24)
        assert shipped(host_log(tmp_path / "sent" / host, seed, hours=24), bucket, host)["files_shipped"] == 24
    cluster = started(tmp_path)
    try:
        complete(cluster, tmp_path)
        check_fleet(tmp_path, bucket, logs, cluster.address)
    finally:
        ended(cluster)
