"""Parse quantities as users type them: ``64M`` bytes, ``500ms``, ``10k`` packets, ``2.5G`` bit/s; write times.

Every function that parses raises `UsageError` for another text.
"""

import ipaddress
import math
import re

from parshall.errors import UsageError

_AMOUNT = re.compile(r"(?P<number>\d{1,30}(?:\.\d{1,30})?(?:[eE]\d{1,2})?)\s*(?P<unit>[A-Za-z/]{0,8})", re.ASCII)
# As in other packet tools, a letter alone is a power of 1024, too.
_BYTES = {"": 1, "b": 1} | {
    letter + end: 1 << shift for letter, shift in (("k", 10), ("m", 20), ("g", 30)) for end in ("", "b", "ib")
}
_SECONDS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1, "k": 1000, "K": 1000, "M": 1_000_000, "G": 1_000_000_000}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# As other packet tools, in any case: a rate in thousandths would make no sense.
_RATE_UNITS = {"bits": ("bit/s", "bits/s", "bps", "bit"), "packets": ("packets/s", "pps")}
_RATE_OPTIONS = {"bits": "bits per second are --rate", "packets": "packets per second are --pps"}
_LISTED_MAX = 4096


def parse_bytes(option: str, text: str) -> int:
    """Return a size in bytes, above 0."""
    return round(_parse(option, text, text.lower(), _BYTES, "a size such as 65536, 64K or 1.5G"))


def parse_seconds(option: str, text: str, *, allow_0: bool = False) -> float:
    """Return a time in seconds, above 0; with `allow_0`, from 0."""
    if allow_0 and re.fullmatch(r"\s*0+(\.0+)?\s*[a-z]{0,3}\s*", text.lower()):
        return 0.0
    return _parse(option, text, text.lower(), _SECONDS, "a time such as 90, 90s, 500ms, 10m or 1h")


def parse_latency(option: str, text: str) -> float:
    """Return a time in seconds, above 0, that has its unit: a plain number could be meant in microseconds."""
    if re.fullmatch(r"\s*[\d.]+\s*", text, re.ASCII):
        number = text.strip()
        raise UsageError(f"{option} {text}: expected a unit: {number}us, {number}ms or {number}s")
    return parse_seconds(option, text)


def parse_count(option: str, text: str, *, allow_0: bool = False) -> int:
    """Return a count: a whole number from 1, or from 0, to 2^64 - 1."""
    if allow_0 and text.strip() == "0":
        return 0
    expected = "a number such as 1000, 10k or 2M"
    count = _parse(option, text, text, _COUNTS, expected)
    # A number without a suffix is exact, however large.
    is_plain = text.strip().isdecimal()
    whole = int(text) if is_plain else round(count)
    if not (is_plain or whole == count) or not 0 < whole < 1 << 64:
        raise UsageError(f"{option} {text}: expected {expected}, from 1 to 2^64 - 1")
    return whole


def parse_rate(option: str, text: str, counted: str) -> float:
    """Return a rate per second, above 0; `counted` is bits or packets, and a text in the other unit is refused."""
    other = "bits" if counted == "packets" else "packets"
    if re.fullmatch(rf"\s*[\d.]+\s*[kmgt]?({'|'.join(_RATE_UNITS[other])})\s*", text, re.ASCII | re.IGNORECASE):
        raise UsageError(f"{option} {text}: counts {counted}; {_RATE_OPTIONS[other]}")
    units = {prefix + unit: factor for prefix, factor in _PREFIXES.items() for unit in ("", *_RATE_UNITS[counted])}
    return _parse(option, text, text.lower(), units, "a rate such as 900k, 10M or 2.5G")


def parse_whole(option: str, text: str) -> int:
    """Return a whole number as it is written, without a suffix."""
    if not re.fullmatch(r"\s*[+-]?\d{1,30}\s*", text, re.ASCII):
        raise UsageError(f"{option} {text}: expected a whole number")
    return int(text)


def parse_number(option: str, text: str) -> float:
    """Return a finite number as it is written, without a suffix."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{option} {text}: expected a number")
    return number


def parse_fraction(option: str, text: str) -> float:
    """Return a share of a whole, which may exceed it: ``0.6`` or ``60%``."""
    number = text.strip()
    try:
        return parse_number(option, number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except UsageError:
        raise UsageError(f"{option} {text}: expected a share such as 0.05 or 5%") from None


def parse_percent(option: str, text: str) -> float:
    """Return a number of percent: ``95`` or ``95%``."""
    try:
        return parse_number(option, text.strip().removesuffix("%"))
    except UsageError:
        raise UsageError(f"{option} {text}: expected percent, such as 95 or 95%") from None


def parse_port(option: str, text: str) -> int:
    """Return the number of a port."""
    if not re.fullmatch(r"\s*\d{1,5}\s*", text, re.ASCII) or not 1 <= int(text) <= 65535:
        raise UsageError(f"{option} {text}: expected a port from 1 to 65535")
    return int(text)


def parse_numbers(option: str, text: str) -> list[int]:
    """Return the numbers of a list such as ``0,2`` or ``0-3``."""
    listed: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= last - first < _LISTED_MAX:
            raise UsageError(f"{option} {text}: expected a number or a list such as 0,2 or 0-3")
        listed += range(first, last + 1)
    return listed


def size_text(size_bytes: int) -> str:
    """Return a size in the largest unit in which it is whole: ``512M``."""
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)


def bytes_text(count: float) -> str:
    """Return a number of bytes in MB, as links and files are counted; a small one as it is: ``38,008 bytes``."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else many(round(count), "byte")


def duration_text(time_ns: float | None) -> str:
    """Return a time with three digits and its unit: ``12.3 us``; ``-`` for None."""
    if time_ns is None:
        return "-"
    for scale, unit in ((1.0, "ns"), (1e3, "us"), (1e6, "ms")):
        # From here on, three digits would be 1e+03.
        if abs(time_ns) < 999.5 * scale:
            return f"{time_ns / scale:.3g} {unit}"
    time_s = time_ns / 1e9
    return f"{time_s:.3g} s" if abs(time_s) < 999.5 else f"{time_s:,.0f} s"


def long_time_text(seconds: float) -> str:
    """Return a time that somebody waits for in words: ``54 s``, ``20 min``, ``2 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def many(count: int, thing: str) -> str:
    """Return a count with its noun in the singular or plural."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _parse(option: str, text: str, spelled: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    match = _AMOUNT.fullmatch(spelled.strip())
    unit = units.get(match["unit"]) if match else None
    amount = float(match["number"]) * unit if match and unit is not None else 0.0
    if not 0 < amount < math.inf:
        # With a number and a unit, only the amount is wrong.
        zero = "must be above 0; " if match and unit is not None and amount == 0 else ""
        raise UsageError(f"{option} {text}: {zero}expected {expected}")
    return amount


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Return host and port of ``[HOST:]PORT``; without a host, the loopback."""
    parts = re.fullmatch(r"(?:(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+)):)?(?P<port>[0-9]{1,5})", text)
    try:
        host = ipaddress.ip_address((parts["v6"] or parts["v4"] or "127.0.0.1") if parts else "")
        port = int(parts["port"]) if parts else -1
    except ValueError:
        port = -1
    if not 0 <= port < 65536:
        raise UsageError(
            f"{option} {text}: expected a port, or an address and a port: 9777, 127.0.0.1:9777, [::1]:9777"
        )
    return str(host), port
