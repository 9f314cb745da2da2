"""`--metrics` and `--otlp` of paths and captures: what comes is the ledger and what was measured, to the number."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from ports import PORTS
from running_command import read_until
from tcp_logger import STARTED, run

import parshall
from parshall.instruments.capture import Capture, Output, Ring
from parshall.instruments.path import PathLog, PathProfile
from parshall.metrics.collection import Metrics

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
PARSHALL = Path(sys.executable).with_name("parshall")
STAGES = ["gro", "netif_rx", "receive", "local_in", "local_out", "queue", "start_xmit", "drop"]


def samples_of(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """The samples, by name and the values of labels in their order."""
    found = (sample for family in metrics.collect() for sample in family.samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


def check_ledger(
    found: dict[tuple[str, ...], float], hooks: list[tuple[tuple[str, ...], dict[str, Any]]], cost: dict[str, Any]
) -> None:
    for names, hook in hooks:
        for fate in ("seen", "filtered", "thinned", "logged", "unowned"):
            assert found[f"parshall_events_{fate}_total", *names] == hook[fate]
        for cause, number in hook["lost"].items():
            assert found["parshall_events_lost_total", *names, cause] == number
    assert found["parshall_reader_cpu_seconds_total",] == cost["reader_cpu_s"]
    assert found["parshall_reader_softirq_seconds_total",] == cost["reader_softirq_s"]
    assert found["parshall_log_bytes_total",] == cost["log_bytes"]
    for program in cost["programs"]:
        if program["sampled_runs"]:
            assert found["parshall_hook_run_seconds", program["program"]] == program["ns_per_run"] / 1e9


def check_path(found: dict[tuple[str, ...], float], account: dict[str, Any]) -> None:
    """The metrics are the account: its ledger, and all that was measured."""
    ledger = account["ledger"]
    check_ledger(found, [((hook["hook"],), hook) for hook in ledger["hooks"]], ledger["cost"])
    for path, packets in account["paths"].items():
        assert found["parshall_path_packets_total", path] == packets
    for row in account["times"]:
        names = row["path"], row["stage"]
        assert found["parshall_path_stage_seconds_count", *names] == row["packets"]
        assert found["parshall_path_stage_seconds_sum", *names] == row["sum_ns"] / 1e9
    for row in account["drops"]:
        for place, packets in row["places"].items():
            assert found["parshall_path_drops_total", row["name"], place] == packets
        of_reason = [value for name, value in found.items() if name[:2] == ("parshall_path_drops_total", row["name"])]
        assert sum(of_reason) == row["all"]
    assert found["parshall_path_drops_not_shown",] == account["uncounted_drops"]
    assert found["parshall_path_attached_seconds_total",] == account["attached_s"]
    for key, name in (("share", "budget"), ("cost_share", "budget_spent")):
        assert found.get((f"parshall_path_{name}_cpus",)) == (account["budget"] or {}).get(key)


def test_metrics_of_paths_are_their_account_at_each_tick(
    router: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    path, namespace = tmp_path / "path.arrow", router.router.namespace
    profile = PathProfile(path, netns=namespace, stages=STAGES, filter="udp", budget=1.0)
    metrics, ticks = Metrics("path"), {}
    with profile:

        def has(packets: int) -> bool:
            account = profile.account()
            metrics.account = lambda: account
            assert account is not None
            if not account["ledger"]["hooks"]:
                return False
            check_path(samples_of(metrics), account)
            ticks[account["ledger"]["until_time_ns"]] = account
            # The log has the ledger of the same tick, or already that of the next one.
            ledger = PathLog(tmp_path / "path.arrow").ledger
            if ledger["until_time_ns"] in ticks:
                assert ledger == ticks[ledger["until_time_ns"]]["ledger"]
                compared.add(ledger["until_time_ns"])
            return account["ledger"]["hooks"][0]["seen"] >= packets and bool(compared)

        compared: set[int] = set()
        router.send(500)
        until("they are counted", lambda: has(500))
        router.send(40, address=router.links[0].address(router.router))
        router.send(24, ttl=1)
        until("those that were dropped, too", lambda: has(564))
        summary = profile.stop()
    last = profile.account()
    metrics.account = lambda: last
    check_path(samples_of(metrics), last)
    assert last["ledger"] == summary.ledger and last["drops"] == summary.drops
    assert [row for row in summary.times if row["group"] is None] == last["times"]
    assert sum(row["all"] for row in last["drops"]) >= 64 and last["paths"]["forwarded"] == 500


def test_metrics_of_a_capture_are_its_ledger(xdp_link: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    sender, receiver, link = xdp_link
    files = [tmp_path / "small.pcapng", tmp_path / "all.pcapng.zst"]
    outputs = [Output(files[0], "udp port 7"), Output(files[1])]
    metrics = Metrics("capture")
    with Capture(outputs, Ring(link.interface(receiver), netns=receiver.namespace)) as capture:
        sent = run("gen", "-i", link.interface(sender), "--netns", sender.namespace, "-c", "1k", "--json")
        assert json.loads(sent.stdout)["arrived"] == 1000

        def check() -> dict[str, Any]:
            account = capture.account()
            metrics.account = lambda: account
            assert account is not None
            found = samples_of(metrics)
            ledger = account["ledger"]
            hooks = [((one["file"], hook["hook"]), hook) for one in ledger["subscribers"] for hook in one["interfaces"]]
            if account["until_time_ns"]:
                check_ledger(found, hooks, ledger["cost"])
                assert found["parshall_account_timestamp_seconds",] == account["until_time_ns"] / 1e9
            return ledger

        def has_all() -> bool:
            subscribers = check()["subscribers"]
            return bool(subscribers) and subscribers[1]["interfaces"][0]["logged"] >= 1000

        until("all are in the second file", has_all)
        (small,), (everything,) = (one["interfaces"] for one in check()["subscribers"])
        assert small["filtered"] == small["seen"] and small["logged"] == 0
        # What the hooks count is asked after what was read.
        assert everything["seen"] == everything["logged"] >= 1000
        summary = capture.stop()
    assert check() == summary.ledger


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["path", "--probe-cost", "--metrics", "0"], "--probe-cost: measures in turns"),
        (
            ["capture", "-i", "lo", "--backend", "af-packet", "--otlp", "http://h"],
            "--backend af-packet: has no account",
        ),
        (["path", "--metrics", "127.0.0.1:99999"], "--metrics 127.0.0.1:99999: expected a port"),
        (["capture", "-i", "lo", "--otlp", "nowhere"], "--otlp nowhere: expected the URL of a collector"),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is_measured(
    words: list[str], message: str, tmp_path: Path
) -> None:
    answer = run(*words, cwd=tmp_path)
    assert answer.returncode == 2 and message in answer.stderr
    assert list(tmp_path.iterdir()) == []


class Collector:
    """A foreign witness: a server of OTLP with the types that the specification's files make."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert (self.path, self.headers["Content-Type"]) == ("/v1/metrics", "application/x-protobuf")
                outer.requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def last(self) -> dict[str, Any]:
        """The metrics of the last request, by name."""
        (resource,) = self.requests[-1].resource_metrics
        attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
        assert attributes["service.name"] == "parshall"
        (scope,) = resource.scope_metrics
        assert len({metric.name for metric in scope.metrics}) == len(scope.metrics)
        return {metric.name: metric for metric in scope.metrics}


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.server.shutdown()
    found.server.server_close()
    found.thread.join()


