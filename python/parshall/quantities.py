"""Sizes and times as people type them: ``64M``, ``1.5GiB``, ``90s``, ``10m``."""

import math
import re

from parshall.errors import UsageError

_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
# As tools for packets have it, a plain letter is a power of 1024, too.
_BYTES = {"": 1, "b": 1} | {
    letter + end: 1 << shift for letter, shift in (("k", 10), ("m", 20), ("g", 30)) for end in ("", "b", "ib")
}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_bytes(option: str, text: str) -> int:
    """Return a size in bytes.

    Raises
    ------
    UsageError
        The text is no size above 0.
    """
    return round(_parse(option, text, _BYTES, "a size such as 65536, 64K or 1.5G"))


def parse_seconds(option: str, text: str) -> float:
    """Return a time in seconds.

    Raises
    ------
    UsageError
        The text is no time above 0.
    """
    return _parse(option, text, _SECONDS, "a time such as 90, 90s, 10m or 1h")


def _parse(option: str, text: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    match = _AMOUNT.fullmatch(text.strip())
    unit = units.get(match["unit"].lower()) if match else None
    amount = float(match["number"]) * unit if match and unit is not None else 0.0
    if not 0 < amount < math.inf:
        raise UsageError(f"{option} {text}: expected {expected}")
    return amount
