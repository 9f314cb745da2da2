"""The fields of the parts of a model, and the messages for mistakes in them.

Each kind of part is one class with its fields and their types. The simulator has the same
fields in ``crates/core/src/queueing/model.rs``, and checks ranges and names.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import TypedDict, is_typeddict

from parshall.errors import UsageError

NAME_LENGTH_MAX = 200
DISTRIBUTION_LENGTH_MAX = 400
# Maximum characters of a value in messages.
_SHOWN = 60
_NAMES_SHOWN = 12

_PART = with_config(ConfigDict(extra="forbid", allow_inf_nan=False))


def _printable(name: str) -> str:
    if not name.isprintable():
        raise PydanticCustomError("expected", "characters that can be printed, on one line")
    return name


Name = Annotated[StrictStr, Field(min_length=1, max_length=NAME_LENGTH_MAX), AfterValidator(_printable)]
Number = StrictFloat
Count = Annotated[StrictInt, Field(ge=0, le=2**32 - 1)]
LongCount = Annotated[StrictInt, Field(ge=0, le=2**64 - 1)]


@_PART
class Samples(TypedDict):
    """Measured values, from which one is drawn at random."""

    samples: list[Number]


@_PART
class Histogram(TypedDict):
    """A measured histogram."""

    bounds: list[Number]
    counts: list[Number]


@_PART
class Table(TypedDict):
    """A function of the packet's length."""

    bytes: list[Number]
    values: list[Number]


@_PART
class Trace(TypedDict):
    """Recorded values, which are an argument of the run."""

    trace: Name


_AMOUNTS = (Samples, Histogram, Table, Trace)
_AMOUNT = "a number, a distribution, or a table of samples, of bounds and counts, of bytes and values, or of a trace"


def _kind_of_amount(value: Any) -> str | None:
    if isinstance(value, str):
        return "Text"
    if isinstance(value, Mapping):
        fitting = [kind.__name__ for kind in _AMOUNTS if set(kind.__annotations__) & set(value)]
        return fitting[0] if fitting else None
    return "Number"


Amount = Annotated[
    Annotated[Number, Tag("Number")]
    | Annotated[Annotated[StrictStr, Field(max_length=DISTRIBUTION_LENGTH_MAX)], Tag("Text")]
    | Annotated[Samples, Tag("Samples")]
    | Annotated[Histogram, Tag("Histogram")]
    | Annotated[Table, Tag("Table")]
    | Annotated[Trace, Tag("Trace")],
    Discriminator(
        _kind_of_amount,
        custom_error_type="expected",
        custom_error_message=_AMOUNT,
    ),
]


@_PART
class Choice(TypedDict):
    """A place that a transition leads to."""

    place: Name
    probability: NotRequired[Number]


def _choices(to: Any) -> Any:
    # A name alone is the destination of all packets.
    return [{"place": to}] if isinstance(to, str) else to


@_PART
class Transition(TypedDict):
    """A transition of one copy of a packet."""

    to: Annotated[list[Choice], Field(min_length=1), BeforeValidator(_choices)]
    classes: NotRequired[list[Name]]
    becomes: NotRequired[Name]
    blocks: NotRequired[StrictBool]


def transitions(to: Any) -> Any:
    """Return transitions in full form; a name alone is a transition of all classes to one place."""
    several = [to] if isinstance(to, str | Mapping) else to
    if not isinstance(several, Sequence):
        return several
    full = [{"to": transition} if isinstance(transition, str) else transition for transition in several]
    return [
        {**transition, "to": _choices(transition["to"])}
        if isinstance(transition, Mapping) and "to" in transition
        else transition
        for transition in full
    ]


# Maximum copies of one packet, since each takes memory.
_COPIES_MAX = 64
Transitions = Annotated[list[Transition], Field(min_length=1, max_length=_COPIES_MAX), BeforeValidator(transitions)]


@_PART
class Service(TypedDict):
    """The service of a packet."""

    classes: NotRequired[list[Name]]
    time_ns: Amount
    per_byte_ns: NotRequired[Number]
    measured_at_mhz: NotRequired[Number]
    fixed_ns: NotRequired[Number]


@_PART
class Batch(TypedDict):
    """Several packets served together."""

    packets: Count
    cost_ns: NotRequired[Number]


