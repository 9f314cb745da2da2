"""A calibration: the parameters of a router's model, measured on a machine, in a file that a person can read."""

import dataclasses
import json
import math
import platform
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np

from parshall.errors import ParshallError, UsageError
from parshall.host.input_file import brief, parse_toml
from parshall.host.whole_file import write_whole

FORMAT, MAJOR = "parshall calibration", 4
# Facts of the machine without which the times mean nothing.
_SAME = ("kernel", "cpu_model", "machine", "cpus")
# Above every time in ns and every number in a second that a router has.
_LARGEST = 1e9
# What is read of tables without a class of their own.
_READ: dict[str, dict[str, type]] = {
    "setup": {"receive": str, "gro": bool, "routes": int, "rules": int, "destinations": int},
    "traffic": {"sizes": str, "flows": int, "repeats": int, "first_seed": int},
    "stages": {"stage": str, "share": float},
    "stretches": {
        **{"at_s": float, "overload_pps": float, "service_ns": float, "wake_ns": float, "link_ns": float},
        **{"stalls": int, "span_s": float},
    },
    "trials": {
        **{"traffic": str, "load": float, "seed": int, "quantile": str},
        **{"measured_us": float, "low_us": float, "middle_us": float, "high_us": float},
    },
    "after_idle": {"idle_ns": float, "factor": float},
    "checks": {"age_s": float, "runs": int, "inside": int, "of": int},
    "balance": {"workload": str, "packets": int, "lost": int, "latency_ns": float, "idle_ns": float},
}
# Of the time from arrival to departure.
LATENCY_PARTS = ("link", "wait", "wake", "service", "send", "stall", "held")
_READ["balance"] |= {f"{part}_ns": float for part in LATENCY_PARTS}
# A file has six digits.
_BALANCED = 1e-4


