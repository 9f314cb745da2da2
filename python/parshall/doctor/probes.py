"""The probes of this host: what was tried, and what came of it."""

import json
from dataclasses import dataclass
from typing import Literal

Status = Literal["works", "degraded", "cannot"]
Cause = Literal["unsupported", "forbidden", "broken"]


@dataclass(frozen=True)
class Probe:
    """What came of trying one thing.

    Attributes
    ----------
    name
        Group and thing, as in ``program.xdp``.
    status
        Whether it can be used.
    cause
        Why not, or why not in full: this kernel or hardware does not have it (``unsupported``), the
        host does not let this process use it (``forbidden``), or it ought to work and does not
        (``broken``). None when it works.
    detail
        What was seen.
    remedy
        What a user can do about it; empty when it works.
    """

    name: str
    status: Status
    cause: Cause | None
    detail: str
    remedy: str


def probe_host() -> list[Probe]:
    """Try what this host offers; it takes a fraction of a second and leaves nothing behind.

    An installation for analysis only has one probe, which says so.
    """
    try:
        from parshall._native import probe_capabilities
    except ImportError:
        return [
            Probe(
                "installation.kernel",
                "cannot",
                "unsupported",
                "this installation is for analysis only: it was built without the kernel's side",
                "install with clang and without --no-default-features, see CONTRIBUTING.md",
            )
        ]
    return [Probe(**fields) for fields in json.loads(probe_capabilities())]
