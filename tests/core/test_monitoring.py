"""Metrics of accounts that are known, and the rules and the dashboard that use them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from parshall.errors import UsageError
from parshall.metrics.collection import DROPS_MAX, LISTENERS_MAX, UNKNOWN, Instrument, Metrics
from parshall.metrics.otlp import Exporter

MONITORING = Path(__file__).parents[2] / "docs/monitoring"
HOOK = {
    "hook": "packets",
    "seen": 0,
    "filtered": 0,
    "thinned": 0,
    "logged": 0,
    "lost": {"overwritten": 0},
    "unowned": 0,
}
COST = {
    "programs": [{"program": "tcp_ingress", "sampled_runs": 3, "ns_per_run": 250.0}],
    "reader_cpu_s": 0.5,
    "reader_softirq_s": 0.25,
    "log_bytes": 7,
}
LEDGER = {"hooks": [HOOK], "cost": COST, "until_time_ns": 1_000_000_000}
ACCOUNTS: dict[Instrument, dict[str, Any]] = {
    "tcp": {
        "ledger": LEDGER,
        "flows_open": 1,
        "flows_ended": {"fin": 2},
        "sent_again": {"fast": 3},
        "budget": {"share": 0.01, "cost_share": 0.008, "observed_s": 60.0},
        "shipping": {
            **{"files_shipped": 5, "files_waiting": 2, "files_refused": 1, "failures": 3, "bytes_shipped": 70},
            "cpu_s": 0.5,
        },
        "srtt": {"bounds_us": [50], "counts": [1, 1], "sum_us": 80},
        "listeners": [],
        "segments_unlisted": 0,
    },
    "path": {
        "ledger": LEDGER,
        "paths": {"sent": 3},
        "times": [],
        "drops": [],
        "uncounted_drops": 0,
        "without_histogram": 0,
        "attached_s": 9.5,
        "budget": {"share": 0.01, "cost_share": 0.008, "cost_share_max": 0.0099},
        "reads": [],
    },
    "capture": {
        "until_time_ns": 1_000_000_000,
        "ledger": {"subscribers": [{"file": "x.pcapng", "interfaces": [HOOK]}], "cost": COST},
    },
}


def samples(instrument: Instrument, account: dict[str, Any] | None) -> dict[tuple[str, ...], float]:
    """The samples of an account, by name and the values of labels."""
    metrics = Metrics(instrument)
    metrics.account = lambda: account
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def served() -> set[str]:
    """The names of all metrics, as Prometheus stores them."""
    found = set()
    for instrument, account in ACCOUNTS.items():
        metrics = Metrics(instrument)
        metrics.account = lambda account=account: account  # type: ignore[misc]
        for family in metrics.collect():
            endings = {"counter": ["_total"], "info": ["_info"], "histogram": ["_bucket", "_sum", "_count"]}
            found |= {f"{family.name}{ending}" for ending in endings.get(family.type, [""])}
    return found


def test_drops_beyond_those_that_are_shown_are_counted() -> None:
    drops = [
        {"reason": at, "name": f"REASON_{at}", "all": 10 * at + 3, "followed": 10 * at, "places": {"receive": 10 * at}}
        for at in range(1, 100)
    ]
    found = samples("path", ACCOUNTS["path"] | {"drops": drops, "uncounted_drops": 17})
    shown = {names: value for names, value in found.items() if names[0] == "parshall_path_drops_total"}
    assert len(shown) == DROPS_MAX
    assert shown["parshall_path_drops_total", "REASON_99", "receive"] == 990
    assert ("parshall_path_drops_total", "REASON_99", UNKNOWN) not in shown
    assert sum(shown.values()) + found["parshall_path_drops_not_shown",] == sum(row["all"] for row in drops) + 17


def test_what_is_not_shipped_is_counted() -> None:
    found = samples("tcp", ACCOUNTS["tcp"])
    names = ("files_total", "bytes_total", "failures_total", "cpu_seconds_total", "files_kept")
    assert [found[f"parshall_shipping_{name}",] for name in names] == [5, 70, 3, 0.5, 3]
    without = samples("tcp", ACCOUNTS["tcp"] | {"shipping": None})
    assert not [name for name in without if name[0].startswith("parshall_shipping")]


def test_listeners_beyond_those_that_are_shown_are_counted() -> None:
    names = {"local_address": "::", "netns_inode": 1, "command": "x"}
    listeners = [names | {"local_port": at, "syns_refused": at, "acks_refused": 0} for at in range(1, 61)]
    found = samples("tcp", ACCOUNTS["tcp"] | {"listeners": listeners, "segments_unlisted": 5})
    shown = [name for name in found if name[0] == "parshall_tcp_accept_queue_refused_total"]
    assert len(shown) == 2 * LISTENERS_MAX
    assert found["parshall_tcp_listeners_not_shown",] == 60 - LISTENERS_MAX
    assert found["parshall_tcp_segments_unlisted_total",] == 5


def test_the_buckets_of_a_stage_are_merged_at_powers_of_two() -> None:
    # 7 ns; 120 to 127 ns; 128 to 143 ns; 1.024 to 1.151 us; 8.6 s and more.
    buckets = [(7, 1), (39, 2), (40, 4), (64, 8), (248, 16)]
    row = {"path": "sent", "stage": "queue", "sum_ns": 5_000, "buckets": buckets}
    found = samples("path", ACCOUNTS["path"] | {"times": [row]})
    of = {names[3]: value for names, value in found.items() if names[0] == "parshall_path_stage_seconds_bucket"}
    assert (of["1.28e-07"], of["2.56e-07"], of["1.024e-06"], of["2.048e-06"]) == (3, 7, 7, 15)
    assert (of["4.29497"], of["+Inf"]) == (15, 31)
    assert found["parshall_path_stage_seconds_count", "sent", "queue"] == 31
    assert found["parshall_path_stage_seconds_sum", "sent", "queue"] == 5e-6


@pytest.mark.parametrize("instrument", ACCOUNTS)
def test_before_the_first_account_there_are_no_numbers(instrument: Instrument) -> None:
    nothing = {"path": {"ledger": {"hooks": []}}, "tcp": {"ledger": {"hooks": []}}, "capture": {"until_time_ns": 0}}
    for account in (None, nothing[instrument]):
        assert [name for name, *_ in samples(instrument, account)] == ["parshall_build_info"]
    assert len(samples(instrument, ACCOUNTS[instrument])) > 5


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_rules_and_dashboard_name_metrics_that_come(name: str) -> None:
    used = set(re.findall(r"\bparshall_\w+", (MONITORING / name).read_text()))
    assert used and used <= served(), used - served()


def test_the_manual_names_every_metric() -> None:
    text = (MONITORING.parent / "metrics.md").read_text()
    named = {f"parshall_{name}" for name in re.findall(r"`parshall_([a-z_]+)", text)}
    named |= {f"parshall_events_{fate}_total" for fate in re.findall(r"`\.\.\._([a-z]+)_total`", text)}
    plain = {
        re.sub("_(bucket|sum|count)$", "", name) if name.endswith(("_bucket", "_sum", "_count")) else name
        for name in served()
    }
    assert named == plain


def test_the_rules_are_those_of_prometheus() -> None:
    unpacked = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "parshall/programs/prometheus/promtool"
    promtool = shutil.which("promtool") or (unpacked if unpacked.exists() else None)
    if promtool is None:
        pytest.skip("promtool is not there; `scripts/setup promtool` unpacks it")
    done = subprocess.run([promtool, "check", "rules", MONITORING / "alerts.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = re.search(r"SUCCESS: (\d+) rules found", done.stdout)
    assert rules is not None and int(rules[1]) == (MONITORING / "alerts.yml").read_text().count("- alert:")
    # The expressions of the dashboard, with Grafana's variables replaced, are rules, too.
    expressions = [
        target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
        for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(expressions) > 15
    group = {"groups": [{"name": "x", "rules": [{"record": f"x{at}", "expr": e} for at, e in enumerate(expressions)]}]}
    done = subprocess.run(
        [promtool, "check", "rules", "/dev/stdin"], input=json.dumps(group), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_as_the_schema_of_grafana_says() -> None:
    """Grafana's own types drop a key that they do not know: all keys come back."""
    given = json.loads((MONITORING / "dashboard.json").read_text())
    returned = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(given)))

    def missing(before: Any, after: Any, at: str = "") -> list[str]:
        if isinstance(before, dict):
            gone = [f"{at}/{key}" for key in before if not isinstance(after, dict) or key not in after]
            return gone + [
                one for key in before if key in (after or {}) for one in missing(before[key], after[key], f"{at}/{key}")
            ]
        if isinstance(before, list):
            return [
                one
                for number, (a, b) in enumerate(zip(before, after, strict=True))
                for one in missing(a, b, f"{at}/{number}")
            ]
        return [] if before == after else [at]

    assert missing(given, returned) == []
    assert missing(given | {"tiles": []}, returned) == ["/tiles"]
    places = [panel["gridPos"] for panel in given["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in given["panels"]}) == len(given["panels"])


@pytest.mark.parametrize("url", ["", "x", "ftp://127.0.0.1", "http://", "http://h:99999", "http://[::1"])
def test_a_wrong_url_of_a_collector_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--otlp {url}: expected the URL of a collector")):
        Exporter(Metrics("tcp"), url, print)


def test_without_the_sdk_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(
        UsageError, match=r"--otlp http://h: needs the OpenTelemetry SDK; .*pip install opentelemetry-sdk"
    ):
        Exporter(Metrics("tcp"), "http://h", print)