@dataclass(frozen=True)
class Times:
    """Measured times as a histogram.

    Attributes
    ----------
    count : int
        Number of times.
    mean_ns, median_ns, p99_ns : float
        Of the times themselves.
    low_median_ns, high_median_ns : float
        Lowest and highest median of the repeats.
    bounds_ns, counts : list
        Bounds of the bins, and times in each.
    """

    count: int
    mean_ns: float
    median_ns: float
    p99_ns: float
    low_median_ns: float
    high_median_ns: float
    bounds_ns: list[float]
    counts: list[int]

    def amount(self) -> dict[str, Any]:
        """Return the histogram as an amount of a model."""
        return {"bounds": self.bounds_ns, "counts": [float(count) for count in self.counts]}

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Draw times of the histogram, uniform within its bins."""
        bounds, weights = np.array(self.bounds_ns), np.array(self.counts, float)
        bins = random.choice(len(weights), count, p=weights / weights.sum())
        drawn: np.ndarray = random.uniform(bounds[bins], bounds[bins + 1])
        return drawn


@dataclass(frozen=True)
class Noise:
    """What else takes the router's CPU while packets wait.

    Attributes
    ----------
    per_s, low_per_s, high_per_s : float
        Stalls in a second, with their 95 % confidence interval.
    unknown_share : float
        Share of them in which less than one packet was expected to arrive: they may be the sender's.
    times, gaps : Times or None
        How long they were, and the times between their begins; None when there were none.
    """

    per_s: float
    low_per_s: float
    high_per_s: float
    unknown_share: float
    times: Times | None
    gaps: Times | None


@dataclass(frozen=True)
class Calibration:
    """The parameters of a router's model.

    Attributes
    ----------
    created : str
        Date and time, UTC.
    machine, setup, traffic : dict
        Where, of what, and with which workloads and seeds it was measured.
    overload_pps, low_overload_pps, high_overload_pps : float
        Rate under overload, with its lowest and highest repeat.
    queue_packets : int
        Places of the queue before the router's CPU.
    poll_packets : int
        Most packets of a poll: the kernel's weight.
    link_ns, low_link_ns, high_link_ns : float
        Time from the generator's stamp to that queue.
    transfer_ns : float
        The part of it during which the link takes no other packet.
    held_share : float
        Share of the packets that the sender's CPU holds for longer: it, too, has interrupts.
    send_ns, low_send_ns, high_send_ns : float
        Time that the router's CPU takes to bring a packet from the egress interface to the sink: a poll of its own.
    service, wake : Times
        Service times of packets; times to wake the server, after the usual idle time.
    look_ns : float
        Time from the last packet of a poll until the server looks for others, and then sleeps; 0: it does not look.
    after_idle : list of dict
        How wake-ups grow with the time without packets: ``factor`` of `wake` after ``idle_ns``.
    held : Times or None
        How long packets are held; None when none was.
    waking : Times or None
        Time that the sender's CPU takes for packets that wake the router; None when it was never behind.
    sender_batch : int
        Largest number of packets that the sender sends at once.
    noise : Noise
        Stalls.
    stretches : list of dict
        The state of the machine in each repeat: ``at_s`` (seconds since the first), ``overload_pps``, ``service_ns``
        (mean of the services that are not long), ``wake_ns`` (median), ``link_ns``, ``stalls`` in ``span_s`` seconds.
    trials : list of dict
        Workloads that were measured between the others, and the 90 % intervals of the model's forecasts for them:
        ``traffic``, ``load`` (share of `overload_pps`), ``seed``, ``quantile``, ``measured_us``, ``low_us``,
        ``middle_us``, ``high_us``.
    balance : list of dict
        What became of the time from arrival to departure, of each workload: ``workload``, ``packets``, ``lost``, and
        means of a packet: ``latency_ns`` is the sum of `LATENCY_PARTS`; these without link and wait, and with
        ``idle_ns``, make the time between departures.
    interrupts : list of dict
        The kernel's own record of interrupts and softirqs on the router's CPU: ``kind``, ``per_s``, ``mean_ns``,
        ``p99_ns``, and of two or more ``gap_mean_ns``, ``gap_deviation_ns``.
    stages : list of dict
        The path's stages: ``stage``, ``group`` (correlated adjacent stages), ``mean_ns``, ``median_ns``, ``p99_ns``,
        ``share``.
    correlations : list of dict
        Of each pair of adjacent stages: ``stages``, ``lag_0`` and ``lag_1`` (of the later stage with the earlier of the
        packet before), ``is_merged``.
    checks : list of dict
        Validations of it that were kept: ``age_s`` of the calibration, ``runs``, and of their ``of`` measured values
        how many lay ``inside`` the 90 % intervals of their forecasts.
    """

    created: str
    machine: dict[str, Any]
    setup: dict[str, Any]
    traffic: dict[str, Any]
    overload_pps: float
    low_overload_pps: float
    high_overload_pps: float
    queue_packets: int
    poll_packets: int
    link_ns: float
    low_link_ns: float
    high_link_ns: float
    transfer_ns: float
    held_share: float
    send_ns: float
    low_send_ns: float
    high_send_ns: float
    service: Times
    wake: Times
    look_ns: float
    after_idle: list[dict[str, Any]]
    held: Times | None
    waking: Times | None
    sender_batch: int
    noise: Noise
    stretches: list[dict[str, Any]]
    trials: list[dict[str, Any]]
    balance: list[dict[str, Any]]
    interrupts: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    correlations: list[dict[str, Any]]
    checks: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def parts_pps(self) -> float:
        """Rate under overload that service, way to the sink and stalls give."""
        stall_share = 1e-9 * self.noise.per_s * self.noise.times.mean_ns if self.noise.times else 0.0
        return 1e9 * max(0.0, 1 - stall_share) / (self.service.mean_ns + self.send_ns)

    @property
    def span_s(self) -> float:
        """Time from the first stretch to the last, seconds: what the machine does in longer times is not in it."""
        return max((row["at_s"] for row in self.stretches), default=0.0)

    @property
    def age_s(self) -> float:
        """Time since it was made, seconds."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.created)).total_seconds()

    @property
    def wake_factors(self) -> list[tuple[float, float]]:
        """Idle times, ns, and factors of `wake`."""
        return [(row["idle_ns"], row["factor"]) for row in self.after_idle]

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_whole(path, _toml({"format": FORMAT, "version": f"{MAJOR}.2", **asdict(self)}, _COMMENT))

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        """Read a file.

        Raises
        ------
        UsageError
            There is no such file.
        ParshallError
            It is not a calibration, or a field is missing, unknown or wrong.
        """
        try:
            data = parse_toml(path.read_text())
        except OSError as error:
            raise UsageError(
                f"{path}: {error.strerror or error}; make a calibration with: parshall model calibrate -o {path}"
            ) from None
        except ValueError as error:
            raise ParshallError(f"{path}: not TOML: {error}; calibrate again") from None
        kind, version = data.pop("format", None), str(data.pop("version", ""))
        if kind != FORMAT:
            found = "names no format" if kind is None else f"is of the format {brief(repr(kind))}"
            raise ParshallError(
                f"{path}: {found}, so it is no calibration; make one with: parshall model calibrate -o FILE"
            )
        if version.partition(".")[0] != str(MAJOR):
            raise ParshallError(
                f"{path}: calibration version {brief(version)}, this Parshall reads {MAJOR}.x; calibrate again"
            )
        if isinstance(data.get("setup"), dict):
            # Of files before 4.2.
            data["setup"].setdefault("destinations", 1)
        calibration: Calibration = _built(cls, data, str(path))
        calibration.check(str(path))
        return calibration

    def check(self, name: str = "calibration") -> None:
        """Raise `ParshallError` for numbers that no router has."""
        try:
            known = datetime.fromisoformat(self.created).tzinfo is not None
        except ValueError:
            known = False
        if not known:
            raise ParshallError(
                f"{name}: created is {brief(repr(self.created))}; expected a time such as 2026-11-24T20:00:00+00:00; "
                "calibrate again"
            )
        for field in ("overload_pps", "queue_packets", "poll_packets", "sender_batch"):
            value = getattr(self, field)
            if not 0 < value <= _LARGEST:
                raise ParshallError(
                    f"{name}: {field} is {value}; expected a number above 0, at most {_LARGEST:g}; calibrate again"
                )
        for field in ("link_ns", "transfer_ns", "look_ns", "send_ns", "noise.per_s", "held_share"):
            value = self.noise.per_s if field == "noise.per_s" else getattr(self, field)
            end = 1 if field.endswith("_share") else _LARGEST
            if not 0 <= value < end:
                raise ParshallError(
                    f"{name}: {field} is {value}; expected a number from 0 to less than {end:g}; calibrate again"
                )
        for row in self.stretches:
            for field in _READ["stretches"]:
                value = row[field]
                least = 0 if field in ("at_s", "wake_ns", "link_ns", "stalls") else 1e-9
                if not least <= value <= _LARGEST:
                    raise ParshallError(
                        f"{name}: stretches: {field} is {value}; expected a number from {least:g} to {_LARGEST:g}; "
                        "calibrate again"
                    )
        for row in self.trials:
            values = [row[field] for field in ("low_us", "middle_us", "high_us")]
            if not 0 < values[0] <= values[1] <= values[2] <= _LARGEST or not 0 < row["measured_us"] <= _LARGEST:
                which = f"{brief(row['quantile'])} of {brief(row['traffic'])} at {row['load']:g}"
                raise ParshallError(
                    f"{name}: trials: {which}: expected latencies above 0, at most {_LARGEST:g} us, low_us to high_us "
                    "in order; calibrate again"
                )
        for row in self.checks:
            if not (0 <= row["age_s"] <= _LARGEST and 0 < row["runs"] <= row["of"] and 0 <= row["inside"] <= row["of"]):
                raise ParshallError(
                    f"{name}: checks: expected an age_s from 0 to {_LARGEST:g}, runs, and inside of more values; "
                    "calibrate again"
                )
        points = [0.0, *(row["idle_ns"] for row in self.after_idle), _LARGEST]
        if not all(low < high for low, high in pairwise(points)):
            raise ParshallError(f"{name}: after_idle: expected idle_ns that rise; calibrate again")
        for row in self.after_idle:
            if not 0 <= row["factor"] <= _LARGEST:
                raise ParshallError(
                    f"{name}: after_idle: factor is {row['factor']}; expected a number from 0 to {_LARGEST:g}; "
                    "calibrate again"
                )
        for row in self.balance:
            parts_ns = sum(row[f"{part}_ns"] for part in LATENCY_PARTS)
            if not abs(parts_ns - row["latency_ns"]) <= _BALANCED * abs(row["latency_ns"]):
                raise ParshallError(
                    f"{name}: balance of {row['workload']}: parts are {parts_ns:g} ns of {row['latency_ns']:g}; "
                    "calibrate again"
                )
        if self.noise.times is not None and (self.noise.gaps is None or self.noise.per_s <= 0):
            raise ParshallError(f"{name}: noise: has times, but no gaps or rate; calibrate again")
        for field, times in (
            ("service", self.service),
            ("wake", self.wake),
            ("held", self.held),
            ("waking", self.waking),
            ("noise.times", self.noise.times),
            ("noise.gaps", self.noise.gaps),
        ):
            if times is None:
                continue
            bounds, counts = times.bounds_ns, times.counts
            rises = all(low < high < math.inf for low, high in pairwise(bounds))
            if not rises or len(bounds) != len(counts) + 1 or min(bounds) < 0:
                raise ParshallError(f"{name}: {field}: expected rising bounds, one more than counts; calibrate again")
            if not all(count >= 0 for count in counts) or sum(counts) == 0:
                raise ParshallError(f"{name}: {field}: expected counts, not all 0; calibrate again")

    def differences(self) -> list[str]:
        """Return how this machine differs from that of the calibration."""
        here = machine()
        return [
            f"{name} is {here.get(name)!r} here, {self.machine.get(name)!r} in the calibration"
            for name in _SAME
            if here.get(name) != self.machine.get(name)
        ]


