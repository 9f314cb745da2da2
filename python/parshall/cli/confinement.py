"""Privileges that a command gives up once its instrument runs: from then on it parses, and writes files."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from parshall.errors import ParshallError
from parshall.host.messages import say

is_own_process = False
"""Whether the command line has this process to itself: privileges are given up for ever."""

_ALLOCATORS = ("_RJEM_MALLOC_CONF", "JE_ARROW_MALLOC_CONF")


@contextmanager
def without_threads_of_allocators() -> Iterator[None]:
    """Let libraries that are imported before `confine` start no threads that block all signals.

    A thread can give up its own privileges only, and does so at a signal. The allocators of Polars and Arrow (jemalloc)
    read their settings when they are loaded. A command that is started later inherits nothing of it.
    """
    before = {name: os.environ.get(name) for name in _ALLOCATORS}
    os.environ.update({name: "background_thread:false" for name in _ALLOCATORS})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def confine(
    command: str,
    outputs: Iterable[str | os.PathLike[str]] = (),
    *,
    has_child: bool = False,
    enters_namespaces: bool = False,
) -> None:
    """Keep only the privileges that running instruments need, in all threads.

    Parameters
    ----------
    command : str
        The command, for messages.
    outputs : iterable of path-like
        Files that may still be created, and directories that may be removed.
    has_child : bool
        Whether a command that was started must be ended.
    enters_namespaces : bool
        Whether programs are attached, and counters read, in network namespaces later, too.
    """
    if not is_own_process:
        return
    from parshall import _native

    # Without the kernel's side there is nothing that needs privileges, and nothing that gives them up.
    give_up = getattr(_native, "confine", None)
    if give_up is None:
        return
    try:
        give_up(any(_needs_override(Path(path)) for path in outputs), has_child, enters_namespaces)
    except ParshallError as error:
        say(command, str(error))


def _needs_override(path: Path) -> bool:
    """Whether the permissions of an output's directory do not let this user create or remove something in it."""
    try:
        found = path.resolve().parent.stat()
    except OSError:
        return False
    if found.st_uid == os.geteuid():
        return not found.st_mode & 0o200
    if found.st_gid in {os.getegid(), *os.getgroups()}:
        return not found.st_mode & 0o020
    return not found.st_mode & 0o002
