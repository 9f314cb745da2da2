"""The probes of this host: what was tried, and what came of it."""

import json
from dataclasses import dataclass
from typing import Literal

from parshall.installation import KERNEL_SIDE_REMEDY, NO_KERNEL_SIDE, import_problem

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

    An installation for analysis only, and one whose compiled module cannot be loaded, has one probe, which says so.
    """
    try:
        from parshall import _native
    except ImportError as error:
        return [Probe("installation.module", "cannot", "broken", *import_problem(error))]
    if not hasattr(_native, "probe_capabilities"):
        return [Probe("installation.kernel", "cannot", "unsupported", NO_KERNEL_SIDE, KERNEL_SIDE_REMEDY)]
    return [Probe(**fields) for fields in json.loads(_native.probe_capabilities())]
