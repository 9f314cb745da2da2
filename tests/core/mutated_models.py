"""Model files with mistakes, and what becomes of them: one clear line each, or a right answer.

Mutations follow the structure of a model (fields are dropped, misspelt, given twice, moved, swapped; values change
their type, or are extreme) or are blind (bytes of the text). They are numbered: the same number, the same file.

    python tests/core/mutated_models.py --first 0 --count 20000 --workers 2
"""

import argparse
import copy
import faulthandler
import json
import math
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.model import MODELS, load, parameters, run

# Of the processor, so that a busy machine does not count.
SECONDS_MAX = 5.0
MEMORY_MAX_KIB = 1 << 20
LINE_MAX = 700
DURATION_S = 1e-3
EVENTS_MAX = 2_000_000
JOBS_MAX = 200_000

_PAGE = Path(__file__).parents[2] / "docs" / "model.md"

NUMBERS = (
    0, 1, -1, 2, 3, 64.7, 0.5, 1e-9, 1e-300, 1e12, 1e16, 1e30, 1e308, -1e30, 2**31, 2**32, 2**53 + 1, 2**63, 2**64,
    10**400, math.nan, math.inf, -math.inf, 0.1, 999_999, 4_294_967_295,
)  # fmt: skip
TEXTS = (
    "", " ", "x", "out", "q\n2", "\x00", "\x1b[31mred", "\ud800", "ä€😀", "y" * 100_000, "null", "1e400", "nan",
    "exponential:mean=1e-9", "exponential:mean=1e300", "exponential:mean=-1us", "exponential", "exponential:", ":",
    "poisson:mean=0", "poisson:mean=1e-9", "poisson:mean=1ps", "poisson:mean=2us", "erlang:stages=4294967295,mean=1",
    "erlang:stages=0,mean=1", "pareto:shape=0.1,scale=1", "normal:mean=-5,sd=1", "uniform:low=5,high=1", "none",
    "onoff:on=1,off=1e12,gap=4,slot=1ns", "onoff:on=1,off=1,gap=1e12,slot=1s", "onoff:on=5,off=15,gap=4,slot=10ns",
    "bursts:size=4294967295,inside=0,period=1s", "poisson:mean=1us + none", "fixed:mean=1e300us + onoff:slot=1e-9us",
    "fixed:mean=0", "constant:5", "lognormal:mean=1,sd=1e300", "weibull:shape=1e-9,scale=1", "geometric:p=1e-12",
    "pareto-onoff:sources=4096,gap=1us,on=10us,off=1us,on-shape=1.1,off-shape=1.1",
    "pareto-onoff:sources=1,gap=1s,on=1ns,off=1ns,on-shape=1.5,off-shape=1.5",
    "at-end", "polling", "delay", "processor-sharing",
)  # fmt: skip
OTHERS = (None, True, False, [], {}, [[]], [{}], {"": ""}, [None], {"a": {"b": [1, {"c": None}]}}, [1, "x", None])
BYTES = (b"{", b"[" * 5000, b'"', b"\xff", b"\x00", b",", b"1" * 6000, b"\xef\xbb\xbf", b"e9")
# Fields that a part might have, each with what might be meant by it.
FIELDS: tuple[tuple[str, Any], ...] = (
    ("priority", 1), ("priorty", 1), ("weight", 2.5), ("capacity_packets", 1), ("capacity_bytes", 10),
    ("servers", 4_000_000_000), ("servers", 3), ("frees", "at-end"),
    ("batch", {"packets": 4_294_967_295, "cost_ns": 1}), ("blocks", True), ("batch", {"packets": 3}),
    ("service_ns", 100), ("service_ns", 0), ("kind", "delay"), ("kind", "processor-sharing"),
    ("kind", "preemptive-resume"), ("policies", [{"policy": "round-robin", "quantum_ns": 1e-9}]),
    ("policies", [{"policy": "round-robin", "quantum_ns": 0.01}]),
    ("policies", [{"policy": "polling", "batch": 1, "yield_ns": 5}]),
    ("policies", [{"policy": "weighted-fair", "tags": "time"}]), ("measured_at_mhz", 1e30), ("clock_mhz", 1e-300),
    ("becomes", "c"), ("classes", []), ("packets", 10**15), ("packets", 5), ("gap_ns", 0), ("size_bytes", 1e12),
    ("size_bytes", 64.7), ("fixed_ns", 1e16), ("per_byte_ns", 1e30), ("probability", 0.999999999), ("time_ns", 0),
    ("samples", [1.0]), ("trace", "t"),
)  # fmt: skip


