"""The TCP log and the capture that ``parshall path`` starts beside its own log, to join all three."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parshall.errors import UsageError
from parshall.host.session import Session
from parshall.instruments.capture import Capture, Output, Ring
from parshall.instruments.tcp import TcpLog


@dataclass(frozen=True)
class Beside:
    """What is measured beside the paths.

    Raises
    ------
    UsageError
        The options do not go together.
    """

    output: Path | None
    tcp_log: Path | None
    capture: Path | None
    interfaces: list[str]
    netns: str | None
    filter: str | None

    def __post_init__(self) -> None:
        for option, path in (("--tcp-log", self.tcp_log), ("--capture", self.capture)):
            if path is None:
                continue
            if self.output is None or str(self.output) == "-":
                raise UsageError(f"{option} {path}: joins a log of packets; name one with -o FILE")
            if str(path) == "-":
                raise UsageError(f"{option} -: is read again at the end; name a file")
        if self.capture is not None and not self.interfaces:
            raise UsageError(f"--capture {self.capture}: no interface; name one with -i")
        # Compressed captures cannot be joined.
        if self.capture is not None and self.capture.suffix not in (".pcapng", ".pcap"):
            raise UsageError(f"--capture {self.capture}: expected a name that ends in .pcapng or .pcap")

    @property
    def names(self) -> list[str]:
        """The files, in the order of `sessions`."""
        return [str(path) for path in (self.capture, self.tcp_log) if path is not None]

    def sessions(self, is_stopping: Callable[[], bool]) -> Iterator[Session[Any]]:
        """Start what was asked for."""
        if self.capture is not None:
            ring = Ring(self.interfaces, netns=self.netns)
            yield Capture([Output(self.capture, self.filter or "")], ring, is_stopping=is_stopping)
        if self.tcp_log is not None:
            yield TcpLog(self.tcp_log, netns=self.netns, is_stopping=is_stopping)

    def connections(self) -> list[dict[str, Any]]:
        """Join the files and return the answers for each connection; the sessions have ended."""
        from parshall.instruments.path import PathLog, Trace, join
        from parshall.instruments.path.connections import connections
        from parshall.instruments.tcp_log import read

        assert self.output is not None
        tcp = None if self.tcp_log is None else read(self.tcp_log)
        return connections(join(PathLog(self.output), tcp, None if self.capture is None else Trace(self.capture)))
