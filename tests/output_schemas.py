"""Holds what a command printed with ``--json`` against the schema in ``docs/formats/schemas``."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from parshall.outputs import file_name

SCHEMAS = Path(__file__).parents[1] / "docs/formats/schemas"


def validated(command: str, text: str) -> Any:
    """Return the object that a command printed; assert that it is as its schema says."""
    found = json.loads(text, parse_constant=_refuse)
    schema = json.loads((SCHEMAS / file_name(command)).read_text())
    errors = [
        f"{'/'.join(map(str, leaf.absolute_path))}: {leaf.message:.300}"
        for error in Draft202012Validator(schema).iter_errors(found)
        for leaf in _leaves(error)
    ]
    assert not errors, "\n".join(errors[:20])
    return found


def _refuse(constant: str) -> None:
    """JSON has no numbers such as NaN, but Python's module writes and reads them."""
    raise AssertionError(f"{constant} is not JSON")


def _leaves(error: Any) -> list[Any]:
    """Return what is wrong inside alternatives, of which `error` says only that none fits."""
    return [leaf for inner in error.context for leaf in _leaves(inner)] or [error]
