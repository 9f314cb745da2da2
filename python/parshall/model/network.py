"""A network of queues as it is written down: built step by step, or read from a TOML or JSON file."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parshall.errors import UsageError
from parshall.model.schema import nearest, shown, validated, ways
from parshall.whole_file import write_whole

if TYPE_CHECKING:
    from parshall._native import Network

# More is no description of a network; recorded values are given with the run.
FILE_BYTES_MAX = 64 << 20

# A number, the text of a law ("exponential:mean=2us"), or a table: see docs/formats/model-file.md.
Amount = float | str | Mapping[str, Any]
# A place, or places with probabilities, or a transition in full.
Way = str | Mapping[str, Any]


@dataclass
class Model:
    """An open network of queues.

    Methods add a part and return the model, so that they can be chained; nothing is checked before
    the model runs (or `check` is called), when everything is.

    Attributes
    ----------
    name : str
        What it is called in results.
    classes, sources, stations, queues, sinks : list
        Its parts, as docs/formats/model-file.md describes them. Classes and sinks come by themselves, from the
        sources and ways that name them.
    origin : str or None
        The file that it was read from, which messages name.
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
        to: Way | Iterable[Way],
        **settings: Any,
    ) -> "Model":
        """Add a queue.

        Parameters
        ----------
        name, station
            Its name, and who serves it.
        service_ns
            The law of its services; or the list of ``service`` in full, for clocks, bytes and classes.
        to
            Where packets go; of several, the first carries the packet on, and the others clones of it.
        **settings
            ``priority``, ``weight``, ``capacity_packets``, ``capacity_bytes``, ``frees``, ``batch``, ``blocking``.
        """
        service = service_ns if isinstance(service_ns, list) else [{"law_ns": service_ns}]
        self.queues.append(
            {"name": name, "station": station, "service": service, "to": _ways(to), **_without_none(settings)}
        )
        return self

    def source(
        self,
        name: str,
        gap_ns: Amount,
        to: Way | Iterable[Way],
        *,
        size_bytes: Amount = 0,
        packet_class: str | None = None,
        packets: int | None = None,
    ) -> "Model":
        """Add a source of packets of one class, which is called as the source if it is not named."""
        packet_class = packet_class or name
        if packet_class not in self.classes:
            self.classes.append(packet_class)
        parts = {
            "name": name,
            "class": packet_class,
            "gap_ns": gap_ns,
            "size_bytes": size_bytes,
            "packets": packets,
            "to": _ways(to),
        }
        self.sources.append(_without_none(parts))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return the model as plain data; places that are no queue are sinks."""
        queues = {queue["name"] for queue in self.queues}
        # As keys, each is there once and in its order.
        sinks = dict.fromkeys([*self.sinks, *(place for _, place in self._ends() if place not in queues)])
        return {
            "name": self.name,
            "classes": self.classes,
            "sources": self.sources,
            "stations": self.stations,
            "queues": self.queues,
            "sinks": list(sinks),
        }

    def _ends(self) -> Iterator[tuple[str, str]]:
        """Give each part and the places that it leads to."""
        for kind, parts in (("queue", self.queues), ("source", self.sources)):
            for part in parts:
                for way in part["to"]:
                    for choice in way["to"]:
                        yield f"{kind} {shown(part['name'])}", choice["place"]

    def check(self, *, allow_unstable: bool = False, traces: Mapping[str, Sequence[float]] | None = None) -> "Network":
        """Return the network, which can be run; raise `UsageError` with the first thing that is wrong."""
        from parshall._native import Network

        origin = self.origin or f"model {shown(self.name)}"
        data = validated(self.as_dict(), origin)
        recorded = {name: [float(value) for value in values] for name, values in (traces or {}).items()}
        try:
            return Network(json.dumps(data), recorded, allow_unstable)
        except UsageError as error:
            raise UsageError(f"{origin}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the model as JSON."""
        write_whole(Path(path), json.dumps(self.as_dict(), indent=1) + "\n")


def _ways(to: Way | Iterable[Way]) -> list[dict[str, Any]]:
    full: list[dict[str, Any]] = ways(to if isinstance(to, str | Mapping) else list(to))
    return full


def load(path: str | Path) -> Model:
    """Read a model from a TOML or JSON file.

    Raises
    ------
    UsageError
        There is no such file, it is neither, or its fields are not those of a model.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"{path}: no such file, and no built-in model; see `parshall model list`")
    if path.stat().st_size > FILE_BYTES_MAX:
        raise UsageError(
            f"{path}: is larger than {FILE_BYTES_MAX >> 20} MiB; give recorded values as traces of the run"
        )
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if kind == "TOML" else json.loads(text, object_pairs_hook=_each_once)
    except ValueError as error:
        raise UsageError(f"{path}: is no {kind}: {error}; correct it, or see docs/formats/model-file.md") from None
    except RecursionError:
        raise UsageError(f"{path}: is no {kind} of a model: nested too deep; see docs/formats/model-file.md") from None
    return from_dict(data, str(path))


def _each_once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object; JSON itself lets the last of several alike win."""
    by_name: dict[str, Any] = {}
    for name, value in fields:
        if name in by_name:
            raise ValueError(f"field {shown(name)} is given twice")
        by_name[name] = value
    return by_name


def from_dict(data: Any, origin: str = "the model") -> Model:
    """Return the model of plain data, in which transitions and services may be written short.

    Raises
    ------
    UsageError
        A field is missing, unknown, or holds what it cannot; `origin` is named.
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
    if model.sinks:
        # Whoever names sinks names all of them, so that a misspelt queue is no other sink.
        places = dict.fromkeys([*(queue["name"] for queue in model.queues), *model.sinks])
        for part, place in model._ends():
            if place not in places:
                remedy = nearest(place, list(places))
                raise UsageError(f"{origin}: {part}: to {shown(place)} is neither a queue nor one of sinks; {remedy}")
    return model


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
