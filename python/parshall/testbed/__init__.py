"""Testbeds: hosts in network namespaces, and links with rate, delay, jitter, loss and queue."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parshall.host.names import clean, stale
    from parshall.testbed.hosts import Host
    from parshall.testbed.links import Link
    from parshall.testbed.shaping import Shaping
    from parshall.testbed.testbed import Testbed

__all__ = ["Host", "Link", "Shaping", "Testbed", "clean", "stale"]

_MODULES = {
    "Host": "parshall.testbed.hosts",
    "Link": "parshall.testbed.links",
    "Shaping": "parshall.testbed.shaping",
    "Testbed": "parshall.testbed.testbed",
    "clean": "parshall.host.names",
    "stale": "parshall.host.names",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: commands that make no testbed need not wait for the netlink library."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
