"""The rings of captures on this host: who reads what, and what found no room."""

from typing import Any

from parshall.errors import ParshallError, printable
from parshall.host.ledger_text import short_filter
from parshall.instruments.capture import rings

_SHOWN_MAX = 20


def listed() -> list[dict[str, Any]]:
    """Return the rings of this host, as `described` does; none without the kernel's side."""
    try:
        found = rings()
    except ParshallError:
        return []
    return [described(ring) for ring in found[:_SHOWN_MAX]]


def described(ring: dict[str, Any]) -> dict[str, Any]:
    """Return a ring of `parshall.instruments.capture.rings` as words and numbers for people."""
    if "unreadable" in ring:
        return {"ring": printable(ring["unreadable"]), "hooks": None, "policy": None, "readers": []}
    readers = [
        {
            "pid": reader["pid"],
            "filter": short_filter(reader["filter"]),
            **{name: reader[name] for name in ("seen", "matched", "dropped")},
        }
        for reader in ring["subscribers"][:_SHOWN_MAX]
    ]
    hooks = ", ".join(printable(hook) for hook in ring["hooks"])
    return {"ring": printable(ring["name"]), "hooks": hooks, "policy": printable(ring["policy"]), "readers": readers}
