"""The description of a network of queues: built step by step, or read from a TOML or JSON file."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parshall.errors import UsageError
from parshall.host.whole_file import write_whole
from parshall.model.schema import excerpt, suggestion, transitions, validated

if TYPE_CHECKING:
    from parshall._native import Network

# How alike a place and a queue must be, as by `difflib`, for one to be a misspelt other.
_MISSPELT = 0.8
# Larger files do not describe a network; recorded values are arguments of the run.
FILE_BYTES_MAX = 64 << 20

# A number, a distribution as text ("exponential:mean=2us"), or a table: see docs/formats/model-file.md.
Amount = float | str | Mapping[str, Any]
# A place, or places with probabilities, or a transition in full.
Destination = str | Mapping[str, Any]


@dataclass
class Model:
    """An open network of queues.

    Methods add a part and return the model, so that they can be chained. The model is checked when it
    runs, or by `check`.

    Attributes
    ----------
    name : str
        Its name in results.
    classes, sources, stations, queues, sinks : list
        Its parts, as docs/formats/model-file.md describes them. Classes and sinks are added automatically
        from the sources and transitions that name them.
    origin : str or None
        The file that it was read from, for messages.
    """

    name: str
    classes: list[str] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    stations: list[dict[str, Any]] = field(default_factory=list)
    queues: list[dict[str, Any]] = field(default_factory=list)
    sinks: list[str] = field(default_factory=list)
    origin: str | None = field(default=None, repr=False, compare=False)

    def station(self, name: str, **settings: Any) -> "Model":
        """Add a station: ``servers``, ``kind``, ``clock_mhz``, ``policies``."""
        self.stations.append({"name": name, **_without_none(settings)})
        return self

    def queue(
        self,
        name: str,
        station: str,
        service_ns: Amount | list[dict[str, Any]],
        to: Destination | Iterable[Destination],
        **settings: Any,
    ) -> "Model":
        """Add a queue.

        Parameters
        ----------
        name, station
            Its name, and the station that serves it.
        service_ns
            The distribution of its services; or the full list ``service``, for clocks, bytes and classes.
        to
            Destinations of packets; of several, the first gets the packet, and the others clones.
        **settings
            ``priority``, ``weight``, ``capacity_packets``, ``capacity_bytes``, ``frees``, ``batch``, ``blocking``.
        """
        service = service_ns if isinstance(service_ns, list) else [{"time_ns": service_ns}]
        self.queues.append(
            {"name": name, "station": station, "service": service, "to": _transitions(to), **_without_none(settings)}
        )
        return self

    def source(
        self,
        name: str,
        gap_ns: Amount,
        to: Destination | Iterable[Destination],
        *,
        size_bytes: Amount = 0,
        packets: int | None = None,
    ) -> "Model":
        """Add a source of packets of one class, which has the name of the source."""
        if name not in self.classes:
            self.classes.append(name)
        parts = {
            "name": name,
            "class": name,
            "gap_ns": gap_ns,
            "size_bytes": size_bytes,
            "packets": packets,
            "to": _transitions(to),
        }
        self.sources.append(_without_none(parts))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return the model as plain data; destinations that are not queues are sinks."""
        queues = {queue["name"] for queue in self.queues}
        # A dict keeps each name once, in order.
        sinks = dict.fromkeys([*self.sinks, *(place for _, place in self._destinations() if place not in queues)])
        return {
            "name": self.name,
            "classes": self.classes,
            "sources": self.sources,
            "stations": self.stations,
            "queues": self.queues,
            "sinks": list(sinks),
        }

    def _destinations(self) -> Iterator[tuple[str, str]]:
        """Yield each part with each of its destinations."""
        for kind, parts in (("queue", self.queues), ("source", self.sources)):
            for part in parts:
                for transition in part["to"]:
                    for choice in transition["to"]:
                        yield f"{kind} {excerpt(part['name'])}", choice["place"]

    def check(self, *, allow_unstable: bool = False, traces: Mapping[str, Sequence[float]] | None = None) -> "Network":
        """Return the network to run; raise `UsageError` with the first mistake."""
        from parshall._native import Network

        origin = self.origin or f"model {excerpt(self.name)}"
        data = validated(self.as_dict(), origin)
        recorded = {name: [float(value) for value in values] for name, values in (traces or {}).items()}
        try:
            return Network(json.dumps(data), recorded, allow_unstable)
        except UsageError as error:
            raise UsageError(f"{origin}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the model as JSON."""
        write_whole(Path(path), json.dumps(self.as_dict(), indent=1) + "\n")


def _transitions(to: Destination | Iterable[Destination]) -> list[dict[str, Any]]:
    full: list[dict[str, Any]] = transitions(to if isinstance(to, str | Mapping) else list(to))
    return full


def load(path: str | Path) -> Model:
    """Read a model from a TOML or JSON file.

    Raises
    ------
    UsageError
        There is no such file, it is neither TOML nor JSON, or its fields are not those of a model.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"{path}: no such file or built-in model; see `parshall model list`")
    if path.stat().st_size > FILE_BYTES_MAX:
        raise UsageError(
            f"{path}: is larger than {FILE_BYTES_MAX >> 20} MiB; give recorded values as traces of the run"
        )
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if kind == "TOML" else json.loads(text, object_pairs_hook=_reject_duplicates)
    except ValueError as error:
        raise UsageError(f"{path}: is not {kind}: {error}; correct it, or see docs/formats/model-file.md") from None
    except RecursionError:
        raise UsageError(f"{path}: is not {kind} of a model: nested too deep; see docs/formats/model-file.md") from None
    return from_dict(data, str(path))


def _reject_duplicates(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object; raise on duplicates, of which JSON would keep the last."""
    by_name: dict[str, Any] = {}
    for name, value in fields:
        if name in by_name:
            raise ValueError(f"field {excerpt(name)} is given twice")
        by_name[name] = value
    return by_name


def from_dict(data: Any, origin: str = "the model") -> Model:
    """Return the model from plain data; transitions and services may have the short form.

    Raises
    ------
    UsageError
        A field is missing, unknown or invalid; the message names `origin`.
    """
    full = validated(data, origin)
    model = Model(
        full.get("name", Path(origin).stem),
        classes=full.get("classes", []),
        sources=full["sources"],
        stations=full.get("stations", []),
        queues=full.get("queues", []),
        sinks=full.get("sinks", []),
        origin=origin,
    )
    known = set(model.classes)
    named = dict.fromkeys(source.setdefault("class", source["name"]) for source in model.sources)
    model.classes += [name for name in named if name not in known]
    queues = [queue["name"] for queue in model.queues]
    if not model.sinks:
        for part, place in model._destinations():
            near = difflib.get_close_matches(place, queues, n=1, cutoff=_MISSPELT) if place not in queues else []
            if near:
                raise UsageError(
                    f"{origin}: {part}: to {excerpt(place)} is no queue; did you mean {near[0]}? A sink of such a name "
                    "must be in a list, sinks"
                )
    else:
        # A list of sinks must be complete, so that a misspelt queue does not become a sink.
        places = dict.fromkeys([*queues, *model.sinks])
        for part, place in model._destinations():
            if place not in places:
                remedy = suggestion(place, list(places))
                raise UsageError(f"{origin}: {part}: to {excerpt(place)} is neither a queue nor one of sinks; {remedy}")
    return model


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
