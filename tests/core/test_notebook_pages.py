"""Notebooks become pages of the site, with the outputs that the repository has when they cannot be executed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    """Make the pages without executing anything."""
    for name in ("nbclient", "nbconvert", "PIL"):
        pytest.importorskip(name, reason="make docs installs what makes pages of notebooks")
    directory = tmp_path_factory.mktemp("pages")
    command = [sys.executable, str(ROOT / "scripts/notebooks"), str(directory)]
    done = subprocess.run(command, env=os.environ | {"NOTEBOOKS": "committed"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "not executed (NOTEBOOKS=committed)" in done.stdout
    return directory


def test_each_notebook_has_a_page_that_says_where_its_outputs_come_from(pages):
    names = {path.stem for path in ROOT.glob("docs/notebooks/*.ipynb")}
    assert {path.stem for path in pages.glob("*.md")} == names
    for name in names:
        title, _, note = (pages / f"{name}.md").read_text().splitlines()[:3]
        assert title.startswith("# ")
        assert re.fullmatch(
            rf"\*Outputs of an earlier run, on Linux .* Notebook: \[{name}.ipynb\]\({name}.ipynb\).\*", note
        )


def test_pictures_are_there_and_have_text(pages):
    for page in pages.glob("*.md"):
        shown = re.findall(r"\[!\[([^]]+)\]\(([^)]+)\)\]\(([^)]+)\)", page.read_text())
        assert page.read_text().count("![") == len(shown)
        for text, place, link in shown:
            assert len(text) > 10
            assert place == link
            assert (pages / place).read_bytes().startswith(b"\x89PNG")


def test_tables_scroll_and_look_as_those_of_the_site(pages):
    text = (pages / "open-a-log.md").read_text()
    assert '<div class="notebook-output">' in text
    assert "<style" not in text and "dataframe" not in text
