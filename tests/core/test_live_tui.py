"""The flows of a watch in a terminal: what its keys do, in 80 columns and 24 lines."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from test_live_server import EVIL, log  # noqa: F401
from textual.pilot import Pilot
from textual.widgets import DataTable, Footer, Static
from textual.widgets._footer import FooterKey

from parshall.errors import printable
from parshall.instruments.tcp_log import read
from parshall.live.saved import Saved
from parshall.live.tui import LiveApp
from parshall.live.watch import Watch


def driven(
    path: Path, saved: Path, use: Callable[[LiveApp, Pilot[None]], Awaitable[None]], size: tuple[int, int] = (80, 24)
) -> None:
    """Run the view of a log, and what a person does with it."""

    async def drive(watch: Watch) -> None:
        app = LiveApp(watch, Saved(saved))
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await use(app, pilot)

    news = threading.Event()
    watch = Watch(path)
    watch.on_news = news.set
    with watch:
        assert news.wait(60)
        asyncio.run(drive(watch))


def text_of(app: LiveApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


async def noted(app: LiveApp, pilot: Pilot[None], words: str) -> str:
    """Return the note when it has some words."""
    deadline_s = time.monotonic() + 20
    while words not in (note := " ".join(text_of(app, "note").split())):
        assert time.monotonic() < deadline_s, note
        await pilot.pause(0.02)
    return note


def column(app: LiveApp, name: str) -> list[str]:
    table = app.query_one("#table", DataTable)
    return [str(cell) for cell in table.get_column(name)]


def test_the_numbers_are_those_of_the_log(log: Path, tmp_path: Path) -> None:  # noqa: F811
    states = read(log).flow_states().table()
    expected = {f"10.0.0.1:{row['local_port']}": f"{row['cwnd_segments']:,}" for row in states.iter_rows(named=True)}

    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        shown = dict(zip(column(app, "local"), column(app, "cwnd"), strict=True))
        assert len(shown) > 50
        assert shown.items() <= expected.items()
        assert "300 flows by out Mb/s, most first; acked" in text_of(app, "note")
        assert text_of(app, "state").startswith("ended ")

    driven(log, tmp_path, use, size=(200, 50))


def test_keys_filter_group_sort_open_and_save(log: Path, tmp_path: Path) -> None:  # noqa: F811
    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        # What has no room in 80 columns is left out, and nothing is wider.
        table = app.query_one("#table", DataTable)
        assert [str(key.value) for key in table.columns][:3] == ["process", "peer", "acked_Mbps"]
        assert table.virtual_size.width <= 80
        await pilot.press("slash", *"nginx")
        assert set(column(app, "process")) == {"nginx"}
        assert text_of(app, "note").startswith("100 flows by out Mb/s, most first, filter: nginx; ")
        await pilot.press("escape")
        assert text_of(app, "note").startswith("300 flows")
        await pilot.press("s", "s", "s")
        retr = [int(cell.replace(",", "")) for cell in column(app, "retr")]
        assert "by retr, most first;" in text_of(app, "note") and retr == sorted(retr, reverse=True)
        await pilot.press("r")
        retr = [int(cell.replace(",", "")) for cell in column(app, "retr")]
        assert retr == sorted(retr)
        await pilot.press("enter")
        assert text_of(app, "name").startswith("flow ")
        await pilot.press("escape", "g")
        assert sorted(column(app, "group")) == sorted(["curl", "nginx", printable(EVIL)])
        assert column(app, "flows") == ["100"] * 3
        await pilot.press("p")
        assert text_of(app, "state").startswith("paused ")
        await pilot.press("w")
        (saved,) = tmp_path.glob("live-*")
        assert read(saved).records.num_rows == 6000
        await pilot.press("q")
        assert not app.is_running

    driven(log, tmp_path, use)


def test_the_end_of_a_curve_is_in_the_form_of_the_table(log: Path, tmp_path: Path) -> None:  # noqa: F811
    curve = {"acked_Mbps": [1.0, 1200.5], "received_Mbps": [0.0, 0.0], "cwnd_segments": [10, 1234]}
    curve |= {"srtt_ms": [0.1, 0.10400000000000001], "retransmitted_for": []}

    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        app._watch.curve = lambda _: json.dumps(curve)  # type: ignore[method-assign]
        await pilot.press("enter")
        assert text_of(app, "last") == "1.00 to 1,200.50 Mbit/s; cwnd 1,234, rtt 0.10 ms"

    driven(log, tmp_path, use)


# The other tests have 80 columns.
@pytest.mark.parametrize("size", [(20, 5), (300, 100)])
def test_any_terminal_will_do(log: Path, tmp_path: Path, size: tuple[int, int]) -> None:  # noqa: F811
    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter", "g", "right_square_bracket", "left_square_bracket")
        assert app.query_one("#table", DataTable).row_count == 3

    driven(log, tmp_path, use, size)


def test_commands_that_run_are_in_the_note(log: Path, tmp_path: Path) -> None:  # noqa: F811
    command = {"command": "gen", "pid": 7, "began_s": 0.0, "text": "1,000 packets", "statements": []}

    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        assert "gen" not in text_of(app, "note")
        app._watch.show("commands", [command])
        assert (await noted(app, pilot, "1,000 packets")).endswith("; gen (pid 7): 1,000 packets")

    driven(log, tmp_path, use)


def test_readers_of_rings_and_drops_of_packets_are_in_the_note(log: Path, tmp_path: Path) -> None:  # noqa: F811
    readers = [{"pid": number, "filter": "tcp", "seen": 9, "matched": 1_200, "dropped": 30} for number in (1, 2)]
    drops = [{"packets": 5_000 // number, "reason": f"REASON_{number}"} for number in range(1, 6)]

    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        assert "ring" not in text_of(app, "note") and "dropped" not in text_of(app, "note")
        app._watch.show("rings", [{"ring": "day", "hooks": "eth0", "policy": "fast", "readers": readers}])
        cost = {"wall_s": 40.0, "reader_cpu_s": 0.4, "lost": 3, "hooks_ns": [61.4, 888.0]}
        app._watch.show("packets", {"attached_s": 2.04, "drops": drops, **cost})
        note = await noted(app, pilot, "dropped in 2.0 s: ")
        assert "2 readers of rings matched 2,400 packets, 60 found no room" in note
        assert "; path lost 3, its reader 1.0%, its programs 61 to 888 ns; " in note
        assert note.endswith("dropped in 2.0 s: 5,000 REASON_1, 2,500 REASON_2, 1,666 REASON_3 and for 2 more reasons")
        app._watch.show("packets", {"attached_s": 3.0, "drops": [], **cost, "hooks_ns": None})
        assert (await noted(app, pilot, "dropped in 3.0 s: ")).endswith("dropped in 3.0 s: none")

    driven(log, tmp_path, use)


def test_lists_are_shown_in_place_of_the_table(log: Path, tmp_path: Path) -> None:  # noqa: F811
    statement = {"source": "Figure 6", "is_same": None, "low": -3.21, "high": 1.5, "limit": 5.0, "unit": "%"}
    shape = {"source": "Figure 7", "is_same": False, "low": None, "high": None, "limit": None, "unit": ""}
    command = {"command": "lab", "pid": 7, "began_s": 0.0, "text": "block 3", "statements": [statement, shape]}
    listener = {"local_address": "::", "local_port": 80, "ip_version": 6, "command": EVIL, "pid": 9}
    reader = {"pid": 1, "filter": "tcp", "seen": 1_300, "matched": 1_200, "dropped": 30}
    stage = {"path": "delivered", "stage": "local_in", "packets": 4_321, "median_us": 1.25, "p99_us": 9.87}
    packets = {
        **{"wall_s": 40.0, "attached_s": 2.04, "reader_cpu_s": 0.4, "lost": 3, "hooks_ns": None},
        "drops": [{"packets": 7, "reason": "NO_SOCKET", "after": ["local_in", "receive"]}],
        "stages": [stage],
    }

    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        await pilot.press("l")
        assert text_of(app, "lists_text").split("\n  none") == [
            "accept queues that were full",
            "\ncommands of Parshall",
            "\nrings of captures",
            "",
        ]
        app._watch.show("commands", [command])
        app._watch.show("rings", [{"ring": "day", "hooks": "eth0", "policy": "fast", "readers": [reader]}])
        app._watch._account["listeners"] = [listener | {"syns_refused": 1_500, "acks_refused": 2}]
        app._watch.show("packets", packets)
        await noted(app, pilot, "dropped in 2.0 s: ")
        shown = text_of(app, "lists_text")
        for line in (
            "  [::]:80 of " + printable(EVIL) + " (pid 9): 1,500 SYNs and 2 ACKs refused",
            "  lab (pid 7): block 3",
            "    Figure 6: open, -3.21 to +1.5 %, held against 5 %",
            "    Figure 7: different",
            "  day: eth0; fast reader",
            "    pid 1, tcp: 1,200 of 1,300 packets matched, 30 found no room",
            "packets in the kernel, in 2.0 of 40.0 s",
            "  7 dropped for NO_SOCKET after local_in, receive",
            "  delivered   local_in               4,321 median 1.25 us, p99 9.87 us",
        ):
            assert line in shown.split("\n"), line
        await pilot.press("l")
        assert app.query_one("#table", DataTable).has_focus

    driven(log, tmp_path, use)


def test_marks_choose_what_is_saved(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(Saved, "save", lambda _, log, since, until: asked.append((since, until)) or (log, None))

    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        first, last = (int(each * 1e6) + 1000 for each in app._frame["kept_ms"])
        await pilot.press("w")
        app._frame["time_ms"] = first / 1e6
        app.action_mark()
        assert " to now" in await noted(app, pilot, "marked ")
        await pilot.press("w")
        app._marks = (first / 1e6, first / 1e6 + 2000)
        await pilot.press("w", "m")
        assert "marked" not in text_of(app, "note")
        assert [since for since, _ in asked] == pytest.approx([first] * 3, abs=5000)
        assert [until - since for since, until in asked] == pytest.approx([last - first, last - first, 2e9], abs=5000)

    driven(log, tmp_path, use)


def test_the_keys_have_room_in_80_columns(log: Path, tmp_path: Path) -> None:  # noqa: F811
    async def use(app: LiveApp, pilot: Pilot[None]) -> None:
        footer = app.query_one(Footer)
        deadline_s = time.monotonic() + 20
        while not app.query(FooterKey):
            assert time.monotonic() < deadline_s
            await pilot.pause(0.02)
        assert footer.max_scroll_x == 0
        assert [key.description for key in app.query(FooterKey)] == [
            *("Quit", "Sort", "Group", "Filter", "Pause", "Time", "Mark", "Save", "Lists"),
        ]

    driven(log, tmp_path, use)
