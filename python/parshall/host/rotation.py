"""Files that rotate: an instrument that runs long writes a series of numbered files."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from parshall.errors import UsageError

# A file has a header and a ledger besides its content.
_SIZE_MIN_BYTES = 4096

_GAP_CAUSES = {
    "restarted": "the writer ended, and another one began",
    "killed": "the writer was killed or ran out of room, and another one began",
    "file_missing": "a file of the log is missing",
    "file_damaged": "a file of the log has no head, as after a loss of power",
}


@dataclass(frozen=True)
class Rotation:
    """When an instrument starts a new file, and which files stay.

    With rotation, the output ``day.arrow`` is the series ``day.000001.arrow``, ``day.000002.arrow``, ... It goes on
    after the highest number that exists.

    Attributes
    ----------
    rotate_size_bytes : int, optional
        Start a new file at this size.
    rotate_time_s : float, optional
        Start a new file after this time, seconds.
    rotate_files : int, optional
        Keep so many files; a new one removes the oldest.
    keep_s : float, optional
        A new file removes those that were last written so many seconds ago.
    is_shipped : bool
        Each file goes to a store when it is finished, and is removed by what sends it.
    """

    rotate_size_bytes: int | None = None
    rotate_time_s: float | None = None
    rotate_files: int | None = None
    keep_s: float | None = None
    is_shipped: bool = False

    def __post_init__(self) -> None:
        if self.rotate_files is not None and self.rotate_files < 1:
            raise UsageError(f"--rotate-files {self.rotate_files}: expected 1 or more")
        if self.rotate_size_bytes is not None and self.rotate_size_bytes < _SIZE_MIN_BYTES:
            raise UsageError(f"--rotate-size {self.rotate_size_bytes}: expected {_SIZE_MIN_BYTES} bytes or more")
        for option, limit in (("--rotate-files", self.rotate_files), ("--keep", self.keep_s)):
            if limit is not None and not self.is_on:
                raise UsageError(f"{option}: give --rotate-size or --rotate-time, too; without, there is one file")

    @property
    def is_on(self) -> bool:
        """Whether there may be several files."""
        return self.rotate_size_bytes is not None or self.rotate_time_s is not None

    @property
    def shipped(self) -> "Rotation":
        """The same, with all files left to what ships them."""
        return Rotation(self.rotate_size_bytes, self.rotate_time_s, is_shipped=True)

    def request(self) -> dict[str, Any]:
        """Return the request of an instrument; times are nanoseconds."""
        return {
            "size_bytes": self.rotate_size_bytes,
            "time_ns": None if self.rotate_time_s is None else round(self.rotate_time_s * 1e9),
            "files": self.rotate_files,
            "keep_ns": None if self.keep_s is None else round(self.keep_s * 1e9),
        }


ONE_FILE = Rotation()
"""No rotation."""


def gap_sentence(gap: Mapping[str, Any]) -> str:
    """Return the sentence about a time that a log does not have: one of `plain_rows` of `Log.gaps`."""
    begin_ns, end_ns = gap["from_time_ns"], gap["until_time_ns"]
    if begin_ns is None and end_ns is None:
        when = "for some time"
    elif begin_ns is None:
        when = f"before {_utc(end_ns)}"
    elif end_ns is None:
        when = f"after {_utc(begin_ns)}"
    elif end_ns < begin_ns:
        return (
            f"A file begins at {_utc(end_ns)}, {(begin_ns - end_ns) / 1e9:.3g} s before one of another writer ends: "
            "two hosts may ship under one name, or the clock was set back."
        )
    else:
        when = f"from {_utc(begin_ns)} to {_utc(end_ns)} ({(end_ns - begin_ns) / 1e9:.3g} s)"
    return f"Nothing was logged {when}: {_GAP_CAUSES.get(gap['cause'], gap['cause'])}."


def _utc(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
