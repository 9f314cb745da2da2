"""What the manuals tell readers to type is understood: each option is there, and takes the value."""

from pathlib import Path

import click
import pytest

from manual_examples import ROOT, Example, examples
from parshall.cli.tree import command_of

ALL = examples()


def test_there_are_examples_of_most_commands() -> None:
    names = {words[0] for example in ALL for words in example.commands}
    assert names >= {"tcp", "capture", "path", "pcap", "gen", "sizes", "cpu", "convert", "report", "show", "live"}
    assert names >= {"doctor", "demo", "lab", "model", "router", "mcp"} - {"mcp"}


@pytest.mark.parametrize("example", ALL, ids=str)
def test_the_example_is_understood(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert example.commands
    for name, *words in example.commands:
        command = command_of(name)
        with command.make_context(f"parshall {name}", list(words)) as context:
            while isinstance(command, click.Group) and (rest := [*context._protected_args, *context.args]):
                name, command, words = command.resolve_command(context, rest)
                assert command is not None
                context = command.make_context(name, list(words), parent=context)
    assert not list(tmp_path.iterdir())


def test_each_table_has_its_heading() -> None:
    """A blank line within a table ends it: what follows would be shown as text."""
    wrong, count = [], 0
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        lines = ["", *page.read_text().splitlines(), ""]
        for number, (before, line, after) in enumerate(zip(lines, lines[1:], lines[2:], strict=False), 1):
            if line.startswith("|") and not before.startswith("|"):
                count += 1
                wrong += [] if after.startswith(("|--", "|:-", "| --")) else [f"{page.relative_to(ROOT)}:{number}"]
    assert count > 150 and not wrong, (count, wrong)
