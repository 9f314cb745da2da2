"""The exceptions of Parshall: their text is one line that names the thing, the value, the remedy."""

_WRONG_NAME = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def printable(text: str) -> str:
    """Return a text on one line, with escapes for what would steer a terminal and for bytes that are not UTF-8."""
    return "".join(letter if letter.isprintable() else _escape(ord(letter)) for letter in text)


def _escape(code: int) -> str:
    # Python keeps a byte of the command line that is not UTF-8 as a surrogate.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else ascii(chr(code))[1:-1]


class ParshallError(Exception):
    """Something could not be done; the command line shows the text and exits with status 1."""


class UsageError(ParshallError):
    """The request itself is wrong; the command line shows the text and exits with status 2."""


def file_error(error: OSError, text: str) -> ParshallError:
    """Return what to raise for a file: a mistake of the request, if it is not there or may not be used."""
    is_request = isinstance(error, _WRONG_NAME)
    return UsageError(text) if is_request else ParshallError(text)


class CommandError(ParshallError):
    """A command that was to be measured could not be run.

    Attributes
    ----------
    status : int
        Exit status, as shells have it: 126 cannot be run, 127 does not exist.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
