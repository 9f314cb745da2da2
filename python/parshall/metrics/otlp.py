"""Sends the metrics of a measurement to a collector by OTLP over HTTP."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from prometheus_client.core import Metric, Sample

from parshall.errors import UsageError
from parshall.host.installation import version
from parshall.metrics.collection import Metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export

_PATH = "/v1/metrics"
_INTERVAL_MS = 10_000
# As the SDK names it.
_INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"
_TIMEOUT_S = 3
# Of the last attempt, where no collector took anything so far.
_LAST_TIMEOUT_S = 0.5
# Least and greatest of a histogram need not be sent.
_UNKNOWN: Any = None
_UNITS = {"seconds": "s", "bytes": "By"}


class Exporter:
    """Sends metrics in a thread: at once, at each interval, and at the end of the block.

    Parameters
    ----------
    metrics : Metrics
        What it sends.
    url : str
        The collector: ``http://127.0.0.1:4318``; without a path, ``/v1/metrics`` is added. Headers and certificates
        are those of the environment: ``OTEL_EXPORTER_OTLP_HEADERS`` and others of the SDK.
    complain : callable
        Takes a message when the collector takes no metrics, once until it takes some.

    Raises
    ------
    UsageError
        The URL is none, or the OpenTelemetry SDK is not installed.
    """

    def __init__(self, metrics: Metrics, url: str, complain: Callable[[str], None]) -> None:
        self._interval_s = _interval_s()
        endpoint = _endpoint(url)
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics.export import MetricExportResult
        except ImportError:
            raise UsageError(
                f"--otlp {url}: needs the OpenTelemetry SDK; install it: "
                "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
            ) from None
        # Each failure would be a line with a traceback; ours is one line.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        self._metrics, self._url, self._complain = metrics, url, complain
        self._exporter = OTLPMetricExporter(endpoint, timeout=_TIMEOUT_S)
        self._success = MetricExportResult.SUCCESS
        self._began_ns = time.time_ns()
        self._has_failed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parshall-otlp", daemon=True)

    def __enter__(self) -> "Exporter":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(_LAST_TIMEOUT_S if self._has_failed else None)
        # Ends the pause before another attempt.
        self._exporter.shutdown()
        self._thread.join()

    def _run(self) -> None:
        # At once: who named the wrong collector should know it before the measurement ends.
        self._send()
        while not self._ended.wait(self._interval_s):
            self._send()
        self._send()

    def _send(self) -> None:
        try:
            is_sent = self._exporter.export(self._data()) is self._success
        except Exception:
            # A collector that answers with something else must not end the measurement.
            is_sent = False
        if not is_sent and not self._has_failed:
            self._complain(f"--otlp {self._url}: takes no metrics; see that a collector listens there")
        self._has_failed = not is_sent

    def _data(self) -> "export.MetricsData":
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        resource = Resource.create({"service.name": "parshall", "host.name": os.uname().nodename})
        families = [_metric(family, self._began_ns, time.time_ns()) for family in self._metrics.collect()]
        scope = export.ScopeMetrics(InstrumentationScope("parshall", version() or ""), families, "")
        return export.MetricsData([export.ResourceMetrics(resource, [scope], "")])


def _interval_s() -> float:
    text = os.environ.get(_INTERVAL_VARIABLE, str(_INTERVAL_MS))
    try:
        interval_s = float(text) / 1e3
    except ValueError:
        interval_s = 0.0
    if not 0 < interval_s < 1e6:
        raise UsageError(f"{_INTERVAL_VARIABLE} {text}: expected milliseconds above 0")
    return interval_s


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise UsageError(f"--otlp {url}: expected the URL of a collector: http://127.0.0.1:4318")
    return parts._replace(path=_PATH).geturl() if parts.path in ("", "/") else url


def _metric(family: Metric, began_ns: int, now_ns: int) -> "export.Metric":
    """Return a family of prometheus_client as a metric of OpenTelemetry; names are those without endings."""
    from opentelemetry.sdk.metrics import export

    cumulative = export.AggregationTemporality.CUMULATIVE
    data: export.Sum | export.Gauge | export.Histogram
    if family.type == "histogram":
        data = export.Histogram(list(_histograms(family.samples, began_ns, now_ns)), cumulative)
    else:
        points = [
            export.NumberDataPoint(dict(sample.labels), began_ns, now_ns, sample.value) for sample in family.samples
        ]
        data = export.Sum(points, cumulative, True) if family.type == "counter" else export.Gauge(points)
    unit = _UNITS.get(family.name.rpartition("_")[2], "1")
    return export.Metric(family.name, family.documentation, unit, data)


def _histograms(samples: Sequence[Sample], began_ns: int, now_ns: int) -> "Iterator[export.HistogramDataPoint]":
    """Yield the histograms of a family: Prometheus adds up the counts of buckets, OpenTelemetry does not."""
    from opentelemetry.sdk.metrics import export

    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        one = found.setdefault(tuple(labels.items()), {"bounds": [], "totals": [], "sum": 0.0, "labels": labels})
        if sample.name.endswith("_bucket"):
            one["bounds"].append(float(sample.labels["le"]))
            one["totals"].append(sample.value)
        elif sample.name.endswith("_sum"):
            one["sum"] = sample.value
    for one in found.values():
        totals = [int(total) for total in one["totals"]]
        counts = [total - before for total, before in zip(totals, [0, *totals], strict=False)]
        # The last bound is infinite, and goes without saying.
        yield export.HistogramDataPoint(
            attributes=one["labels"],
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=totals[-1],
            sum=one["sum"],
            bucket_counts=counts,
            explicit_bounds=one["bounds"][:-1],
            min=_UNKNOWN,
            max=_UNKNOWN,
        )
