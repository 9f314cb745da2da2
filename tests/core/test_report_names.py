"""Names of others in reports: of processes, addresses, files."""

import re
import subprocess
import sys
from xml.etree import ElementTree

from written_log import batch_of, flow_row, random_columns, write_log


def test_names_that_svg_cannot_have_are_shown_with_escapes(tmp_path):
    """The library that draws ends the process at such a character."""
    evil = "x\x1b[31m\x00\x08\ufffe\x9b<b>&"
    flows = [flow_row(1, command=evil, pid=1, cgroup=evil, congestion_control=evil), flow_row(2)]
    log = tmp_path / "e\x1b\x07\ud83d.arrow".encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    write_log(log, [batch_of(random_columns(500, 2, seed=3))], flows)
    command = [sys.executable, "-m", "parshall", "report", log, "-o", tmp_path / "report", "--title", "t\x1b"]
    answer = subprocess.run(command, capture_output=True)
    assert answer.returncode == 0, answer.stderr
    page = (tmp_path / "report/report.html").read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)
    drawings = list((tmp_path / "report/figures").glob("*.svg"))
    assert len(drawings) > 2
    for drawing in drawings:
        ElementTree.parse(drawing)
    assert any("x\\u001b[31m" in drawing.read_text() for drawing in drawings)