def originals() -> list[dict[str, Any]]:
    """Return the models to begin with: those of the documentation, the built-in ones, and one with every field."""
    import tomllib

    models = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", _PAGE.read_text(), flags=re.DOTALL)]
    assert models
    models += [parameters(name, {}).build().as_dict() for name in MODELS]
    # Built-in parameters are whole lists of parts: they are data, not shared between mutations.
    return [copy.deepcopy(each) for each in [*models, EVERY_FIELD, EVERY_FIELD]]


EVERY_FIELD: dict[str, Any] = {
    "name": "every field",
    "classes": ["data", "clone", "ack"],
    "sources": [
        {"name": "a", "class": "data", "gap_ns": "poisson:mean=2us", "size_bytes": {"samples": [64, 1500]}, "to": "in"},
        {
            "name": "b",
            "class": "ack",
            "gap_ns": {"bounds": [1000, 2000, 4000], "counts": [1, 2]},
            "packets": 50,
            "to": "in",
        },
    ],
    "stations": [
        {"name": "card", "servers": 2, "policies": [{"priority": 0, "policy": "round-robin", "quantum_ns": 300}]},
        {
            "name": "cpu",
            "kind": "preemptive-resume",
            "clock_mhz": 600,
            "policies": [
                {"priority": 1, "policy": "polling", "batch": 4, "budget": 8, "yield_ns": 10, "visit_ns": 5},
                {"priority": 2, "policy": "weighted-fair", "tags": "bytes"},
            ],
        },
        {"name": "wire", "kind": "delay"},
        {"name": "bus", "kind": "processor-sharing"},
    ],
    "queues": [
        {
            "name": "in",
            "station": "card",
            "service_ns": "exponential:mean=200ns",
            "to": ["poll", {"to": "trap", "becomes": "clone"}],
        },
        {
            "name": "poll",
            "station": "cpu",
            "priority": 1,
            "capacity_packets": 50,
            "frees": "at-end",
            "service": [
                {"classes": ["ack"], "time_ns": 100, "measured_at_mhz": 1000, "fixed_ns": 3},
                {"time_ns": {"bytes": [64, 1500], "values": [100, 300]}},
            ],
            "to": [{"to": "shared", "blocks": True}],
        },
        {
            "name": "trap",
            "station": "cpu",
            "priority": 2,
            "weight": 2,
            "capacity_bytes": 90000,
            "service_ns": 20,
            "batch": {"packets": 4, "cost_ns": 10},
            "to": [{"to": [{"place": "shared", "probability": 0.5}, {"place": "gone", "probability": 0.5}]}],
        },
        {
            "name": "shared",
            "station": "bus",
            "service": [{"time_ns": 10, "per_byte_ns": 0.1}],
            "capacity_packets": 64,
            "to": "line",
        },
        {"name": "line", "station": "wire", "service_ns": "uniform:low=100ns,high=200ns", "to": {"to": "out"}},
    ],
    "sinks": ["out", "gone"],
}


def mutated(number: int, models: list[dict[str, Any]]) -> tuple[str, bytes]:
    """Return the suffix and the bytes of a mutated file."""
    rng = random.Random(number)
    model = copy.deepcopy(rng.choice(models))
    is_toml = rng.random() < 0.3
    kind = rng.random()
    for _ in range(rng.choice((1, 1, 2, 3)) if kind < 0.85 else 0):
        change(model, rng)
    data = (toml(model) if is_toml else json.dumps(model)).encode("utf-8", "surrogatepass")
    if not is_toml and kind < 0.05:
        # A field twice.
        places = [match.start(1) for match in re.finditer(rb'[{ ]("[a-z_]+": )', data)]
        at = rng.choice(places or [0])
        data = data[:at] + data[at : data.find(b":", at)] + b": null, " + data[at:]
    if kind >= 0.85:
        data = flipped(data, rng)
    return (".toml" if is_toml else ".json"), data


