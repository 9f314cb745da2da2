"""Parameters of built-in models."""

from dataclasses import field
from typing import Any


def parameter(default: Any, unit: str, what: str, *, above_zero: bool = False) -> Any:
    """Return a dataclass field with its unit and description; `above_zero` requires a value above 0."""
    return field(default=default, metadata={"unit": unit, "what": what, "above_zero": above_zero})
