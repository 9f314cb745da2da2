"""What `--json` prints is as the schemas in `docs/formats/schemas` say, and every command that has it has a schema."""

import importlib
import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator

import in_process
from made_calibration import known
from output_cases import ANYWHERE, AS_ROOT, BY_ITSELF, json_words
from output_schemas import SCHEMAS, validated
from parshall.cli import main as cli
from parshall.instruments import cpu
from parshall.outputs import OUTPUTS, file_name, schema
from parshall.router.forecast import forecast

LOG = Path(__file__).parents[1] / "data" / "small.arrow"
PAGE = SCHEMAS.parent / "outputs.md"
# Their keys are names of what a model, a level or a kernel has.
OPEN = {"SummaryRow", "ModelComparisonRow", "PlanOutput", "BalanceRow"}


def with_json() -> set[str]:
    """The words of every command that has the option."""
    found = {"--version"}
    for name, (module_name, *_) in cli.COMMANDS.items():
        module = importlib.import_module(module_name)
        app = getattr(module, "app", None) or typer.Typer(add_completion=False)
        if not hasattr(module, "app"):
            app.command(name=name)(module.command)
        command = typer.main.get_command(app)
        inner = getattr(command, "commands", {})
        commands = {f"{name} {word}": each for word, each in inner.items()} or {name: command}
        found |= {words for words, each in commands.items() if any("--json" in one.opts for one in each.params)}
    return found


def objects(part: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of a schema, and its name."""
    if isinstance(part, list):
        for each in part:
            yield from objects(each, name)
    if not isinstance(part, dict):
        return
    if part.get("type") == "object" and "properties" in part:
        yield name or str(part.get("title")), part
    for key, each in part.items():
        yield from objects(each, key if isinstance(each, dict) and "type" in each else name)


def test_every_command_that_prints_json_has_a_schema_and_is_run() -> None:
    assert with_json() == set(OUTPUTS)
    run = {command for command, _ in (*ANYWHERE.values(), *AS_ROOT.values())}
    assert run | BY_ITSELF == set(OUTPUTS)


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_schema_is_strict_and_says_what_each_key_means(command: str) -> None:
    found = json.loads((SCHEMAS / file_name(command)).read_text())
    assert found == schema(command), "run scripts/schemas"
    Draft202012Validator.check_schema(found)
    parts = list(objects(found))
    assert parts
    for name, part in parts:
        assert part["additionalProperties"] is False or (name in OPEN or command in ("model sweep", "model plan")), name
        said = [key for key, each in part["properties"].items() if "description" in each or "$ref" in each]
        assert said == list(part["properties"])


def test_the_page_lists_every_schema() -> None:
    text = PAGE.read_text()
    assert [command for command in OUTPUTS if f"(schemas/{file_name(command)})" not in text] == []
    assert {path.name for path in SCHEMAS.iterdir()} == {file_name(command) for command in OUTPUTS}


def test_a_key_that_no_schema_knows_is_found() -> None:
    answer = in_process.parshall("convert", LOG, "--to", "csv", "-o", "/dev/null", "--json").stdout
    validated("convert", answer)
    for wrong in ({"more": 1}, {"rows": "8"}):
        with pytest.raises(AssertionError, match=r"more|rows"):
            validated("convert", json.dumps(json.loads(answer) | wrong))


@pytest.mark.parametrize("name", ANYWHERE)
def test_what_is_printed_is_as_the_schema_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "arrival_ns,departure_ns,bytes\n"
        + "".join(f"{at * 100_000},{at * 100_000 + 9_000 + at % 7},64\n" for at in range(200))
    )
    (tmp_path / "sizes").write_text("40\n" * 50 + "1500\n" * 30)
    in_process.parshall("cpu", "-d", "100ms", "--interval", "20ms", "-a", "-o", tmp_path / "profile", "-q")
    command, words = ANYWHERE[name]
    values = {"tmp": tmp_path, "log": LOG}
    answer = in_process.parshall(*json_words(command), *(word.format(**values) for word in words))
    assert answer.returncode == 0, answer.stderr
    assert validated(command, answer.stdout)


def test_a_plan_of_a_calibration_is_as_the_schema_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The searches take half a minute, and their answer is a number."""
    monkeypatch.setattr("parshall.router.plan.largest_load", lambda *_, **__: (5e5, None, 6e5))
    monkeypatch.setattr("parshall.router.plan.forecast", partial(forecast, draws=5))
    known().write(tmp_path / "router.toml")
    answer = in_process.parshall(*json_words("model plan"), "--calibration", tmp_path / "router.toml", "-d", "50ms")
    assert len(validated("model plan", answer.stdout)) > 5


def test_a_calibration_is_as_the_schema_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A busy machine is refused, so none is measured here."""
    monkeypatch.setattr("parshall.router.calibrate.calibrate", lambda *setup, **workload: known())
    answer = in_process.parshall(*json_words("model calibrate"), "-o", tmp_path / "here.toml")
    assert validated("model calibrate", answer.stdout)["balance"]


def test_a_cpu_without_a_tick_has_no_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short interval may have no tick of a CPU, and a CPU may go offline."""
    whole = ((count, 0, 0, 2 * count, 0, 0, 0, 0) for count in itertools.count(step=5))
    monkeypatch.setattr(cpu, "read_ticks", lambda: {"cpu": (now := next(whole)), "cpu0": now, "cpu1": (7,) * 8})
    found = validated("cpu", in_process.parshall("cpu", "-d", "100ms", "--interval", "20ms", "--json").stdout)
    assert len(found["all"]) == len(found["cpus"]["cpu1"]) > 1
    assert set(map(type, found["cpus"]["cpu1"])) == {type(None)}
    assert None not in found["cpus"]["cpu0"]
