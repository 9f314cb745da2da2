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

class Capture:
    def __init__(
        self,
        outputs: Sequence[dict[str, Any]],
        *,
        ring: dict[str, Any] | None,
        join: str | None,
        backend: str,
        keeper: Sequence[str],
        count: int | None,
        application: str,
        os: str,
        environment: str,
    ) -> None: ...
    ring: str | None
    interfaces: list[str]
    def status(self) -> dict[str, Any]: ...
    def next_batch(self, timeout_s: float) -> ArrowStream | None: ...
    def request_stop(self) -> None: ...
    def stop(self) -> tuple[str, str | None]: ...

def keep_capture_ring() -> None: ...
def list_capture_rings() -> list[str]: ...
def clean_capture_rings() -> list[str]: ...

class Relay:
    def __init__(
        self,
        interface_a: str,
        interface_b: str,
        netns_path: str | Path | None = None,
        cpu: int | None = None,
        a_to_b: dict[str, Any] | None = None,
        b_to_a: dict[str, Any] | None = None,
        seed: int = 1,
        fifo_priority: int | None = None,
        mtu: int = 1500,
        memory_bytes: int = 67_108_864,
    ) -> None: ...
    def start(self) -> None: ...
    def statistics(self) -> dict[str, Any]: ...
    def stop(self) -> dict[str, Any]: ...
