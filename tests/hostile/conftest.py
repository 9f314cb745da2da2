"""What attacks need: the captures and logs under test of the kernel's tests, and how long to go on."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "kernel"))


@pytest.fixture
def rounds() -> int:
    """How often an attack is repeated: a few times, or as `PARSHALL_ATTACK_ROUNDS` says."""
    return int(os.environ.get("PARSHALL_ATTACK_ROUNDS", "2"))
