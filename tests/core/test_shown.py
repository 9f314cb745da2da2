"""Logs, ledgers and results show themselves: as text, and as HTML whose texts of others are escaped."""

import html.parser
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_log import ledger_of
from test_lab import study_of, write_bundle
from written_log import batch_of, flow_row, random_columns, write_log
from written_path_log import ledger_of as path_ledger_of
from written_path_log import write_path_log

import parshall
from parshall.host.ledger_text import Ledger
from parshall.host.session import Summary
from parshall.host.shown import html_table, text_table
from parshall.instruments.path import PathLog
from parshall.instruments.tcp import LogSummary
from parshall.instruments.tcp_log import Log
from parshall.lab.evaluation import evaluate
from parshall.lab.study import Finding, Statement
from parshall.model import parameters, run

# Colours, a title of the window, a new line, a carriage return, bidirectional text, an element, an attribute's end.
HOSTILE = "a\x1b[31m\x1b]0;t\x07\n\r\u202e<script>alert(1)</script>&\"'>"
OURS = {"table", "thead", "tbody", "tr", "th", "td", "p", "pre"}


class Page(html.parser.HTMLParser):
    """What a browser finds in HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.texts: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.texts.append(data)


def is_clean(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


def log_of(path: Any, flows: list[dict[str, Any]], ledger: Any = None) -> Log:
    write_log(path, [batch_of(random_columns(20, len(flows), seed=1))], flows, ledger)
    return parshall.read(path)


def test_a_log_shows_its_flows_with_most_packets_and_its_ledger(tmp_path):
    flows = [flow_row(number, packets_seen=number % 7, packets_logged=number % 7) for number in range(1, 25)]
    flows[3] |= {"command": "iperf3", "pid": 77, "remote_address": "2001:db8::1", "packets_dropped": 3}
    flows[3] |= {"packets_seen": 1_000_003, "packets_logged": 1_000_000}
    log = log_of(tmp_path / "made.arrow", flows, ledger_of(1_000_000))
    lines = repr(log).splitlines()
    assert lines[0] == f"{tmp_path}/made.arrow: 24 flows, complete"
    head = "flow process local peer cc packets logged lost end"
    assert lines[1].split() == head.split()
    first = ["4", "iperf3", "(77)", "10.0.0.1:5004", "[2001:db8::1]:80", "cubic", "1,000,003", "1,000,000", "3", "-"]
    assert lines[2].split() == first
    shown = [int(line.split()[0]) for line in lines[2:12]]
    assert shown == [4, 6, 13, 20, 5, 12, 19, 11, 18, 3]
    assert lines[12] == "and 14 more flows: Log.flows has all"
    assert "tcp_egress" in lines[15] and "1,000,000" in lines[15]
    assert lines[-1].startswith("  cost: ")
    page = Page(log._repr_html_())
    assert set(page.elements) <= OURS
    cells = {text for text in page.texts}
    assert {"iperf3 (77)", "1,000,003", "[2001:db8::1]:80", "tcp_egress"} <= cells


def test_names_of_others_neither_control_a_terminal_nor_a_page(tmp_path):
    flow = flow_row(1, command=HOSTILE, congestion_control=HOSTILE)
    ledger = ledger_of(3)
    ledger["hooks"][0]["hook"] = HOSTILE
    ledger["hooks"][1]["lost"][HOSTILE] = 7
    ledger["cost"]["programs"][1]["program"] = HOSTILE
    log = log_of(tmp_path / "h.arrow", [flow], ledger)
    for text in (repr(log), repr(log.ledger), repr(LogSummary(log.ledger, HOSTILE, 1, [], 0))):
        assert is_clean(text)
        assert "\\x1b[31m" in text
        assert len(text.splitlines()) < 20
    for text in (log._repr_html_(), log.ledger._repr_html_(), LogSummary(log.ledger, HOSTILE, 1, [], 0)._repr_html_()):
        page = Page(text)
        assert is_clean(text)
        assert set(page.elements) <= OURS
        assert page.attributes <= {"style"}
        assert any("<script>alert(1)</script>" in each for each in page.texts)


@settings(max_examples=60)
@given(st.text(max_size=300), st.text(max_size=300))
def test_tables_hold_whatever_a_cell_is(head, cell):
    rows = [(cell, 1), (None, 2_000)]
    text = text_table((head, "n"), rows)
    assert is_clean("".join(text)) and not any("\n" in line for line in text)
    assert len(text) == 3
    assert text[2].endswith("2,000")
    page = Page(html_table((head, "n"), rows))
    assert page.elements == ["table", "thead", "tr", "th", "th", "tbody", *(["tr", "td", "td"] * 2)]
    assert page.attributes == {"style"}


def test_a_long_name_is_shortened(tmp_path):
    log = log_of(tmp_path / "long.arrow", [flow_row(1, command="x" * 5_000_000)])
    assert len(repr(log)) < 5000
    assert len(log._repr_html_()) < 5000


@pytest.mark.parametrize(
    "ledger", [{"hooks": 3}, {"hooks": [{"hook": "x"}]}, {"hooks": [], "cost": []}, {"subscribers": [7]}, {"x\x1b": 1}]
)
def test_a_damaged_ledger_shows_what_there_is(ledger):
    shown = Ledger(ledger)
    assert is_clean(repr(shown))
    assert next(iter(ledger)).rstrip("\x1b") in repr(shown)
    assert Page(shown._repr_html_()).elements == ["p"]


def test_a_ledger_is_a_dictionary():
    ledger = ledger_of(10)
    assert Ledger(ledger) == ledger
    assert "no ledger" in repr(Ledger())
    assert re.search(r"tcp_egress +10 +0 +0 +10 +0$", repr(Ledger(ledger)), re.MULTILINE)
    assert Page(Ledger(ledger)._repr_html_()).texts.count("10") == 2


def test_a_capture_shows_an_account_for_each_file():
    lost = {"overwritten": 2}
    account = {"hook": "eth0", "seen": 10, "filtered": 3, "thinned": 0, "logged": 5, "lost": lost}
    cost = {"programs": [], "reader_cpu_s": 0.5, "wall_s": 2.0, "log_bytes": 0}
    files = [{"file": name, "filter": f"udp port {name}", "interfaces": [account]} for name in ("53", "67")]
    summary = Summary({"subscribers": files, "cost": cost, "complete": True}, None)
    assert re.findall(r"^(\d+): udp port", repr(summary), re.MULTILINE) == ["53", "67"]
    assert repr(summary).count("lost: 2 overwritten") == 2
    assert Page(summary._repr_html_()).elements.count("table") == 2


def test_a_path_log_shows_its_ledger(tmp_path):
    log = PathLog(write_path_log(tmp_path / "p.arrow", [], path_ledger_of(0)))
    assert repr(log).startswith(f"{tmp_path}/p.arrow: path log, complete\n")
    assert re.search(r"packets +0 +0 +0 +0 +0", repr(log))
    assert set(Page(log._repr_html_()).elements) <= OURS


def test_a_bundle_shows_what_its_statements_say(tmp_path):
    says = {"a": Finding(f"{HOSTILE} 3 ms", True), "b": Finding("4 ms", False), "c": Finding("5 ms", None)}
    stated = [Statement(source, f"published {source}", lambda _, each=each: each) for source, each in says.items()]
    study = study_of(statements=stated)
    bundle = write_bundle(tmp_path / "bundle", study, {1: [1.0, 2.0], 2: [2.0, 3.0], 3: [9.0, 8.0]})
    assert repr(bundle).endswith("; 10 of 10 runs"), "it has not ended"
    evaluate(bundle, study)
    lines = repr(bundle).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["verdict", "same", "different", "open"]
    assert is_clean(repr(bundle)) and "4 ms" in lines[3]
    page = Page(bundle._repr_html_())
    assert set(page.elements) <= OURS
    assert any("<script>" in text for text in page.texts)


def test_results_of_a_model_show_their_estimates():
    results = run(parameters("bsd-router", {"load_mbps": 300}).build(), duration_s=0.02, warm_up_s=0, replications=3)
    lines = repr(results).splitlines()
    assert lines[0].split() == ["kind", "place", "class", "measure", "mean", "+-"]
    assert [line.split()[0] for line in lines[1:21]] == results.estimates["kind"].head(20).to_list()
    assert lines[-2] == f"and {results.estimates.height - 20} more estimates: Results.estimates has all"
    assert lines[-1] == "means of 3 replications, +- half the width of their 95 % intervals"
    page = Page(results._repr_html_())
    assert page.elements.count("tr") == 21
    assert set(page.elements) <= OURS
