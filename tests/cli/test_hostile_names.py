"""Text that others chose goes to a terminal by one function: it ends no line, and controls nothing."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_conventions import COMMANDS

import parshall.cli
from parshall.cli import capture as capture_command
from parshall.cli import lab
from parshall.cli import main as cli
from parshall.cli.doctor import _print_rows
from parshall.errors import printable
from parshall.host import privileges
from parshall.host.messages import plain_console, say, show
from parshall.instruments import extcap
from parshall.instruments.path.profile import PathSummary
from parshall.instruments.path.text import stage_lines

# Colours, a title of the window, a new line, a carriage return, a bell, bidirectional text, a byte that is no text.
EVIL = "x\x1b[31m\x1b]0;t\x07\ny\r\u202ez\u2066\x9b2J\udcff"
SMALL_LOG = Path(__file__).parents[1] / "data" / "small.arrow"
CLI = Path(parshall.cli.__file__).parent


def is_harmless(text: str) -> bool:
    """Whether a text has nothing that controls a terminal."""
    return all(line.isprintable() for line in text.split("\n"))


def test_the_function_escapes_all_that_controls_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(EVIL, "second")
    say("test", EVIL)
    output = capsys.readouterr()
    assert is_harmless(output.out) and output.out.count("\n") == 2
    assert is_harmless(output.err) and output.err.count("\n") == 1
    assert printable("plain text, µs, 日本") == "plain text, µs, 日本"


def prints(tree: ast.AST) -> list[ast.Call]:
    """Return the calls that write to a terminal without the function."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) in ("print", "sys.stdout.write", "sys.stderr.write")]


def test_commands_print_by_the_function_only() -> None:
    found = []
    for path in sorted(CLI.glob("*.py")):
        for call in prints(ast.parse(path.read_text())):
            text = ast.unparse(call)
            # JSON and CSV are for programs; JSON has escapes, and models refuse such names. A progress line is escaped
            # before, and the usage has our text only.
            harmless = (
                "json.dumps",
                "printable",
                "write_csv",
                "\\x1b",
                "clear",
                "usage()",
                "version(as_json",
                "completion_script",
                "line",
            )
            if path.name != "messages.py" and not any(word in text for word in harmless):
                found.append(f"{path.name}: {text}")
    assert not found


def test_rings_and_their_readers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    subscriber = {"pid": 1, "filter": EVIL, "snaplen": 96, "seen": 3, "matched": 2, "dropped": 1}
    ring: dict[str, Any] = {"name": EVIL, "hooks": [EVIL], "policy": EVIL, "group": EVIL, "ring_bytes": 1 << 20}
    ring |= {"lanes": 2, "subscribers": [subscriber], "keeper_pid": 1}
    monkeypatch.setattr(capture_command.namespaces, "other_of", lambda process: EVIL if process == 1 else None)
    monkeypatch.setattr(capture_command, "rings", lambda: [ring, {"name": EVIL, "unreadable": EVIL}])
    capture_command._list(as_json=False)
    output = capsys.readouterr().out
    assert is_harmless(output) and output.count("\n") == 3


def test_wiresharks_list_of_interfaces_and_rings() -> None:
    lines = extcap.interface_lines("1", [EVIL], [{"name": EVIL, "hooks": [EVIL]}])
    assert len(lines) == 3 and all(line.isprintable() for line in lines)


