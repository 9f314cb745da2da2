"""The generator: packets with distributions of sizes and gaps, the same for the same seed.

The command ``parshall gen`` is a thin layer over ``Generator``.
"""

from typing import TYPE_CHECKING, Any

from parshall.instruments.generate.generator import BACKENDS, Generator, Report

if TYPE_CHECKING:
    from parshall.instruments.generate.receiver import Receiver
    from parshall.instruments.generate.reception import Reception, stamp_offset_bytes

__all__ = ["BACKENDS", "Generator", "Receiver", "Reception", "Report", "stamp_offset_bytes"]

_MODULES = {"Receiver": "receiver", "Reception": "reception", "stamp_offset_bytes": "reception"}


def __getattr__(name: str) -> Any:
    """Import what receives on first use: what sends need not wait for its libraries of columns."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
