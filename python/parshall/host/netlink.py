"""Netlink sockets whose requests no signal breaks off, also in notebooks."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from parshall.host.stopping import uninterrupted

if TYPE_CHECKING:
    from pyroute2 import IPRoute


@contextmanager
def route_socket() -> Iterator["IPRoute"]:
    """Open a route netlink socket in the network namespace of the calling thread; as `netlink_socket`."""
    from pyroute2 import IPRoute

    with netlink_socket(IPRoute) as route:
        yield route


@contextmanager
def netlink_socket(kind: Callable[[], Any]) -> Iterator[Any]:
    """Open a socket of pyroute2 in the network namespace of the calling thread.

    Signals wait until it is closed: pyroute2 runs its requests in an event loop, and an exception that a signal raises
    in there leaves a part of the request behind, about which Python complains on standard error.

    A thread has one event loop at a time, and a cell of a notebook runs in one. There the socket has a thread of its
    own, which begins in the same namespace.
    """
    with uninterrupted():
        if not _runs_in_event_loop():
            with kind() as opened:
                yield opened
            return
        with ThreadPoolExecutor(1, "netlink") as thread:
            opened = thread.submit(kind).result()
            try:
                yield _InThread(thread, opened)
            finally:
                thread.submit(opened.close).result()


def _runs_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _InThread:
    """Calls the methods of a socket in its thread."""

    def __init__(self, thread: ThreadPoolExecutor, opened: Any) -> None:
        self._thread, self._opened = thread, opened

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._opened, name)
        if not callable(found):
            return found
        return lambda *arguments, **options: self._thread.submit(_whole, found, arguments, options).result()


def _whole(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call a function; an answer in parts is read to its end, since that waits for the socket, too."""
    answer = function(*arguments, **options)
    return tuple(answer) if isinstance(answer, GeneratorType) else answer
