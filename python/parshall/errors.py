"""The exceptions of Parshall; the text is one line with the thing, its value and the remedy."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

# Characters of an error that text of a file is in.
_REASON_CHARS_MAX = 200
_WRONG_NAME = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def printable(text: str) -> str:
    """Return a text on one line, with control characters and bytes that are not UTF-8 escaped."""
    return "".join(letter if letter.isprintable() else _escape(ord(letter)) for letter in text)


def _escape(code: int) -> str:
    # Python represents a byte that is not UTF-8 as a surrogate.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else ascii(chr(code))[1:-1]


class ParshallError(Exception):
    """An operation failed; the command line prints the text and exits with status 1."""


class UsageError(ParshallError):
    """The request is wrong; the command line prints the text and exits with status 2."""


def file_error(error: OSError, text: str) -> ParshallError:
    """Return the exception for a file: UsageError if it does not exist or may not be used."""
    is_request = isinstance(error, _WRONG_NAME)
    return UsageError(text) if is_request else ParshallError(text)


class CommandError(ParshallError):
    """The command to measure could not be run.

    Attributes
    ----------
    status : int
        Exit status, as in shells: 126 cannot be run, 127 does not exist.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def naming_damage(paths: Sequence[Path], remedy: str) -> Iterator[None]:
    """Turn what a wrong name, type or number in files leads to into a `UsageError` that names the files."""
    try:
        yield
    except (ParshallError, OSError):
        raise
    except Exception as error:
        which = "is damaged" if len(paths) == 1 else "one of them is damaged"
        reason = printable(f"{type(error).__name__}: {error}".splitlines()[0][:_REASON_CHARS_MAX])
        raise UsageError(f"{', '.join(map(str, paths))}: {which} ({reason}); {remedy}") from error
