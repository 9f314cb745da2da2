"""Model files with mistakes: one clear line each, or a right answer."""

import copy
import json
import random
import re
from pathlib import Path
from typing import Any, get_type_hints

import mutated_models
import pytest

from parshall._native import Network
from parshall.cli.main import main
from parshall.errors import UsageError
from parshall.model import MODELS, Model, from_dict, load, parameters, run, schema

ROUTER: dict[str, Any] = {
    "sources": [{"name": "flow", "gap_ns": "poisson:mean=12us", "size_bytes": 64, "to": "ip"}],
    "stations": [{"name": "cpu", "clock_mhz": 600}],
    "queues": [{"name": "ip", "station": "cpu", "service_ns": 10, "capacity_packets": 50, "to": "out"}],
}


def router(**queue: Any) -> dict[str, Any]:
    model = copy.deepcopy(ROUTER)
    model["queues"][0] |= queue
    return model


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.long)])
def test_mutated_files_run_or_are_refused(count: int) -> None:
    rows = mutated_models.attempts(1_000_000, count, workers=2)
    assert [row for row in rows if row["wrong"]] == []
    assert len(rows) == count
    # Both ends are tried.
    assert min(sum(row["found"] == found for row in rows) for found in ("ran", "refused")) > count / 10


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (router(priorty=1), 'queue "ip": priorty is not a field here; did you mean priority?'),
        (router(colour="red"), 'queue "ip": colour is not a field here; expected one of name, station, priority'),
        (
            router(service=[{"time_ns": 1}]),
            'queue "ip": service and service_ns contradict each other; keep one of them',
        ),
        (
            router(service_ns={"samples": [1], "bounds": [1, 2]}),
            'queue "ip", service_ns: bounds is not a field here; expected one of samples',
        ),
        (router(service_ns=[5]), 'queue "ip": service_ns is a list; expected a number, a distribution, or a table'),
        (
            router(service_ns="exponential:mean=-1us"),
            'queue "ip", time_ns: distribution exponential: mean is -1000; expected',
        ),
        (router(capacity_packets="many"), 'queue "ip": capacity_packets is "many"; expected a whole number'),
        (router(capacity_packets=-1), 'queue "ip": capacity_packets is -1; expected at least 0'),
        (router(capacity_packets=2.5, to=5),
         'queue "ip": capacity_packets is 2.5; expected a whole number (and 1 more mistake)'),
        (router(weight=float("nan")), 'queue "ip": weight is NaN; expected a finite number'),
        (router(weight=2), 'queue "ip": weight is 2; expected no weight, or the policy weighted-fair'),
        (router(station="cpv"), 'queue "ip": no station "cpv" in the model; there are cpu'),
        (router(to={"to": "out", "blocks": 1}), 'queue "ip", to: blocks is 1; expected true or false'),
        (router(to="ipp"), 'queue "ip": to "ipp" is no queue; did you mean ip? A sink of such a name must be in'),
        (ROUTER | {"sinks": ["drain"]},
         'queue "ip": to "out" is neither a queue nor one of sinks; expected one of ip, drain'),
        (ROUTER | {"stations": [{"name": "cpu", "policies": [{"policy": "fifo"}]}]},
         'station "cpu", policies 1: policy is "fifo"; expected one of \'fcfs\', \'round-robin\''),
        (ROUTER | {"sources": [ROUTER["sources"][0] | {"size_bytes": 64.7}]},
         'source "flow", size_bytes: a value is 64.7; expected a whole number'),
        (ROUTER | {"sources": [ROUTER["sources"][0] | {"size_bytes": 1e12}]},
         'source "flow", size_bytes: a value is 1000000000000; expected a whole number'),
        (ROUTER | {"sources": [ROUTER["sources"][0] | {"gap_ns": 1e-9}]},
         'source "flow": gap_ns is 1e-9; expected a mean of at least 0.1 ns'),
        (ROUTER | {"sources": [{"name": "flow"}]}, 'source "flow": gap_ns is missing; add it (and 1 more mistake)'),
        (ROUTER | {"sources": 5}, "sources is 5; expected a list"),
        ([], "is []; expected the tables sources, stations and queues"),
    ],
)  # fmt: skip
def test_a_mistake_has_file_part_field_value_and_remedy(model: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    path.write_text(json.dumps(model))
    with pytest.raises(UsageError) as caught:
        load(path).check()
    assert str(caught.value).startswith(f"{path}: {message}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.json", b"{", "is not JSON: Expecting property name"),
        ("m.json", b'{"name": "a", "name": "b"}', 'is not JSON: field "name" is given twice; correct it'),
        ("m.json", b"[" * 100_000, "is not JSON of a model: nested too deep"),
        ("m.toml", b"a = " + b"[" * 100_000, "is not TOML of a model: nested too deep"),
        ("m.toml", b"name = 'a'\nname = 'b'", "is not TOML: Cannot overwrite a value"),
        ("m.json", b"\xff", "is not JSON: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_invalid_models_are_reported_with_their_file(name: str, text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: {message}")


def test_a_mutated_file_on_the_command_line_is_one_line_and_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = mutated_models.originals()
    statuses = []
    for number in range(2_000_000, 2_000_030):
        suffix, data = mutated_models.mutated(number, models)
        path = tmp_path / f"model{suffix}"
        path.write_bytes(data)
        with pytest.raises(SystemExit) as ended:
            main(["model", "run", str(path), "--duration", "100us", "--warm-up", "0", "--replications", "1",
                  "--events-max", "1000000", "--jobs-max", "100000"])  # fmt: skip
        statuses.append(ended.value.code)
        output = capsys.readouterr()
        if ended.value.code == 0:
            assert output.err == "" and output.out
        else:
            assert ended.value.code == 2, output.err
            assert output.out == ""
            assert re.fullmatch(rf"parshall: model: {re.escape(str(path))}: [^\n]+; [^\n]+\n", output.err), output.err
    assert statuses.count(0) > 1 and statuses.count(2) > 10


def reordered(tree: Any, rng: random.Random) -> Any:
    """Return the same data with the fields of its tables in another order."""
    if isinstance(tree, dict):
        names = list(tree)
        rng.shuffle(names)
        return {name: reordered(tree[name], rng) for name in names}
    return [reordered(each, rng) for each in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize("name", [*MODELS, "every field"])
def test_how_a_model_is_written_changes_no_result(name: str, tmp_path: Path) -> None:
    data = parameters(name, {}).build().as_dict() if name in MODELS else mutated_models.EVERY_FIELD
    options: dict[str, Any] = {"duration_s": 1e-2, "warm_up_s": 0, "replications": 1, "allow_unstable": True}
    expected = run(from_dict(copy.deepcopy(data)), **options).data
    other = reordered(data, random.Random(name))
    (tmp_path / "model.json").write_text(json.dumps(other, indent=2))
    (tmp_path / "model.toml").write_text(mutated_models.toml(other))
    for path in ("model.json", "model.toml"):
        assert run(load(tmp_path / path), **options).data == expected
    assert run(data, **options).data == expected
    assert expected["replications"][0]["events"] > 50


# Kind of part -> (its path in the model, its short-form fields, which the engine does not have).
PARTS = {
    "ModelFile": ([], set()),
    "Source": (["sources", 0], set()),
    "Station": (["stations", 0], set()),
    "Queue": (["queues", 0], {"service_ns"}),
    "Service": (["queues", 0, "service", 0], set()),
    "Batch": (["queues", 0, "batch"], set()),
    "Transition": (["queues", 0, "to", 0], set()),
    "Choice": (["queues", 0, "to", 0, "to", 0], set()),
}


@pytest.mark.parametrize("kind", PARTS)
def test_the_schema_has_the_fields_of_the_engine(kind: str) -> None:
    path, short_forms = PARTS[kind]
    model = from_dict(router(batch={"packets": 2})).as_dict()
    part: Any = model
    for step in path:
        part = part[step]
    part["no such field"] = 0
    with pytest.raises(UsageError, match="unknown field") as caught:
        Network(json.dumps(model))
    fields = re.search(r"expected (?:one of )?(.*?) at line", str(caught.value))
    assert fields is not None
    assert set(re.findall(r"`(\w+)`", fields[1])) == set(get_type_hints(getattr(schema, kind))) - short_forms


def test_a_built_model_is_checked_like_a_file() -> None:
    model = Model("built").source("c", "poisson:mean=2us", "q").station("s").queue("q", "s", 100, "out", priorty=1)
    with pytest.raises(
        UsageError, match='model "built": queue "q": priorty is not a field here; did you mean priority'
    ):
        run(model, duration_s=1e-3)


def test_10_000_stations_are_checked_in_seconds() -> None:
    # A linear search for each part would take minutes.
    model = Model("row").source("c", "poisson:mean=10us", "q0")
    for number in range(10_000):
        model.station(f"s{number}").queue(
            f"q{number}", f"s{number}", 1000, f"q{number + 1}" if number < 9999 else "out"
        )
    began = mutated_models.time.process_time()
    model.check()
    assert mutated_models.time.process_time() - began < 10


@pytest.mark.parametrize("load_", ["1e30mbps", "1e30pps", "infmbps", "nanpps"])
def test_an_invalid_load_is_refused(load_: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["model", "run", "bsd-router", "--load", load_, "--duration", "1e-3"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
