"""Remove what a former report wrote and the one in its place does not: its last line lists its files."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

_PREFIX = "<!-- Files of this report, by their SHA-256: "
_SUFFIX = " -->\n"
# A page may be of others. Names are those that a report writes, and the list is no longer than that of 10,000 files.
_NAME = re.compile(r"(?P<directory>figures/)?(?P<file>[^/\0.][^/\0]*\.(?:svg|png|csv))")
_LIST_BYTES_MAX = 2 << 20


def list_line(files: Mapping[str, str | bytes]) -> str:
    """Return the last line of a page: its files by their names, relative to the page."""
    digests = {name: _digest(text if isinstance(text, bytes) else text.encode()) for name, text in files.items()}
    # It must not end the comment.
    return _PREFIX + json.dumps(digests).replace(">", "\\u003e") + _SUFFIX


def files_of(page: Path) -> dict[str, str]:
    """Return the files that a page lists, with their digests; none when it is no page of a report."""
    try:
        with os.fdopen(os.open(page, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LIST_BYTES_MAX))
            text = file.read(_LIST_BYTES_MAX).decode(errors="replace")
        found = json.loads(text.rpartition(_PREFIX)[2].removesuffix(_SUFFIX)) if _PREFIX in text else {}
    except (OSError, ValueError, RecursionError):
        return {}
    listed = found.items() if isinstance(found, dict) else ()
    return {name: digest for name, digest in listed if _NAME.fullmatch(name) and isinstance(digest, str)}


def remove_files(directory: Path, former: Mapping[str, str], kept: Collection[str]) -> None:
    """Remove the files of a former report but for `kept`, where they are as it wrote them; follow no links."""
    for name, digest in former.items():
        match = _NAME.fullmatch(name)
        if match is None or name in kept:
            continue
        place = directory / (match["directory"] or "")
        with suppress(OSError):
            inside = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _digest_inside(inside, match["file"]) == digest:
                    os.unlink(match["file"], dir_fd=inside)
            finally:
                os.close(inside)


def _digest_inside(directory: int, name: str) -> str | None:
    """Return the digest of a regular file of an open directory; None for anything else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return hashlib.file_digest(file, "sha256").hexdigest() if is_regular else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
