"""Pages in a browser without a window."""

import shutil
import subprocess
from pathlib import Path

import pytest


def drawn(page: Path, width_px: int = 1300) -> str:
    """Return the document that a page becomes in Chromium, which must log nothing; skip a test without Chromium.

    Windows have at least 500 pixels.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed (package chromium)")
    browser = subprocess.run(
        [
            chromium,
            f"--window-size={width_px},900",
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *(f"--user-data-dir={page.parent / 'profile'}", "--enable-logging=stderr", "--dump-dom"),
            *("--virtual-time-budget=30000", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    # Whatever the page logs, and every request that its own policy refuses, comes as such a line.
    assert [line for line in browser.stderr.splitlines() if "CONSOLE" in line] == []
    return browser.stdout
