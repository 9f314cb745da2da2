"""Control groups by the names of units and containers, on groups that the test makes."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import PORTS
from tcp_logger import Logger, run

import parshall
from parshall.errors import UsageError
from parshall.host import cgroups
from parshall.host.cgroups import TemporaryCgroup, of_container, of_unit

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]

CLIENT = """import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30) as one:
    one.sendall(b"x" * 10000)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group for those of a test."""
    group = TemporaryCgroup(f"names{os.getpid()}")
    yield group.path
    for directory, _, _ in os.walk(group.path, topdown=False):
        if directory != str(group.path):
            Path(directory).rmdir()
    group.remove()


@pytest.fixture
def mark() -> str:
    """Part of a name that no other test has."""
    return f"{os.getpid():x}{next(PORTS):x}"


def test_only_the_sockets_of_the_unit_are_logged(pair: Any, group: Path, mark: str, until: Any, tmp_path: Path) -> None:
    left, right, address = pair
    port, path = next(PORTS), tmp_path / "unit.arrow"
    (group / f"web{mark}.service").mkdir()
    (group / f"web{mark}-other.service").mkdir()
    command = ["-o", path, "--unit", f"web{mark}", "--netns", left.namespace]
    with right.enter():
        listener = socket.create_server((address, port))
    with listener, Logger(until, *command) as logger:
        for name in (f"web{mark}.service", f"web{mark}-other.service", f"web{mark}.service"):
            procs = group / name / "cgroup.procs"
            words = ["sh", "-c", 'echo $$ >"$0"; exec "$@"', procs, sys.executable, "-c", CLIENT, address, port]
            left.run([str(word) for word in words])
            accepted, _ = listener.accept()
            accepted.close()
        logger.end(signal.SIGINT)
    log = parshall.read(path)
    assert log.flows.num_rows == 2
    assert set(log.flows["cgroup"].to_pylist()) == {f"/{group.name}/web{mark}.service"}


def test_a_container_is_found_by_its_number_and_by_its_name(
    group: Path, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = (mark + "f" * 64)[:64]
    for name in (f"docker-{number}.scope", "x.scope"):
        (group / name).mkdir()
    # What runs in a container has groups of its own below.
    (group / f"docker-{number}.scope" / number).mkdir()
    monkeypatch.setattr(cgroups, "_DOCKER", tmp_path)
    monkeypatch.setattr(cgroups, "_PODMAN", tmp_path / "none.json")
    # By the inode: a private mount has another path each time.
    inode = (group / f"docker-{number}.scope").stat().st_ino
    assert of_container(number[:12]).stat().st_ino == of_container(number).stat().st_ino == inode
    (tmp_path / number).mkdir()
    (tmp_path / number / "config.v2.json").write_text(json.dumps({"Name": "/shop"}))
    assert of_container("shop").stat().st_ino == inode
    # Files of a runtime that are damaged are no names.
    (tmp_path / number / "config.v2.json").write_text("{")
    with pytest.raises(UsageError, match="--container shop: no container of this name or ID runs"):
        of_container("shop")
    monkeypatch.setattr(cgroups, "_PODMAN", tmp_path / "containers.json")
    (tmp_path / "containers.json").write_text(json.dumps([{"id": number, "names": ["till"]}]))
    assert of_container("till").stat().st_ino == inode


def test_a_name_of_several_is_refused_with_their_paths(group: Path, mark: str) -> None:
    for user in ("a", "b"):
        (group / user / f"app{mark}.service").mkdir(parents=True)
    with pytest.raises(UsageError, match=f"--unit app{mark}: is the name of several; give one of them as --cgroup: /"):
        of_unit(f"app{mark}")


@pytest.mark.parametrize("command", ["tcp", "live", "path"])
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--unit", "no-such-unit"), "--unit no-such-unit: no unit of this name runs"),
        (("--container", "no-such"), "--container no-such: no container of this name or ID runs"),
        (("--container", "../.."), "--container ../..: no container of this name or ID runs"),
        (("--unit", "a", "--container", "b"), "--container: does not go with --unit; give one of them"),
        (("--cgroup", "/x", "--unit", "b"), "--unit: does not go with --cgroup; give one of them"),
    ],
)
def test_a_name_of_none_is_one_line(tmp_path: Path, command: str, words: tuple[str, ...], reason: str) -> None:
    answer = run(command, *words, "-d", "1s", cwd=tmp_path)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert reason in answer.stderr
    assert list(tmp_path.iterdir()) == []
