"""The token in the page's address: everyone who knows it may see the page."""

import os
import re
import secrets
from pathlib import Path

from parshall.errors import UsageError
from parshall.host.input_file import open_regular

_BYTES = 24
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(_BYTES)


def token_in(path: Path) -> str:
    """Return the token in a file; a file that does not exist gets a new one, which only its owner can read.

    Raises
    ------
    UsageError
        It cannot be read or made, it has another content, or others can read it.
    """
    try:
        return _read(path) if os.path.lexists(path) else _made(path)
    except OSError as error:
        raise UsageError(f"--token-file {path}: {error.strerror}; name another file") from None


def _made(path: Path) -> str:
    token = new_token()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(token + "\n")
    return token


def _read(path: Path) -> str:
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o077:
            raise UsageError(f"--token-file {path}: others can read it; make it yours with mode 600, or name another")
        content = file.read(256).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(content):
        raise UsageError(f"--token-file {path}: expected 32 to 128 letters, digits, - and _; remove it for a new one")
    return content
