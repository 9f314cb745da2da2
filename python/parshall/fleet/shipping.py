"""Sends the files of a log that rotates to a store, each when it is finished.

A store has three data sets, each divided by host and log:

- ``logs/host=H/LOG.TIME.arrow``: the files as they are. Such a directory is a log that rotated.
- ``records/host=H/log=LOG/run=R/date=D/TIME.parquet``: their rows.
- ``flows/host=H/log=LOG/run=R/date=D/TIME.parquet``: their flow tables.

TIME is when the file begins, UTC, to the millisecond. The first one is written last: what is in it is whole.
"""

import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError, printable
from parshall.fleet.store import Store, StoreError
from parshall.host.quantities import many
from parshall.host.rotation import Rotation
from parshall.host.temporary import TemporaryDirectory
from parshall.instruments.tcp_log import Log, convert, read

LOGS, RECORDS, FLOWS = "logs", "records", "flows"
OWNER = "host.json"
_POLL_INTERVAL_S = 0.5
# After a failure: twice as long each time.
_RETRY_FIRST_S, _RETRY_LAST_S = 1.0, 60.0
_NICE = 10
# What a partition's value may have: other letters are escaped differently by each reader.
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_NUMBER = re.compile(r"\.(?P<number>[0-9]{6,})$")


@dataclass(frozen=True)
class Names:
    """Where the parts of a file of a log are in a store."""

    log: str
    records: str
    flows: str


