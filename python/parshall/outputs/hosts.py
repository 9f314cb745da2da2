"""Outputs about this host and about files: ``doctor``, ``--version``, ``cpu``, ``sizes``, ``report``, ``show``."""

from typing import Literal

from parshall.outputs.base import ABSENT, Object
from parshall.outputs.ledger import Ledger


class Decision(Object):
    """Whether a command works on this host."""

    command: str
    """The command."""
    status: Literal["works", "degraded", "cannot"]
    """Whether it works."""
    cause: Literal["unsupported", "forbidden", "broken", "not installed"] | None
    """The kernel lacks it, this process may not, or it should work; null: it works."""
    why: str
    """What is wrong."""
    remedy: str
    """What to do."""


class Probe(Object):
    """The result of trying one feature."""

    name: str
    """Group and feature, such as `program.xdp`."""
    status: Literal["works", "degraded", "cannot"]
    """Whether it can be used."""
    cause: Literal["unsupported", "forbidden", "broken", "not installed"] | None
    """Why not; null: it works."""
    detail: str
    """What was observed."""
    remedy: str
    """What to do."""


class DoctorOutput(Object):
    """What works on this host: ``parshall doctor --json``."""

    format: str
    """Version of this object."""
    removed: list[str]
    """With --clean: what was removed."""
    commands: list[Decision]
    """One for each command."""
    probes: list[Probe]
    """One for each feature that was tried."""


class KernelSide(Object):
    """What the compiled module has inside."""

    libbpf: str
    """Version of libbpf."""
    libpcap: str
    """Version of libpcap."""
    objects: dict[str, str]
    """Digests of the eBPF objects, by name."""


class VersionOutput(Object):
    """What is installed: ``parshall --version --json``."""

    format: str
    """Version of this object."""
    version: str | None
    """Version of Parshall."""
    commit: str | None
    """Commit that was built; null: unknown."""
    kernel: KernelSide | None
    """What the compiled module has inside; null: an installation for analysis only."""
    problem: str | None
    """Why the compiled module cannot be loaded; null: it can."""


class CpuSummary(Object):
    """The longest time in which the CPUs were busy."""

    first_interval: int
    """Number of its first interval, from 0."""
    intervals: int
    """Intervals."""
    min: dict[str, float]
    """Least of each state, percent."""
    max: dict[str, float]
    """Most of each state, percent."""
    avg: dict[str, float]
    """Mean of each state, percent."""


class HookTime(Object):
    """Run time of one eBPF program."""

    number: int
    """The kernel's number of the program."""
    name: str
    """Its name."""
    runs: int
    """Runs."""
    run_ns: int
    """Total run time, nanoseconds."""
    share: float
    """Percent of the time of one CPU."""


class CpuProfile(Object):
    """How the CPUs spent their time: ``parshall cpu --json``."""

    interval_s: float
    """Time between two samples, seconds."""
    limit_percent: float
    """Summarised while idle is below this, percent."""
    states: list[str]
    """States of a CPU, in the order of the numbers below."""
    all: list[list[float]]
    """All CPUs together: percent of each state, in each interval."""
    cpus: dict[str, list[list[float] | None]]
    """Each CPU by itself: percent of each state, in each interval; null: no tick of it passed, or it was offline."""
    summary: CpuSummary | None
    """The longest busy time; null: there was none."""
    hooks: list[HookTime] = ABSENT
    """With --hooks: eBPF programs that ran."""


class CpuTrim(Object):
    """The summary of a saved profile: ``parshall cpu trim FILE --json``."""

    lines: int
    """Lines of the file."""
    summary: CpuSummary | None
    """The longest busy time; null: there was none."""


CpuOutput = CpuProfile | CpuTrim


class HeavyHitter(Object):
    """A frequent size."""

    size_bytes: int
    """Size, bytes."""
    counted_share: float
    """Share of the counted packets."""
    represented_share: float
    """Share in the distribution."""
    drawn_share: float | None
    """Share of the draws."""


class SizesComparison(Object):
    """Distances (total variation) between counted sizes, their distribution and draws from it."""

    bins_distance: float
    """Part of the distance that the bins cause."""
    cells_distance: float
    """Largest part that whole cells cause."""
    represented_distance: float
    """Distance of counted sizes from the distribution."""
    draws: int
    """Draws that were compared."""
    chance_distance: float
    """Sampling error to expect of so many draws."""
    drawn_distance: float | None
    """Distance of counted sizes from the draws."""
    above_maximum: int
    """Packets above the maximum, which the distribution leaves out."""
    heavy_hitters: list[HeavyHitter]
    """Most frequent sizes."""


class SizesOutput(Object):
    """What was counted: ``parshall sizes --json``."""

    packets: int | None
    """Packets that were counted; null: the input is a distribution."""
    ledger: dict[str, int] | None
    """The account of the input: packets by what became of them."""
    comparison: SizesComparison | None
    """With --verify: how exact the distribution is."""


