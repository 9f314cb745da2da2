"""Models with settings: parameters of built-in models, and any value of a model file."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from parshall.errors import UsageError
from parshall.model.builtin import FORWARDED, MODELS, parameters
from parshall.model.builtin.hardware import NOISE
from parshall.model.network import Model, from_dict, load

# Sources of background work of the processor, which is not traffic.
BACKGROUND = frozenset({NOISE, "interrupts", "tasks"})
# The setting that multiplies the rates of all traffic of a model that is not built in.
LOAD_FACTOR = "load_factor"
_KINDS = ("sources", "stations", "queues")


def resolve(model: str | Path | Model) -> str | Model:
    """Return the name of a built-in model unchanged, or read a model file; raise `UsageError` if it is neither."""
    if isinstance(model, Model):
        return model
    return str(model) if str(model) in MODELS else load(model)


def title(model: str | Model) -> str:
    """Return the name of a model for messages."""
    return model if isinstance(model, str) else model.origin or model.name


def build(model: str | Model, settings: Mapping[str, str | float]) -> Model:
    """Return the network of a model with settings.

    Parameters
    ----------
    model
        The name of a built-in model, or a network.
    settings
        For a built-in model, its parameters. For a network, ``load_factor``, by which the rates of its traffic are
        multiplied, and values by their paths: ``stations.cpu.servers``, ``queues.q.capacity_packets``,
        ``queues.q.service.0.time_ns``.

    Raises
    ------
    UsageError
        There is no such parameter or part, or the value has the wrong type.
    """
    if isinstance(model, str):
        return parameters(model, dict(settings)).build()
    data = deepcopy(model.as_dict())
    name = title(model)
    for key, value in settings.items():
        if key == LOAD_FACTOR:
            _multiply_rates(data, value, name)
        else:
            at, field = _place(data, key, name)
            at[field] = _value(value)
    return from_dict(data, name)


def _multiply_rates(data: dict[str, Any], value: str | float, name: str) -> None:
    factor = _value(value)
    if not isinstance(factor, int | float) or not factor > 0:
        raise UsageError(f"{name}: {LOAD_FACTOR} is {value!r}; expected a number above 0")
    for source in data["sources"]:
        if source["name"] not in BACKGROUND:
            source["rate_factor"] = source.get("rate_factor", 1) * factor


def current_value(model: Model, key: str) -> Any:
    """Return the current value of a setting of a network; None if it has none."""
    if key == LOAD_FACTOR:
        return 1
    at, field = _place(model.as_dict(), key, title(model))
    return at[field] if isinstance(at, list) else at.get(field)


def _place(data: dict[str, Any], key: str, name: str) -> tuple[Any, Any]:
    """Return the list or table that contains a setting, and its index or key."""
    kind, _, rest = key.partition(".")
    expected = "load_factor, or KIND.NAME.FIELD such as queues.q.capacity_packets or stations.cpu.servers"
    if kind not in _KINDS or not rest:
        raise UsageError(f"{name}: no setting {key!r}; expected {expected}")
    # Names may contain dots: take the longest match.
    fitting = [part for part in data[kind] if rest.startswith(f"{part['name']}.")]
    if not fitting:
        names = ", ".join(part["name"] for part in data[kind])
        raise UsageError(f"{name}: {key}: no part of {kind} has this name; there are {names}")
    part = max(fitting, key=lambda each: len(each["name"]))
    *path, field = rest[len(part["name"]) + 1 :].split(".")
    at: Any = part
    for step in path:
        at = _inner(at, step, f"{name}: {key}")
    if isinstance(at, list):
        if not field.isdecimal() or int(field) >= len(at):
            raise UsageError(f"{name}: {key}: no {field!r} there; expected a number from 0 to {len(at) - 1}")
        return at, int(field)
    if isinstance(at, dict):
        return at, field
    raise UsageError(f"{name}: {key}: {path[-1]!r} has no parts; name the value itself")


def _inner(at: Any, step: str, what: str) -> Any:
    if isinstance(at, dict) and step in at:
        return at[step]
    if isinstance(at, list) and step.isdecimal() and int(step) < len(at):
        return at[int(step)]
    if isinstance(at, dict):
        known = ", ".join(at)
    else:
        known = f"numbers from 0 to {len(at) - 1}" if isinstance(at, list) else "no parts"
    raise UsageError(f"{what}: no {step!r} there; there are {known}")


def _value(value: str | float) -> str | float | bool:
    """Convert text to a whole number, a number or a truth value if possible."""
    if value in ("true", "false"):
        return value == "true"
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() else number


def main_sink(sinks: list[str], requested: str | None, name: str) -> str:
    """Return the sink to evaluate: the requested one, "forwarded", or the only one.

    Raises `UsageError` if there is no such sink, or there are several and none is requested.
    """
    if requested is not None:
        if requested not in sinks:
            raise UsageError(f"{name}: no sink {requested!r}; there are {', '.join(sinks)}")
        return requested
    if FORWARDED in sinks:
        return FORWARDED
    if len(sinks) == 1:
        return sinks[0]
    raise UsageError(f"{name}: has the sinks {', '.join(sinks)}; select one with --sink (sink=)")
