"""Pages in a browser without a window."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def opened(browser: "Browser", path: Path, width_px: int = 1300) -> Iterator["Page"]:
    """Yield a page with its figures drawn, in a browser that runs; the page must log nothing."""
    with browser.new_context(viewport={"width": width_px, "height": 900}) as context:
        page = context.new_page()
        logged: list[str] = []
        # The browser logs every request that the page's own policy refuses.
        page.on("console", lambda message: logged.append(message.text))
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-figures]")
        yield page
        assert logged == []


def drawn(page: Path, width_px: int = 1300) -> str:
    """Return the document that a page becomes in Chromium.

    Windows have at least 500 pixels.
    """
    return _browse(page, f"--window-size={width_px},900", "--dump-dom")


def _browse(page: Path, *arguments: str) -> str:
    """Return what Chromium prints, which must log nothing; skip a test without Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed (package chromium)")
    browser = subprocess.run(
        [
            chromium,
            *arguments,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *(f"--user-data-dir={page.parent / 'profile'}", "--enable-logging=stderr"),
            *("--virtual-time-budget=30000", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    # Whatever the page logs, and every request that its own policy refuses, comes as such a line.
    assert [line for line in browser.stderr.splitlines() if "CONSOLE" in line] == []
    return browser.stdout