def scaled(times: Times, factor: float) -> Times:
    """Return times that take a factor as long."""
    return replace(
        times,
        mean_ns=times.mean_ns * factor,
        median_ns=times.median_ns * factor,
        p99_ns=times.p99_ns * factor,
        low_median_ns=times.low_median_ns * factor,
        high_median_ns=times.high_median_ns * factor,
        bounds_ns=[bound * factor for bound in times.bounds_ns],
    )


def machine() -> dict[str, Any]:
    """Describe this machine, as far as it decides times."""
    from parshall.host.environment import environment

    found = environment()
    chosen = {name: found.get(name) for name in ("kernel", "cpu_model", "machine", "cpus", "clock_source", "parshall")}
    return {name: value for name, value in chosen.items() if value is not None} or {"machine": platform.machine()}


_COMMENT = """\
Parameters of a router's model, measured by `parshall model calibrate`. Times are in ns, rates per second.
docs/formats/calibration.md describes each field."""


def _built(kind: Any, data: Any, name: str) -> Any:
    """Return a dataclass of plain values; an error names the field."""
    if not isinstance(data, dict):
        raise ParshallError(f"{name}: expected a table, not {brief(repr(data))}; calibrate again")
    known = {each.name: each.type for each in fields(kind)}
    optional = {"times", "gaps", "held", "waking"} & known.keys()
    # Of files that are older than the field.
    later = {each.name for each in fields(kind) if each.default_factory is not MISSING}
    if missing := sorted(known.keys() - data.keys() - optional - later):
        raise ParshallError(f"{name}: {missing[0]}: missing; calibrate again")
    if unknown := sorted(data.keys() - known.keys()):
        raise ParshallError(f"{name}: {brief(unknown[0])}: unknown field; expected {', '.join(known)}")
    parts: dict[str, Any] = dict.fromkeys(("service", "wake", "held", "waking", "times", "gaps"), Times) | {
        "noise": Noise
    }
    values: dict[str, Any] = dict.fromkeys(optional)
    for field, value in data.items():
        place, of = f"{name}: {field}", known[field]
        if field in parts:
            values[field] = _built(parts[field], value, place)
            continue
        _check_type(value, of, place)
        for row in value if isinstance(value, list) else [value]:
            for key, of_key in _READ.get(field, {}).items():
                _check_type(row.get(key), of_key, f"{place}.{key}")
        values[field] = value
    return kind(**values)


