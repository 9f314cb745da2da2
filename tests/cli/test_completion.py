"""Completion: what each shell offers after the first words of a command line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PARSHALL = Path(sys.executable).with_name("parshall")
SHELLS = ("bash", "zsh", "fish")
# How a shell that reads the script is asked for completions, without a terminal.
ASK = {
    "bash": """
        source ./script
        COMP_WORDS=({line}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _parshall_completion parshall
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        compdef() {{}}
        _arguments() {{ print -r -- "$@" }}
        source ./script
        words=({line}) CURRENT=${{#words}}
        _parshall_completion
    """,
    "fish": """
        source ./script
        complete --do-complete "{line}"
    """,
}


def offered(shell: str, line: str, place: Path) -> str:
    """Return what a shell offers."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    environment = os.environ | {"PATH": f"{PARSHALL.parent}:{os.environ['PATH']}", "HOME": str(place)}
    script = subprocess.run([PARSHALL, "--show-completion", shell], capture_output=True, text=True, check=True)
    (place / "script").write_text(script.stdout)
    answer = subprocess.run(
        [shell, "-c", ASK[shell].format(line=line)],
        capture_output=True,
        text=True,
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert answer.stderr == ""
    return answer.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected", "not_expected"),
    [
        ("parshall ca", "capture", "model"),
        ("parshall capture --fil", "--filter", "--write"),
        ("parshall model ru", "run", "sweep"),
        ("parshall model run --prec", "--precision", "--seed"),
        # A value that is wrong does not keep options from being offered.
        ("parshall capture -d never --fil", "--filter", "--write"),
    ],
)
def test_a_shell_completes(shell: str, line: str, expected: str, not_expected: str, tmp_path: Path) -> None:
    answer = offered(shell, line, tmp_path)
    assert expected in answer
    assert not_expected not in answer


def test_completion_imports_only_the_command_that_is_completed(tmp_path: Path) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from parshall.cli.main import main; main()"
    )
    environment = os.environ | {
        "_PARSHALL_COMPLETE": "complete_bash",
        "COMP_WORDS": "parshall tcp --p",
        "COMP_CWORD": "2",
    }
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "--ppl" in answer.stdout
    assert "parshall.cli.tcp" in answer.stdout and "parshall.cli.model" not in answer.stdout


def test_another_shell_is_refused_in_one_line() -> None:
    answer = subprocess.run([PARSHALL, "--show-completion", "tcsh"], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "parshall: --show-completion tcsh: expected bash, zsh or fish\n"
