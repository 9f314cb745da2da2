"""The carrier of a link, which the kernel reports some time after an interface is up."""

import json
from typing import Any


def has_carrier(host: Any, interface: str) -> bool:
    """Whether an interface sends again: before, the kernel drops what is given to it and reports success."""
    shown = host.run(["ip", "-json", "link", "show", "dev", interface]).stdout
    return bool(json.loads(shown)[0]["operstate"] == "UP")
