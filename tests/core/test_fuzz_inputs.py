"""Some of the mutated files of `fuzz_inputs.py`, in a process of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILES = 300


@pytest.mark.parametrize("what", ["captures", "texts", "extcap"])
def test_mutated_inputs_end_in_one_line_or_a_right_answer(what):
    command = [sys.executable, Path(__file__).with_name("fuzz_inputs.py"), what, "1", str(FILES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    came_to = json.loads(done.stdout)["came_to"]
    # Both the well and the badly mutated occur, or the test tests nothing.
    assert sum(number for result, number in came_to.items() if " 0," in result) > FILES / 20
    assert sum(number for result, number in came_to.items() if "refused" in result) > FILES / 20
