"""Edges: places at interfaces where the time of every stamped packet is recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parshall.errors import UsageError
from parshall.host import privileges
from parshall.host.installation import require_kernel_side
from parshall.host.session import Session, check_choice, request_json
from parshall.host.temporary import TemporaryDirectory

_HOOKS = ("out", "in", "xdp")
# `struct edge_time` of bpf/abi.h.
_TIME = np.dtype([("time_ns", "u8"), ("bytes", "u4"), ("pad", "u4")])


@dataclass(frozen=True)
class Edge:
    """A place at an interface.

    Attributes
    ----------
    interface : str
        Its interface.
    netns : pathlib.Path
        Path of the interface's network namespace.
    hook : {"out", "in", "xdp"}
        Where packets leave (before the interface's queue), where they arrive, or where they arrive in the driver.
    capacity : int
        Sequence numbers below it are recorded; 0: packets are counted only.
    discard : bool
        Whether packets go no further than here; of "xdp".
    port : int
        UDP destination port of the stamped packets.
    """

    interface: str
    netns: Path
    hook: str
    capacity: int = 0
    discard: bool = False
    port: int = 9


@dataclass(frozen=True)
class Passage:
    """What passed an edge.

    Attributes
    ----------
    times_ns : numpy.ndarray
        uint64, CLOCK_MONOTONIC, by sequence number; 0: the packet did not pass.
    account : dict
        ``packets``, ``bytes``, ``recorded``, ``duplicates``, ``beyond``, ``other``; ``timed`` packets passed in
        ``timed_ns``: all but the first and the last ones; ``runs`` and ``run_ns`` of the program while the kernel's
        run-time statistics were on.
    """

    times_ns: np.ndarray
    account: dict[str, int]


class Edges(Session[list[Passage]]):
    """Record times at edges until stopped.

    Parameters
    ----------
    edges : sequence of Edge
        The edges, in the order of the results.

    Raises
    ------
    UsageError
        An argument is invalid, or there is no such interface.
    ParshallError
        The kernel refuses a program, or privileges are missing.
    """

    def __init__(self, edges: Sequence[Edge]) -> None:
        for edge in edges:
            check_choice("hook", edge.hook, _HOOKS)
            if edge.discard and edge.hook != "xdp":
                raise UsageError(f"edge {edge.interface}: discard needs the hook xdp")
        privileges.require_bpf("router")
        require_kernel_side()
        from parshall import _native

        self._edges = list(edges)
        self._directory = TemporaryDirectory("edges")
        request = {"edges": [self._request(number, edge) for number, edge in enumerate(edges)]}
        try:
            self._native = _native.Session("edge", request_json(request))
        except BaseException:
            self._directory.remove()
            raise

    def _path(self, number: int) -> Path:
        return self._directory.path / f"{number}.times"

    def _request(self, number: int, edge: Edge) -> dict[str, Any]:
        return {
            "interface": edge.interface,
            "namespace": edge.netns,
            "hook": edge.hook,
            "is_discarding": edge.discard,
            "capacity": edge.capacity,
            "port": edge.port,
            "path": self._path(number) if edge.capacity else None,
        }

    def packets(self) -> list[int]:
        """Return the packets that have passed each edge so far."""
        return [account["packets"] for account in self.status()["edges"]]

    def _summarize(self, account: dict[str, Any]) -> list[Passage]:
        with self._directory:
            times = [
                np.fromfile(self._path(number), _TIME)["time_ns"].copy() if edge.capacity else np.empty(0, np.uint64)
                for number, edge in enumerate(self._edges)
            ]
        return [Passage(times_ns, found) for times_ns, found in zip(times, account["edges"], strict=True)]
