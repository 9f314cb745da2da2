"""What all instruments share: a measurement that runs, its status, its end and its summary."""

import json
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from parshall.errors import UsageError, printable

# Characters of a wrong value that a message shows.
_SHOWN = 60
_LOOK_INTERVAL_S = 0.01
Summary = TypeVar("Summary")


class _Native(Protocol):
    def status(self) -> str: ...
    def request_stop(self) -> None: ...
    def stop(self) -> str: ...


class Session(Generic[Summary]):
    """A measurement that has begun; as a context manager it is stopped at the end of the block.

    Attributes
    ----------
    summary : object or None
        What `stop` returned; None while the measurement runs.
    """

    summary: Summary | None = None
    _native: _Native

    def status(self) -> dict[str, Any]:
        """Return the numbers so far, and ``has_ended``: whether it has ended, by request or by itself."""
        status: dict[str, Any] = json.loads(self._native.status())
        return status

    def request_stop(self) -> None:
        """Ask the measurement to end; `stop` waits for it."""
        self._native.request_stop()

    def stop(self) -> Summary:
        """End the measurement, write what is left and return the summary; once stopped, return it again."""
        if self.summary is None:
            self.summary = self._summarize(json.loads(self._native.stop()))
        return self.summary

    def wait(self) -> Summary:
        """Wait until the measurement ends by itself, and return the summary."""
        while self.summary is None and not self.status()["has_ended"]:
            time.sleep(_LOOK_INTERVAL_S)
        return self.stop()

    def _summarize(self, account: dict[str, Any]) -> Summary:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def request_json(request: dict[str, Any]) -> str:
    """Return a request as the Rust side reads it; paths may have bytes that are not UTF-8."""
    return json.dumps(request, default=_plain)


def _plain(value: Any) -> Any:
    """Return a path as text, and a number of numpy as one of Python."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value.item()


def check_text(option: str, value: str | None) -> None:
    """Refuse a value that is no text: the bytes of the command line need not be UTF-8."""
    if value is None:
        return
    if not isinstance(value, str):
        raise UsageError(f"{option} {value!r:.{_SHOWN}}: expected text; give a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        shown = printable(value[max(0, error.start - _SHOWN) : error.start + 1])
        raise UsageError(f"{option} '{shown}': character {error.start + 1} is not UTF-8; leave it out") from None


def check_choice(option: str, value: str | None, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices; None is."""
    check_text(option, value)
    if value is not None and value not in choices:
        raise UsageError(f"{option} {value}: expected {', '.join(choices[:-1])} or {choices[-1]}")
