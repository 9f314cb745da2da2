"""Parshall measures the packet path of Linux hosts, with the loss and the cost of measuring."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parshall.log import read as read

__all__ = ["read"]


def __getattr__(name: str) -> Any:
    """Import ``read`` on first use, so that ``import parshall`` stays quick."""
    if name == "read":
        from parshall.log import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
