"""`parshall tcp --metrics`: what Prometheus reads is the ledger of the log, and what ss and the test counted."""

import json
import re
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accept_queues import Clients, listener_at, overflows
from conversation import connection, transfer
from ports import PORTS
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from running_command import read_until
from tcp_logger import Logger, run

import parshall
from parshall.errors import UsageError
from parshall.host.quantities import parse_address
from parshall.metrics.collection import Metrics

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def logger(until: Callable[..., None], *words: str | Path) -> tuple[Logger, str]:
    """A log that serves its metrics, and their URL."""
    log = Logger(until, *words, "--metrics", "127.0.0.1:0")
    port = re.search(r"metrics at http://127\.0\.0\.1:(\d+)/metrics", read_until(log.process.stderr, "metrics at"))
    return log, f"http://127.0.0.1:{port[1]}/metrics"


def scrape(url: str, accept: str = "text/plain") -> dict[tuple[str, ...], float]:
    """The samples, by name and the values of labels."""
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as answer:
        text = answer.read().decode()
        kind = answer.headers["Content-Type"]
    assert kind.startswith(accept.split(";")[0])
    parse = openmetrics if accept == OPENMETRICS else prometheus
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_scraped_values_are_those_of_the_ledger(pair: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "live.arrow"
    log, url = logger(until, "-o", path, "--port", str(port), "--netns", left.namespace, "--json")
    with log:
        before = scrape(url)
        with connection(left, right, address, port) as (active, passive):
            transfer(active, passive, 500_000)
            until("the flow is counted", lambda: scrape(url).get(("parshall_tcp_flows_open",)) == 1)
            buckets = {name: value for name, value in scrape(url).items() if name[0].startswith("parshall_tcp_srtt")}
        until("its end is counted", lambda: scrape(url).get(("parshall_tcp_flows_ended_total", "fin")) == 1)

        def are_of_one_time() -> bool:
            nonlocal scraped, ledger
            now = scrape(url)
            ticks[now["parshall_account_timestamp_seconds",]] = now
            # The file is behind what is served, or before it.
            ledger = parshall.read(path).ledger
            scraped = ticks.get(ledger["until_time_ns"] / 1e9, {})
            return bool(scraped)

        scraped, ledger, ticks = {}, {}, {}
        until("the account that is served is the one in the file", are_of_one_time)
        for hook in ledger["hooks"]:
            for fate in ("seen", "filtered", "thinned", "logged"):
                assert scraped[f"parshall_events_{fate}_total", hook["hook"]] == hook[fate]
            for cause, number in hook["lost"].items():
                assert scraped["parshall_events_lost_total", cause, hook["hook"]] == number
        assert scraped["parshall_reader_cpu_seconds_total",] == ledger["cost"]["reader_cpu_s"]
        answer = log.end(signal.SIGINT)
    final = json.loads(answer.stdout)["ledger"]
    assert scraped["parshall_log_bytes_total",] <= final["cost"]["log_bytes"]
    assert 0 < scraped["parshall_reader_cpu_seconds_total",] <= final["cost"]["reader_cpu_s"]
    # Before the first account there is none, and no 0 in its place.
    assert ("parshall_events_seen_total", "tcp_ingress") not in before or before["parshall_account_timestamp_seconds",]
    assert buckets["parshall_tcp_srtt_seconds_count",] >= 1
    assert buckets["parshall_tcp_srtt_seconds_bucket", "+Inf"] == buckets["parshall_tcp_srtt_seconds_count",]
    rtts_s = [row / 1e6 for row in parshall.read(path).records["srtt_us"].to_pylist() if row]
    mean_s = buckets["parshall_tcp_srtt_seconds_sum",] / buckets["parshall_tcp_srtt_seconds_count",]
    assert min(rtts_s) <= mean_s <= max(rtts_s)


def test_openmetrics_is_served_to_who_asks_for_it(tmp_path: Path, until: Callable[..., None]) -> None:
    log, url = logger(until, "-o", tmp_path / "x.arrow", "--port", str(next(PORTS)))
    with log:
        until("there is an account", lambda: ("parshall_tcp_flows_open",) in scrape(url))
        as_text, as_openmetrics = scrape(url), scrape(url, OPENMETRICS)
        assert ("parshall_build_info", parshall.read(tmp_path / "x.arrow").environment["parshall"]) in as_openmetrics
        counters = {name for name, *_ in as_text if name.endswith("_total")}
        assert counters
        assert counters <= {name for name, *_ in as_openmetrics}


def test_a_full_accept_queue_is_a_metric(
    pair: Any, clients_at: Callable[[Any], Clients], tmp_path: Path, until: Callable[..., None]
) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "x.arrow"
    log, url = logger(until, "-o", path, "--port", str(port))

    def refused() -> float:
        return sum(
            value
            for name, value in scrape(url).items()
            if name[0] == "parshall_tcp_accept_queue_refused_total" and str(port) in name
        )

    with log, listener_at(right, address, port, backlog=1):
        before = overflows(right)
        clients_at(left).connect(address, port, 12)
        until("the kernel has refused some", lambda: overflows(right) > before)
        until("they are counted", lambda: refused() > 0)
        # SYNs come again and again, so the counts are compared while they grow.
        low = overflows(right) - before
        until("all that the kernel counted are counted", lambda: refused() >= low)
        scraped = refused()
        assert scraped <= overflows(right) - before
        log.end(signal.SIGINT)
    (row,) = [row for row in parshall.read(path).listeners.to_pylist() if row["local_port"] == port]
    assert scraped <= row["syns_refused"] + row["acks_refused"]


def test_sockets_that_share_an_address_are_one_series() -> None:
    """As of servers with SO_REUSEPORT: a series that comes twice makes Prometheus refuse the whole page."""
    names = {"local_address": "0.0.0.0", "local_port": 80, "netns_inode": 1, "command": "nginx"}
    metrics = Metrics("tcp")
    hook = {"hook": "tcp_ingress", "seen": 0, "filtered": 0, "thinned": 0, "logged": 0, "lost": {}, "unowned": 0}
    cost = {"programs": [], "reader_cpu_s": 0.0, "reader_softirq_s": 0.0, "log_bytes": 0}
    account = {
        "ledger": {"hooks": [hook], "cost": cost, "until_time_ns": 1},
        "flows_open": 0,
        "flows_ended": {},
        "sent_again": {},
        "budget": None,
        "srtt": {"bounds_us": [50], "counts": [0, 0], "sum_us": 0},
        "segments_unlisted": 0,
        "listeners": [names | {"syns_refused": syns, "acks_refused": 1} for syns in (3, 4)],
    }
    metrics.account = lambda: account

    def served() -> list[tuple[str, str, float]]:
        samples = (sample for metric in metrics.collect() for sample in metric.samples)
        return [
            (sample.labels["port"], sample.labels["segment"], sample.value)
            for sample in samples
            if sample.name == "parshall_tcp_accept_queue_refused_total"
        ]

    assert served() == [("80", "syn", 7), ("80", "ack", 2)]
    account["listeners"] = []
    assert served() == []


WRONG = "--metrics {}: expected a port, or an address and a port: 9777"


@pytest.mark.parametrize("address", ["x", "127.0.0.1:99999", "localhost.invalid:80", "[::1:80", ""])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(WRONG.format(address))}"):
        parse_address("--metrics", address)


def test_the_command_refuses_a_wrong_address_in_one_line(tmp_path: Path) -> None:
    answer = run("tcp", "-o", tmp_path / "x.arrow", "--metrics", "[::1:80")
    assert answer.returncode == 2
    (line,) = (line for line in answer.stderr.splitlines() if ": started, " not in line)
    assert line.startswith(f"parshall: tcp: {WRONG.format('[::1:80')}")


def test_a_port_that_is_taken_is_refused_before_anything_is_logged(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = run("tcp", "-o", tmp_path / "x.arrow", "--metrics", address)
    assert answer.returncode == 2
    assert f"--metrics {address}: Address already in use; name another address or port" in answer.stderr
    assert not list(tmp_path.iterdir())
