"""The grammar of the command line: help, errors, exit statuses, start-up time."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parshall.cli import main as cli
from parshall.host.commands import Command
from parshall.host.doctor.decisions import RULES

PARSHALL = Path(sys.executable).with_name("parshall")
# Of the processor, because the machine may be busy.
HELP_BOUND_S = 0.2


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run(
        [PARSHALL, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        **options,
    )


@pytest.fixture
def command_that(monkeypatch, tmp_path):
    """Register a command ``probe`` whose body is the given code; return a function that runs it."""

    def install(body: str, *arguments: str) -> int:
        module = tmp_path / "probe_command.py"
        module.write_text(body)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "probe_command", raising=False)
        monkeypatch.setitem(cli.COMMANDS, "probe", Command("probe_command", "a command of this test"))
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["probe", *arguments])
        return exit_info.value.code

    return install


def test_help_lists_every_command():
    answer = run("--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    for name, (_, line, _) in cli.COMMANDS.items():
        assert name in answer.stdout
        assert line in answer.stdout


def test_help_answers_at_once():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run("--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < HELP_BOUND_S


def test_help_imports_no_library():
    code = "import sys; from parshall.cli.main import usage; usage(); print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"typer", "rich", "numpy", "pyarrow", "polars", "altair", "parshall._native"}
    assert not heavy & set(answer.stdout.split())


def test_version_is_that_of_the_package():
    first, kernel, objects = run("--version").stdout.splitlines()
    described = json.loads(run("--version", "--json").stdout)
    assert first.startswith(f"parshall {described['version']}")
    assert kernel == f"kernel side: libbpf {described['kernel']['libbpf']}, libpcap {described['kernel']['libpcap']}"
    assert re.search(r"\btcp [0-9a-f]{12}\b", objects)


def test_the_package_runs_as_a_module():
    answer = subprocess.run([sys.executable, "-m", "parshall", "--help"], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (0, run("--help").stdout)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["doctr"], "parshall: no command 'doctr'; did you mean `parshall doctor`?"),
        (["zzz"], "parshall: no command 'zzz'; see `parshall --help`"),
        (["--nonsense"], "parshall: no option '--nonsense' before the command; see `parshall --help`"),
    ],
)
def test_a_wrong_command_is_answered_in_one_line(arguments, expected):
    answer = run(*arguments)
    assert (answer.returncode, answer.stdout, answer.stderr.strip()) == (2, "", expected)


def test_no_command_shows_the_help_as_an_error():
    answer = run()
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "Commands:" in answer.stderr


def test_a_wrong_option_is_answered_in_one_line():
    answer = run("doctor", "--jsn")
    assert answer.returncode == 2
    assert answer.stderr.startswith("parshall: doctor: ")
    assert "--jsn" in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help_and_a_rule(name):
    answer = run(name, "--help")
    assert answer.returncode == 0
    assert f"parshall {name}" in answer.stdout
    assert name in RULES


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ("def command() -> None: pass", 0, ""),
        ("def command() -> int: return 7", 7, ""),
        (
            "from parshall.errors import ParshallError\n"
            "def command() -> None: raise ParshallError('ring r0 is gone; start it again')",
            1,
            "parshall: probe: ring r0 is gone; start it again\n",
        ),
        (
            "from parshall.errors import UsageError\n"
            "def command() -> None: raise UsageError('rate -1: must be above 0')",
            2,
            "parshall: probe: rate -1: must be above 0\n",
        ),
        (
            "def command() -> None: open('/nonexistent/file')",
            2,
            "parshall: probe: /nonexistent/file: No such file or directory\n",
        ),
        ("def command() -> None: raise KeyboardInterrupt", 130, ""),
    ],
)
def test_the_end_of_a_command_becomes_a_status_and_one_line(command_that, capsys, body, status, text):
    assert command_that(body) == status
    assert capsys.readouterr().err == text


def test_an_internal_error_is_one_line_with_traceback_on_request(command_that, capsys, monkeypatch):
    body = "def command() -> None: raise ZeroDivisionError('by zero')"
    assert command_that(body) == 1
    message = capsys.readouterr().err
    assert message.startswith("parshall: internal error: ZeroDivisionError: by zero")
    assert message.count("\n") == 1
    monkeypatch.setenv("PARSHALL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.dispatch(["probe"])


def test_a_module_with_subcommands_is_used_unchanged(command_that, capsys):
    body = (
        "import typer\n"
        "app = typer.Typer(add_completion=False, rich_markup_mode=None)\n"
        "@app.command()\n"
        "def first() -> None: print('the first')\n"
        "@app.command()\n"
        "def second() -> None: print('the second')\n"
    )
    assert command_that(body, "second") == 0
    assert capsys.readouterr().out == "the second\n"


def test_a_closed_pipe_is_not_an_error():
    with subprocess.Popen([PARSHALL, "doctor", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_interrupting_gives_130_without_a_traceback(tmp_path):
    (tmp_path / "sleeping.py").write_text(
        "import time\ndef command() -> None:\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    code = (
        "from parshall.cli import main as cli\n"
        "from parshall.host.commands import Command\n"
        "cli.COMMANDS['sleeping'] = Command('sleeping', 'a command of this test')\n"
        "cli.main(['sleeping'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == ""
