"""Links of the documentation lead to files and headings that exist."""

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return a page without its examples, in which brackets mean other things; of a notebook its text."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_links_are_found() -> None:
    assert sum(len(LINK.findall(prose(page))) for page in PAGES) > 100


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    names = [name for name in re.findall(r"[^']+\.md", str(navigation)) if not name.startswith("api/")]
    # scripts/notebooks makes a page of each notebook.
    assert sorted(ROOT / name for name in names) == sorted([*PAGES, *(path.with_suffix(".md") for path in NOTEBOOKS)])


def test_the_page_on_the_ledger_names_every_program_of_a_tcp_log() -> None:
    sources = "".join((ROOT / "bpf" / name).read_text() for name in ("tcp.bpf.c", "reader_time.h"))
    programs = re.findall(r'^SEC\("[^"]*"\)\nint (?:BPF_PROG\()?(\w+)', sources, re.MULTILINE)
    of_path = "".join(path.read_text() for path in ROOT.glob("bpf/path*"))
    programs += re.findall(r'^SEC\("syscall"\)\nint (\w+)', of_path, re.MULTILINE)
    assert {"tcp_ingress", "reader_softirq", "path_sweep"} <= set(programs)
    page = (ROOT / "docs/ledger.md").read_text()
    assert [name for name in programs if f"`{name}`" not in page] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_outputs_of_one_whole_run(path: Path) -> None:
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert any(cell["outputs"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"execute_result", "display_data", "stream"}
    texts = json.dumps([output.get("data", output.get("text")) for output in outputs])
    # The site loads nothing from other hosts, and a page shows nothing of the machine that made it.
    assert not re.search(r"<script|https?://|/tmp/|/root/|/home/", texts)
