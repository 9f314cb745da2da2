"""Which parameters of a test are for `make test`, and which for `make test-long` only."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_except(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return values as parameters of a test, marked `long` except the quick ones."""
    found = list(values)
    assert all(value in found for value in quick), f"{quick}: not all among {found}"
    return [value if value in quick else _long(value) for value in found]


def _long(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.long)
