"""Measure at which time each packet passes which stage of the kernel."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parshall.errors import UsageError
from parshall.host import cgroups, namespaces, privileges
from parshall.host.environment import as_json, environment
from parshall.host.first_use import imported
from parshall.host.session import Session, Summary, check_choice, check_text, request_json
from parshall.instruments.path.probe_cost import LESS_PROBES, less_probes
from parshall.instruments.path.stages import ALL_STAGES, LIGHT_STAGES, READY_STAGE, SOCKET_STAGE, STAGES

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_RING_BYTES = 16 << 20
RING_BYTES_MIN, RING_BYTES_MAX = 32 << 10, 256 << 20
DEFAULT_PACKETS_MAX = 1 << 16
# A window of `share`, as in crates/kernel/src/path/run.rs.
WINDOW_S = 0.5
GROUPS = ("none", "interface", "connection", "cgroup", "command")


@dataclass(frozen=True, repr=False)
class PathSummary(Summary):
    """How a measurement of paths ended.

    Attributes
    ----------
    stages : list of str
        Stages that were measured.
    unavailable : list of dict
        ``stage`` and ``reason`` of what was requested and this kernel lacks.
    paths : dict
        Packets by code path: forwarded, delivered, sent, dropped, consumed, merged, segmented, and those whose end
        was not seen: unknown, displaced, open.
    times : list of dict
        One row a code path (and group) and stage: packets, sum, share of the whole, quantiles, buckets; with
        ``probe_cost`` also what `less_probes` adds.
    waits : list of dict
        Times of one of seven packets of a code path, by the ``bucket`` of the whole: ``packets``, and ``sum_ns`` by
        stage.
    ungrouped : int
        Packets whose group found no histograms of its own.
    drops : list of dict
        Packets by drop reason: all of the host, those that were followed, and these by the last stage that they passed
        (``places``).
    uncounted_drops : int
        Drops of the host for still other reasons: ``drops`` has room for 256.
    without_histogram : int
        Packets that ended on a CPU that came online after the start: they are in no histogram.
    noise : list of dict
        Interrupts and softirqs of each CPU: their times, and the gaps between their starts.
    reads : list of dict
        From data ready to the read: ``waking``, ``running``, ``read``, ``whole``.
    missed : list
        Runs that the kernel skipped because the program was already running on the CPU, by program.
    probe_cost : list of dict
        Cost of a probe between first and last stage, by code path, with half of its 95 % interval; it is
        distinguishable when the interval lies above zero.
    measures_probe_cost : bool
        Whether that was asked for.
    attached_s : float
        Seconds during which the programs were attached.
    paused_s : float
        Seconds between their windows, and before the first and behind the last one; 0: they were never detached.
    windows : int
        Windows in which they were.
    budget : dict or None
        What a budget came to: its ``share`` of one CPU, ``cost_share`` of the whole time, and ``cost_share_max`` of the
        most expensive ten seconds (0: it was shorter).
    estimates : list of dict
        What the windows say of the whole time, by ``path``: ``packets`` from ``low_packets`` to ``high_packets``;
        ``median_ns`` and ``p99_ns`` of the time from first to last stage as value, low and high, or None. The intervals
        are of 95 %. Empty with fewer than ten pauses between windows.
    """

    stages: list[str]
    unavailable: list[dict[str, str]]
    paths: dict[str, int]
    times: list[dict[str, Any]]
    waits: list[dict[str, Any]]
    ungrouped: int
    drops: list[dict[str, Any]]
    noise: list[dict[str, Any]]
    reads: list[dict[str, Any]]
    missed: list[Any]
    probe_cost: list[dict[str, Any]]
    attached_s: float
    windows: int
    paused_s: float = 0.0
    uncounted_drops: int = 0
    without_histogram: int = 0
    budget: dict[str, Any] | None = None
    estimates: list[dict[str, Any]] = field(default_factory=list)
    measures_probe_cost: bool = False

    def _facts(self) -> list[str]:
        from parshall.instruments.path.text import stage_lines, summary_lines

        return [*stage_lines(self, with_groups=False), *summary_lines(self), *super()._facts()]

    @property
    def plot(self) -> Any:
        """The figures of a report, one by one: ``plot.stages()``; see `parshall.figures.plots.PathPlots`."""
        return imported("parshall.figures.plots:PathPlots")(self)

    @property
    def is_partial(self) -> bool:
        """Whether the programs were attached for a part of the measurement only: in windows, or not at all."""
        return self.windows != 1 or self.paused_s > 0

    def table(self, *, with_groups: bool = False) -> "pa.Table":
        """Return the times of the stages.

        Returns
        -------
        pyarrow.Table
            Columns ``path``, ``stage``, ``packets``, ``share`` (of the whole, 0 to 1), ``mean_ns``, ``median_ns``,
            ``p90_ns``, ``p99_ns``, ``max_ns``; with groups also ``group`` as text. With the cost of the probes also
            ``probe_cost_ns``, ``probe_cost_interval_ns`` (half of the 95 % interval) and the times less that cost,
            `LESS_PROBES`.
        """
        import pyarrow as pa

        added = ("probe_cost_ns", "probe_cost_interval_ns", *LESS_PROBES) if self.probe_cost else ()
        shown = [row for row in self.times if with_groups or row["group"] is None]
        rows = [
            {"path": row["path"]}
            | ({"group": text} if with_groups else {})
            | {"stage": row["stage"], "packets": row["packets"], "share": row["share"]}
            | {"mean_ns": row["sum_ns"] / row["packets"]}
            | {name: row[name] for name in ("median_ns", "p90_ns", "p99_ns", "max_ns")}
            | {name: row.get(name) for name in added}
            for row, text in zip(shown, with_namespaces(row["group"] for row in shown), strict=True)
        ]
        return pa.Table.from_pylist(rows)


def group_text(group: dict[str, Any] | None) -> str | None:
    """Return a group as text: ``10.0.0.1:80 > 10.0.0.2:5000 tcp``, ``interface eth0``, ``cgroup /user.slice``.

    Where groups of several namespaces are shown, `with_namespaces` adds theirs.
    """
    if group is None:
        return None
    if "connection" in group:
        source, source_port, destination, destination_port, protocol = group["connection"]
        name = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6"}.get(protocol, f"protocol {protocol}")
        return f"{_end(source, source_port)} > {_end(destination, destination_port)} {name}"
    if "interface" in group:
        return f"interface {group.get('name', group['interface'])}"
    if "cgroup_id" in group:
        return f"cgroup {group.get('cgroup', group['cgroup_id'] or 'not known')}"
    return f"command {group['command']}"


def with_namespaces(groups: Iterable[dict[str, Any] | None]) -> list[str | None]:
    """Return groups as text, with the inodes of their network namespaces if there are several."""
    listed = list(groups)
    several = len({group.get("netns_inode") for group in listed if group}) > 1
    return [
        f"{group_text(group)}, namespace {group['netns_inode']}" if several and group else group_text(group)
        for group in listed
    ]


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class PathProfile(Session[PathSummary]):
    """Follow packets through the stages of the kernel's packet path until stopped.

    Parameters
    ----------
    path : path-like, optional
        The log, one row a packet; ``-`` is standard output. None measures histograms only, which costs less.
    stages : sequence of str, optional
        Names of `STAGES`. By default all with a log, and `LIGHT_STAGES` without.
    reads : bool
        Follow the readers of sockets, too: woken, running, read. They begin at ``data_ready``, which the stages of
        the default have then.
    noise : bool
        Measure interrupts and softirqs, too.
    filter : str, optional
        Capture filter (pcap-filter(7) syntax) from the network layer on.
    every : int
        Of n packets that pass the filter, follow one, at a random place among them; the first of each CPU is followed.
    interface : str or sequence of str
        Only packets whose first stage is at one of these interfaces.
    netns : path-like or str, optional
        Only packets of this network namespace, by name (``ip netns``) or path.
    cgroup : path-like, optional
        Only packets of sockets below this directory of the cgroup-v2 hierarchy.
    unit : str, optional
        Only packets of sockets of this unit of systemd: of its control group when the measurement begins.
    container : str, optional
        Only packets of sockets of this container: its name, as Docker or Podman has it, or the beginning of its ID.
    by : {"none", "interface", "connection", "cgroup", "command"}
        What has histograms of its own, beside the code paths. A command is the thread that sent a packet; with `reads`
        also the one that last read from its socket.
    groups_max : int
        Groups that have histograms at most; packets of later ones are counted as ``ungrouped``.
    packets_max : int
        Packets that are followed at once, a power of two from 1,024; each takes 224 bytes of the kernel's memory.
    buffer_bytes : int
        Bytes of the ring between kernel and reader, for each CPU: a power of two.
    share : float
        Part of the time during which the programs are attached, in windows of half a second at random times.
    budget : float, optional
        Share of one CPU that the measurement may cost, hooks and reader, 0 to 1: the programs are attached as long as
        that allows, and else in windows at random times.
    seed : int
        Seed of these times.
    probe_cost : bool
        Measure what the probes cost the packets: the first 40 windows of 200 ms are with and without the probes
        between first and last stage, in turns.
    is_stopping : callable, optional
        Asked while a FIFO has no reader; when it returns true, the start is given up with a KeyboardInterrupt.
    before : callable, optional
        Called once the arguments are found to be in range, before anything is measured.

    Raises
    ------
    UsageError
        An argument is out of range or invalid.
    ParshallError
        Privileges or kernel features are missing, or the file cannot be created.

    Examples
    --------
    >>> with PathProfile(stages=["receive", "queue", "start_xmit"]) as profile:  # doctest: +SKIP
    ...     run_experiment()
    >>> profile.summary.table().to_pandas()  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        stages: Sequence[str] | None = None,
        reads: bool = False,
        noise: bool = False,
        filter: str | None = None,
        every: int = 1,
        interface: str | Sequence[str] = (),
        netns: str | os.PathLike[str] | None = None,
        cgroup: str | os.PathLike[str] | None = None,
        unit: str | None = None,
        container: str | None = None,
        by: str = "none",
        groups_max: int = 256,
        packets_max: int = DEFAULT_PACKETS_MAX,
        buffer_bytes: int = DEFAULT_RING_BYTES,
        share: float = 1.0,
        budget: float | None = None,
        seed: int = 1,
        probe_cost: bool = False,
        is_stopping: Callable[[], bool] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        cgroup = cgroups.chosen(cgroup, unit, container)
        chosen = list(stages if stages is not None else ALL_STAGES if path else LIGHT_STAGES)
        if stages is None:
            needed = [READY_STAGE] if reads else []
            needed += [SOCKET_STAGE] if cgroup is not None or by == "cgroup" else []
            chosen += [name for name in needed if name not in chosen]
        unknown = [name for name in chosen if name not in STAGES]
        if unknown or not chosen:
            raise UsageError(f"--stages {','.join(unknown)}: expected names out of {', '.join(STAGES)}")
        if not 1 <= every < 1 << 32:
            raise UsageError(f"--every {every}: expected 1 (every packet) to {(1 << 32) - 1}")
        if buffer_bytes.bit_count() != 1 or not RING_BYTES_MIN <= buffer_bytes <= RING_BYTES_MAX:
            raise UsageError(f"--buffer {buffer_bytes}: expected a power of two from 32K to 256M")
        if packets_max.bit_count() != 1 or not 1 << 10 <= packets_max <= 1 << 22:
            raise UsageError(f"--packets-max {packets_max}: expected a power of two from 1024 to {1 << 22}")
        if not 1 <= groups_max <= 4096:
            raise UsageError(f"--groups-max {groups_max}: expected 1 to 4096")
        if not 0 < share <= 1:
            percent = f", which is {share:.0%}" if share > 1 else ""
            raise UsageError(f"--share {share:g}{percent}: expected more than 0 % and at most 100 %, as 5% or 0.05")
        if not 0 <= seed < 1 << 64:
            raise UsageError(f"--seed {seed}: expected 0 to 2^64 - 1")
        if probe_cost and share < 1:
            raise UsageError("--probe-cost: the cost is measured in windows of its own; leave out --share")
        if budget is not None:
            if not 0 < budget <= 1:
                raise UsageError(
                    f"--budget {budget:g}: expected a share of one CPU above 0, at most 1, such as 0.01 or 1%"
                )
            if share < 1 or probe_cost:
                raise UsageError("--budget: decides when the programs are attached; leave out --share and --probe-cost")
            if "xdp" in chosen:
                raise UsageError("--budget: the program of xdp stays between windows; leave out the stage")
        check_choice("--by", by, GROUPS)
        check_text("--filter", filter)
        interfaces = [interface] if isinstance(interface, str) else list(interface)
        for name in interfaces:
            check_text("--interface", name)
        namespace = None if netns is None else namespaces.find(netns)
        privileges.require_bpf("path")
        from parshall import _native

        self.path = None if path is None else Path(path)
        options: dict[str, Any] = {
            "stages": chosen,
            "reads": reads,
            "noise": noise,
            "filter": filter,
            "every": every,
            "interfaces": interfaces,
            "netns": None if namespace is None else str(namespace),
            "cgroup": str(cgroup) if cgroup else None,
            "group": by,
            "groups_max": groups_max,
            "packets_max": packets_max,
            "ring_bytes": buffer_bytes,
            "share": share,
            "budget": budget,
            "seed": seed,
            "probe_cost": probe_cost,
        }
        self.environment = environment()
        request = options | {
            "path": self.path,
            "environment": as_json(self.environment),
            "options_text": as_json(options),
        }
        self.options = options
        before()
        self._native: _native.Session = _native.Session("path", request_json(request), is_stopping)

    def _summarize(self, account: dict[str, Any]) -> PathSummary:
        return PathSummary(**account | {"times": less_probes(account["times"], account["probe_cost"])})