@_PART
class Queue(TypedDict):
    """A queue and the services of its packets."""

    name: Name
    station: Name
    priority: NotRequired[Count]
    weight: NotRequired[Number]
    capacity_packets: NotRequired[Count]
    capacity_bytes: NotRequired[LongCount]
    frees: NotRequired[Literal["at-start", "at-end"]]
    service: NotRequired[Annotated[list[Service], Field(min_length=1)]]
    # Short form: one distribution for all classes.
    service_ns: NotRequired[Amount]
    batch: NotRequired[Batch]
    blocking: NotRequired[Literal["before-service", "after-service"]]
    to: Transitions


def _service_in_full(queue: dict[str, Any]) -> dict[str, Any]:
    if "service" in queue and "service_ns" in queue:
        raise PydanticCustomError("mistake", "service and service_ns contradict each other; keep one of them")
    if "service_ns" in queue:
        return {name: value for name, value in queue.items() if name != "service_ns"} | {
            "service": [{"time_ns": queue["service_ns"]}]
        }
    if "service" not in queue:
        raise PydanticCustomError("mistake", "service is missing; add it, or service_ns")
    return queue


@_PART
class Fcfs(TypedDict):
    """First come, first served."""

    priority: NotRequired[Count]
    policy: Literal["fcfs"]


@_PART
class RoundRobin(TypedDict):
    """One packet, or one quantum of time, of each queue in turn."""

    priority: NotRequired[Count]
    policy: Literal["round-robin"]
    quantum_ns: NotRequired[Number]


@_PART
class Polling(TypedDict):
    """Some packets of each queue in turn."""

    priority: NotRequired[Count]
    policy: Literal["polling"]
    batch: Count
    budget: NotRequired[Count]
    budget_ns: NotRequired[Number]
    yield_ns: NotRequired[Number]
    visit_ns: NotRequired[Amount]
    wake_ns: NotRequired[Amount]
    visits: NotRequired[Literal["nonempty", "all"]]


@_PART
class WeightedFair(TypedDict):
    """Shares in proportion to weights."""

    priority: NotRequired[Count]
    policy: Literal["weighted-fair"]
    tags: Literal["bytes", "packets", "time"]


Policy = Annotated[Fcfs | RoundRobin | Polling | WeightedFair, Field(discriminator="policy")]


@_PART
class Station(TypedDict):
    """A station, which serves queues."""

    name: Name
    servers: NotRequired[Count]
    kind: NotRequired[Literal["non-preemptive", "preemptive-resume", "processor-sharing", "delay"]]
    clock_mhz: NotRequired[Number]
    policies: NotRequired[list[Policy]]


# In functional form, because ``class`` is a keyword.
Source = TypedDict(
    "Source",
    {
        "name": Name,
        "class": NotRequired[Name],
        "gap_ns": Amount,
        "size_bytes": NotRequired[Amount],
        "rate_factor": NotRequired[Number],
        "packets": NotRequired[LongCount],
        "to": Transitions,
    },
)
_PART(Source)


@_PART
class ModelFile(TypedDict):
    """A model."""

    name: NotRequired[Name]
    classes: NotRequired[list[Name]]
    sources: Annotated[list[Source], Field(min_length=1)]
    stations: NotRequired[list[Station]]
    queues: NotRequired[list[Annotated[Queue, AfterValidator(_service_in_full)]]]
    sinks: NotRequired[list[Name]]


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(ModelFile)


def validated(data: Any, origin: str) -> dict[str, Any]:
    """Return a model with all short forms expanded.

    Raises
    ------
    UsageError
        There are mistakes; one line has the first one with `origin`, part, field, value and remedy, and the number of
        others.
    """
    try:
        full: dict[str, Any] = _adapter().validate_python(data)
        return full
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    # A misspelt field is also missing; report its spelling first.
    mistakes.sort(key=lambda mistake: mistake["type"] != "extra_forbidden")
    more = len(mistakes) - 1
    rest = f" (and {more} more {'mistake' if more == 1 else 'mistakes'})" if more else ""
    raise UsageError(f"{origin}: {_message(mistakes[0], data)}{rest}")


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return the remedy for an unknown name: the nearest known one, or all."""
    near = difflib.get_close_matches(name[:NAME_LENGTH_MAX], known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    more = f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
    return f"expected one of {', '.join(known[:_NAMES_SHOWN])}{more}"


def excerpt(value: Any) -> str:
    """Return a value on one line, shortened."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list" if value else "[]"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = str(value)
    text = text.encode("ascii", "backslashreplace").decode().replace("\n", " ")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# Expectations by pydantic's types of errors.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "Unicode text",
    "string_too_short": "at least one character",
    "string_too_long": "at most {max_length} characters",
    "list_type": "a list",
    "dict_type": "a table of fields",
    "literal_error": "one of {expected}",
    "union_tag_invalid": "one of {expected_tags}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
}


