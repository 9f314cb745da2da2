"""docs/formats/path-log.md, docs/path.md and docs/path-packets.md describe what the code has."""

import re
from pathlib import Path

from parshall.instruments.path.stages import STAGES
from parshall.report.path import MEANINGS

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "crates/core/src/path_log/columns.rs").read_text()
STAGES_SOURCE = (ROOT / "crates/core/src/stage.rs").read_text()
KINDS = {
    "TimestampNs": "timestamp, UTC",
    "U8": "u8",
    "U16": "u16",
    "U32": "u32",
    "U64": "u64",
    "Names": "names",
    "Address": "address",
    "Text": "text",
}


def columns_of_the_source() -> list[tuple[str, str]]:
    """Return names and types in the order of the table of columns; those of the stages are one line of it."""
    table = SOURCE[SOURCE.index("pub const COLUMNS") : SOURCE.index("/// From the first stage to the last.")]
    (stages,) = re.findall(r"\$callback! \{([\w\s]+)\}", STAGES_SOURCE)
    found = []
    for match in re.finditer(
        r'(concat!)\(stringify!\(\$stage\)|(?:packet|read)!\("(\w+)", Kind::(\w+)|name: "(\w+)",\s+kind: Kind::(\w+)',
        table,
    ):
        is_stage, name, kind, full_name, full_kind = match.groups()
        names = [f"{stage}_ns" for stage in stages.split()] if is_stage else [name or full_name]
        found += [(each, KINDS["U32" if is_stage else kind or full_kind]) for each in names]
    return found


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    text = (ROOT / page).read_text()
    part = text[text.index(f"\n{heading}\n") :]
    lines = re.search(r"(?:^\|.*\n)+", part, re.MULTILINE)
    assert lines
    return [[cell.strip(" `") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[0].splitlines()[2:]]


def test_every_column_is_described_in_its_order_with_its_type():
    described = [(row[0], row[1]) for row in rows_of("docs/formats/path-log.md", "## The rows")]
    assert described == columns_of_the_source()
    assert len(described) > 50


def test_every_row_of_the_table_says_when_it_is_null_and_what_it_means():
    for row in rows_of("docs/formats/path-log.md", "## The rows"):
        assert len(row) == 5, row
        assert row[3] and row[4], row


def test_the_manuals_have_every_stage_and_every_code_path():
    assert [row[0] for row in rows_of("docs/path-packets.md", "## Stages")] == list(STAGES)
    assert [row[0] for row in rows_of("docs/path.md", "## Code paths")] == list(MEANINGS)


def test_the_metadata_of_the_page_is_that_of_the_writer():
    writer = (ROOT / "crates/core/src/path_log/writer.rs").read_text()
    session = (ROOT / "crates/kernel/src/path/session.rs").read_text()
    head = session[session.index("let metadata = [") :]
    written = {f"parshall.{name}" for name in re.findall(r'\(\s*"(\w+)",', head[: head.index("];")])}
    written |= set(re.findall(r'"(parshall\.format\w*)"', writer))
    assert {row[0] for row in rows_of("docs/formats/path-log.md", "### Metadata of the schema")} == written