def nodes(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Give every container of a tree with each of its keys or indices."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from nodes(tree[key])


def change(model: dict[str, Any], rng: random.Random) -> None:
    """Make one mistake."""
    every = list(nodes(model))
    if not every:
        return
    parent, key = rng.choice(every)
    value = parent[key]
    match rng.randrange(14):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[misspelt(str(key), rng)] = parent.pop(key)
        case 1 | 2:
            parent[key] = copy.deepcopy(rng.choice(NUMBERS + TEXTS + OTHERS))
        case 3:
            other, its = rng.choice(every)
            parent[key] = copy.deepcopy(other[its])
        case 4:
            # Values, not the parts that hold them: a tree stays a tree.
            plain = [(p, k) for p, k in every if not isinstance(p[k], dict | list)]
            if plain:
                (one, first), (two, second) = rng.choice(plain), rng.choice(plain)
                one[first], two[second] = two[second], one[first]
        case 5:
            lists = [p[k] for p, k in every if isinstance(p[k], list) and p[k]]
            if lists:
                chosen = rng.choice(lists)
                chosen.insert(rng.randrange(len(chosen) + 1), copy.deepcopy(rng.choice(chosen)))
                rng.choice((rng.shuffle, lambda _: None))(chosen)
        case 6:
            numbers = [(p, k) for p, k in every if type(p[k]) in (int, float)]
            if numbers:
                one, first = rng.choice(numbers)
                one[first] = rng.choice((float(min(one[first], 2**64)) * 10.0 ** rng.randint(-12, 30), *NUMBERS))
        case 10 | 11 | 12:
            # What somebody might mean.
            numbers = [(p, k) for p, k in every if type(p[k]) in (int, float) and 0 < abs(p[k]) < 2**64]
            if numbers:
                one, first = rng.choice(numbers)
                one[first] = type(one[first])(one[first] * rng.choice((0.01, 0.5, 2, 3, 100)))
        case 7:
            tables = [p[k] for p, k in every if isinstance(p[k], dict)] or [model]
            name, meant = rng.choice(FIELDS)
            rng.choice(tables)[name] = copy.deepcopy(meant)
        case 8:
            # A way to anywhere, perhaps back.
            ends = [(p, k) for p, k in every if k in ("place", "to") and isinstance(p[k], str)]
            parts = model.get("queues", [])
            queues = [each.get("name") for each in parts if isinstance(each, dict)] if isinstance(parts, list) else []
            if ends and queues:
                one, first = rng.choice(ends)
                one[first] = rng.choice(queues)
        case _:
            if isinstance(value, str):
                parent[key] = misspelt(value, rng)
            elif type(value) in (int, float):
                parent[key] = rng.choice(NUMBERS)
            else:
                parent[key] = rng.choice(TEXTS)


def misspelt(word: str, rng: random.Random) -> str:
    """Return a word with a letter less, more, or two in the wrong order."""
    at = rng.randrange(len(word) + 1)
    before, after = word[:at], word[at:]
    return rng.choice((before + after[1:], before + "x" + after, before[:-1] + after[:1] + before[-1:] + after[1:]))


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Change some bytes: other bits, gone, twice, cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(len(changed), 1))
        match rng.randrange(5):
            case 0 if changed:
                changed[min(at, len(changed) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : at + rng.randint(1, 8)]
            case 2:
                changed[at:at] = changed[at : at + rng.randint(1, 200)]
            case 3:
                changed[at:at] = rng.choice(
                    (b"{", b"[" * 5000, b'"', b"\xff", b"\x00", b",", b"1" * 6000, b"\xef\xbb\xbf", b"e9")
                )
            case _:
                del changed[len(changed) - rng.randint(0, len(changed)) // 4 :]
    return bytes(changed)


def toml(model: dict[str, Any]) -> str:
    """Return a model as TOML, one line for each of its fields."""
    return "".join(f"{_text(name)} = {_toml(value)}\n" for name, value in model.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    # There is no null: a date is no better.
    return "1979-05-27" if value is None else _text(value)


def _text(value: Any) -> str:
    return json.dumps(value)


def outcome(path: Path, allow_unstable: bool) -> str:
    """Load, check and run a file; return what came of it, or raise what must not be."""
    try:
        model = load(path)
        model.check(allow_unstable=allow_unstable)
    except UsageError as error:
        text = str(error)
    else:
        text = ""
    if text:
        return _refused(text, path)
    try:
        results = run(
            model,
            duration_s=DURATION_S,
            warm_up_s=0,
            replications=1,
            threads=1,
            allow_unstable=allow_unstable,
            events_max=EVENTS_MAX,
            jobs_max=JOBS_MAX,
        )
    except ParshallError as error:
        return _refused(str(error), path) + " while running"
    balance = results.data["replications"][0]["balance"]
    came = balance["inside_before"] + balance["entered"] + balance["cloned"]
    assert came == balance["left"] + balance["lost"] + balance["inside"], balance
    for station in results.data["replications"][0]["stations"]:
        assert station["utilisation"] >= 0, station
    return "ran"


def _refused(text: str, path: Path) -> str:
    rest = text.removeprefix(f"{path}: ")
    assert rest != text or rest.startswith("the run: "), f"no file in: {text}"
    assert text.isprintable(), f"not one line that can be printed: {text!r}"
    assert len(rest) <= LINE_MAX, f"{len(rest)} characters: {text}"
    assert "; " in rest, f"no remedy in: {text}"
    assert "the model cannot be read" not in text, f"the schema let pass what the engine does not know: {text}"
    assert "is not JSON" in text or "is not TOML" in text or "line 1 column" not in text, text
    return "refused"


def peak_memory_kib() -> int:
    """Return the largest memory of this program; that of getrusage(2) begins with that of the one that started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


def work(first: int, count: int) -> None:
    """Try files in this process, and print one line of JSON for each."""
    models = originals()
    resource.setrlimit(resource.RLIMIT_CPU, (count * 6 + 60, count * 6 + 60))
    with tempfile.TemporaryDirectory() as directory:
        for number in range(first, first + count):
            suffix, data = mutated(number, models)
            path = Path(directory) / f"mutated{suffix}"
            path.write_bytes(data)
            # Ends the process when it hangs, even where Python's lock is held.
            faulthandler.dump_traceback_later(30, exit=True)
            began, wrong = time.process_time(), None
            try:
                found = outcome(path, allow_unstable=number % 4 == 0)
            except BaseException:
                found, wrong = "wrong", traceback.format_exc(limit=-2)[-1500:]
            spent_s = time.process_time() - began
            faulthandler.cancel_dump_traceback_later()
            memory_kib = peak_memory_kib()
            if wrong is None and spent_s > SECONDS_MAX:
                found, wrong = "wrong", f"took {spent_s:.1f} s"
            if wrong is None and memory_kib > MEMORY_MAX_KIB:
                found, wrong = "wrong", f"took {memory_kib} KiB"
            line = {"number": number, "found": found, "wrong": wrong, "spent_s": spent_s, "memory_kib": memory_kib}
            print(json.dumps(line), flush=True)


def attempts(first: int, count: int, workers: int) -> list[dict[str, Any]]:
    """Try files in worker processes; return a row for each, also for one at which its worker ended."""
    share = math.ceil(count / workers)
    begins = range(first, first + count, share)
    rows = []
    with ExitStack() as files:
        # Files, not pipes: nobody reads them before all have ended.
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in begins]
        errors = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in begins]
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--work", str(begin), str(min(share, first + count - begin))],
                stdout=output,
                stderr=error,
            )
            for begin, output, error in zip(begins, outputs, errors, strict=True)
        ]
        for begin, process, output, error in zip(begins, processes, outputs, errors, strict=True):
            status = process.wait()
            output.seek(0)
            done = [json.loads(line) for line in output]
            rows += done
            if status != 0:
                error.seek(0)
                wrong = f"its process ended with {status}: {error.read()[-2000:]}"
                rows.append(
                    {"number": begin + len(done), "found": "wrong", "wrong": wrong, "spent_s": 0, "memory_kib": 0}
                )
    return rows


def main() -> None:
    """Try many files, and say what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*arguments.work)
        return
    rows = attempts(arguments.first, arguments.count, arguments.workers)
    wrong = [row for row in rows if row["wrong"]]
    for row in wrong[:20]:
        print(row["number"], row["wrong"])
    print(dict(Counter(row["found"] for row in rows)), f"of {len(rows)}")
    print(f"at most {max(row['spent_s'] for row in rows):.2f} s and {max(row['memory_kib'] for row in rows) >> 10} MiB")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
