"""The built-in models: frozen dataclasses of parameters, each of which builds a network.

The metadata of a field have its unit and description, which ``parshall model list`` shows.
"""

import math
from dataclasses import fields, replace
from typing import Any

from parshall.errors import UsageError
from parshall.model.builtin.bsd import FORWARDED, BsdRouter
from parshall.model.builtin.functions import BsdFunctions
from parshall.model.builtin.gateway import SecurityGateway
from parshall.model.builtin.napi import LinuxNapi
from parshall.model.builtin.polling import MogulRamakrishnan, WfqRouter
from parshall.model.builtin.single import SingleQueue
from parshall.model.builtin.traffic import Traffic

__all__ = ["FORWARDED", "MODELS", "parameters"]

MODELS: dict[str, type[Traffic]] = {
    "single-queue": SingleQueue,
    "bsd-router": BsdRouter,
    "bsd-router-functions": BsdFunctions,
    "security-gateway": SecurityGateway,
    "mogul-ramakrishnan": MogulRamakrishnan,
    "wfq-router": WfqRouter,
    "linux-napi": LinuxNapi,
}


def parameters(name: str, settings: dict[str, str | float]) -> Traffic:
    """Return the parameters of a built-in model, with settings from numbers or text.

    Raises `UsageError` if there is no such model or parameter, or a value has the wrong type.
    """
    if name not in MODELS:
        raise UsageError(f"no built-in model {name!r}; there are {', '.join(MODELS)}")
    known = {each.name: each for each in fields(MODELS[name])}
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            raise UsageError(f"{name}: no parameter {key!r}; there are {', '.join(known)}")
        unit = known[key].metadata["unit"]
        values[key] = _value(f"{name}: {key}", value, type(known[key].default), f" in {unit}" if unit else "")
        if known[key].metadata["above_zero"] and not values[key] > 0:
            raise UsageError(f"{name}: {key} is {values[key]:g}; expected a number above 0")
    return replace(MODELS[name](), **values)


def _value(what: str, value: str | float, kind: Any, unit: str) -> Any:
    """Convert a value to the type of its parameter: text, a finite number or a whole number (such as 128.0)."""
    if kind is str:
        return str(value)
    expected = ("a whole number" if kind is int else "a number") + unit
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"{what} is {value!r}; expected {expected}") from None
    if kind is int and not number.is_integer():
        raise UsageError(f"{what} is {value!r}; expected {expected}")
    if not math.isfinite(number):
        raise UsageError(f"{what} is {value!r}; expected a finite number{unit}")
    return kind(number)
