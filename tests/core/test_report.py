"""Reports: complete in one file, small, escaped; they report accounts that do not balance."""

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import vl_convert
from browser import opened
from made_log import RETRANSMISSIONS, flow_row, hook_account, ledger_of, log_of, many_flows, records
from written_log import listener_row

from parshall.figures import reduce
from parshall.figures.figure import DARK, PAPER
from parshall.host import whole_file
from parshall.report import write_report
from parshall.report.account import findings, flow_accounts, hook_accounts
from parshall.report.document import as_data, identities
from parshall.report.links import links
from parshall.report.retransmissions import cause_rows, without_row
from parshall.report.write import shared_axis_ns

if TYPE_CHECKING:
    from playwright.sync_api import Browser

UNKNOWN = "\N{EN DASH}"
VOID = {"meta", "br", "hr", "img", "link", "input", "col"}


class Page(HTMLParser):
    """What a page consists of: its tags in balance, what it would load, its text and its figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.figures: dict[str, dict] = {}
        self._figure: str | None = None
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        """Note what a tag would load."""
        given = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [f"{tag} {given[key]}" for key in ("src", "data", "srcset", "poster") if key in given]
        if tag in ("link", "base", "iframe", "object"):
            self.loads.append(tag)
        if tag == "script" and given.get("type") == "application/json":
            self._figure = given["id"]

    def handle_endtag(self, tag):
        """Close the tag that is open."""
        assert self.open.pop() == tag
        self._figure = None

    def handle_data(self, data):
        """Keep figures and text."""
        if self._figure:
            self.figures[self._figure] = json.loads(data)
        elif self.open and self.open[-1] not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def two_flows():
    return log_of(many_flows(2, 2000, np.random.default_rng(3), span_s=10))


def page_of(path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_a_report_is_self_contained(tmp_path, two_flows):
    path = write_report({"sender": two_flows}, tmp_path, "Two flows", images=False)
    page = page_of(path)
    assert page.loads == []
    text = path.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(\s*['\"]?http", text.split("<script", 1)[0])
    assert list(page.figures) == [f"sender-{name}" for name in ("throughput", "cwnd", "rtt", "loss")]
    for specification in page.figures.values():
        assert "data" not in specification or "url" not in specification["data"]
        assert vl_convert.vegalite_to_svg(specification)
    words = " ".join(page.text.split())
    assert "4,000 records of 2 flows" in words
    logged = "4,002 were logged (4,000 as records, 2 in the flow table)"
    assert f"4,002 events that reached the hooks, {logged}, none was lost; the ledger balances" in words
    assert "A run of tcp_egress cost 432 ns on average over 250 timed runs." in words
    assert "reader_softirq" not in words.split("Cost")[0]
    assert "parshall tcp" in words


def test_figures_are_also_files(tmp_path, two_flows):
    write_report({"sender": two_flows}, tmp_path, "Two flows")
    assert (tmp_path / "figures/sender-cwnd.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures/sender-cwnd.svg").read_text().startswith("<svg")
    # Twice the size of the drawing: the width stands in the header of the PNG.
    width_px = int.from_bytes((tmp_path / "figures/sender-cwnd.png").read_bytes()[16:20], "big")
    assert width_px > 2 * 900


@pytest.mark.parametrize("count", [0, 1])
def test_an_almost_empty_log_has_a_report(tmp_path, count):
    log = log_of(records([1] * count, list(range(count))))
    page = page_of(write_report({"empty": log}, tmp_path, "Almost nothing"))
    assert f"{count} record" in page.text
    assert len(page.figures) == count


def test_a_log_without_a_ledger_has_a_report(tmp_path):
    log = log_of(records([1], [0]), ledger={}, environment={}, complete=False)
    text = " ".join(page_of(write_report({"killed": log}, tmp_path, "Killed", images=False)).text.split())
    assert "The log is truncated" in text
    assert "no ledger" in text
    assert "do not contain their command line" in text


def test_a_hundred_flows_and_many_records_are_a_small_report(tmp_path):
    log = log_of(many_flows(100, 4000, np.random.default_rng(5)))
    path = write_report({"many": log}, tmp_path, "A hundred flows", images=False)
    # Without a limit of the rows in its figures it would have 50 MB.
    assert path.stat().st_size < 5_000_000
    page = page_of(path)
    assert len(page.figures) == 4
    assert "400,000 records of 100 flows" in page.text


def test_the_page_lists_the_largest_of_thousands_of_flows(tmp_path):
    log = log_of(many_flows(1500, 4, np.random.default_rng(9)))
    page = page_of(write_report({"scan": log}, tmp_path, "A scan", images=False))
    words = " ".join(page.text.split())
    assert "The 1,000 of 1,500 flows that moved most bytes; scan-flows.csv has all." in words
    assert "by flow (1,500)" in words and "500 others" in words and "the ledger balances" in words
    table = pl.read_csv(tmp_path / "scan-flows.csv")
    assert sorted(table["flow"]) == list(range(1, 1501))
    assert table["bytes"].is_sorted(descending=True)
    assert (tmp_path / "report.html").stat().st_size < 6_000_000


def test_unbalanced_accounts_are_reported(tmp_path):
    table = records([1, 1], [0, 1])
    ledger = ledger_of(2)
    ledger["hooks"][1] = hook_account("tcp_egress", 9, logged=2, lost={"overwritten": 4})
    log = log_of(table, ledger=ledger)
    log.flows = log.flows.set_column(log.flows.schema.get_field_index("packets_seen"), "packets_seen", [[5]])
    found = findings(ledger, pl.DataFrame(pl.from_arrow(log.flows)), 3)
    assert found == [
        "hook tcp_egress: +3 of 9 seen are unaccounted",
        "flow 1, packets: +3 of 5 seen are unaccounted",
        "4 overwritten, but 0 gaps in the sequence numbers",
        "the hooks logged 2 records, but the file has 3",
    ]
    text = page_of(write_report({"odd": log}, tmp_path, "Odd", images=False)).text
    assert "✗ 3 unaccounted" in text
    assert "the ledger does not balance" in text
    assert "4 were lost (4 overwritten)" in text


def test_accounts_balance_by_their_columns():
    flows = pl.DataFrame(pl.from_arrow(log_of(records([1] * 3, [0, 1, 2])).flows))
    (account,) = flow_accounts(flows, "packets").values()
    assert (account.seen, account.logged, account.difference) == (3, 3, 0)
    (hook,) = hook_accounts(
        {"hooks": [hook_account("tcp_close", 7, filtered=2, thinned=1, logged=3, lost={"missed": 1})]}
    )
    assert (hook.lost_total, hook.difference) == (1, 0)


def test_untrusted_text_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    log = log_of(records([1] * 3, [0, 1, 2], snd_nxt=[0, 5, 10]))
    rows = [flow_row(1, 3, congestion_control=f"</script>{evil}")]
    log.flows = log.flows.from_pylist(rows)
    log.environment = {"kernel": evil, "command_line": [evil, evil]}
    path = write_report({evil: log}, tmp_path, evil)
    assert evil not in path.read_text()
    assert page_of(path).text.count("alert(1)") > 3
    assert as_data({"x": "</script>"}).startswith('{"x": "\\u003c/script>"')


def test_only_overlapping_logs_share_a_time_axis():
    early, late, later, empty = (reduce(log_of(records([1] * len(at), at))) for at in ([0, 100], [50, 300], [500], []))
    begin, end = shared_axis_ns([early, late])
    assert end - begin == 300
    assert shared_axis_ns([early, later]) is None
    assert shared_axis_ns([empty]) is None


def test_legends_stand_below_each_other_and_inside_a_narrow_page(tmp_path, two_flows, browser: "Browser"):
    path = write_report({"sender": two_flows}, tmp_path, "Narrow", images=False)
    for specification in page_of(path).figures.values():
        assert specification["config"]["legend"]["layout"]["top"]["direction"] == "vertical"
    with opened(browser, path, width_px=500) as page:
        widths_px = [float(each.get_attribute("width")) for each in page.locator("svg.marks").all()]
    assert len(widths_px) == 4
    assert 300 < max(widths_px) <= 500 - 2 * 16


def test_a_page_has_colours_for_dark_and_paper(tmp_path, two_flows):
    text = write_report({"sender": two_flows}, tmp_path, "Dark", images=False).read_text()
    assert "@media screen and (prefers-color-scheme: dark)" in text
    assert f"const DARK = {json.dumps(DARK)};" in text
    assert f"--paper: {DARK[PAPER]};" in text
    assert 'class="swatch" data-colour="#0072B2"' in text
    assert '"beforeprint"' in text


def test_the_page_draws_in_a_browser_without_errors(tmp_path, two_flows, browser: "Browser"):
    crowd = log_of(many_flows(20, 100, np.random.default_rng(4), span_s=10))
    path = write_report({"sender": two_flows, "crowd": crowd}, tmp_path, "Two logs", images=False)
    with opened(browser, path) as page:
        # Four of each, and two of both.
        assert page.locator("html").get_attribute("data-figures") == "10"
        assert page.locator(".mark-line.role-mark").count() > 10


def test_tables_fit_the_window_and_the_paper(tmp_path, browser: "Browser"):
    path = write_report(
        {"crowd": log_of(many_flows(100, 20, np.random.default_rng(4), span_s=10))}, tmp_path, "Crowd", images=False
    )
    with opened(browser, path) as page:
        hidden_px = page.locator(".wide").evaluate_all("all => all.map(each => each.scrollWidth - each.clientWidth)")
        assert hidden_px and max(hidden_px) == 0
        # A row of two lines each.
        assert 3 <= len(re.findall(rb"/Type /Page$", page.pdf(), re.MULTILINE)) <= 9


DIRECTION = {"rate_bps": 1e8, "delay_ms": 3.0, "queue_packets": 100, "loss": 0.0}
CARRIED = {
    "arrived": 110,
    "forwarded": 100,
    "queue_dropped": 10,
    "loss_dropped": 0,
    "own_lost": {"socket": 0, "memory": 0},
    "lateness": {"median_ns": 9000, "p99_ns": 42_000},
}


def carrying(**changes):
    link = {"hosts": ["a", "b"], "backend": "relay", "a_to_b": DIRECTION, "b_to_a": DIRECTION}
    return {"links": [link], "statistics": [{"relay": {"a_to_b": CARRIED | changes, "b_to_a": CARRIED}}]}


def test_a_late_or_lossy_link_gives_a_warning(tmp_path):
    (fine,) = links(carrying())
    assert fine.what == "a to b, played by relay: 100 Mbit/s, 3 ms delay forward and 3 ms back, a queue of 100 packets."
    assert "100 of 110 packets forward (10 dropped by the full queue" in fine.did
    assert fine.warnings == ()
    managed = carrying(early_dropped=8, marked=3)
    managed["links"][0]["a_to_b"] = DIRECTION | {"discipline": "codel", "ecn": True}
    (short,) = links(managed)
    assert short.what.endswith("a queue of 100 packets, codel with ECN.")
    assert "10 dropped by the queue, 8 of them by its discipline, which marked 3, 0 at random" in short.did
    (late,) = links(carrying(lateness={"median_ns": 9000, "p99_ns": 19_751_000}))
    assert len(late.warnings) == 1
    assert "19.8 ms late" in late.warnings[0]
    lossy = carrying(own_lost={"socket": 4, "memory": 1})
    page = page_of(write_report({"a": log_of(records([1], [0]))}, tmp_path, "Lossy", testbed=lossy, images=False))
    assert "The relay itself lost 5 packets in direction forward" in page.text
    (silent,) = links({"links": carrying()["links"]})
    assert (silent.did, silent.warnings) == ("", ())


def test_a_truncated_log_may_have_records_of_unknown_flows(tmp_path):
    """Rows reach the file before their flow table."""
    whole = log_of(many_flows(3, 100, np.random.default_rng(11), span_s=1))
    cut = log_of(whole.records, flows=whole.flows.slice(0, 2), complete=False)
    page = page_of(write_report({"cut": cut}, tmp_path, "Cut", images=False))
    assert len(page.figures) == 4
    assert "flow 3, addresses unknown" in json.dumps(page.figures["cut-cwnd"])
    assert "300 records of 2 flows" in page.text


def test_accounts_of_a_truncated_log_need_not_balance(tmp_path):
    table = records([1, 1], [0, 1])
    ledger = ledger_of(2) | {"complete": False}
    ledger["hooks"][1] = hook_account("tcp_egress", 20, logged=9)
    flows = pa.Table.from_pylist([flow_row(1, 9, packets_seen=20)])
    text = page_of(
        write_report({"cut": log_of(table, ledger=ledger, flows=flows, complete=False)}, tmp_path, "Cut", images=False)
    ).text
    assert "need not balance" in text
    assert "11 in flight" in text
    assert "✗" not in text


@pytest.mark.parametrize(("began_before", "retransmitted"), [(True, 2), (False, 7)])
def test_retransmissions_before_the_log_are_not_counted(tmp_path, began_before, retransmitted):
    table = records([1] * 3, [0, 1, 10**9], snd_una=[0, 0, 10**6], snd_nxt=[0, 10**6, 10**6], total_retrans=[5, 5, 7])
    log = log_of(table, flows=pa.Table.from_pylist([flow_row(1, 3, began_before=began_before)]))
    text = page_of(write_report({"old": log}, tmp_path, "Old", images=False)).text
    assert f"retransmitting {retransmitted} segments" in text


def test_causes_of_retransmissions(tmp_path):
    """One row a flow and cause, with the sums of segments; what is not listed is one flow."""
    columns = {
        "flow": [2, 1, 1, 1, 3, 3],
        "segments": [1, 2, 1, 4, 65535, 1],
        "cause": ["tlp", "fast", "fast", "rto", "rack", None],
        "spurious": [True, False, None, False, False, True],
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    table = pa.Table.from_pylist(rows, RETRANSMISSIONS)
    names = ("flow", "cause", "segments", "needed", "spurious", "not_known")
    expected = [
        (1, "rto", 4, 4, 0, 0),
        (1, "fast", 3, 2, 0, 1),
        (2, "tlp", 1, 0, 1, 0),
        (None, "rack", 65535, 65535, 0, 0),
        (None, "unknown", 1, 0, 1, 0),
    ]
    assert cause_rows(table, [1, 2]) == [dict(zip(names, row, strict=True)) for row in expected]
    assert cause_rows(RETRANSMISSIONS.empty_table(), [1, 2]) == []
    log = log_of(records([1, 2, 3], [0, 1, 2]), retransmissions=table)
    text = page_of(write_report({"lossy": log}, tmp_path, "Lossy", images=False)).text
    assert "Retransmitted segments of lossy by cause" in text
    assert "65,535" in text
    text = page_of(write_report({"clean": log_of(records([1], [0]))}, tmp_path, "Clean", images=False)).text
    assert "by cause" not in text


def test_retransmissions_without_a_row_are_said(tmp_path):
    """What never left, what was lost, and what no hook saw, though the kernel counts it."""
    flows = [flow_row(1, 1) | {"retransmits_total": 2101, "retransmits_logged": 863, "retransmits_failed": 1200}]
    flows[0] |= {"retransmits_lost": 30, "retransmits_refused": 4}
    flows.append(flow_row(2, 1) | dict.fromkeys(flows[0].keys() & {"retransmits_total", "retransmits_lost"}))
    log = log_of(records([1, 2], [0, 1]), flows=pa.Table.from_pylist(flows))
    assert without_row(pl.DataFrame(pl.from_arrow(log.flows))) == {"failed": 1200, "lost": 30, "unseen": 8}
    text = " ".join(page_of(write_report({"lossy": log}, tmp_path, "Lossy", images=False)).text.split())
    assert "As the kernel counts, 1,238 more segments were sent again than the log has: 1,200 never left, as" in text
    assert "; the events of 30 are lost; no hook saw an event of 8." in text


def test_an_interrupted_report_keeps_the_previous_one(tmp_path, monkeypatch):
    # It has one figure: each takes its time.
    log = log_of(records([1], [0]))
    before = write_report({"sender": log}, tmp_path, "Before").read_bytes()
    files = {path: path.stat().st_ino for path in tmp_path.rglob("*")}

    class Half(io.FileIO):
        def write(self, content):
            super().write(content[: len(content) // 2])
            raise KeyboardInterrupt

    monkeypatch.setattr(whole_file, "os", SimpleNamespace(fdopen=Half))
    with pytest.raises(KeyboardInterrupt):
        write_report({"sender": log}, tmp_path, "After", images=False)
    assert (tmp_path / "report.html").read_bytes() == before
    with pytest.raises(KeyboardInterrupt):
        write_report({"sender": log}, tmp_path, "After")
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == files


def test_logs_whose_names_are_alike_have_files_of_their_own():
    for names in (["a.b", "a-b"], ["a-b-3", "a.b", "a:b"], ["a-b-3", "a-b-4", "a.b", "a:b"], ["", "log-", "log:"]):
        found = identities(names)
        assert len(set(found)) == len(names), found
    assert identities(["a.b", "a-b"]) == ["a-b", "a-b-2"]


def test_the_page_lists_listeners_that_had_no_room(tmp_path):
    listeners = [
        listener_row(1),
        listener_row(2, command="<b>", pid=12, syns_refused=1, queue_longest_connections=6),
        listener_row(3, local_address="::", ip_version=6, syns_refused=29, acks_refused=3),
    ]

    def page(rows):
        log = log_of(records([1, 1], [0, 1]), listeners=pa.Table.from_pylist(rows))
        return write_report({"log": log}, tmp_path, "t", images=False).read_text()

    table = page(listeners).split("Full accept queues")[1].split("</table>")[0]
    assert table.index("[::]:8003") < table.index("0.0.0.0:8002")
    assert "8001" not in table
    assert "&lt;b&gt; (12)" in table
    assert "Full accept queues" not in page(listeners[:1])


def test_the_page_says_how_each_flow_ended(tmp_path):
    unknown = dict.fromkeys(("ending", "fin_sent", "fin_received"))
    flows = [
        flow_row(1, 1, ending="aborted", fin_sent=False, fin_received=True, socket_cookie=9),
        flow_row(2, 1, ending="open", fin_sent=False, fin_received=True),
        flow_row(3, 1, **unknown),
        # A listener whose queue is full refuses the SYN: no socket comes of it.
        flow_row(4, 1, ending="open", fin_sent=False, fin_received=False, passive=True, socket_cookie=0),
        # The record of a connection that came of it was lost.
        flow_row(5, 1, ending="open", fin_sent=False, fin_received=False, passive=True, socket_cookie=0, bytes_acked=9),
    ]
    log = log_of(records([1, 2, 3, 4, 5], [0, 1, 2, 3, 4]), flows=pa.Table.from_pylist(flows))
    page = write_report({"log": log}, tmp_path, "t", images=False).read_text()
    cells = re.findall(r'data-label="ended by">([^<]*)</td>', page)
    assert cells == ["aborted here", "still open, FIN from the peer", UNKNOWN, "handshake not completed", "still open"]
    # Logs of older versions lack the column.
    page = write_report({"log": log_of(records([1], [0]))}, tmp_path, "t", images=False).read_text()
    assert re.findall(r'data-label="ended by">([^<]*)</td>', page) == [UNKNOWN]


def test_times_of_a_log_need_no_pandas():
    """Arrow gives times with nanoseconds to Python by pandas only, which is an extra."""
    code = """
import sys
class WithoutPandas:
    def find_spec(self, name, *_):
        if name == "pandas":
            raise ImportError(name)
sys.meta_path.insert(0, WithoutPandas())
import pyarrow as pa
from parshall.host.rotation import gap_sentence
from parshall.host.rows import plain_rows
times = pa.array([1_795_801_325_780_135_913, None], pa.timestamp("ns", "UTC"))
table = pa.table({"from_time_ns": times, "until_time_ns": times, "cause": ["killed", "restarted"]})
try:
    table.to_pylist()
except ValueError:
    print("Arrow gives none")
for row in plain_rows(table):
    print(gap_sentence(row))
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    arrow, first, second = answer.stdout.splitlines()
    assert arrow == "Arrow gives none"
    assert first.startswith("Nothing was logged from 2026-11-27 ")
    assert second.startswith("Nothing was logged for some time: ")
