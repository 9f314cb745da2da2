"""Watches a log that is being written: its flows, its account, its accept queues."""

import json
import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from parshall.errors import ParshallError
from parshall.host.cgroups import ContainerNames
from parshall.instruments.flow_states import FlowStates, Follower
from parshall.live.history import History
from parshall.live.view import UNKNOWN, View, described, lines

DEFAULT_KEEP_S = 900.0
DEFAULT_MEMORY_BYTES = 256 << 20
_POLL_S = 0.1
# Between two moments that are kept.
_STEP_NS = 250_000_000
_VIEWS_KEPT = 32
# Between two looks for names of flows that are not kept any more.
_VERSIONS_TO_TIDY = 64


class Watch:
    """Follows a log in a thread, until the end of the block.

    Parameters
    ----------
    path : path-like
        The log, as for `parshall.read`.
    keep_s : float
        How far one can go back.
    memory_bytes : int
        Memory for what is kept; when it is full, the oldest times go.
    writes : bool
        Whether this process writes the log, too.

    Raises
    ------
    ParshallError
        The log cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_s: float = DEFAULT_KEEP_S,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        writes: bool = False,
    ) -> None:
        self.path = Path(path)
        self.on_news: Callable[[], None] = lambda: None
        """Called from the thread when something is new."""
        self._writes = writes
        self._follower = Follower(self.path)
        self._history = History(keep_s, memory_bytes)
        self._facts = pl.DataFrame()
        self._containers = ContainerNames()
        self._account: dict[str, Any] = {"has_ended": False, "records": 0, "ledger": None, "listeners": []}
        self._reader_cpu_s = 0.0
        self._problem: str | None = None
        self._beside: dict[str, Any] = {"rings": [], "packets": None, "commands": []}
        self._version = 0
        self._lock = threading.Lock()
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._began = time.monotonic(), time.process_time()
        # The same view of the same moment is made once for all who look at it.
        self._frame = lru_cache(_VIEWS_KEPT)(self._made_frame)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_ending.set()
        self._thread.join()

    @property
    def version(self) -> int:
        """The number of the newest news."""
        return self._version

    @property
    def has_ended(self) -> bool:
        """Whether there will be no more news: the log has its end, or cannot be read any more."""
        return not self._thread.is_alive() and self._version > 0

    def _run(self) -> None:
        try:
            self._follow()
        except KeyboardInterrupt:
            # Polars raises it in the thread that computes when Ctrl-C comes; who has the handler ends this thread.
            return
        except BaseException:
            # What is on the page is of the time before.
            with self._lock:
                self._problem = "the page has a fault, and shows nothing new; the messages of parshall live have it"
                self._version += 1
            self.on_news()
            raise

    def _follow(self) -> None:
        until_ns = 0
        while not self._is_ending.is_set():
            try:
                while self._follower.read() and not self._is_ending.is_set():
                    pass
                has_ended = self._follower.has_ended
            except (ParshallError, OSError) as error:
                self._problem, has_ended = str(error), True
            if self._follower.until_ns >= until_ns + _STEP_NS or has_ended:
                until_ns = max(self._follower.until_ns, until_ns)
                self._add(until_ns, has_ended)
                self.on_news()
            if has_ended:
                return
            self._is_ending.wait(_POLL_S)

    def _add(self, until_ns: int, has_ended: bool) -> None:
        states = self._follower.states
        table = states.changing()
        with self._lock:
            gone = self._history.add(until_ns, table) if until_ns else []
            if table.width:
                self._name(table["flow"], states)
            if gone:
                self._follower.forget(gone)
            self._account = {
                "has_ended": has_ended,
                "records": states.records,
                "ledger": states.account(),
                "listeners": _refusing(self._follower.listeners.values()),
            }
            self._reader_cpu_s = states.ledger.get("cost", {}).get("reader_cpu_s", 0.0)
            self._version += 1

    def _name(self, flows: pl.Series, states: FlowStates) -> None:
        """Take in what never changes of flows: of new ones, and of those whose names came late."""
        named = self._facts
        if named.width:
            named = named.filter(pl.col("peer").is_not_null() & (pl.col("process") != UNKNOWN))
            flows = flows.filter(~flows.is_in(named["flow"].implode()))
        if flows.len():
            others = self._facts.filter(~pl.col("flow").is_in(flows.implode())) if self._facts.width else named
            self._facts = pl.concat(
                [each for each in (others, described(states.facts(flows), self._containers)) if each.width]
            ).sort("flow")
        if self._version % _VERSIONS_TO_TIDY == 0:
            self._facts = self._facts.filter(pl.col("flow").is_in(self._history.flows().implode()))

    def frame(self, view: View) -> bytes:
        """Return a view of the newest moment, or of an earlier one, as JSON."""
        with self._lock:
            return self._frame(self._version, view)

    def _made_frame(self, version: int, view: View) -> bytes:
        time_ns, flows = self._history.at(view.at_ns)
        total, columns = lines(self._facts, flows, view)
        sums = flows.select("acked_Mbps", "received_Mbps", "retransmitted_per_s").sum().to_dicts()[0]
        # Of a flow that is not in the flow table yet, it is unknown.
        sums["flows_open"] = int((~flows["ended"]).sum())
        frame = {
            "version": version,
            "time_ms": _ms(time_ns),
            "kept_ms": [_ms(self._history.begin_ns), _ms(self._history.end_ns)],
            # Its own has a name that says nothing.
            "log": None if self._writes else str(self.path),
            "problem": self._problem,
            "lines": total,
            "offset": view.offset,
            "columns": columns,
            "now": sums,
            "page_cpu_share": self._page_share(),
        }
        return json.dumps(frame | self._account | self._beside, separators=(",", ":")).encode()

    def show(self, name: str, value: Any) -> None:
        """Show something beside the flows: ``rings``, ``packets``, ``commands``."""
        with self._lock:
            self._beside[name] = value
            self._version += 1
        self.on_news()

    def curve(self, flow: int | None) -> bytes:
        """Return a flow (None: the sum of all) at each time that is kept, as JSON: a list for each column.

        Of a flow also ``retransmitted_for``: why segments were sent again up to now, or null.
        """
        with self._lock:
            table = self._history.totals() if flow is None else self._history.curve(flow)
        causes = {}
        if flow is not None:
            causes = {"retransmitted_for": table["retransmitted_for"][-1] if table.height else None}
            table = table.drop("retransmitted_for")
        table = table.select(pl.col("time_ns").alias("time_s") / 1e9, pl.exclude("time_ns"))
        return json.dumps(table.to_dict(as_series=False) | causes, separators=(",", ":")).encode()

    def facts(self, flow: int) -> dict[str, Any] | None:
        """Return what never changes of a flow; None: it is not known."""
        with self._lock:
            found = self._facts.filter(pl.col("flow") == flow).to_dicts() if self._facts.width else []
        return found[0] if found else None

    def _page_share(self) -> float:
        """Return the share of a CPU that this process took, without the readers of measurements that are in it, too."""
        wall_s, cpu_s = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        if self._writes:
            cpu_s -= self._reader_cpu_s
        if self._beside["packets"]:
            cpu_s -= self._beside["packets"]["reader_cpu_s"]
        return max(cpu_s, 0.0) / wall_s


def _refusing(listeners: Any) -> list[dict[str, Any]]:
    rows = [row for row in listeners if row["syns_refused"] or row["acks_refused"]]
    rows.sort(key=lambda row: -(row["syns_refused"] + row["acks_refused"]))
    names = ("local_address", "local_port", "ip_version", "command", "pid", "backlog_connections")
    return [{name: row[name] for name in (*names, "syns_refused", "acks_refused")} for row in rows[:20]]


def _ms(time_ns: int | None) -> float | None:
    """Return a time as JavaScript's numbers can hold it, to the microsecond."""
    return None if time_ns is None else round(time_ns / 1e6, 3)