class ReportOutput(Object):
    """Where the report is: ``parshall report --json``."""

    report: str
    """Name of the page."""
    replaced: bool
    """Whether a page was there before."""


class FlowState(Object):
    """A connection as its log last saw it; docs/formats/tcp-log.md has the flow table."""

    flow: int
    """Number of the connection."""
    local_address: str | None
    """Address of this host."""
    local_port: int | None
    """Its port."""
    remote_address: str | None
    """Address of the peer."""
    remote_port: int | None
    """Its port."""
    ip_version: int | None
    """4 or 6."""
    congestion_control: str | None
    """Congestion control."""
    command: str | None
    """Command that opened the socket; null: unknown."""
    pid: int | None
    """Its process."""
    cgroup: str | None
    """Path of the control group of the socket."""
    netns_inode: int | None
    """Inode of the network namespace."""
    passive: bool | None
    """Whether the peer opened it."""
    began_before: bool | None
    """Whether it existed when the log began."""
    ending: str | None
    """How it ended; null: it has not."""
    ended: bool | None
    """Whether it has ended."""
    packets_seen: int | None
    """Packets that the hooks saw."""
    packets_logged: int | None
    """Of these, packets in the log."""
    packets_thinned: int | None
    """Of these, packets that were left out on request."""
    packets_dropped: int | None
    """Of these, packets that were dropped because the ring was full."""
    packets_overwritten: int | None
    """Of these, packets that were overwritten in the ring."""
    records: int | None
    """Its records in the log; null: none, as for all keys below."""
    begin_ns: int | None
    """Time of the first record, nanoseconds since 1970."""
    end_ns: int | None
    """Time of the last record, nanoseconds since 1970."""
    acked_bytes: int | None
    """Bytes that the peer acknowledged since the log began."""
    received_bytes: int | None
    """Bytes received since the log began."""
    acked_may_lack: bool | None
    """Whether 2 GiB or more may have moved between two of its records, so that acked_bytes may be too small."""
    received_may_lack: bool | None
    """The same of received_bytes."""
    cwnd_segments: int | None
    """Congestion window, segments."""
    state: str | None
    """State of TCP."""
    retransmitted: int | None
    """Segments sent again in the files that are read, as the kernel counts: also those that did not leave it."""
    retransmitted_for: str | None
    """Why they were, segments and cause, such as 12 fast, 1 rto, of those whose event the log has; null: of none."""
    duration_s: float | None
    """Time between first and last record, seconds."""
    srtt_ms: float | None
    """Smoothed round-trip time, milliseconds."""
    rate_Mbps: float | None
    """Rate of both directions over its life, megabits per second; with --follow, since the last table."""


class LogGap(Object):
    """A time that a log does not have."""

    from_time_ns: int | None
    """When the last account before it was taken, nanoseconds since 1970; null: unknown, or the log begins with it."""
    until_time_ns: int | None
    """When the next file begins, nanoseconds since 1970; null: the log ends with it."""
    cause: Literal["restarted", "killed", "file_missing", "file_damaged"]
    """A new writer began, after the former one ended in order or did not; a file is missing, or has no head."""


class ShowOutput(Object):
    """The flows of a log: ``parshall show --json``; with --follow, one object a line."""

    log: str
    """Name of the log."""
    complete: bool
    """Whether the log was ended in order."""
    until_time_ns: int
    """Until when the log is known, nanoseconds since 1970."""
    records: int
    """Records in the log."""
    flows: list[FlowState]
    """One object for each connection."""
    ledger: Ledger | None
    """The account so far; null: none was written yet."""
    truncation: str | None = ABSENT
    """Without --follow: where and why the log ends early; null: it has its end."""
    gaps: list[LogGap] = ABSENT
    """Without --follow: times that the log does not have."""


class StoredFlow(FlowState):
    """A connection of a host."""

    host: str
    """The host, by its name in the store."""
    log: str
    """Its log."""


class StoredLog(Object):
    """A log of a host."""

    host: str
    """The host, by its name in the store."""
    log: str
    """Name of the log, without its suffix."""
    complete: bool
    """Whether the log was ended in order and has no gap; false also when --since or --until left out files."""
    gaps: list[LogGap]
    """The times that the log does not have, in order."""
    records: int
    """Records in the log."""
    ledger: Ledger | None
    """The account of its files; null: they have none."""


class StoreOutput(Object):
    """The flows of a store of logs of hosts: ``parshall show STORE --json``."""

    store: str
    """The directory or URL."""
    hosts: list[StoredLog]
    """One object for each log of each host."""
    records: int
    """Records in all of them."""
    flows: list[StoredFlow]
    """One object for each connection."""
