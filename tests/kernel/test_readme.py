"""The examples of README.md and of the pages on logs run as printed, in one directory."""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import in_process

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
# Replaces "CMD..." in the examples: a conversation of some packets.
CONVERSATION = """
import socket
with socket.create_server(("127.0.0.1", 0)) as listener:
    with socket.create_connection(listener.getsockname()) as active, listener.accept()[0] as passive:
        active.sendall(bytes(100_000))
        active.shutdown(socket.SHUT_WR)
        while passive.recv(65536):
            pass
"""


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language ('' for commands)."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [block for its, block in fenced if its == language]


def commands(page: str) -> list[list[str]]:
    """Return the command lines of parshall on a page, comments taken off."""
    lines = [line.split(" # ")[0].strip() for block in blocks(page, "") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(".venv/bin/parshall")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty directory the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Need no process of their own: they measure nothing, and give up no privileges.
IN_PROCESS = {"doctor", "report", "convert", "show", "model"}


def parshall(*words: str) -> None:
    """Run the command of this interpreter's environment."""
    if words[0] in IN_PROCESS:
        answer = in_process.parshall(*words)
        assert answer.returncode == 0, answer.stderr
        return
    subprocess.run([sys.executable, "-m", "parshall", *words], check=True, timeout=120)


def log_a_conversation() -> None:
    """Run the first example: a log of a command's sockets."""
    (example,) = (words[1:] for words in commands("README.md") if words[1] == "tcp")
    at = example.index("CMD...")
    parshall(*example[:at], sys.executable, "-c", CONVERSATION, *example[at + 1 :])


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which a reader runs one command after the other."""
    directory = tmp_path_factory.mktemp("read")
    with contextlib.chdir(directory):
        log_a_conversation()
    return directory


# Those of the study and of the log are beside these.
COMMANDS = [words[1:] for words in commands("README.md") if words[1] not in ("tcp", "lab")]


def test_the_readme_has_a_command_of_each_kind() -> None:
    kinds = {words[0] for words in COMMANDS}
    assert kinds >= {"doctor", "report", "convert", "path", "capture", "router", "model"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_of_the_readme(read: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(read)
    parshall(*words)
    if words[0] == "convert":
        assert "siftrver=1.3" in (read / "flows.siftr").read_text().splitlines()[0]


def test_the_digest_of_the_readme(place: Path) -> None:
    """Of the interface that the manual makes, in a namespace that stands for the host's."""
    (makes_interface,) = (block for block in blocks("docs/gen.md", "") if "ip link add" in block)
    printed = re.search(
        r"^\$ parshall (gen .*)\n\.\.\.\ndigest +(\w+ .*)$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert printed
    script = f"set -e\ntrap 'ip netns del receiver' EXIT\n{makes_interface}{sys.executable} -m parshall {printed[1]}"
    result = subprocess.run(["unshare", "--net", "bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert f"digest    {printed[2]}" in result.stdout.splitlines()
    assert "sent 1,000,000, not sent 0, by xdp" in result.stdout and "lost 0 " in result.stdout


# It says how long it takes.
@pytest.mark.alone
@pytest.mark.long
def test_the_study_of_the_readme(place: Path) -> None:
    (words,) = (words[1:] for words in commands("README.md") if words[1] == "lab")
    parshall(*words)


def test_the_python_of_the_pages(read: Path, place: Path) -> None:
    # The tour's directory is that of a page before.
    Path("tour").mkdir()
    for name in ("flows.arrow", "tour/sender.arrow"):
        shutil.copyfile(read / "flows.arrow", name)
    # One of the next page has a log of the same name, in which nothing may be.
    for page in ("README.md", "docs/tcp.md", "docs/report.md", "docs/figures.md", "docs/formats/tcp-log.md"):
        space: dict[str, object] = {}
        for example in blocks(page, "python"):
            assert "to_pandas" not in example, "a plain installation does not bring pandas"
            exec(compile(example, page, "exec"), space)  # the examples of a page share their names
    assert list((place / "report").glob("*.html"))


def test_the_python_of_the_pages_on_paths(place: Path) -> None:
    from parshall.instruments.path import PathProfile
    from parshall.instruments.path.histograms import as_object

    profile = PathProfile("path.arrow")
    with profile, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(10):
            sender.sendto(b"x", ("127.0.0.1", 9))
    Path("path.json").write_text(json.dumps(as_object(profile.summary, profile.environment)))
    for page in ("docs/path.md", "docs/formats/path-log.md"):
        space: dict[str, object] = {}
        for example in blocks(page, "python"):
            exec(compile(example, page, "exec"), space)
        assert len(blocks(page, "python")) >= 1
    # The last page's table has the columns that a log has.
    described = re.findall(r"^\| `(\w+)` \|", (ROOT / page).read_text().partition("## The rows")[2], re.MULTILINE)
    assert described == space["table"].column_names  # type: ignore[attr-defined]


# iperf3 goes to the background before it listens.
LISTENING = "until ss --listening --tcp --numeric | grep --quiet :5201; do sleep 0.05; done"


def test_the_first_five_minutes(place: Path) -> None:
    """What needs no second terminal: a log of a transfer, its packets, and Python."""
    page = "docs/first-five-minutes.md"
    lines = [line for block in blocks(page, "") for line in block.splitlines()]
    steps = lines[next(number for number, line in enumerate(lines) if line.startswith("iperf3")) :]
    script = "\n".join(f"{line}\n{LISTENING}" if "--daemon" in line else line for line in steps)
    run = ["unshare", "--net", "bash", "-e", "-c", f"ip link set lo up\n{script}\nwait"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^mine\.arrow: 2 flows$", done.stderr, re.MULTILINE)
    assert re.search(r"^delivered: [\d,]+ packets, times since the stage before$", done.stderr, re.MULTILINE)
    (example,) = blocks(page, "python")
    exec(compile(example, page, "exec"), {})
    assert (place / "sequence.png").read_bytes().startswith(b"\x89PNG")
