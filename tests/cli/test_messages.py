"""What commands print for people: sentences that are readable at any width, and what they do while they are silent."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from parshall.cli import lab
from parshall.cli import main as cli
from parshall.cli.doctor import _print_rows
from parshall.host import messages
from parshall.lab.laboratory import Progress

SMALL_LOG = Path(__file__).parents[1] / "data" / "small.arrow"
SENTENCE = "losses begin at 225 Mbit/s, with larger buffers at 650 Mbit/s, and no buffer loses packets below 200 Mbit/s"


class Terminal(io.StringIO):
    """A standard stream that is a terminal."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The directory of a study with a statement, and a figure that it does not measure."""
    statement = {"source": "Figure 6.2", "published": SENTENCE, "measured": SENTENCE, "is_same": True, "reason": None}
    evaluation = {"study": "capture", "statements": [statement], "omitted": {"Figure 6.3": "it needs other hardware"}}
    (tmp_path / "bundle.json").write_text(json.dumps({"format": 1}))
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluation))
    return tmp_path


def test_statements_are_a_line_each_in_a_pipe(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab.published([study])
    assert capsys.readouterr().out.splitlines() == [
        "capture, Figure 6.2: same",
        f"  published: {SENTENCE}",
        f"  measured: {SENTENCE}",
        "capture, Figure 6.3",
        "  not measured: it needs other hardware",
    ]


def test_statements_fill_the_width_of_a_terminal(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    lab.published([study])
    lines = terminal.getvalue().splitlines()
    assert len(lines) == 7 and max(map(len, lines)) in range(70, 81)
    assert " ".join(line.strip() for line in lines).count(SENTENCE) == 2


def test_a_study_says_in_a_pipe_once_a_minute_what_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(lab.time, "monotonic", lambda: now_s)
    with lab._Progress("siftr", quiet=False) as progress:
        for done in range(10):
            progress.show(Progress(done, 10, f"rate={done}", 25.0 * (10 - done)))
            now_s += 25
    assert capsys.readouterr().err.splitlines() == [
        "parshall: lab: siftr: run 4 of 10, 3 min left: rate=3",
        "parshall: lab: siftr: run 7 of 10, 2 min left: rate=6",
        "parshall: lab: siftr: run 10 of 10, 25 s left: rate=9",
    ]


@pytest.mark.parametrize("width", [60, 80, 120, 2000])
def test_doctor_has_no_narrow_column(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    rows = [(f"program.{'x' * 20}", Text("unsupported"), SENTENCE, SENTENCE), ("short", Text("works"), "", "")]
    _print_rows(Console(width=width, file=stream), "Probes", rows)
    text = stream.getvalue()
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and "" not in lines[1:] and not re.search(r" \n", text)
    assert " ".join(text.split()).count(SENTENCE) == 2
    # All but the last line of a sentence are long.
    assert len(lines) <= 4 + 2 * (len(SENTENCE) // min(50, width - 16) + 1)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["model", "run", "single-queue", "-d", "200ms"], "model: running single-queue"),
        (["model", "plan", "single-queue", "-d", "10ms"], "model: searching"),
        (["convert", str(SMALL_LOG), "--to", "parquet", "-o", "OUT"], "convert: reading "),
        (["report", str(SMALL_LOG), "-o", "OUT"], "report: reading small"),
        (["sizes", "thesis", "-o", "OUT"], "sizes: reading thesis"),
        (["sizes", "thesis", "-n", "1000", "-O", "sizes", "-o", "OUT"], "sizes: drawing 1,000 sizes"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_commands_show_at_once_what_they_do_on_a_terminal_only(
    words: list[str], what: str, is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_SILENT_S", 1e-4)
    monkeypatch.setattr(sys, "stderr", stream := Terminal() if is_terminal else io.StringIO())
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as ended:
        cli.main([str(tmp_path / word) if word == "OUT" else word for word in words])
    assert ended.value.code == 0 and "\x1b" not in out.getvalue()
    assert (what in stream.getvalue()) == is_terminal
    if is_terminal:
        # What stays is clean.
        assert "\r\x1b[K" in stream.getvalue().rpartition(what)[2]


def test_long_commands_say_what_they_do_once_a_minute_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setattr(messages, "LINES_S", 0.01)
    said: list[str] = []

    def has_said(what: str) -> bool:
        said.extend(capsys.readouterr().err.splitlines())
        return any(re.fullmatch(rf"parshall: router: {what}, \d+ s", line) for line in said)

    with messages.progress_line("router", "measuring") as change:
        until("the first text is said", lambda: has_said("measuring"))
        change("overload")
        until("the other text is said", lambda: has_said("overload"))
