"""Disks that are full, read-only, or end at a quota: one line, a status, and what was there is there."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
LOG = Path(__file__).parents[1] / "data" / "small.arrow"
OLD = b"what the user had"
# Below what any of the commands writes, above what was there.
ROOM_BYTES = 4096

COMMANDS = {
    "tcp": ["tcp", "-d", "1", "-o", "FILE"],
    "capture": ["capture", "-i", "lo", "-d", "1", "-w", "FILE"],
    "capture by a socket": ["capture", "-i", "lo", "--backend", "af-packet", "-d", "1", "-w", "FILE"],
    "cpu": ["cpu", "--interval", "10ms", "-d", "2", "-o", "FILE"],
    "sizes": ["sizes", "imix", "--to", "sizes", "-n", "100k", "-o", "FILE"],
    "convert to text": ["convert", LOG, "--to", "csv", "-o", "FILE"],
    "convert to parquet": ["convert", LOG, "--to", "parquet", "-o", "FILE"],
    "convert to records": ["convert", LOG, "--to", "ttprobe-binary", "-o", "FILE"],
}
# Their file takes the place of the old one when they begin to measure.
LIVE = {"tcp", "capture", "capture by a socket", "cpu"}
# What the others write in a second depends on the host's traffic, so that it may fit.
FILLS = [name for name in COMMANDS if name not in LIVE - {"cpu"}]


@contextlib.contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    """A file system of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


def run(command: str, file: Path, **options: object) -> "subprocess.CompletedProcess[str]":
    words = [str(file if word == "FILE" else word) for word in COMMANDS[command]]
    return subprocess.run(
        [sys.executable, "-m", "parshall", words[0], "-q", *words[1:]],
        capture_output=True, text=True, timeout=60, **options,
    )  # fmt: skip


def check(said: "subprocess.CompletedProcess[str]", file: Path, words: str) -> None:
    """Hold a run that could not write against what is promised."""
    assert said.returncode == 1 or said.returncode == 2, said
    (line,) = said.stderr.splitlines()
    assert str(file) in line, line
    assert words in line, line
    assert "; " in line, f"no remedy: {line}"


@pytest.mark.parametrize("command", long_except(["capture", "convert to text"], COMMANDS))
def test_a_full_disk(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with mounted(tmp_path, f"size={2 * ROOM_BYTES}"):
        file.write_bytes(OLD)
        (tmp_path / "others").write_bytes(bytes(ROOM_BYTES))
        said = run(command, file)
        check(said, file, "No space left on device")
        assert command in LIVE or file.read_bytes() == OLD
        assert {path.name for path in tmp_path.iterdir()} == {"file", "others"}


@pytest.mark.parametrize("command", long_except(["tcp", "convert to parquet"], COMMANDS))
def test_a_read_only_disk(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with mounted(tmp_path, "size=1M"):
        file.write_bytes(OLD)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        check(run(command, file), file, "Read-only file system")
        assert file.read_bytes() == OLD
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", long_except(["cpu", "sizes"], FILLS))
def test_a_limit_of_the_size_of_files(command: str, tmp_path: Path) -> None:
    """As `ulimit -f` sets, whose signal ends a process that does not expect it."""
    file = tmp_path / "file"
    file.write_bytes(OLD)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, ROOM_BYTES))

    check(run(command, file, preexec_fn=limit), file, "File too large")
    assert command in LIVE or file.read_bytes() == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@contextlib.contextmanager
def limited(directory: Path) -> Iterator[Path]:
    """A directory whose files may take some KiB more, by the quota of its file system."""
    image, mounted_at = directory / "image", directory / "mounted"
    mounted_at.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    try:
        subprocess.run(["mkfs.btrfs", "-q", image], capture_output=True, check=True)
        subprocess.run(["mount", "-o", "loop", image, mounted_at], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs mkfs.btrfs, loop devices and a kernel with btrfs: {error}")
    try:
        place = mounted_at / "limited"
        for words in (
            ["quota", "enable", mounted_at],
            ["subvolume", "create", place],
            ["qgroup", "limit", "256K", place],
        ):
            subprocess.run(["btrfs", *words], stdout=subprocess.DEVNULL, check=True)
        # Room is kept for what the file system writes about files.
        (place / "others").write_bytes(bytes(216 << 10))
        os.sync()
        yield place
    finally:
        subprocess.run(["umount", mounted_at], check=True)


@pytest.mark.optional
@pytest.mark.parametrize("command", long_except(["convert to records"], FILLS))
def test_a_quota(command: str, tmp_path: Path) -> None:
    with limited(tmp_path) as place:
        said = run(command, place / "file")
        check(said, place / "file", "Disk quota exceeded")
        assert {path.name for path in place.iterdir()} <= {"others", "file"}
        assert command in LIVE or not (place / "file").exists()
