"""The rings of captures on this host: who reads what, and what found no room."""

import threading
from collections.abc import Callable
from typing import Any

from parshall.errors import ParshallError, printable
from parshall.instruments.capture import rings, short_filter

_POLL_S = 1.0
_SHOWN_MAX = 20


def listed() -> list[dict[str, Any]]:
    """Return the rings of this host, as `described` does; none without the kernel's side."""
    try:
        found = rings()
    except ParshallError:
        return []
    return [described(ring) for ring in found[:_SHOWN_MAX]]


def described(ring: dict[str, Any]) -> dict[str, Any]:
    """Return a ring of `parshall.instruments.capture.rings` as words and numbers for people."""
    if "unreadable" in ring:
        return {"ring": printable(ring["unreadable"]), "hooks": None, "policy": None, "readers": []}
    readers = [
        {
            "pid": reader["pid"],
            "filter": short_filter(reader["filter"]),
            **{name: reader[name] for name in ("seen", "matched", "dropped")},
        }
        for reader in ring["subscribers"][:_SHOWN_MAX]
    ]
    hooks = ", ".join(printable(hook) for hook in ring["hooks"])
    return {"ring": printable(ring["name"]), "hooks": hooks, "policy": printable(ring["policy"]), "readers": readers}


class Rings:
    """Looks at the rings once a second in a thread, until the end of the block.

    Parameters
    ----------
    on_news : callable
        Takes the rings when something of them is new.
    look : callable
        What gives them, as `listed` does.
    """

    def __init__(
        self,
        on_news: Callable[[list[dict[str, Any]]], None],
        look: Callable[[], list[dict[str, Any]]] = listed,
    ) -> None:
        self._on_news, self._look = on_news, look
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rings", daemon=True)

    def __enter__(self) -> "Rings":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        last: list[dict[str, Any]] = []
        while True:
            found = self._look()
            if found != last:
                last = found
                self._on_news(found)
            if self._is_ending.wait(_POLL_S):
                return