def _message(mistake: ErrorDetails, data: Any) -> str:
    """Return ``PART: FIELD is VALUE; expected WHAT``."""
    kind, context = mistake["type"], mistake.get("ctx", {})
    path = _path(mistake, data)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        path.append("policy")
    if kind == "mistake":
        return f"{_part(path, data)}: {mistake['msg']}"
    if not any(isinstance(step, str) for step in path):
        return f"is {excerpt(mistake['input'])}; expected the tables sources, stations and queues"
    at = max(number for number, step in enumerate(path) if isinstance(step, str))
    part = f"{_part(path[:at], data)}: " if at else ""
    index = "".join(f" {step + 1}" for step in path[at + 1 :] if isinstance(step, int))
    name = str(path[at]) if len(str(path[at])) <= _SHOWN else excerpt(path[at])
    field = f"{part}{name if name.isprintable() else excerpt(name)}{index}"
    if kind in ("missing", "union_tag_not_found"):
        return f"{field} is missing; add it"
    if kind in ("extra_forbidden", "invalid_key"):
        return f"{field} is not a field here; {suggestion(name, _fields(path[:at], data))}"
    value = context.get("tag") if kind == "union_tag_invalid" else mistake["input"]
    expected = _EXPECTED.get(kind)
    if kind == "float_type" and mistake["loc"][-1] == "Number":
        expected = _AMOUNT
    elif kind == "list_type" and name == "to":
        expected = "a place, a transition, or a list of them"
    text = mistake["msg"] if expected is None else expected.format(**context)
    return f"{field} is {excerpt(value)}; expected {text}"


def _path(mistake: ErrorDetails, data: Any) -> list[str | int]:
    """Return the path of a mistake in `data`, without the elements that pydantic adds, such as the tag of a union."""
    path: list[str | int] = []
    at = data
    for step in mistake["loc"]:
        if isinstance(at, Mapping):
            is_there = step in at
        else:
            is_there = isinstance(at, list | tuple) and isinstance(step, int) and step < len(at)
        if is_there:
            at = at[step]
            path.append(step)
    if mistake["type"] == "missing":
        path.append(mistake["loc"][-1])
    return path


def _part(path: Sequence[str | int], data: Any) -> str:
    """Return the name of a part for messages: ``queue "ip", service 1``."""
    at = data
    words: list[str] = []
    for step in path:
        at = at[step]
        if isinstance(step, str):
            words.append(step)
        elif len(words) == 1 and words[0] in ("queues", "sources", "stations"):
            name = at.get("name") if isinstance(at, Mapping) else None
            words[0] = f"{words[0][:-1]} {excerpt(name) if isinstance(name, str) else f'number {step + 1}'}"
        else:
            words[-1] += f" {step + 1}"
    return ", ".join(words)


def _fields(path: Sequence[str | int], data: Any) -> list[str]:
    """Return the fields of the part at a path."""
    at, kind = data, ModelFile
    kinds: list[Any] = []
    for step in path:
        at = at[step]
        if isinstance(step, str):
            kinds = _parts_of(get_type_hints(kind, include_extras=True)[step])
        if isinstance(at, Mapping) and kinds:
            kind = next((each for each in kinds if _is_kind(each, at)), kinds[0])
    return list(get_type_hints(kind))


def _is_kind(kind: Any, part: Mapping[Any, Any]) -> bool:
    """Whether a part is of a kind; amounts are recognised by their fields, policies by their names."""
    policy = get_type_hints(kind).get("policy")
    return part.get("policy") in get_args(policy) if policy else kind.__name__ == _kind_of_amount(part)


def _parts_of(annotation: Any) -> list[Any]:
    """Return the kinds of parts that a field may hold."""
    if is_typeddict(annotation):
        return [annotation]
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return [found for each in inner for found in _parts_of(each)]
