"""The page of what runs, in a browser: what a person sees and does."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from test_live_server import EVIL, established, log, served  # noqa: F401
from written_log import batch_of, flow_row, listener_row, write_log

from parshall.errors import ParshallError, printable
from parshall.host.ledger_text import short_filter
from parshall.instruments.path.reasons import described as described_reason
from parshall.instruments.tcp_log import read
from parshall.live import rings as rings_of_captures
from parshall.live.listening import listening
from parshall.live.packets import shown
from parshall.live.rings import described
from parshall.live.saved import Saved
from parshall.live.server import Server
from parshall.live.view import View
from parshall.live.watch import Watch
from suites import long_except

SIZES = {"wide": (1300, 900), "middle": (800, 900), "phone": (390, 800)}


def url_of(client: Any) -> str:
    return f"http://127.0.0.1:{client.port}/#{client.token}"


def rows_of(page: Page) -> list[dict[str, str]]:
    """Return the lines of the table by the names of their columns."""
    heads = [text.rstrip(" ▾▴") for text in page.locator("#heads th").all_inner_texts()]
    lines = page.locator("#rows tr:not(.space)").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return [dict(zip(heads, cells, strict=True)) for cells in lines]


@pytest.fixture
def opened(page: Page, log: Path, tmp_path: Path) -> Iterator[Page]:  # noqa: F811
    with served(log, tmp_path) as client:
        page.goto(url_of(client))
        expect(page.locator("#lines")).to_have_text("300 flows")
        yield page


def test_numbers_are_those_of_the_log(opened: Page, log: Path) -> None:  # noqa: F811
    states = {row["flow"]: row for row in read(log).flow_states().table().iter_rows(named=True)}
    opened.get_by_role("button", name="flow", exact=True).click()
    expect(opened.locator("#heads th[aria-sort]")).to_contain_text("flow")
    rows = rows_of(opened)
    assert len(rows) >= 20
    for row in rows:
        state = states[int(row["flow"])]
        assert row["cwnd"] == f"{state['cwnd_segments']:,}"
        assert row["rtt ms"] == ("-" if state["srtt_ms"] is None else f"{state['srtt_ms']:.2f}")
        assert row["retr for"] == (state["retransmitted_for"] or "-")
        assert row["local"] == f"10.0.0.1:{state['local_port']}"
        assert row["process"] == printable(state["command"])
        assert row["retr"] == f"{state['retransmitted']:,}"
    expect(opened.locator("#state")).to_have_text("the log has ended")
    assert opened.evaluate("[cell('acked', 5e9, false), cell('acked', 5e9, true)]") == ["5.00G", "≥5.00G"]


def test_sorting_filtering_grouping_and_scrolling(opened: Page) -> None:
    head = opened.get_by_role("button", name="cwnd")
    head.click()
    expect(opened.locator("th[aria-sort=descending]")).to_contain_text("cwnd")
    opened.wait_for_function(
        "() => { const cells = [...document.querySelectorAll('#rows tr[data-flow]')].map((row) =>"
        " Number(row.cells[8].textContent.replaceAll(',', '')));"
        " return cells.length > 5 && cells.every((cell, at) => !at || cells[at - 1] >= cell); }"
    )
    head.click()
    expect(opened.locator("th[aria-sort=ascending]")).to_contain_text("cwnd")
    opened.get_by_label("Filter").fill("nginx")
    expect(opened.locator("#lines")).to_have_text("100 flows")
    opened.locator("#scroll").evaluate("element => { element.scrollTop = element.scrollHeight; }")
    expect(opened.locator("#rows tr[data-flow]").last).to_be_in_viewport()
    opened.get_by_label("Group by").select_option("process")
    expect(opened.locator("#lines")).to_have_text("1 group")
    opened.get_by_label("Filter").fill("")
    expect(opened.locator("#lines")).to_have_text("3 groups")
    assert {row["flows"] for row in rows_of(opened)} == {"100"}


def test_the_keyboard_is_enough(opened: Page) -> None:
    opened.get_by_label("Filter").focus()
    for _ in range(100):
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.dataset.flow !== undefined"):
            break
    flow = opened.evaluate("document.activeElement.dataset.flow")
    opened.keyboard.press("Enter")
    expect(opened.locator("#name")).to_contain_text(f"Flow {flow}: ")
    expect(opened.locator("tr.chosen")).to_have_count(1)
    opened.get_by_role("button", name="Close").press("Enter")
    expect(opened.locator("#one")).to_be_hidden()


def test_names_of_others_are_text(opened: Page) -> None:
    opened.get_by_label("Filter").fill("onerror")
    expect(opened.locator("#lines")).to_have_text("100 flows")
    opened.locator("#rows tr[data-flow]").first.click()
    expect(opened.locator("#name")).to_contain_text(printable(EVIL))
    assert opened.locator("img").count() == 0


@pytest.mark.parametrize(
    ("size", "scheme"),
    long_except([("wide", "light"), ("phone", "dark")], itertools.product(SIZES, ("light", "dark"))),
)
def test_the_page_has_room_and_is_accessible(opened: Page, size: str, scheme: Any) -> None:
    width, height = SIZES[size]
    opened.set_viewport_size({"width": width, "height": height})
    opened.emulate_media(color_scheme=scheme)
    opened.reload()
    opened.locator("#rows tr[data-flow]").first.click()
    expect(opened.locator("#name")).to_be_visible()
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(opened)
    assert found.violations_count == 0, found.generate_report()


def test_a_span_is_saved_and_opened_as_a_report(opened: Page, tmp_path: Path) -> None:
    opened.get_by_role("button", name="Mark start").click()
    opened.get_by_role("button", name="Save as log").click()
    expect(opened.locator("#saved")).to_contain_text("saved in ")
    (saved,) = tmp_path.glob("live-*")
    assert read(saved).records.num_rows == 6000
    with opened.context.expect_page() as report:
        opened.get_by_role("button", name="Open as report").click()
    expect(report.value.locator("h1")).to_be_visible(timeout=60_000)
    # Its scripts run, but not as this server's.
    assert report.value.evaluate("window.origin") == "null"


def test_a_wrong_token_says_so(page: Page, log: Path, tmp_path: Path) -> None:  # noqa: F811
    with served(log, tmp_path) as client:
        page.goto(f"http://127.0.0.1:{client.port}/#wrong")
        expect(page.locator("#state")).to_have_text("wrong token: open the address that parshall live printed")
        page.goto("about:blank")
        page.goto(f"http://127.0.0.1:{client.port}/")
        expect(page.locator("#state")).to_contain_text("with what follows the #")


def test_the_page_comes_back_when_the_server_does(page: Page, log: Path, tmp_path: Path) -> None:  # noqa: F811
    token = "a" * 32

    def serve(listener: Any, path: Path) -> Any:
        return Server(Watch(path).__enter__(), Saved(tmp_path), listener, token)

    with listening("127.0.0.1", 0) as listener, serve(listener, log) as server:
        port = server.port
        page.goto(server.url)
        expect(page.locator("#lines")).to_have_text("300 flows")
    expect(page.locator("#state")).to_have_text("disconnected; trying again")
    other = tmp_path / "other.arrow"
    rows = [batch_of(established(2, 100))]
    listeners = [listener_row(1, command=EVIL, pid=9, syns_refused=1234, acks_refused=5)]
    write_log(other, rows, [flow_row(1), flow_row(2)], listeners=listeners)
    with listening("127.0.0.1", port) as listener, serve(listener, other):
        expect(page.locator("#lines")).to_have_text("2 flows", timeout=10_000)
        expect(page.locator("#state")).to_have_text("the log has ended")
        item = page.locator("#listeners li")
        expect(item).to_contain_text("0.0.0.0:8001 of ")
        expect(item).to_contain_text("room for 5: 1,234 SYNs and 5 ACKs refused")


def test_rings_of_captures_are_listed_with_what_found_no_room(page: Page, log: Path, tmp_path: Path) -> None:  # noqa: F811
    reader = {"pid": 7, "filter": EVIL, "snaplen": 96, "seen": 12_345, "matched": 2_345, "dropped": 45}
    ring = {"name": "day", "hooks": [f"{EVIL} in (tcx)"], "policy": "slow", "subscribers": [reader]}
    found = [ring, {"unreadable": f"ring night: {EVIL}"}]
    with Watch(log) as watch, listening("127.0.0.1", 0) as listener:
        with Server(watch, Saved(tmp_path), listener) as server:
            page.goto(server.url)
            expect(page.locator("#rings")).to_have_text("none")
            expect(page.locator("#captures")).to_be_hidden()
            watch.show("rings", [described(one) for one in found])
            expect(page.locator("#rings li")).to_have_text(
                [
                    f"day: {printable(EVIL)} in (tcx); slow reader",
                    f"day, pid 7, {short_filter(EVIL)}: 2,345 of 12,345 packets matched, 45 found no room",
                    f"ring night: {printable(EVIL)}",
                ]
            )
            expect(page.locator("#captures_cost")).to_have_text("lost 45")
            watch.show("rings", [])
            expect(page.locator("#rings")).to_have_text("none")


def test_commands_that_run_are_listed_with_the_intervals_of_their_statements(
    page: Page,
    log: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    row = {"source": f"Figure 7 {printable(EVIL)}", "low": -3.21, "high": 1.5, "limit": 5.0, "unit": "%"}
    rows = [row | {"is_same": None}, row | {"low": None, "is_same": False}]
    command = {
        "command": "lab",
        "pid": 7,
        "began_s": 0.0,
        "text": printable(EVIL),
        "statements": rows,
        "more_statements": 2,
    }
    with Watch(log) as watch, listening("127.0.0.1", 0) as listener:
        with Server(watch, Saved(tmp_path), listener) as server:
            page.goto(server.url)
            expect(page.locator("#commands")).to_have_text("none")
            watch.show("commands", [command, command | {"command": "gen", "statements": []}])
            expect(page.locator("#commands > li")).to_have_count(2)
            expect(page.locator("#commands > li").first).to_contain_text("lab (pid 7) since ")
            expect(page.locator("#commands > li").first).to_contain_text(printable(EVIL))
            found = page.locator("#commands li li")
            expect(found.nth(0)).to_have_text(f"{row['source']}: open, -3.21 to +1.5 %, held against 5 %")
            expect(found.nth(1)).to_have_text(f"{row['source']}: different")
            # The middle is 0, and the ends are a tenth beyond the limits.
            left, width = page.locator(".range").evaluate("bar => [bar.style.left, bar.style.width].map(parseFloat)")
            assert abs(left - (50 - 50 * 3.21 / 5.5)) < 0.01 and abs(width - 50 * 4.71 / 5.5) < 0.01
            watch.show("commands", [])
            expect(page.locator("#commands")).to_have_text("none")


def test_packets_in_the_kernel_are_listed_with_the_time_that_was_seen(
    page: Page,
    log: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    lost = {"overwritten": 0, "failed": 3}
    hook = {"hook": "packets", "seen": 5_020, "filtered": 0, "thinned": 0, "logged": 5_000, "lost": lost}
    timed = [{"ns_per_run": ns, "sampled_runs": runs} for ns, runs in ((61.4, 3), (888.0, 2), (9_000.0, 0))]
    cost = {"wall_s": 40.0, "reader_cpu_s": 0.4, "programs": timed}
    account = {
        "uncounted_drops": 4_100,
        "ledger": {"hooks": [hook], "cost": cost},
        "attached_s": 2.04,
        "times": [
            {"path": "delivered", "stage": "local_in", "packets": 4_321, "median_ns": 1_250.0, "p99_ns": 9_870.0}
            # 2 of 3 ns, 1 of 15 ns, 4,318 from 1,024 to 1,152 ns.
            | {"buckets": [[3, 2], [15, 1], [64, 4_318]]},
            {"path": "delivered", "stage": "whole", "packets": 0, "median_ns": 0.0, "p99_ns": 0.0},
        ],
        "drops": [
            {"name": "PROTO_MEM", "followed": 0, "places": {}},
            {"name": EVIL, "followed": 7, "places": {"receive": 2, "local_in": 5}},
            {"name": "NO_SOCKET", "followed": 1_200, "places": {"local_in": 1_200}},
        ],
    }
    with Watch(log) as watch, listening("127.0.0.1", 0) as listener:
        with Server(watch, Saved(tmp_path), listener) as server:
            page.goto(server.url)
            expect(page.locator("#lines")).to_have_text("300 flows")
            expect(page.locator("#packets")).to_be_hidden()
            watch.show("packets", shown(account))
            expect(page.locator("#followed")).to_contain_text("attached for 2.0 of 40.0 s")
            for words in (
                "followed 5,000 + lost 3 + under way 17. Cost: reader 1.0 % of a CPU, programs 61 to 888 ns.",
                "The host dropped 4,100 packets for still other reasons.",
            ):
                expect(page.locator("#followed")).to_contain_text(words)
            cost = page.locator("#path_cost")
            expect(cost).to_have_text("lost 3, reader 1.0 % of a CPU, programs 61 to 888 ns")
            drops = page.locator("#drops tr").all()
            assert [row.locator("td").all_inner_texts() for row in drops] == [
                ["1,200", f"NO_SOCKET{described_reason('NO_SOCKET')}", "local_in"],
                ["7", printable(EVIL), "local_in, receive"],
            ]
            cells = page.locator("#stages tr:first-child td").all_inner_texts()
            assert cells == ["delivered", "local_in", "4,321", "1.25", "9.87", ""]
            bars = page.locator("#stages tr:first-child .histogram span").evaluate_all(
                "bars => bars.map(bar => [bar.title, parseFloat(bar.style.height)])"
            )
            assert bars[:2] == [["0 ns to 8 ns: 2", 6], ["8 ns to 16 ns: 1", 6]]
            assert bars[8] == ["1.02 us to 2.05 us: 4,318", 100] and len(bars) == 9
            assert not any(height for _, height in bars[2:8])
            expect(page.locator("#octaves")).to_have_text("0 ns to 2.05 us")
            for name, (width, height) in SIZES.items():
                page.set_viewport_size({"width": width, "height": height})
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            assert Axe().run(page).violations_count == 0


def test_before_its_first_account_nothing_is_said_of_packets() -> None:
    assert shown(None) is None
    assert shown({"ledger": {"hooks": []}}) is None


def test_rings_that_cannot_be_seen_are_not_called_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> list[dict[str, object]]:
        raise ParshallError(f"/run/parshall: {EVIL}")

    monkeypatch.setattr(rings_of_captures, "rings", refused)
    assert [ring["ring"] for ring in rings_of_captures.listed()] == [printable(f"/run/parshall: {EVIL}")]
    many = [{"name": f"ring {number}", "unreadable": f"ring {number}: busy"} for number in range(60)]
    monkeypatch.setattr(rings_of_captures, "rings", lambda: many)
    assert [ring["ring"] for ring in rings_of_captures.listed()][-2:] == ["ring 49: busy", "and 10 more rings"]


def test_the_time_of_readers_is_not_the_pages(log: Path) -> None:  # noqa: F811
    watch = Watch(log)
    assert json.loads(watch.frame(View()))["page_cpu_share"] > 0
    watch.show("packets", {"reader_cpu_s": 1e9})
    assert json.loads(watch.frame(View()))["page_cpu_share"] == 0