def numbers(metric: Any) -> dict[tuple[str, ...], float]:
    """The points of a metric, by the values of its attributes."""
    points = getattr(metric, metric.WhichOneof("data")).data_points
    return {
        tuple(one.value.string_value for one in point.attributes): getattr(point, point.WhichOneof("value"))
        for point in points
    }


@pytest.mark.parametrize("command", ["tcp", "path", "capture"])
def test_a_collector_gets_the_ledger(
    command: str, pair: Any, tmp_path: Path, collector: Collector, until: Callable[..., None]
) -> None:
    left, right, address = pair
    port = next(PORTS)
    interface = left.run(["sh", "-c", "ls /sys/class/net | grep -v lo"]).stdout.split()[0]
    words = {
        "tcp": ["-o", tmp_path / "x.arrow", "--port", str(port)],
        "path": ["--reads", "--filter", f"tcp port {port}"],
        "capture": ["-i", interface, "-w", tmp_path / "x.pcapng", "--filter", f"tcp port {port}"],
    }[command]
    words += ["--netns", left.namespace, "--otlp", collector.url, "--json"]
    settings = os.environ | {"OTEL_METRIC_EXPORT_INTERVAL": "100"}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([PARSHALL, command, *words], env=settings, **pipe) as process:
        STARTED.add(process.pid)
        read_until(process.stderr, "started")
        with connection(left, right, address, port) as (active, passive):
            transfer(active, passive, 300_000)
            transfer(passive, active, 100_000)
        until(
            "numbers come while it runs", lambda: bool(collector.requests) and "parshall_log_bytes" in collector.last()
        )
        assert collector.last()["parshall_build"].gauge.data_points[0].as_int == 1
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    found, final = collector.last(), json.loads(printed)
    ledger = final["ledger"]
    if command == "capture":
        (one,) = ledger["subscribers"]
        hooks = [((one["file"], hook["hook"]), hook) for hook in one["interfaces"]]
    else:
        hooks = [((hook["hook"],), hook) for hook in ledger["hooks"]]
    for fate in ("seen", "filtered", "thinned", "logged"):
        metric = found[f"parshall_events_{fate}"]
        assert metric.sum.is_monotonic and metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        assert numbers(metric) == {names: hook[fate] for names, hook in hooks}
    lost = {(*names, cause): number for names, hook in hooks for cause, number in hook["lost"].items()}
    assert numbers(found["parshall_events_lost"]) == lost
    assert found["parshall_log_bytes"].unit == "By" and found["parshall_reader_cpu_seconds"].unit == "s"
    assert numbers(found["parshall_log_bytes"]) == {(): ledger["cost"]["log_bytes"]}
    histograms = [metric for metric in found.values() if metric.HasField("histogram")]
    points = [point for metric in histograms for point in metric.histogram.data_points]
    assert bool(points) == (command != "capture")
    for point in points:
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        assert point.count == sum(point.bucket_counts) and not point.HasField("min")
    if command == "path":
        of_stage = {
            tuple(one.value.string_value for one in point.attributes): (point.count, point.sum)
            for point in found["parshall_path_stage_seconds"].histogram.data_points
        }
        assert of_stage == {
            (row["path"], row["stage"]): (row["packets"], row["sum_ns"] / 1e9) for row in final["times"]
        }


def test_a_collector_that_is_not_there_is_reported_once(tmp_path: Path) -> None:
    words = ["-o", tmp_path / "x.arrow", "--port", str(next(PORTS)), "--otlp", "http://127.0.0.1:9", "-q"]
    pipe = {"stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([PARSHALL, "tcp", *words], **pipe) as process:
        STARTED.add(process.pid)
        # While it runs, and not after the first interval.
        said = read_until(process.stderr, "takes no metrics")
        process.send_signal(signal.SIGINT)
        _, more = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (said, more) == (
        "parshall: tcp: --otlp http://127.0.0.1:9: takes no metrics; see that a collector listens there\n",
        "",
    )
    assert parshall.read(tmp_path / "x.arrow").complete
