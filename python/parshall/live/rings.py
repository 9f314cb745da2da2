"""The rings of captures on this host: who reads what, and what found no room."""

from typing import Any

from parshall.errors import ParshallError, printable
from parshall.host.ledger_text import short_filter
from parshall.host.quantities import many
from parshall.instruments.capture import rings

# Further ones are counted.
_RINGS_MAX = 50


def listed() -> list[dict[str, Any]]:
    """Return the rings of this host, as `described` does; the reason in place of one where they cannot be seen."""
    try:
        found = rings()
    except (ParshallError, OSError) as error:
        return [_only(str(error))]
    rest = [_only(f"and {many(len(found) - _RINGS_MAX, 'more ring')}")] if len(found) > _RINGS_MAX else []
    return [*(described(ring) for ring in found[:_RINGS_MAX]), *rest]


def _only(text: str) -> dict[str, Any]:
    return {"ring": printable(text), "hooks": None, "policy": None, "readers": []}


def described(ring: dict[str, Any]) -> dict[str, Any]:
    """Return a ring of `parshall.instruments.capture.rings` as words and numbers for people."""
    if "unreadable" in ring:
        return _only(ring["unreadable"])
    readers = [
        {
            "pid": reader["pid"],
            "filter": short_filter(reader["filter"]),
            **{name: reader[name] for name in ("seen", "matched", "dropped")},
        }
        for reader in ring["subscribers"]
    ]
    hooks = ", ".join(printable(hook) for hook in ring["hooks"])
    return {"ring": printable(ring["name"]), "hooks": hooks, "policy": printable(ring["policy"]), "readers": readers}
