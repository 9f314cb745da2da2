"""Metrics of a measurement that runs long, for Prometheus: its ledger, its cost, and what it sees."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from parshall.errors import UsageError
from parshall.host.installation import version
from parshall.host.quantities import parse_address

# Each listener is a time series for each kind of segment; those that refused most are shown.
LISTENERS_MAX = 50
_FATES = ("seen", "filtered", "thinned", "logged")


class Metrics:
    """The metrics of a TCP log at its last tick; Prometheus asks for them.

    Attributes
    ----------
    account : callable or None
        Returns the account of the log that runs, see `parshall.instruments.tcp.TcpLog.account`; None before it runs.
    """

    def __init__(self) -> None:
        self.account: Callable[[], dict[str, Any]] | None = None
        self._lock = threading.Lock()
        # A snapshot may share the overwritten events of hooks in another way than the last one: counters never fall.
        self._highest: dict[tuple[str, ...], float] = {}
        self._before = self._highest

    def collect(self) -> list[Metric]:
        """Return the metrics, as prometheus_client wants them."""
        with self._lock:
            # What is not shown any more is forgotten.
            self._before, self._highest = self._highest, {}
            return list(self._of(self.account() if self.account else None))

    def _of(self, account: dict[str, Any] | None) -> Iterator[Metric]:
        info = InfoMetricFamily("parshall_build", "The version of Parshall.")
        info.add_metric([], {"version": version()})
        yield info
        if account is None or not account["ledger"]["hooks"]:
            # Before the first tick nothing is known, and 0 would be an untruth.
            return
        ledger = account["ledger"]
        yield self._gauge(
            "parshall_account_timestamp_seconds", "When this account was drawn up.", ledger["until_time_ns"] / 1e9
        )
        for fate in _FATES:
            events = CounterMetricFamily(
                f"parshall_events_{fate}", f"Events {fate}: seen = filtered + thinned + logged + lost.", labels=["hook"]
            )
            for hook in ledger["hooks"]:
                self._count(events, [hook["hook"]], hook[fate])
            yield events
        lost = CounterMetricFamily("parshall_events_lost", "Events lost, by cause.", labels=["hook", "cause"])
        for hook in ledger["hooks"]:
            for cause, number in hook["lost"].items():
                self._count(lost, [hook["hook"], cause], number)
        yield lost
        yield from self._cost(ledger["cost"])
        yield from self._flows(account)
        yield from self._listeners(account)

    def _cost(self, cost: dict[str, Any]) -> Iterator[Metric]:
        for name, what, number in (
            ("parshall_reader_cpu_seconds", "CPU time of the reader, in seconds.", cost["reader_cpu_s"]),
            ("parshall_log_bytes", "Bytes written to the log.", cost["log_bytes"]),
        ):
            counter = CounterMetricFamily(name, what)
            self._count(counter, [], number)
            yield counter
        hooks = GaugeMetricFamily(
            "parshall_hook_run_seconds", "Mean time of a run of a program, over its timed runs.", labels=["program"]
        )
        for program in cost["programs"]:
            if program["sampled_runs"]:
                hooks.add_metric([program["program"]], program["ns_per_run"] / 1e9)
        yield hooks

    def _flows(self, account: dict[str, Any]) -> Iterator[Metric]:
        yield self._gauge("parshall_tcp_flows_open", "Connections that have not ended.", account["flows_open"])
        ended = CounterMetricFamily(
            "parshall_tcp_flows_ended", "Connections that ended, by how: fin, timeout, ...", labels=["ending"]
        )
        for ending, number in account["flows_ended"].items():
            self._count(ended, [ending], number)
        yield ended
        srtt = account["srtt"]
        buckets, total = [], 0
        for bound_us, number in zip([*srtt["bounds_us"], None], srtt["counts"], strict=True):
            total += number
            buckets.append(("+Inf" if bound_us is None else f"{bound_us / 1e6:g}", total))
        histogram = HistogramMetricFamily(
            "parshall_tcp_srtt_seconds",
            "Smoothed round-trip times: of each connection that had packets, one about every second.",
        )
        histogram.add_metric([], buckets, srtt["sum_us"] / 1e6)
        yield histogram

    def _listeners(self, account: dict[str, Any]) -> Iterator[Metric]:
        # Several sockets may listen at one address (SO_REUSEPORT); a series is of all of them.
        refused: dict[tuple[str, ...], list[int]] = {}
        for row in account["listeners"]:
            names: tuple[str, ...] = (
                row["local_address"],
                str(row["local_port"]),
                str(row["netns_inode"]),
                row["command"] or "",
            )
            counts = refused.setdefault(names, [0, 0])
            counts[0] += row["syns_refused"]
            counts[1] += row["acks_refused"]
        listeners = sorted(refused.items(), key=lambda item: -sum(item[1]))
        full = CounterMetricFamily(
            "parshall_tcp_accept_queue_refused",
            f"Segments that a full accept queue refused; the {LISTENERS_MAX} listeners that refused most.",
            labels=["address", "port", "netns", "command", "segment"],
        )
        for names, (syns, acks) in listeners[:LISTENERS_MAX]:
            self._count(full, [*names, "syn"], syns)
            self._count(full, [*names, "ack"], acks)
        yield full
        yield self._gauge(
            "parshall_tcp_listeners_not_shown",
            "Listeners with a full accept queue beyond those that are shown.",
            max(len(listeners) - LISTENERS_MAX, 0),
        )

    def _count(self, family: CounterMetricFamily, labels: list[str], number: float) -> None:
        series = (family.name, *labels)
        self._highest[series] = max(number, self._before.get(series, 0))
        family.add_metric(labels, self._highest[series])

    @staticmethod
    def _gauge(name: str, what: str, number: float) -> Metric:
        return GaugeMetricFamily(name, what, value=number)


class Server:
    """Serves metrics by HTTP in a thread, until the end of the block.

    Parameters
    ----------
    address : str
        Where: ``9777`` or ``127.0.0.1:9777`` for this host only, ``[::1]:9777``; ``0.0.0.0:9777`` for all.

    Raises
    ------
    UsageError
        It is no address, or cannot be listened to.
    """

    def __init__(self, address: str) -> None:
        self.metrics = Metrics()
        """What it serves."""
        host, port = parse_address("--metrics", address)
        registry = CollectorRegistry()
        registry.register(self.metrics)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--metrics {address}: {reason}; name another address or port") from None
        self.port: int = self._server.server_port
        """The port that it has."""

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
