"""Some of the mutated files of `fuzz_inputs.py` and `fuzz_files.py`, in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Of each command and file; to look at one of "files" takes half a second.
FEW = {"captures": 40, "texts": 40, "extcap": 40, "files": 15}
MANY = [pytest.param(what, 300, marks=pytest.mark.long) for what in FEW]


@pytest.mark.parametrize(("what", "files"), [*FEW.items(), *MANY])
def test_mutated_inputs_end_in_one_line_or_a_right_answer(what, files, tmp_path):
    words = ["fuzz_files.py"] if what == "files" else ["fuzz_inputs.py", what]
    command = [sys.executable, *words, "1", str(files)]
    # A file that fails is kept in the temporary directory.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, cwd=Path(__file__).parent
    )
    assert done.returncode == 0, done.stderr
    came_to = json.loads(done.stdout)["came_to"]
    # Both the well and the badly mutated occur, or the test tests nothing.
    assert sum(number for result, number in came_to.items() if " 0," in result or ": read" in result) > files / 20
    assert sum(number for result, number in came_to.items() if "refused" in result) > files / 20
