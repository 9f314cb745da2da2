"""Parameters of built-in models."""

from dataclasses import field
from typing import Any


def parameter(default: Any, unit: str, what: str) -> Any:
    """Return a dataclass field with its unit and what it is."""
    return field(default=default, metadata={"unit": unit, "what": what})
