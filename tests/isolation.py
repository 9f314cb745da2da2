"""A place of its own for each test process, so that tests beside each other see nothing of one another.

Names in ``/run/netns``, rings in ``/run/parshall``, control groups and temporary directories are those of the process
alone: what one test leaves behind on purpose, the clean-up of another would remove. The kernel's programs still see
every packet of the host, so a test judges the counters of its own namespaces, ports and control groups.
"""

import ctypes
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWCGROUP = 0x00020000, 0x02000000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_PRIVATE_DIRECTORIES = ("/run/netns", "/run/parshall")
# Where each host has a directory that no program writes to.
_TEMPORARY = "/mnt"
_libc = ctypes.CDLL(None, use_errno=True)


def isolate(directories: Iterable[str] = _PRIVATE_DIRECTORIES) -> None:
    """Give the calling thread, and all that it starts, directories under ``/run`` of its own; needs root."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    for directory in directories:
        Path(directory).mkdir(parents=True, exist_ok=True)
        _mount("none", directory, "tmpfs", 0, "mode=755")


def isolate_temporary() -> None:
    """Give the calling process, after `isolate`, temporary files of its own, which every user may write."""
    _mount("none", _TEMPORARY, "tmpfs", 0, "mode=1777")
    os.environ["TMPDIR"] = tempfile.tempdir = _TEMPORARY


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [os.fsencode(word) if word is not None else None for word in (source, target, kind)]
    _check(_libc.mount(*words, flags, os.fsencode(options) if options else None), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
