"""A store of logs: a directory, or a bucket of an object store, by Arrow's file systems."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from parshall.errors import ParshallError, UsageError, printable

# What Arrow reads and writes; each has its own form of credentials, in the environment.
_SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs")
_CHUNK_BYTES = 8 << 20
_REASON_CHARS_MAX = 300
# Of a file that is not whole yet, in a directory.
_PARTIAL = ".partial"


class StoreError(ParshallError):
    """A store cannot be reached, or does not take or give what it should."""


def is_url(text: str | os.PathLike[str]) -> bool:
    """Whether a text names a store by its URL."""
    return "://" in os.fspath(text)


class Store:
    """A place of objects with names such as ``logs/host=web1/flows.20261128171200123.arrow``.

    Parameters
    ----------
    url : str or os.PathLike
        A directory, or the URL of a bucket and a prefix in it, as `pyarrow.fs.FileSystem.from_uri` takes it:
        ``s3://bucket/prefix?endpoint_override=host:9000&scheme=http``. Credentials come from the environment.
    option : str
        What the user calls it, for messages.

    Raises
    ------
    UsageError
        It is no such URL, or has credentials in it.
    """

    def __init__(self, url: str | os.PathLike[str], option: str = "store") -> None:
        self.url = os.fspath(url)
        self._option = option
        self._files, self._root = self._opened()
        self.is_local = self._files.type_name == "local"
        """Whether it is a directory."""

    def _opened(self) -> tuple[Any, str]:
        from pyarrow import fs

        if not is_url(self.url):
            return fs.LocalFileSystem(), str(Path(self.url).absolute())
        parts = urlsplit(self.url)
        if parts.scheme not in _SCHEMES:
            raise UsageError(
                f"{self._option} {self._shown()}: cannot be reached by {printable(parts.scheme)}; give a directory, or "
                f"a URL of {', '.join(_SCHEMES)}"
            )
        if parts.password is not None or (parts.username is not None and parts.scheme == "s3"):
            # It would stand in logs, messages and the list of processes.
            raise UsageError(
                f"{self._option} {self._shown()}: has credentials in it, which others would read; leave them out, and "
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        with self._naming():
            files, root = fs.FileSystem.from_uri(self.url)
        return files, root.rstrip("/")

    def _shown(self) -> str:
        """Return the URL as messages have it, without credentials."""
        parts = urlsplit(self.url)
        return printable(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())

    @property
    def directory(self) -> Path:
        """The directory of a local store."""
        return Path(self._root)

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def sizes(self, below: str) -> dict[str, int]:
        """Return the objects below a name, and their bytes; those that are not whole yet are left out."""
        from pyarrow import fs

        with self._naming():
            found = self._files.get_file_info(fs.FileSelector(self._place(below), allow_not_found=True, recursive=True))
        start = len(self._root) + 1
        names = {each.path[start:]: each.size for each in found if each.type == fs.FileType.File}
        return {name: size for name, size in sorted(names.items()) if not name.endswith(_PARTIAL)}

    def size(self, name: str) -> int | None:
        """Return the bytes of an object; None: there is none."""
        from pyarrow import fs

        with self._naming():
            found = self._files.get_file_info(self._place(name))
        return found.size if found.type == fs.FileType.File else None

    def put(self, local: Path, name: str) -> int:
        """Copy a file into the store, where it appears when it is whole; return its bytes.

        Raises
        ------
        ParshallError
            It cannot be written or read, or another length has arrived.
        """
        from pyarrow import fs

        place = self._place(name)
        written = place + _PARTIAL if self.is_local else place
        with self._naming():
            if self.is_local:
                self._files.create_dir(str(Path(place).parent), recursive=True)
            fs.copy_files(
                str(local.absolute()),
                written,
                source_filesystem=fs.LocalFileSystem(),
                destination_filesystem=self._files,
                chunk_size=_CHUNK_BYTES,
                use_threads=False,
            )
            if self.is_local:
                with Path(written).open("rb") as file:
                    os.fsync(file.fileno())
                Path(written).replace(place)
        size_bytes = local.stat().st_size
        if (arrived := self.size(name)) != size_bytes:
            raise StoreError(
                f"{self._option} {self._shown()}: {name} has {arrived} of {size_bytes} bytes; send it again"
            )
        return size_bytes

    def put_text(self, text: str, name: str) -> None:
        """Write a short text."""
        place = self._place(name)
        with self._naming():
            if self.is_local:
                self._files.create_dir(str(Path(place).parent), recursive=True)
            with self._files.open_output_stream(place) as stream:
                stream.write(text.encode())

    def text(self, name: str, most_bytes: int = 1 << 16) -> str | None:
        """Return a short text; None: there is none, or it is none."""
        size = self.size(name)
        if size is None or size > most_bytes:
            return None
        with self._naming(), self._files.open_input_stream(self._place(name)) as stream:
            content: bytes = stream.read(most_bytes)
        return content.decode(errors="replace")

    def fetch(self, name: str, local: Path) -> None:
        """Copy an object into a new file."""
        from pyarrow import fs

        with self._naming():
            fs.copy_files(
                self._place(name),
                str(local.absolute()),
                source_filesystem=self._files,
                destination_filesystem=fs.LocalFileSystem(),
                chunk_size=_CHUNK_BYTES,
                use_threads=False,
            )

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Turn errors of the file system into one line that names the store."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            reason = printable(text.splitlines()[0][:_REASON_CHARS_MAX])
            raise StoreError(f"{self._option} {self._shown()}: {reason}") from None


def hive(name: str, key: str) -> str | None:
    """Return the value of a key in a name, ``host=web1/``; None: it has no such key."""
    for part in PurePosixPath(name).parts[:-1]:
        begin, equals, value = part.partition("=")
        if equals and begin == key:
            return value
    return None
