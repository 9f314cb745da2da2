"""The session that all instruments share: a running measurement, its status and its summary."""

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from parshall.errors import UsageError, printable
from parshall.host.ledger_text import shown_html, shown_lines
from parshall.host.shown import html_lines

# Characters of a wrong value that a message shows.
_SHOWN = 60
_POLL_INTERVAL_S = 0.01
Result = TypeVar("Result")


@dataclass(frozen=True, repr=False)
class Summary:
    """How a log or a capture ended. It prints as its account.

    Attributes
    ----------
    ledger : dict
        The final ledger; see ``docs/ledger.md``.
    failure : str or None
        What ended it early, or the first file that could not be written.
    """

    ledger: dict[str, Any]
    failure: str | None

    def __repr__(self) -> str:
        return "\n".join([*map(printable, self._facts()), *shown_lines(self.ledger)])

    def _repr_html_(self) -> str:
        facts = self._facts()
        return (html_lines(facts) if facts else "") + shown_html(self.ledger)

    def _facts(self) -> list[str]:
        """Return lines about what is no ledger."""
        return [f"ended early: {self.failure}"] if self.failure else []


class _Native(Protocol):
    def status(self) -> str: ...
    def request_stop(self) -> None: ...
    def account(self) -> str: ...
    def stop(self) -> str: ...


class Session(ABC, Generic[Result]):
    """A running measurement; as a context manager, it stops at the end of the block.

    Attributes
    ----------
    summary : Result or None
        The result of `stop`; None while the measurement runs.
    """

    summary: Result | None = None
    _native: _Native

    def status(self) -> dict[str, Any]:
        """Return the counts so far, and ``has_ended``: whether it has ended, by request or by itself.

        A log counts ``records``, ``flows``, ``overwritten`` and ``log_bytes``; a capture ``packets``, ``wire_bytes``,
        ``lost`` and ``notices``; a generator ``packets`` and the ``bytes`` of their frames.
        """
        status: dict[str, Any] = json.loads(self._native.status())
        return status

    def account(self) -> dict[str, Any] | None:
        """Return what the measurement knows of itself, about a second old at most; None of one that keeps no account.

        Returns
        -------
        dict or None
            ``ledger`` of the whole run, and what the instrument has measured. Of a log of TCP: ``flows_open``,
            ``flows_ended`` by how; ``listeners`` that refused something, ``segments_unlisted`` as in `LogSummary`;
            ``srtt``, the smoothed round-trip times of the flows that had packets, once a second each: ``counts`` up to
            each of ``bounds_us`` and beyond, ``sum_us``. Of paths: ``paths``, ``times``, ``drops``,
            ``uncounted_drops``, ``without_histogram``, ``reads``, ``attached_s`` and ``budget`` as in `PathSummary`.
            Of a capture by a ring: ``until_time_ns``, when it was drawn up. Before the first second the ledger has no
            hooks or subscribers.
        """
        account: dict[str, Any] | None = json.loads(self._native.account())
        return account

    def request_stop(self) -> None:
        """Request the end of the measurement; `stop` waits for it."""
        self._native.request_stop()

    def stop(self) -> Result:
        """End the measurement, write all pending data and return the summary; can be called again."""
        if self.summary is None:
            self.summary = self._summarize(json.loads(self._native.stop()))
        return self.summary

    def wait(self) -> Result:
        """Wait until the measurement ends by itself, and return the summary."""
        while self.summary is None and not self.status()["has_ended"]:
            time.sleep(_POLL_INTERVAL_S)
        return self.stop()

    @abstractmethod
    def _summarize(self, account: dict[str, Any]) -> Result:
        """Return the result for the summary of the Rust side."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def request_json(request: dict[str, Any]) -> str:
    """Return a request as JSON for the Rust side; paths may have bytes that are not UTF-8."""
    return json.dumps(request, default=_plain)


def _plain(value: Any) -> Any:
    """Return a path as text, and a numpy number as a Python number."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value.item()


def check_text(option: str, value: str | None) -> None:
    """Raise UsageError unless a value is valid text: command lines may have bytes that are not UTF-8."""
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
    """Raise UsageError unless a value is None or one of the choices."""
    check_text(option, value)
    if value is not None and value not in choices:
        expected = f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]
        raise UsageError(f"{option} {value}: expected {expected}")
