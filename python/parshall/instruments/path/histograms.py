"""Read what ``parshall path --json`` printed: histograms of the stages, drops, and the ledger."""

import dataclasses
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from parshall.errors import UsageError, printable
from parshall.host.first_use import imported
from parshall.host.input_file import brief, open_regular, read_json
from parshall.host.ledger_text import Ledger
from parshall.host.shown import html_lines
from parshall.instruments.path.profile import PathSummary

FORMAT = "path-histograms"
MAJOR = 1
VERSION = f"{MAJOR}.0"
# A file that begins otherwise is not JSON, and is not read as a whole.
_BEGIN = b"{"
# `as_object` begins so; a file that was cut has no more of its own.
_HEAD = f'{{"format": "{FORMAT}"'.encode()


class PathHistograms:
    """The histograms of a measurement of paths.

    Parameters
    ----------
    path : str or os.PathLike
        A file with the output of ``parshall path --json``.

    Raises
    ------
    UsageError
        The file cannot be read, or is of another kind.

    Attributes
    ----------
    summary : PathSummary
        What the measurement found.
    environment : dict
        The host at the time of the run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        found = _object(self.path)
        if found is None and _begins_with(self.path, _HEAD):
            raise UsageError(f"{self.path}: is cut or damaged; make it again: parshall path --json > FILE")
        if found is None or found.get("format") != FORMAT:
            raise UsageError(f"{self.path}: no histograms of paths; make them with: parshall path --json > FILE")
        version = str(found.get("format_version"))
        if version.partition(".")[0] != str(MAJOR):
            raise UsageError(f"{self.path}: version {brief(version)}, this Parshall reads {MAJOR}.x; upgrade Parshall")
        fields = dataclasses.fields(PathSummary)
        missing = [one.name for one in fields if one.name not in found and one.default is dataclasses.MISSING]
        if missing:
            raise UsageError(f"{self.path}: it has no {missing[0]}; the file is damaged")
        self.summary = PathSummary(**{one.name: found[one.name] for one in fields if one.name in found})
        self.environment: dict[str, Any] = found.get("environment") or {}

    def __repr__(self) -> str:
        return f"{self._head()}\n{self.summary!r}"

    def _repr_html_(self) -> str:
        return html_lines([self._head()]) + self.summary._repr_html_()

    def _head(self) -> str:
        return printable(f"{self.path}: histograms of paths{'' if self.complete else ', incomplete'}")

    @cached_property
    def plot(self) -> Any:
        """The figures of a report, one by one: ``plot.stages()``; see `parshall.figures.plots.PathPlots`."""
        return imported("parshall.figures.plots:PathPlots")(self)

    @property
    def ledger(self) -> Ledger:
        """The account: seen = filtered + thinned + logged + lost, and the cost."""
        return Ledger(self.summary.ledger)

    @property
    def complete(self) -> bool:
        """Whether the measurement was ended in order."""
        return bool(self.ledger.get("complete"))


def as_object(summary: PathSummary, environment: dict[str, Any]) -> dict[str, Any]:
    """Return a summary as the object that `PathHistograms` reads."""
    head = {"format": FORMAT, "format_version": VERSION, "environment": environment}
    return head | dataclasses.asdict(summary)


def is_path_histograms(path: Path) -> bool:
    """Return whether a file has histograms of paths, or the beginning of such; false when it cannot be read."""
    if _begins_with(path, _HEAD):
        return True
    found = _object(path)
    return found is not None and found.get("format") == FORMAT


def _begins_with(path: Path, head: bytes) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(head)) == head
    except (OSError, UsageError):
        return False


def _object(path: Path) -> dict[str, Any] | None:
    if not _begins_with(path, _BEGIN):
        return None
    try:
        found = read_json(path)
    except (OSError, ValueError, UsageError):
        return None
    return found if isinstance(found, dict) else None
