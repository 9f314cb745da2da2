"""The Rust side of Parshall, as Python sees it."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

__version__: str

class ArrowStream:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class LogReader:
    def __init__(self, path: str | Path) -> None: ...
    metadata: dict[str, str]
    ledger: str | None
    truncation: str | None
    complete: bool
    def records(self) -> ArrowStream: ...
    def flows(self) -> ArrowStream: ...

def convert_log(
    path: str | Path, format: str, output: str | Path | None = None, every_ns: int | None = None
) -> tuple[int, list[str]]: ...
def log_formats() -> list[tuple[str, str, bool]]: ...

# Only in a module that was built with the kernel's side.
def probe_capabilities() -> str: ...
def cgroup2_mount() -> Path | None: ...

class TcpLog:
    def __init__(
        self,
        path: Path,
        *,
        environment: str,
        options: str,
        packets_per_log: int,
        on_change: bool,
        ports: Sequence[int],
        hosts: Sequence[IPv4Address | IPv6Address],
        directions: str,
        cgroup: Path | None,
        ring_bytes: int,
        slow_reader: bool,
    ) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def switch(self, on: bool) -> None: ...
    def stop(self) -> tuple[str, int, str | None]: ...
