"""Looks at something again and again in a thread."""

import threading
from collections.abc import Callable
from typing import Any

_POLL_S = 1.0


class Polled:
    """Looks once a second in a thread, until the end of the block.

    Parameters
    ----------
    look : callable
        What gives the news.
    on_news : callable
        Takes them when they are other ones than before.
    """

    def __init__(self, look: Callable[[], Any], on_news: Callable[[Any], None]) -> None:
        self._look, self._on_news = look, on_news
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="polled", daemon=True)

    def __enter__(self) -> "Polled":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_ending.set()
        self._thread.join()

    def _run(self) -> None:
        last = None
        while True:
            found = self._look()
            if found != last:
                last = found
                self._on_news(found)
            if self._is_ending.wait(_POLL_S):
                return
