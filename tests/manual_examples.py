"""The commands that the manuals show, as a reader would type them."""

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What a reader puts in words of their own.
GRAMMAR = re.compile(r"\[[A-Z-]|\.\.\.(?!$| )|\b(MODEL|LOG_OR_DIR|TRACE|FILE)\b")


@dataclass(frozen=True)
class Example:
    """A line of a page that runs a command of Parshall, perhaps beside others."""

    page: str
    line: str

    def __str__(self) -> str:
        return f"{self.page}: {self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of Parshall on the line, without its name."""
        lexer = shlex.shlex(self.line, posix=True, punctuation_chars="|&;><")
        lexer.whitespace_split = True
        lexer.commenters = ""
        found: list[list[str]] = []
        words: list[str] | None = None
        for word in lexer:
            if set(word) <= set("|&;><"):
                words = None
            elif words is not None:
                words.append(word)
            elif word.rpartition("/")[2] == "parshall":
                found.append(words := [])
        return found


def pages() -> list[str]:
    """Return the manuals with examples, by their path in the checkout."""
    found = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/formats/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found if lines_of(str(path.relative_to(ROOT))))


@cache
def lines_of(page: str) -> tuple[str, ...]:
    """Return the lines of a page's blocks of commands that run Parshall, without comments and prompts."""
    text = (ROOT / page).read_text()
    lines = []
    for language, block in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            # Of a block with output, only lines behind a prompt are commands.
            if language and not line.startswith("$ "):
                continue
            command = re.sub(r"\s+#\s.*$", "", line.removeprefix("$ ")).strip()
            if re.search(r"(^|[ /])parshall [a-z-]", command) and not command.startswith(("systemctl", "podman")):
                lines.append(command)
    return tuple(lines)


def examples() -> list[Example]:
    """Return all of them, without the pages' tables of grammar."""
    return [Example(page, line) for page in pages() for line in lines_of(page) if not GRAMMAR.search(line)]
