"""The Rust side of Parshall, as Python sees it."""

from pathlib import Path

__version__: str

# Only in a module that was built with the kernel's side.
def probe_capabilities() -> str: ...
def cgroup2_mount() -> Path | None: ...
