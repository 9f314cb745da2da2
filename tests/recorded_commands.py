"""The programs that a test ran, for the person who reads why it failed."""

import shlex
import subprocess
from typing import Any

_SHOWN_COMMANDS = 4
_SHOWN_CHARACTERS = 3000


class RecordedCommands:
    """Keeps each program whose end was waited for, with its exit status and output."""

    def __init__(self) -> None:
        self._ended: list[tuple[Any, int | None, Any, Any]] = []

    def install(self) -> None:
        """Let `subprocess` start programs that are recorded."""
        ended = self._ended

        class Popen(subprocess.Popen):  # type: ignore[type-arg]
            def communicate(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
                output = super().communicate(*arguments, **options)
                ended.append((self.args, self.returncode, *output))
                return output

        subprocess.Popen = Popen  # type: ignore[misc]

    def forget(self) -> None:
        """Begin anew: another test begins."""
        self._ended.clear()

    def text(self) -> str:
        """Return the last commands, each with its status and the end of its output."""
        parts = []
        for command, status, output, errors in self._ended[-_SHOWN_COMMANDS:]:
            words = [command] if isinstance(command, str | bytes) else command
            parts.append(f"$ {shlex.join(str(word) for word in words)}\n[exit status {status}]")
            parts += [_end_of(each) for each in (output, errors) if each]
        return "\n".join(parts)


def _end_of(output: str | bytes) -> str:
    if isinstance(output, bytes):
        try:
            output = output.decode()
        except UnicodeDecodeError:
            return f"[{len(output)} bytes that are no text]"
    # Control characters of a program are not for the terminal of the person who reads this.
    text = "".join(one if one.isprintable() or one in "\n\t" else "?" for one in output.rstrip("\n"))
    return text if len(text) <= _SHOWN_CHARACTERS else f"[...]{text[-_SHOWN_CHARACTERS:]}"
