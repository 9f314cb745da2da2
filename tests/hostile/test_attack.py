"""The program behind `make attack` starts, and sends commands mutated files of every kind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ATTACK = Path(__file__).with_name("attack.py")


@pytest.mark.parametrize("texts", [0, pytest.param(40, marks=pytest.mark.long)])
def test_the_attack_runs_what_is_asked_for(texts: int) -> None:
    words = ["--inputs", "0", "--messages", "0", "--rounds", "0", "--texts", str(texts)]
    ended = subprocess.run([sys.executable, ATTACK, *words], capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout)
    assert results["faults"] == 0
    assert list(results.get("texts", {}).get("parts", {})) == (
        ["captures", "texts", "extcap", "files"] if texts else []
    )
