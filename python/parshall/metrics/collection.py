"""Metrics of a measurement that runs long: its ledger, its cost, and what it sees."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from parshall.host.installation import version

Instrument = Literal["tcp", "path", "capture"]
# Each listener is a time series for each kind of segment, each reason and place of drops is one: those that count most
# are shown, and the others are counted.
LISTENERS_MAX = 50
DROPS_MAX = 50
# Of a drop whose packet was not followed.
UNKNOWN = "unknown"
_FATES = ("seen", "filtered", "thinned", "logged")
# Upper bounds of the times of a path, powers of two of nanoseconds: 128 ns to 4.3 s.
_OCTAVES = range(7, 33)


class Metrics:
    """The metrics of a measurement at its last tick; Prometheus asks for them, or OTLP sends them.

    Parameters
    ----------
    instrument : {"tcp", "path", "capture"}
        What measures.

    Attributes
    ----------
    account : callable or None
        Returns the account of the measurement that runs, see `parshall.host.session.Session.account`; None before it
        runs.
    """

    def __init__(self, instrument: Instrument) -> None:
        self.account: Callable[[], dict[str, Any] | None] | None = None
        self._of_instrument = {"tcp": self._tcp, "path": self._path, "capture": self._capture}[instrument]
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
        if account is not None:
            yield from self._of_instrument(account)

    def _tcp(self, account: dict[str, Any]) -> Iterator[Metric]:
        ledger = account["ledger"]
        if not ledger["hooks"]:
            # Before the first tick nothing is known, and 0 would be an untruth.
            return
        yield from self._ledger(ledger["until_time_ns"], (([], hook) for hook in ledger["hooks"]), ["hook"])
        yield from self._cost(ledger["cost"])
        yield from self._flows(account)
        yield from self._listeners(account)

    def _path(self, account: dict[str, Any]) -> Iterator[Metric]:
        ledger = account["ledger"]
        if not ledger["hooks"]:
            return
        yield from self._ledger(ledger["until_time_ns"], (([], hook) for hook in ledger["hooks"]), ["hook"])
        yield from self._cost(ledger["cost"])
        packets = CounterMetricFamily(
            "parshall_path_packets", "Packets that ended, by code path: forwarded, dropped, ...", labels=["path"]
        )
        for path, number in account["paths"].items():
            self._count(packets, [path], number)
        yield packets
        yield self._times(
            "parshall_path_stage_seconds",
            "Time of packets from the stage before to a stage; whole: from the first to the last.",
            {(row["path"], row["stage"]): row for row in account["times"]},
            ["path", "stage"],
        )
        yield self._times(
            "parshall_path_read_seconds",
            "Time from data ready to its read, by step: waking, running, read, whole.",
            {(row["kind"],): row for row in account["reads"]},
            ["step"],
        )
        yield from self._drops(account)
        outside = CounterMetricFamily(
            "parshall_path_packets_without_histogram", "Packets that are in no histogram: on a CPU that came later."
        )
        self._count(outside, [], account["without_histogram"])
        yield outside
        attached = CounterMetricFamily("parshall_path_attached_seconds", "Time for which the programs were attached.")
        self._count(attached, [], account["attached_s"])
        yield attached
        if budget := account["budget"]:
            yield from self._budget("path", budget)

    def _capture(self, account: dict[str, Any]) -> Iterator[Metric]:
        if not account["until_time_ns"]:
            return
        ledger = account["ledger"]
        hooks = (([one["file"]], hook) for one in ledger["subscribers"] for hook in one["interfaces"])
        yield from self._ledger(account["until_time_ns"], hooks, ["file", "hook"])
        yield from self._cost(ledger["cost"])

    def _ledger(
        self, until_time_ns: int, accounts: Iterable[tuple[list[str], dict[str, Any]]], labels: list[str]
    ) -> Iterator[Metric]:
        rows = [([*names, hook["hook"]], hook) for names, hook in accounts]
        yield self._gauge("parshall_account_timestamp_seconds", "When this account was drawn up.", until_time_ns / 1e9)
        for fate in _FATES:
            events = CounterMetricFamily(
                f"parshall_events_{fate}", f"Events {fate}: seen = filtered + thinned + logged + lost.", labels=labels
            )
            for names, hook in rows:
                self._count(events, names, hook[fate])
            yield events
        lost = CounterMetricFamily("parshall_events_lost", "Events lost, by cause.", labels=[*labels, "cause"])
        for names, hook in rows:
            for cause, number in hook["lost"].items():
                self._count(lost, [*names, cause], number)
        yield lost
        unowned = CounterMetricFamily(
            "parshall_events_unowned", "Outside seen: packets without a socket that is followed.", labels=labels
        )
        for names, hook in rows:
            self._count(unowned, names, hook["unowned"])
        yield unowned

    def _times(
        self, name: str, what: str, rows: dict[tuple[str, ...], dict[str, Any]], labels: list[str]
    ) -> HistogramMetricFamily:
        """Return histograms of times with a bucket for each power of two; those of the account are finer."""
        family = HistogramMetricFamily(name, what, labels=labels)
        for names, row in rows.items():
            counts = dict(row["buckets"])
            buckets = [
                # Each power of two, from 8 ns on, has 8 buckets: docs/formats/path-log.md.
                (f"{2**octave / 1e9:g}", sum(count for bucket, count in counts.items() if bucket < 8 * (octave - 2)))
                for octave in _OCTAVES
            ]
            family.add_metric(names, [*buckets, ("+Inf", sum(counts.values()))], row["sum_ns"] / 1e9)
        return family

    def _drops(self, account: dict[str, Any]) -> Iterator[Metric]:
        found: dict[tuple[str, str], int] = {}
        for row in account["drops"]:
            not_followed = row["all"] - row["followed"]
            for place, number in (*row["places"].items(), *([(UNKNOWN, not_followed)] if not_followed > 0 else [])):
                found[row["name"], place] = found.get((row["name"], place), 0) + number
        largest = sorted(found.items(), key=lambda item: -item[1])
        drops = CounterMetricFamily(
            "parshall_path_drops",
            f"Packets that the kernel dropped, by reason and last stage; the {DROPS_MAX} pairs with most drops.",
            labels=["reason", "place"],
        )
        for names, number in largest[:DROPS_MAX]:
            self._count(drops, list(names), number)
        yield drops
        yield self._gauge(
            "parshall_path_drops_not_shown",
            "Dropped packets of other pairs, and for reasons beyond those that are counted.",
            sum(number for _, number in largest[DROPS_MAX:]) + account["uncounted_drops"],
        )

    def _cost(self, cost: dict[str, Any]) -> Iterator[Metric]:
        for name, what, number in (
            ("parshall_reader_cpu_seconds", "CPU time of the reader, in seconds.", cost["reader_cpu_s"]),
            (
                "parshall_reader_softirq_seconds",
                "CPU time that the kernel charged to the reader for softirqs, in seconds.",
                cost["reader_softirq_s"],
            ),
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
        again = CounterMetricFamily(
            "parshall_tcp_segments_sent_again",
            "Segments that were sent again, by cause: fast, rto, ...",
            labels=["cause"],
        )
        for cause, number in account["sent_again"].items():
            self._count(again, [cause], number)
        yield again
        if budget := account["budget"]:
            yield from self._budget("tcp", budget)
            observed = CounterMetricFamily("parshall_tcp_observed_seconds", "Time for which packets were observed.")
            self._count(observed, [], budget["observed_s"])
            yield observed
        yield from self._shipping(account.get("shipping"))
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

    def _budget(self, of: str, budget: dict[str, Any]) -> Iterator[Metric]:
        yield self._gauge(f"parshall_{of}_budget_cpus", "Budget of the measurement, CPUs.", budget["share"])
        yield self._gauge(
            f"parshall_{of}_budget_spent_cpus", "What it has cost since it began, CPUs.", budget["cost_share"]
        )

    def _shipping(self, shipping: dict[str, Any] | None) -> Iterator[Metric]:
        if shipping is None:
            return
        for name, what, key in (
            ("files", "Files of the log that were sent to the store.", "files_shipped"),
            ("bytes", "Bytes that were sent to the store.", "bytes_shipped"),
            ("failures", "Attempts to send a file that failed.", "failures"),
            ("cpu_seconds", "CPU time of sending.", "cpu_s"),
        ):
            sent = CounterMetricFamily(f"parshall_shipping_{name}", what)
            self._count(sent, [], shipping[key])
            yield sent
        left = shipping["files_waiting"] + shipping["files_refused"]
        yield self._gauge("parshall_shipping_files_kept", "Finished files that the store does not have.", left)

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
        unlisted = CounterMetricFamily(
            "parshall_tcp_segments_unlisted", "Segments to listeners for which the kernel's table had no room."
        )
        self._count(unlisted, [], account["segments_unlisted"])
        yield unlisted

    def _count(self, family: CounterMetricFamily, labels: list[str], number: float) -> None:
        series = (family.name, *labels)
        self._highest[series] = max(number, self._before.get(series, 0))
        family.add_metric(labels, self._highest[series])

    @staticmethod
    def _gauge(name: str, what: str, number: float) -> Metric:
        return GaugeMetricFamily(name, what, value=number)
