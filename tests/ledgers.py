"""The account that every output carries must balance: seen = filtered + thinned + logged + lost."""

from collections.abc import Iterator
from typing import Any

_PARTS = {"seen", "filtered", "thinned", "logged", "lost"}


def unbalanced(ledger: Any) -> Iterator[dict[str, Any]]:
    """Yield every account, wherever it is in a ledger, that does not balance."""
    if isinstance(ledger, dict):
        if ledger.keys() >= _PARTS:
            kept = ledger["filtered"] + ledger["thinned"] + ledger["logged"] + sum(ledger["lost"].values())
            if ledger["seen"] != kept:
                yield ledger
        for part in ledger.values():
            yield from unbalanced(part)
    elif isinstance(ledger, list):
        for part in ledger:
            yield from unbalanced(part)
