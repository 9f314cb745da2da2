"""Input files that others may have written: regular files only, of a bounded size, never waited for."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, BinaryIO

from parshall.errors import UsageError, printable

# The largest of our own, the evaluation of a study with a million values, has some 50 MB.
TEXT_BYTES_MAX = 256 << 20
# Characters of a reason that a message shows.
_REASON_CHARS_MAX = 200


def open_regular(path: Path) -> BinaryIO:
    """Open a file, which may not be a FIFO or a device; as `read_regular`, whose errors it raises."""
    # Opening a FIFO without a writer waits, unless it must not.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise UsageError(f"{path}: is not a regular file; name another")
    return file


def read_regular(path: Path) -> str:
    """Return the text of a file that may be anything: it may not be a FIFO, a device or larger than `TEXT_BYTES_MAX`.

    Raises
    ------
    UsageError
        It is not a regular file, or too large.
    OSError
        It cannot be read.
    ValueError
        It is not UTF-8.
    """
    with open_regular(path) as file:
        content = file.read(TEXT_BYTES_MAX + 1)
    if len(content) > TEXT_BYTES_MAX:
        raise UsageError(f"{path}: is larger than {TEXT_BYTES_MAX >> 20} MiB; name another")
    return content.decode()


def read_json(path: Path) -> Any:
    """Return what a JSON file has, its texts on one line each; as `read_regular`, whose errors it raises.

    `ValueError` has a reason of one short line.
    """
    try:
        return _in_lines(json.loads(read_regular(path)))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(brief(str(error))) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return what TOML has; `ValueError` has a reason of one short line."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        # Also an integer of thousands of digits, which is no error of TOML.
        raise ValueError(brief(str(error))) from None


def brief(text: str) -> str:
    """Return a reason that has text of others, on one line of bounded length."""
    # Escapes are longer than what they stand for.
    text = printable(text[:_REASON_CHARS_MAX])
    return text if len(text) < _REASON_CHARS_MAX else f"{text[: _REASON_CHARS_MAX - 4]} ..."


def _in_lines(value: Any) -> Any:
    """Return a value with the control characters in its texts escaped: titles go to files, messages and terminals."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_in_lines(part) for part in value]
    if isinstance(value, dict):
        return {printable(key): _in_lines(part) for key, part in value.items()}
    return value
