"""Commands with exactly the capabilities that docs/security.md lists, as a user who is not root; and with one less."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parshall.host import offloads

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
NOBODY = "65534"


def table() -> list[tuple[str, list[str]]]:
    """Return the commands of the page, each with its capabilities."""
    rows = re.findall(r"^\| `parshall ([^`]+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    return [(command, re.findall(r"`(CAP_\w+)`", capabilities)) for command, capabilities in rows]


def hidden_from_others() -> list[tuple[Path, Path]]:
    """Directories on the way to what is run that others may not enter, each with the part of it that is needed."""
    found = []
    for needed in {Path(sys.base_prefix).resolve(), Path(sys.executable).resolve().parents[1], ROOT}:
        for parent in reversed(needed.parents):
            if not parent.stat().st_mode & 0o001:
                found.append((parent, needed))
                break
    return found


def as_nobody(capabilities: list[str], *words: str) -> list[str]:
    """Return a command that runs words as a user with these capabilities and no others.

    In a mount namespace of its own, where this user finds the interpreter, and a directory for rings.
    """
    setup = ["mkdir -p /run/parshall && mount -t tmpfs -o mode=755,uid=65534 none /run/parshall"]
    for number, (parent, needed) in enumerate(hidden_from_others()):
        place = f"/run/parshall/{number}"
        setup += [
            f"mkdir {place} && mount --bind {needed} {place}",
            f"mount -t tmpfs -o mode=755 none {parent}",
            f"mkdir -p {needed} && mount --move {place} {needed}",
            f"rmdir {place}",
        ]
    sets = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities)])
    user = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"]
    user += [f"--inh-caps={sets}", f"--ambient-caps={sets}", f"--bounding-set={sets}"]
    script = " && ".join([*setup, f"exec {shlex.join([*user, *words])}"])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]


def run(bed: Any, directory: Path, command: str, capabilities: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command of the page between two hosts, its files in a directory of the user's."""
    here, there = bed.host("here"), bed.host("there")
    link = bed.link(here, there)
    interface = link.interface(here)
    with there.enter():
        # Redirected frames reach a veth only where its peer runs NAPI.
        offloads.switch(link.interface(there), True)
    words = [{"IF": interface, "FILE": str(directory / "file")}.get(word, word) for word in shlex.split(command)]
    with here.enter():
        return subprocess.run(
            as_nobody(capabilities, sys.executable, "-m", "parshall", *words, "-q"),
            capture_output=True, text=True, timeout=60, cwd=directory,
        )  # fmt: skip


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory of the user's, in one that others may enter: pytest's own is closed to them."""
    with tempfile.TemporaryDirectory(prefix="parshall-test-") as made:
        os.chown(made, int(NOBODY), int(NOBODY))
        yield Path(made)


def names(value: object) -> str:
    """Return what a parameter adds to the name of a test."""
    return value if isinstance(value, str) else ""


def with_capabilities() -> list[Any]:
    """Return the commands of the page as parameters; those that need what another one needs are for the long suite."""
    found, seen = [], []
    for command, needed in table():
        kind = (command.split()[0], needed)
        found.append(pytest.param(command, needed, marks=[pytest.mark.long] if kind in seen else []))
        seen.append(kind)
    return found


def without_one_capability() -> list[Any]:
    """Return commands, capabilities and a missing one as parameters; the first of each missing one is quick."""
    found, seen = [], set()
    for command, needed in table():
        for one in needed:
            found.append(pytest.param(command, needed, one, marks=[pytest.mark.long] if one in seen else []))
            seen.add(one)
    return found


@pytest.mark.parametrize(("command", "capabilities"), with_capabilities(), ids=names)
def test_a_command_runs_with_the_capabilities_that_the_page_lists(
    bed: Any, directory: Path, command: str, capabilities: list[str]
) -> None:
    said = run(bed, directory, command, capabilities)
    assert said.returncode == 0, said.stderr


def test_the_doctor_forbids_no_command_that_the_page_allows() -> None:
    allowed = {command.split()[0]: needed for command, needed in reversed(table())}
    words = as_nobody(allowed["tcp"], sys.executable, "-m", "parshall", "doctor", "--json")
    said = subprocess.run(words, capture_output=True, text=True, timeout=60)
    decisions = {each["command"]: each for each in json.loads(said.stdout)["commands"]}
    for command in (name for name, needed in allowed.items() if set(needed) <= set(allowed["tcp"])):
        assert decisions[command]["status"] != "cannot", decisions[command]
    assert decisions["testbed"]["status"] == "cannot"


@pytest.mark.parametrize(("command", "capabilities", "missing"), without_one_capability(), ids=names)
def test_without_one_capability_it_names_the_missing_one(
    bed: Any, directory: Path, command: str, capabilities: list[str], missing: str
) -> None:
    said = run(bed, directory, command, [one for one in capabilities if one != missing])
    assert said.returncode in (1, 2), said
    (line,) = said.stderr.splitlines()
    assert missing in line, line
    assert not (directory / "file").exists()