def _check_type(value: Any, kind: Any, place: str) -> None:
    """Raise `ParshallError` unless a value of a file has the type of its field."""
    plain: type = get_origin(kind) or kind
    accepted = int | float if plain is float else plain
    # To Python, true and false are numbers.
    if not isinstance(value, accepted) or isinstance(value, bool) != (plain is bool):
        raise ParshallError(f"{place}: {value!r:.60}; expected {plain.__name__}; calibrate again")
    if isinstance(value, list):
        for each in value:
            _check_type(each, get_args(kind)[0], place)


def _toml(data: dict[str, Any], comment: str) -> str:
    lines = [f"# {line}" for line in comment.splitlines()]
    _table(lines, (), data)
    return "\n".join(lines) + "\n"


def _table(lines: list[str], path: tuple[str, ...], data: dict[str, Any]) -> None:
    parts = {name: value for name, value in data.items() if isinstance(value, dict) or _is_rows(value)}
    plain = {name: value for name, value in data.items() if name not in parts and value is not None}
    lines.extend(f"{name} = {_value(value)}" for name, value in plain.items())
    for name, value in parts.items():
        where = ".".join([*path, name])
        if isinstance(value, dict):
            lines.extend(["", f"[{where}]"])
            _table(lines, (*path, name), value)
            continue
        for row in value:
            lines.extend(["", f"[[{where}]]"])
            _table(lines, (*path, name), row)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _value(value: Any) -> str:
    # JSON's texts, numbers, lists and booleans are TOML's, too.
    if isinstance(value, float):
        return repr(float(f"{value:.6g}"))
    if isinstance(value, list):
        return f"[{', '.join(_value(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)
