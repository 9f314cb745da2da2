"""Debian's Firefox without a window, by WebDriver BiDi (https://w3c.github.io/webdriver-bidi/), which it speaks itself.

Playwright drives a Firefox of its own only: what it asks of a new page, Debian's does not know.
"""

import contextlib
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

TIMEOUT_S = 60.0


class Firefox:
    """A page of Firefox; `errors` has what its console complained about."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, itertools.count(1)
        self.errors: list[str] = []
        self._ask("session.new", capabilities={})
        self._ask("session.subscribe", events=["log.entryAdded"])
        (tree,) = self._ask("browsingContext.getTree")["contexts"]
        self._context = tree["context"]

    def goto(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        self._ask("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def resize(self, width: int, height: int) -> None:
        """Change the size of the page, pixels."""
        viewport = {"width": width, "height": height}
        self._ask("browsingContext.setViewport", context=self._context, viewport=viewport)

    def evaluate(self, expression: str) -> Any:
        """Return what an expression gives, of what JSON has."""
        code = f"JSON.stringify({expression}) ?? 'null'"
        answer = self._ask("script.evaluate", expression=code, target={"context": self._context}, awaitPromise=True)
        assert answer["type"] == "success", (expression, answer)
        return json.loads(answer["result"]["value"])

    def press(self, *keys: str) -> None:
        """Press keys one after another, as a person does."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        sources = [{"type": "key", "id": "keyboard", "actions": actions}]
        self._ask("input.performActions", context=self._context, actions=sources)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=TIMEOUT_S))
            if message.get("method") == "log.entryAdded" and message["params"]["level"] == "error":
                self.errors.append(str(message["params"]["text"]))
            if message.get("id") == number:
                assert message["type"] == "success", (method, message)
                result: dict[str, Any] = message["result"]
                return result


@contextlib.contextmanager
def opened_firefox(directory: Path) -> Iterator[Firefox]:
    """Yield Firefox with a new profile in a directory; skip a test without it."""
    program = shutil.which("firefox-esr")
    if program is None:
        pytest.skip("Firefox is not installed (package firefox-esr)")
    words = [program, "--headless", "--no-remote", "--profile", str(directory), "--remote-debugging-port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = (re.search(r"WebDriver BiDi listening on (ws://\S+)", line) for line in process.stderr)
        match = next((match for match in found if match), None)
        assert match, "Firefox ended before it listened"
        with connect(f"{match[1]}/session", max_size=None) as connection:
            yield Firefox(connection)
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
        process.stderr.close()


def waits_for(firefox: Firefox, until: Callable[..., None]) -> Callable[[str], None]:
    """Return a function that waits until an expression is true on the page."""
    return lambda expression: until(expression, lambda: firefox.evaluate(f"!!({expression})"))
