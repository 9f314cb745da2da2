"""The probes of this host, and their results."""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from parshall.host.installation import KERNEL_SIDE_REMEDY, NO_KERNEL_SIDE, import_problem

Status = Literal["works", "degraded", "cannot"]
Cause = Literal["unsupported", "forbidden", "broken", "not installed"]


@dataclass(frozen=True)
class Probe:
    """The result of trying one feature.

    Attributes
    ----------
    name
        Group and feature, such as ``program.xdp``.
    status
        Whether it can be used.
    cause
        Why it does not work in full: this kernel or hardware lacks it (``unsupported``), this process may
        not use it (``forbidden``), it should work and does not (``broken``), or a package that it needs was
        not installed (``not installed``). None when it works.
    detail
        What the probe observed.
    remedy
        What a user can do about it; empty when it works.
    """

    name: str
    status: Status
    cause: Cause | None
    detail: str
    remedy: str


def probe_host() -> list[Probe]:
    """Try the features of this host, without traces: in one or two seconds, longer on a busy host.

    An analysis-only installation has one that says so, and those of optional packages. An installation whose compiled
    module cannot be loaded has that one only.
    """
    try:
        from parshall import _native
    except ImportError as error:
        return [Probe("installation.module", "cannot", "broken", *import_problem(error))]
    if not hasattr(_native, "probe_capabilities"):
        return [Probe("installation.kernel", "cannot", "unsupported", NO_KERNEL_SIDE, KERNEL_SIDE_REMEDY), _sdk()]
    return [*(Probe(**fields) for fields in json.loads(_native.probe_capabilities())), _sdk()]


def _sdk() -> Probe:
    if find_spec("mcp") is not None:
        return Probe("installation.mcp", "works", None, "the Python SDK of MCP is installed", "")
    remedy = "install it: pip install 'mcp<3'"
    return Probe("installation.mcp", "cannot", "not installed", "the Python SDK of MCP is not installed", remedy)
