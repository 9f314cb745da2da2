"""Temporary directories: found and removed once their owner has ended, however short it lived, and never before."""

import tempfile
from pathlib import Path

import pytest

from parshall.host import temporary
from parshall.host.temporary import TemporaryDirectory, leftovers, remove


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_an_owner_left_before_it_wrote_is_removed_at_once(place: Path) -> None:
    path = Path(tempfile.mkdtemp(prefix="parshall-router-"))
    assert list(leftovers()) == [path]
    assert remove(path) and not list(place.iterdir())


def test_what_a_living_owner_has_is_not_removed() -> None:
    with TemporaryDirectory("router") as path:
        assert not list(leftovers())
        assert not remove(path) and path.exists()
    assert not path.exists()


@pytest.mark.parametrize("when", ["before the lock is opened", "before the lock is held"])
def test_an_owner_whose_directory_was_removed_before_it_held_it_makes_another(
    when: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = temporary.lock, []

    def lock_late(path: Path) -> int:
        if removed:
            return lock(path)
        removed.append(path)
        if when == "before the lock is opened":
            path.rmdir()
            return lock(path)
        descriptor = lock(path)
        path.rmdir()
        return descriptor

    monkeypatch.setattr(temporary, "lock", lock_late)
    with TemporaryDirectory("router") as path:
        assert path.is_dir() and path not in removed
        assert not list(leftovers())
    assert not list(place.iterdir())
