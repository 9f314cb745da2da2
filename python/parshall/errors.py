"""The exceptions of Parshall; the text is one line with the thing, its value and the remedy."""

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
