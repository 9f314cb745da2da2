"""The page of what runs in another browser than Chromium: Debian's Firefox."""

from collections.abc import Callable
from pathlib import Path

import pytest
from test_live_server import log, served  # noqa: F401

from firefox import opened_firefox, waits_for

pytestmark = pytest.mark.long
CHOSEN = "document.querySelectorAll('tr.chosen').length"


def text_is(element: str, text: str) -> str:
    """An expression: an element has this text."""
    return f"document.querySelector({element!r}).textContent === {text!r}"


def test_firefox_shows_sorts_filters_groups_pauses_and_saves(
    log: Path,  # noqa: F811
    tmp_path: Path,
    until: Callable[..., None],
) -> None:
    profile, saves = tmp_path / "profile", tmp_path / "saves"
    profile.mkdir()
    saves.mkdir()
    with served(log, saves) as client, opened_firefox(profile) as firefox:
        wait = waits_for(firefox, until)
        firefox.goto(f"http://127.0.0.1:{client.port}/#{client.token}")
        wait(text_is("#lines", "300 flows"))
        cwnd = "[...document.querySelectorAll('#heads button')].find((one) => one.textContent.startsWith('cwnd'))"
        lines = "[...document.querySelectorAll('#rows tr[data-flow]')]"
        cells = f"{lines}.map((row) => +row.cells[8].textContent.replaceAll(',', ''))"
        for order, sign in (("descending", ">="), ("ascending", "<=")):
            firefox.evaluate(f"{cwnd}.click()")
            wait(f"document.querySelector('th[aria-sort={order}]')?.textContent.startsWith('cwnd')")
            wait(f"{cells}.every((cell, at, all) => !at || all[at - 1] {sign} cell)")
        # Typed, not set: each letter is an event.
        firefox.evaluate("document.querySelector('#words').focus()")
        firefox.press(*"nginx")
        wait(text_is("#lines", "100 flows"))
        firefox.evaluate("document.querySelector('#rows tr[data-flow]').focus()")
        firefox.press("\ue007")
        wait(f"{CHOSEN} === 1 && !document.querySelector('#one').hidden")
        wait("document.querySelector('#all canvas').width > 0")
        for width in (1300, 800, 390):
            firefox.resize(width, 900)
            wait(f"innerWidth === {width}")
            assert firefox.evaluate("document.documentElement.scrollWidth") <= width
        firefox.evaluate("document.querySelector('#pause').click()")
        wait("document.querySelector('#pause').getAttribute('aria-pressed') === 'true'")
        firefox.evaluate("document.querySelector('#pause').click()")
        wait("document.querySelector('#pause').getAttribute('aria-pressed') === 'false'")
        firefox.evaluate("document.querySelector('#save').click()")
        wait("document.querySelector('#saved').textContent.startsWith('saved in ')")
        assert len(list(saves.glob("live-*"))) == 1
        assert firefox.errors == []
