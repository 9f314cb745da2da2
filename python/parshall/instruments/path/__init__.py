"""The path instrument: where packets spend their time in the kernel, and why.

`profile` measures, `log` and `histograms` read what it wrote, `timeline` joins it with TCP's state and packets; the
command ``parshall path`` is a thin layer over them.
"""

from typing import TYPE_CHECKING, Any

from parshall.instruments.path.profile import PathProfile, PathSummary
from parshall.instruments.path.stages import LIGHT_STAGES, STAGES

if TYPE_CHECKING:
    from parshall.instruments.path.histograms import PathHistograms
    from parshall.instruments.path.log import PathLog
    from parshall.instruments.path.timeline import join
    from parshall.instruments.path.trace import Trace

__all__ = ["LIGHT_STAGES", "STAGES", "PathHistograms", "PathLog", "PathProfile", "PathSummary", "Trace", "join"]

_MODULES = {"PathHistograms": "histograms", "PathLog": "log", "Trace": "trace", "join": "timeline"}


def __getattr__(name: str) -> Any:
    """Import what reads and joins on first use: what measures need not wait for its libraries of columns."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