def test_groups_of_paths(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"path": "sent", "group": {"command": EVIL}, "stage": "whole", "packets": 1, "share": 1.0}
    row |= {"median_ns": 1.0, "p99_ns": 1.0, "max_ns": 1.0}
    summary = object.__new__(PathSummary)
    object.__setattr__(summary, "times", [row])
    object.__setattr__(summary, "probe_cost", [])
    show(*stage_lines(summary, with_groups=True))
    output = capsys.readouterr().out
    assert "command x\\x1b[31m" in output and is_harmless(output) and output.count("\n") == 3


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.text import Text

    _print_rows(plain_console(), "Title", [("name", Text("works"), f"[bold]{EVIL}", EVIL)])
    assert is_harmless(output := capsys.readouterr().out) and "[bold]" in output
    # A number stands where a reason belongs.
    statement = {"source": EVIL, "published": "[red]", "measured": "1", "is_same": 3, "reason": 4.5}
    evaluation = {"study": EVIL, "statements": [statement], "omitted": {}}
    bundle = tmp_path / "study"
    bundle.mkdir()
    (bundle / "bundle.json").write_text(json.dumps({"format": 1}))
    (bundle / "evaluation.json").write_text(json.dumps(evaluation))
    lab.published([bundle])
    assert is_harmless(output := capsys.readouterr().out) and "[red]" in output and "4.5" in output


def test_lines_of_files(tmp_path: Path) -> None:
    path = tmp_path / "cpu"
    path.write_text("user: 35.2%, nice: 0.0%, system: 1%, idle: 10.0%, iowait: 3%,\x1b[31m\u202e\n")
    command = [sys.executable, "-m", "parshall", "cpu", "trim", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and is_harmless(ended.stdout) and "\\x1b[31m" in ended.stdout, ended


# Arguments with which a command comes to look at its options.
ARGUMENTS = {
    ("convert",): [str(SMALL_LOG), "--to", "csv"],
    ("report",): [str(SMALL_LOG)],
    ("sizes",): ["imix"],
    ("lab", "run"): ["siftr"],
    ("model", "run"): ["single-queue", "-d", "1ms"],
    ("model", "sweep"): ["single-queue", "--over", "load_pps=1", "-d", "1ms"],
    ("model", "plan"): ["single-queue", "-d", "1ms"],
    ("model", "figure"): ["3.12", "--quick"],
    ("model", "draw"): ["single-queue"],
    ("gen",): ["-i", "lo", "-c", "1"],
    ("capture",): ["-i", "lo"],
    ("path",): ["-d", "1ms"],
}
# Files that the user names here are written, and take long to make; starting Dask takes seconds.
LONG = {"output", "output_directory", "title", "trace", "cluster"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_a_command_is_given_is_escaped_in_messages(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option and argument, of every command; nothing is measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(privileges, "missing_capabilities", lambda *names: list(names))
    for parameter in COMMANDS[words].params:
        if getattr(parameter, "is_flag", False) or parameter.name in LONG:
            continue
        is_argument = parameter.param_type_name == "argument"
        # Each text twice: as a whole, and in what looks like a list or an assignment.
        for value in (EVIL, f"a={EVIL},{EVIL}"):
            arguments = [value] if is_argument else [*ARGUMENTS.get(words, []), parameter.opts[-1], value]
            status = cli.dispatch([*words, *arguments])
            output = capsys.readouterr()
            assert is_harmless(output.out) and is_harmless(output.err), arguments
            # What does not apply, such as --interface for files, may be ignored.
            assert output.err.count("\n") == 1 or status == 0, output
            assert "internal error" not in output.err and len(output.err) < 1000, output


@pytest.mark.parametrize(
    "words",
    [
        ["report", EVIL],
        ["cpu", "trim", EVIL],
        ["cpu", "--", EVIL],
        ["tcp", "--", EVIL],
        ["pcap", "--", EVIL],
        ["path", "--join", EVIL],
        ["capture", "-i", EVIL, "-w", "/dev/null"],
    ],
    ids=lambda words: " ".join(words[:2]).replace(EVIL, ""),
)
def test_names_of_files_programs_and_interfaces_in_messages(words: list[str]) -> None:
    command = [sys.executable, "-m", "parshall", *words]
    ended = subprocess.run(list(map(os.fsencode, command)), capture_output=True, timeout=60)
    text = ended.stderr.decode()
    assert ended.returncode in (2, 127) and text.count("\n") == 1 and is_harmless(text), ended