def names_of(log: Log, host: str, stem: str) -> Names:
    """Return the names of a file of a log; raise `ParshallError` for one that is no part of a log that rotates."""
    part = log.part
    if part is None:
        raise ParshallError(f"{log.path}: is no file of a log that rotates; log with --rotate-size or --rotate-time")
    run, began_ns = part.get("run"), part.get("began_ns")
    is_known = isinstance(run, str) and _HOST.fullmatch(run) and set(run) != {"."}
    if not is_known or not isinstance(began_ns, int) or not 0 <= began_ns < 1 << 63:
        raise ParshallError(f"{log.path}: its head does not say which part of a log it is")
    began = datetime.fromtimestamp(began_ns // 1_000_000_000, UTC)
    time_text = f"{began:%Y%m%d%H%M%S}{began_ns // 1_000_000 % 1000:03}"
    place = f"host={host}/log={stem}/run={run}/date={began:%Y-%m-%d}/{time_text}.parquet"
    return Names(f"{LOGS}/host={host}/{stem}.{time_text}.arrow", f"{RECORDS}/{place}", f"{FLOWS}/{place}")


class Shipper:
    """Sends the finished files of a log to a store while the log is written, in a thread of low priority.

    What cannot be sent stays where it is, and is tried again. What was sent is removed by `rotation`, or at once when
    that has no limit; then files of runs that did not ship stay: somebody wanted them here.

    Parameters
    ----------
    log : pathlib.Path
        The name of the log, as for `TcpLog`; it rotates.
    ship : str
        The store, see `parshall.fleet.store.Store`.
    ship_as : str, optional
        The name of this host in the store; default: its own.
    rotation : Rotation
        Which files stay; `TcpLog` gets `Rotation.shipped`.
    say : callable
        Takes a line about a failure, once for each cause.

    Raises
    ------
    UsageError
        The log does not rotate, a name cannot be in a store, the store has files of another host of this name, or it
        is a directory that is not there.
    ParshallError
        The store cannot be reached.
    """

    def __init__(
        self, log: Path, ship: str, rotation: Rotation, *, ship_as: str | None = None, say: Callable[[str], None]
    ) -> None:
        if not rotation.is_on:
            raise UsageError("--ship: sends finished files; give --rotate-size or --rotate-time, too")
        self.host = socket.gethostname() if ship_as is None else ship_as
        self._stem = log.stem
        for option, name in (("--ship-as", self.host), ("-o", self._stem)):
            if not _HOST.fullmatch(name):
                raise UsageError(
                    f"{option} {printable(name)}: is part of names in the store; take letters, digits, '.', '_' and '-'"
                )
        self._log, self._rotation, self._say = log, rotation, say
        self.store = Store(ship, "--ship")
        if self.store.is_local and self.store.directory.resolve() == log.parent.resolve():
            raise UsageError(f"--ship {ship}: is the directory of the log itself; name another one")
        if self.store.is_local and not self.store.directory.is_dir():
            raise UsageError(f"--ship {ship}: is no directory; make it, or mount what is to be there")
        self._take_name()
        self._lock = threading.Lock()
        # Files that need no more: whether the store has them.
        self._done: dict[Path, bool] = {}
        # Of these, files of runs that did not ship.
        self._wanted: set[Path] = set()
        self._account: dict[str, Any] = {
            "url": self.store.url,
            "host": self.host,
            "files_shipped": 0,
            "files_waiting": 0,
            "files_refused": 0,
            "failures": 0,
            "bytes_shipped": 0,
            "cpu_s": 0.0,
            "failure": None,
        }
        self._ending = threading.Event()
        self._has_log_ended = self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="parshall-ship", daemon=True)

    def _take_name(self) -> None:
        """Refuse a name of another host: both would write one log."""
        name, own = self._name, _machine()
        found = self.store.text(name)
        if found is None:
            self.store.put_text(json.dumps({"machine": own}), name)
            return
        try:
            owner = json.loads(found)["machine"]
        except (ValueError, KeyError, TypeError, RecursionError):
            owner = None
        if owner != own:
            raise UsageError(
                f"--ship-as {self.host}: another machine ships under this name to {self.store.url}; give this one "
                f"another name with --ship-as, or remove {name} there if it was replaced"
            )

    @property
    def _name(self) -> str:
        return f"{LOGS}/host={self.host}/{OWNER}"

    @property
    def _is_unlimited(self) -> bool:
        return self._rotation.rotate_files is None and self._rotation.keep_s is None

    def account(self) -> dict[str, Any]:
        """Return what was sent.

        Returns
        -------
        dict
            ``url``, ``host``; ``files_shipped``, ``files_waiting`` (finished, not sent yet), ``files_refused`` (without
            a head), ``failures`` (attempts), ``bytes_shipped``, ``cpu_s`` (of the thread), and ``failure``: why the
            last attempt failed, None after one that did not.
        """
        with self._lock:
            return dict(self._account)

    def __enter__(self) -> "Shipper":
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            # The log may not have begun: then its newest file may be one that another process writes.
            self._is_given_up = True
        self.finish()

    def finish(self) -> dict[str, Any]:
        """Send what is left, after the log has ended, each file once more at most; return the account."""
        self._has_log_ended = True
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        return self.account()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        wait_s = _RETRY_FIRST_S
        while not self._ending.wait(_POLL_INTERVAL_S):
            if self._send_finished():
                wait_s = _RETRY_FIRST_S
            else:
                self._ending.wait(wait_s)
                wait_s = min(2 * wait_s, _RETRY_LAST_S)
        if not self._is_given_up:
            self._send_finished()

    def _send_finished(self) -> bool:
        """Send the finished files; false when one could not be sent."""
        files = files_of_log(self._log)
        # The last one is being written.
        finished = [path for path in (files if self._has_log_ended else files[:-1]) if path not in self._done]
        failure: str | None = None
        for number, path in enumerate(finished):
            self._note(files_waiting=len(finished) - number)
            try:
                self._send_to_place(path)
            except Exception as error:
                # Whatever it is, the log goes on, and the file stays.
                failure = str(error) if isinstance(error, ParshallError) else printable(f"{path}: {error}")
                if isinstance(error, StoreError):
                    break
        waiting = sum(path not in self._done for path in finished)
        self._make_room(files)
        with self._lock:
            is_new = failure is not None and failure != self._account["failure"]
            self._account["failures"] += failure is not None
        if is_new:
            self._say(f"{failure}; {many(waiting, 'file')} not shipped yet")
        self._note(files_waiting=waiting, failure=failure, cpu_s=time.thread_time())
        return failure is None

    def _note(self, **changes: Any) -> None:
        with self._lock:
            self._account |= changes

    def _add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._account[name] += count

    def _send_to_place(self, path: Path) -> None:
        """Send one file, unless the place of the store is not that of the store: the disk that it is on would fill."""
        self._check_place()
        try:
            self._send(path)
        except StoreError:
            # It may be gone since: then that is the cause, whatever failed by it.
            self._check_place()
            raise

    def _check_place(self) -> None:
        if self.store.is_local and self.store.text(self._name) is None:
            raise StoreError(f"--ship {self.store.url}: has no {self._name} any more; mount the store again")

    def _send(self, path: Path) -> None:
        """Send one file, unless the store has it."""
        try:
            log = read(path)
            names = names_of(log, self.host, self._stem)
        except ParshallError as error:
            # It has no head, as after a loss of power, and so no name there.
            self._done[path] = False
            self._add(files_refused=1)
            self._say(f"{error}; it stays here")
            return
        if not log.options.get("shipped"):
            if not self._wanted and self._is_unlimited:
                self._say(f"{path}: of a run without --ship; such files are sent, too, and stay here")
            self._wanted.add(path)
        there = self.store.size(names.log)
        # A run has a name of its own, so another host's file of this name and length is none of ours.
        if there == path.stat().st_size and self.store.size(names.flows) is not None:
            self._done[path] = True
            return
        if there is not None:
            raise ParshallError(
                f"--ship {self.store.url}: has another {names.log} of {there:,} bytes; move it away, or give --ship-as"
            )
        from pyarrow import parquet

        sent_bytes = 0
        with TemporaryDirectory("store") as directory:
            table = directory / "table.parquet"
            for name, write in (
                (names.records, lambda: convert(path, "parquet", table)),
                (names.flows, lambda: parquet.write_table(log.flows, table, compression="zstd")),
            ):
                write()
                sent_bytes += self.store.put(table, name)
                table.unlink()
        sent_bytes += self.store.put(path, names.log)
        self._done[path] = True
        self._add(files_shipped=1, bytes_shipped=sent_bytes)

    def _make_room(self, files: list[Path]) -> None:
        """Remove files that were sent: those beyond the limits, or all."""
        kept = self._rotation.rotate_files
        oldest_s = None if self._rotation.keep_s is None else time.time() - self._rotation.keep_s
        for number, path in enumerate(files[:-1] if not self._has_log_ended else files):
            if not self._done.get(path):
                continue
            is_beyond = kept is not None and number < len(files) - kept
            try:
                is_old = oldest_s is not None and path.stat().st_mtime < oldest_s
                if is_beyond or is_old or (self._is_unlimited and path not in self._wanted):
                    path.unlink(missing_ok=True)
                    del self._done[path]
            except OSError as error:
                self._say(f"{path}: cannot be removed ({error.strerror}); remove it")


def files_of_log(log: Path) -> list[Path]:
    """Return the files of a log that rotates, oldest first."""
    numbers: dict[int, Path] = {}
    for path in log.parent.glob(f"*{log.suffix}"):
        found = _NUMBER.search(path.stem)
        if found and path.stem[: found.start()] == log.stem:
            numbers[int(found["number"])] = path
    return [numbers[number] for number in sorted(numbers)]


def _machine() -> str:
    """Return what tells this installation from others that have its name; the ID itself is not to be given away."""
    try:
        identity = Path("/etc/machine-id").read_text().strip()
    except OSError:
        identity = ""
    return hashlib.sha256(f"parshall {identity}".encode()).hexdigest()[:32]
