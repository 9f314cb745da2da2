"""A network of queues as it is written down: built step by step, or read from a TOML or JSON file."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parshall.errors import UsageError

# A number, the text of a law ("exponential:mean=2us"), or a table: see docs/model.md.
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
        Its parts, as docs/model.md describes them. Classes and sinks come by themselves, from the
        sources and ways that name them.
    """

    name: str
    classes: list[str] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    stations: list[dict[str, Any]] = field(default_factory=list)
    queues: list[dict[str, Any]] = field(default_factory=list)
    sinks: list[str] = field(default_factory=list)

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
            ``priority``, ``weight``, ``capacity_packets``, ``capacity_bytes``, ``frees``, ``batch``.
        """
        service = service_ns if isinstance(service_ns, list) else [{"law_ns": service_ns}]
        self.queues.append(
            {"name": name, "station": station, "service": service, "to": ways(to), **_without_none(settings)}
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
            "to": ways(to),
        }
        self.sources.append(_without_none(parts))
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return the model as plain data; places that are no queue are sinks."""
        queues = {queue["name"] for queue in self.queues}
        sinks = list(self.sinks)
        for part in (*self.queues, *self.sources):
            for way in part["to"]:
                sinks += [
                    choice["place"]
                    for choice in way["to"]
                    if choice["place"] not in queues and choice["place"] not in sinks
                ]
        return {
            "name": self.name,
            "classes": self.classes,
            "sources": self.sources,
            "stations": self.stations,
            "queues": self.queues,
            "sinks": sinks,
        }

    def check(self, *, allow_unstable: bool = False) -> None:
        """Raise `UsageError` with the first thing that is wrong."""
        from parshall._native import check_model

        check_model(json.dumps(self.as_dict()), {}, allow_unstable)

    def save(self, path: str | Path) -> None:
        """Write the model as JSON."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n")


def ways(to: Way | Iterable[Way]) -> list[dict[str, Any]]:
    """Return transitions in full: a name stands for a transition of all classes to one place."""
    several = [to] if isinstance(to, str | Mapping) else list(to)
    return [_way(way) for way in several]


def _way(way: Way) -> dict[str, Any]:
    if isinstance(way, str):
        return {"to": [{"place": way}]}
    # A place by itself in a transition stands for all packets.
    places = way.get("to")
    return {**way, "to": [{"place": places}]} if isinstance(places, str) else dict(way)


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
    try:
        data = tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise UsageError(f"{path}: is no {kind}: {error}; correct it, or see docs/model.md") from None
    return from_dict(data, str(path))


def from_dict(data: Any, origin: str = "the model") -> Model:
    """Return the model of plain data, in which transitions may be written short."""
    known = {"name", "classes", "sources", "stations", "queues", "sinks"}
    if not isinstance(data, dict) or not set(data) <= known:
        wrong = sorted(set(data) - known)[0] if isinstance(data, dict) else type(data).__name__
        raise UsageError(f"{origin}: has {wrong!r}; expected {', '.join(sorted(known))}")
    model = Model(data.get("name", Path(origin).stem), sinks=list(data.get("sinks", [])))
    model.stations = list(data.get("stations", []))
    for kind, parts in (("queue", model.queues), ("source", model.sources)):
        for part in data.get(f"{kind}s", []):
            if "name" not in part or "to" not in part:
                raise UsageError(f"{origin}: a {kind} has no {'name' if 'name' not in part else 'to'}; add it")
            parts.append({**part, "to": ways(part["to"])})
    for queue in model.queues:
        if "service_ns" in queue:
            queue["service"] = [{"law_ns": queue.pop("service_ns")}]
    model.classes = list(data.get("classes", []))
    for source in model.sources:
        source.setdefault("class", source["name"])
        if source["class"] not in model.classes:
            model.classes.append(source["class"])
    return model


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
