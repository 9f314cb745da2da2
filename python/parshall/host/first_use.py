"""Names that are imported on first use: who needs others does not wait for their libraries."""

from collections.abc import Callable, Mapping
from typing import Any


def names_on_first_use(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Parameters
    ----------
    package : str
        Name of the package.
    places : mapping of str to str
        For each name its module, and with ``module:name`` its name there.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return imported(places[name], name)

    return get


def imported(place: str, name: str = "") -> Any:
    """Import the module of a place, ``module:name``, and return what it names there; `name` where it has no name."""
    from importlib import import_module

    module, _, own_name = place.partition(":")
    return getattr(import_module(module), own_name or name)
