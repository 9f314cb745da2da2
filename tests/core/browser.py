"""Pages in a browser without a window."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest


def drawn(page: Path, width_px: int = 1300) -> str:
    """Return the document that a page becomes in Chromium.

    Windows have at least 500 pixels.
    """
    return _browse(page, f"--window-size={width_px},900", "--dump-dom")


def printed_pages(page: Path) -> int:
    """Return the number of sheets on which Chromium prints a page."""
    pdf = page.parent / "printed.pdf"
    _browse(page, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    return len(re.findall(rb"/Type /Page$", pdf.read_bytes(), re.MULTILINE))


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
