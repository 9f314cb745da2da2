"""Reads the logs of all hosts in a store: one after the other, or on the workers of a Dask cluster."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from parshall.errors import ParshallError, UsageError, printable
from parshall.fleet.store import Store, is_url
from parshall.host.quantities import many
from parshall.host.rows import plain_rows
from parshall.host.temporary import TemporaryDirectory
from parshall.instruments.flow_states import FlowStates
from parshall.instruments.tcp_log import Log, read

Result = TypeVar("Result")
# Names are of others: what matches can be a file name here.
_NAME = re.compile(
    r"logs/host=(?P<host>[A-Za-z0-9._-]{1,253})/(?P<log>[A-Za-z0-9._-]{1,200})\.(?P<began>[0-9]{17})\.arrow"
)
_LOGS = "logs"
# So many names of hosts are in a message.
_NAMES_SHOWN = 10


@dataclass(frozen=True)
class HostLog:
    """One log of one host: its files in the store, in the order of time."""

    host: str
    log: str
    files: tuple[str, ...]
    total_bytes: int
    is_whole: bool
    """Whether these are all files of the log in the store."""

    @property
    def name(self) -> str:
        """Its name in reports: the host, and the log where a host has several."""
        return f"{self.host}/{self.log}"


class Fleet:
    """The logs of many hosts, which `parshall tcp --ship` sent to one store.

    Parameters
    ----------
    url : str or os.PathLike
        The store, as it was given to ``--ship``.
    since, until : datetime.datetime, optional
        Take the files that have something of this time; naive times are UTC. Default: all.
    hosts : sequence of str, optional
        Take the logs of these hosts. Default: all.

    Attributes
    ----------
    logs : list of HostLog
        By host and log.

    Raises
    ------
    UsageError
        There is no such store, or it has no log, or none of such a host.
    ParshallError
        The store cannot be reached.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self._store = Store(url)
        self.url = self._store.url
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        sizes = self._store.sizes(_LOGS)
        for name in sizes:
            if match := _NAME.fullmatch(name):
                found.setdefault((match["host"], match["log"]), []).append((match["began"], name))
        if not found:
            raise UsageError(f"{self.url}: has no logs of hosts; give the directory or URL of `parshall tcp --ship`")
        if hosts:
            self._check_hosts(hosts, sorted({host for host, _ in found}))
            found = {key: files for key, files in found.items() if key[0] in hosts}
        chosen = {key: _within(sorted(files), since, until) for key, files in sorted(found.items())}
        self.logs = [
            HostLog(host, log, tuple(files), sum(map(sizes.__getitem__, files)), len(files) == len(found[host, log]))
            for (host, log), files in chosen.items()
            if files
        ]
        if not self.logs:
            raise UsageError(f"{self.url}: has no file of this time; its files begin {_span(found.values())}")

    def _check_hosts(self, asked: Sequence[str], known: Sequence[str]) -> None:
        """Raise `UsageError` for a host without a log."""
        if unknown := [host for host in asked if host not in known]:
            names = ", ".join(known[:_NAMES_SHOWN])
            more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
            raise UsageError(f"--host {printable(unknown[0])}: {self.url} has no log of it; its hosts: {names}{more}")

    def __repr__(self) -> str:
        files = sum(len(each.files) for each in self.logs)
        hosts = len({each.host for each in self.logs})
        return f"{self.url}: {many(hosts, 'host')}, {many(len(self.logs), 'log')}, {many(files, 'file')}"

    @property
    def names(self) -> list[str]:
        """Unique names of `logs`: the host alone where it has one log."""
        hosts = [each.host for each in self.logs]
        return [each.host if hosts.count(each.host) == 1 else each.name for each in self.logs]

    def map(
        self,
        function: Callable[[Log], Result],
        *,
        cluster: str | None = None,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> list[Result]:
        """Return the results of a function of each log, in the order of `logs`.

        Parameters
        ----------
        function : callable
            Takes a `Log`, which is open while it runs. With a cluster it is sent to the workers, which need Parshall.
        cluster : str, optional
            The scheduler of a Dask cluster, ``tcp://host:8786``, whose workers reach the store by the same URL: each
            log goes to one worker, and to another one when that is lost. Default: this process, one after the other.
        progress : callable
            Takes the numbers of logs that are done, and of all.

        Raises
        ------
        ParshallError
            A log is damaged, or cannot be fetched; or as `parshall.model.cluster.map_in_order`.
        """
        one = partial(_on_log, function)
        points = [(self.url, each) for each in self.logs]
        if cluster is not None:
            from parshall.model.cluster import map_in_order

            if self._store.is_local and not is_url(self.url):
                points = [(str(self._store.directory), each) for each in self.logs]
            return map_in_order(cluster, one, points, progress)
        found = []
        for number, point in enumerate(points):
            progress(number, len(points))
            found.append(one(point))
        progress(len(points), len(points))
        return found

    def flow_states(self, *, cluster: str | None = None) -> pl.DataFrame:
        """Return how much each flow of each host moved, and its last state.

        Returns
        -------
        polars.DataFrame
            ``host`` and ``log``, then the columns of `FlowStates.table`. Flows are numbered in each log.
        """
        return self.with_hosts([states.table() for states in self.map(states_of, cluster=cluster)])

    def retransmissions(self, *, cluster: str | None = None) -> pl.DataFrame:
        """Return why each segment was sent again: ``host`` and ``log``, then the columns of `Log.retransmissions`."""
        return self.with_hosts(self.map(_retransmissions, cluster=cluster))

    def with_hosts(self, tables: list[pl.DataFrame]) -> pl.DataFrame:
        """Return tables of `logs` as one, with ``host`` and ``log`` in front."""
        all_named = [
            table.select(pl.lit(each.host).alias("host"), pl.lit(each.log).alias("log"), pl.all())
            for each, table in zip(self.logs, tables, strict=True)
        ]
        named = [table for table in all_named if table.height]
        # Without a row, its columns stay.
        return pl.concat(named or all_named[:1], how="vertical_relaxed") if tables else pl.DataFrame()


def time_of(option: str, text: str | None) -> datetime | None:
    """Return the time that a text has, ``2026-11-28`` or ``2026-11-28T17:00``, UTC; raise `UsageError`."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text}: expected a date or a time of UTC, such as 2026-11-28 or 2026-11-28T17:00"
        ) from None


def _within(files: list[tuple[str, str]], since: datetime | None, until: datetime | None) -> list[str]:
    """Return the files of a log that have something of a time: each lasts until the next one begins."""
    begin, end = (None if each is None else _digits(each) for each in (since, until))
    chosen = []
    for number, (began, name) in enumerate(files):
        ends = files[number + 1][0] if number + 1 < len(files) else None
        if (begin is None or ends is None or ends > begin) and (end is None or began < end):
            chosen.append(name)
    return chosen


def _digits(time: datetime) -> str:
    """Return a time as names have it."""
    utc = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return f"{utc:%Y%m%d%H%M%S}{utc.microsecond // 1000:03}"


def _span(logs: Any) -> str:
    begins = sorted(began for files in logs for began, _ in files)
    first, last = (f"{each[:4]}-{each[4:6]}-{each[6:8]} {each[8:10]}:{each[10:12]}" for each in (begins[0], begins[-1]))
    return f"from {first} to {last} UTC"


def _on_log(function: Callable[[Log], Result], point: tuple[str, HostLog]) -> Result:
    url, host_log = point
    with _opened(Store(url), host_log) as log:
        return function(log)


@contextmanager
def _opened(store: Store, host_log: HostLog) -> Iterator[Log]:
    """Open a log; files of an object store are here meanwhile."""
    if store.is_local and host_log.is_whole:
        yield read(store.directory / f"{_LOGS}/host={host_log.host}/{host_log.log}.arrow")
        return
    with TemporaryDirectory("store") as directory:
        for name in host_log.files:
            local = directory / Path(name).name
            if store.is_local:
                # In the file system of the logs a name takes no room.
                local.symlink_to(store.directory / name)
            else:
                store.fetch(name, local)
        try:
            yield read(directory / f"{host_log.log}.arrow")
        except ParshallError as error:
            # Names of this directory say nothing to anybody.
            where = f"{store.url}/{_LOGS}/host={host_log.host}"
            raise type(error)(str(error).replace(str(directory), where)) from None


@dataclass(frozen=True)
class HostStates:
    """The flows of a log, and what of the log is not there: as of `Log`, gaps as `plain_rows`."""

    states: FlowStates
    complete: bool
    truncation: str | None
    gaps: list[dict[str, Any]]


def host_states_of(log: Log) -> HostStates:
    """Return the flows of a log, and what of it is not there; workers need its name."""
    return HostStates(log.flow_states(), log.complete, log.truncation, plain_rows(log.gaps))


def states_of(log: Log) -> FlowStates:
    """Return the flows of a log as they are; workers need its name."""
    return log.flow_states()


def _retransmissions(log: Log) -> pl.DataFrame:
    found = pl.from_arrow(log.retransmissions)
    assert isinstance(found, pl.DataFrame)
    return found
