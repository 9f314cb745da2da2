"""Logs of every kind, in readers of Arrow that know nothing of Parshall."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import nanoarrow
import nanoarrow.ipc
import polars as pl
import pyarrow as pa
import pytest
from conversation import connection, socket_at, transfer
from ports import PORTS

from parshall.instruments.path import PathProfile
from parshall.instruments.tcp import TcpLog

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
END_BYTES = 8
DATAGRAMS = 50


def write_tcp(bed: Any, path: Path, compression: str, has_traffic: bool = True) -> None:
    """Log a connection over a lossy link: its first rows have no round-trip time, and few rows a timer."""
    left, right = bed.host("left"), bed.host("right")
    link, port = bed.link(left, right, rate_bps=200e6, delay_ms=1, loss=0.01), next(PORTS)
    with TcpLog(path, port=[port], compression=compression):
        if has_traffic:
            with connection(left, right, link.address(right), port) as (active, passive):
                transfer(active, passive, 1_000_000)


def write_path(bed: Any, path: Path, has_traffic: bool = True) -> None:
    """Log datagrams, and their reads."""
    left, right = bed.host("left"), bed.host("right")
    link, port = bed.link(left, right, backend="veth"), next(PORTS)
    with PathProfile(path, netns=right.namespace, reads=True):
        if has_traffic:
            with (
                socket_at(right, link.address(right), socket.SOCK_DGRAM) as receiver,
                socket_at(left, link.address(left), socket.SOCK_DGRAM) as sender,
            ):
                receiver.bind((link.address(right), port))
                receiver.settimeout(60)
                for _ in range(DATAGRAMS):
                    sender.sendto(bytes(100), (link.address(right), port))
                    receiver.recv(200)


def write_cut(whole: Path, cut: Path) -> None:
    """Write what a writer leaves that was killed."""
    cut.write_bytes(whole.read_bytes()[:-END_BYTES])


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "tcp, zstd": lambda bed, path: write_tcp(bed, path, "zstd"),
    "tcp, lz4": lambda bed, path: write_tcp(bed, path, "lz4"),
    "tcp, none": lambda bed, path: write_tcp(bed, path, "none"),
    "tcp, empty": lambda bed, path: write_tcp(bed, path, "auto", has_traffic=False),
    "path": write_path,
    "path, empty": lambda bed, path: write_path(bed, path, has_traffic=False),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_readers_of_arrow_open_a_log(bed: Any, tmp_path: Path, kind: str) -> None:
    whole = tmp_path / "whole.arrow"
    WRITERS[kind](bed, whole)
    cut = tmp_path / "cut.arrow"
    write_cut(whole, cut)
    table = pa.ipc.open_stream(whole).read_all()
    table.validate(full=True)
    assert (table.num_rows > 0) == ("empty" not in kind)
    if table.num_rows and kind.startswith("tcp"):
        assert table["timer"].null_count > 0 and "retransmit" in table["event"].to_pylist()
    for path in (whole, cut):
        assert pa.ipc.open_stream(path).read_all().equals(table)
        frame = pl.read_ipc_stream(path)
        assert frame.rows() == pl.DataFrame(table).rows()
        assert pa.ipc.open_stream(path).read_pandas().shape == table.shape
        counted = duckdb.from_arrow(pa.ipc.open_stream(path)).aggregate("event, count(*)").fetchall()
        assert dict(counted) == {row["values"]: row["counts"] for row in table["event"].value_counts().to_pylist()}
        with nanoarrow.ipc.InputStream.from_path(path) as stream:
            rows = nanoarrow.ArrayStream(stream).read_all()
        assert (len(rows), rows.schema.type) == (table.num_rows, nanoarrow.Type.STRUCT)
        for name in ("event", table.schema.names[-1]):
            assert list(rows.child(table.schema.names.index(name)).iter_py()) == table[name].to_pylist()
