"""Clients of other languages, built where their packages can be had."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def built(words: list[object], directory: Path, **environment: str) -> None:
    """Build a client, or skip where its language or the registry of its packages is missing."""
    if shutil.which(str(words[0])) is None:
        pytest.skip(f"there is no {words[0]}; `scripts/setup packages languages` installs it")
    done = subprocess.run(words, env=os.environ | environment, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{words[0]} could not build the client: {(done.stderr or done.stdout)[-500:]}")
