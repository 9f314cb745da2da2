"""Outputs of ``parshall path``: histograms of the stages, and the answers for connections."""

from typing import Any, Literal

from parshall.outputs.base import ABSENT, Object
from parshall.outputs.ledger import Ledger

Bucket = tuple[int, int]
CodePath = Literal[
    "forwarded", "delivered", "sent", "dropped", "consumed", "merged", "segmented", "unknown", "displaced", "open"
]


class Unavailable(Object):
    """A stage that was requested and is not there."""

    stage: str
    """Name of the stage."""
    reason: str
    """What this kernel lacks."""


class Group(Object):
    """Which packets a histogram has: of an interface, a control group, a command, or a connection."""

    interface: int = ABSENT
    """Index of the interface."""
    name: str = ABSENT
    """Name of the interface, when the measurement ended; absent: it is not in the measured namespace, or no more."""
    netns_inode: int = ABSENT
    """Inode of the network namespace of an interface or a connection."""
    cgroup_id: int = ABSENT
    """Number of the control group; 0: the socket of these packets is not known."""
    cgroup: str = ABSENT
    """Path of the control group; absent: it was removed."""
    command: str = ABSENT
    """Name of the thread that sent the packet, or that last read from its socket."""
    connection: tuple[str, int, str, int, int] = ABSENT
    """Source address, port, destination address, port, IP protocol number."""


class StageTimes(Object):
    """Times of one stage on one code path, each since the stage before."""

    path: CodePath
    """Code path: what became of the packets."""
    group: Group | None
    """Group of packets; null: all of the code path."""
    stage: str
    """The stage; `whole`: from the first stage to the last."""
    packets: int
    """Packets that passed it after another stage."""
    sum_ns: int
    """Sum of the times, nanoseconds."""
    share: float
    """Part of the sum of `whole`, 0 to 1."""
    median_ns: float
    """Median, nanoseconds."""
    p90_ns: float
    """90th percentile, nanoseconds."""
    p99_ns: float
    """99th percentile, nanoseconds."""
    max_ns: int
    """Longest, nanoseconds."""
    buckets: list[Bucket] = ABSENT
    """Number of a bucket, and times in it; docs/formats/path-log.md has the edges."""
    probe_cost_ns: float | None = ABSENT
    """With --probe-cost: what the probes cost, nanoseconds."""
    probe_cost_interval_ns: float | None = ABSENT
    """Half of the 95 % interval of that cost, nanoseconds."""
    mean_less_probes_ns: float | None = ABSENT
    """Mean without the cost of the probes, nanoseconds."""
    median_less_probes_ns: float | None = ABSENT
    """Median without the cost of the probes, nanoseconds."""
    p90_less_probes_ns: float | None = ABSENT
    """90th percentile without it, nanoseconds."""
    p99_less_probes_ns: float | None = ABSENT
    """99th percentile without it, nanoseconds."""


class Wait(Object):
    """Where packets spent their time whose whole lies in one bucket."""

    path: CodePath
    """Code path."""
    bucket: int
    """Bucket of the whole."""
    packets: int
    """Packets: one of seven."""
    sum_ns: dict[str, int]
    """Sum of the times by stage, nanoseconds."""


class Drops(Object):
    """Drops for one reason."""

    reason: int
    """The kernel's number of the reason."""
    name: str
    """Its name."""
    all: int
    """Packets that the kernel dropped."""
    followed: int
    """Of these, packets that were followed."""
    places: dict[str, int]
    """These by the last stage that they passed."""


class Noise(Object):
    """Interrupts and softirqs of one kind, or one of the times of reads."""

    kind: str
    """Kind: `irq`, `softirq_net_rx`, ...; of reads `waking`, `running`, `read`, `whole`."""
    cpu: int | None
    """CPU; null: all."""
    events: int
    """Events."""
    sum_ns: int
    """Sum of their times, nanoseconds; of `poll_packets`, packets."""
    median_ns: float
    """Median, nanoseconds."""
    p90_ns: float
    """90th percentile, nanoseconds."""
    p99_ns: float
    """99th percentile, nanoseconds."""
    max_ns: int
    """Longest, nanoseconds."""
    gap_mean_ns: float | None
    """Mean time between the starts of two events, nanoseconds; null: fewer than two."""
    gap_deviation_ns: float | None
    """Standard deviation of these, nanoseconds."""
    buckets: list[Bucket]
    """Number of a bucket, and times in it."""


class ProbeCost(Object):
    """What the probes between first and last stage cost the packets of one code path."""

    path: CodePath
    """Code path."""
    probes: int
    """Probes that packets of this path pass."""
    windows: int
    """Pairs of windows, one with them and one without."""
    ns_per_probe: float
    """Cost of one probe, nanoseconds."""
    interval_ns: float | None
    """Half of its 95 % interval, nanoseconds."""
    is_distinguishable: bool
    """Whether that interval lies above zero."""


class Quantiles(Object):
    """Quantiles of times of skbs."""

    rows: int
    """Rows of the timeline."""
    median_ns: int
    """Median, nanoseconds."""
    p99_ns: int
    """99th percentile, nanoseconds."""
    max_ns: int
    """Longest, nanoseconds."""


class Reader(Quantiles):
    """How long the data of a connection waited for a process that read it."""

    pid: int | None
    """Process."""
    command: str | None
    """Its name."""


class Queue(Quantiles):
    """How long data or ACKs were in a queue discipline."""

    netns_inode: int | None
    """Inode of the network namespace."""
    interface_out: int | None
    """Index of the interface."""
    kind: Literal["data", "ACKs"]
    """Segments with data, or ACKs without."""


class PlaceOfDrops(Object):
    """Drops of a connection at one place for one reason."""

    netns_inode: int | None
    """Inode of the network namespace."""
    place: str | None
    """The last stage that they passed."""
    reason: str | None
    """The kernel's reason."""
    packets: int
    """Packets dropped."""
    sent_again: int
    """Of these, packets that were sent again."""


class Connection(Object):
    """One direction of a connection."""

    connection: str
    """Its ends: `10.0.0.1:80 > 10.0.0.2:5000 tcp`."""
    netns_inodes: list[int]
    """Inodes of the network namespaces where it was seen."""
    paths: dict[str, int]
    """Rows by code path."""
    drops: list[PlaceOfDrops]
    """Its drops."""
    sent_again: list[Quantiles]
    """Time from a drop to the retransmission."""
    retransmissions: int
    """Retransmissions."""
    causes: dict[str, int]
    """Retransmissions by cause."""
    lost: int
    """Retransmissions that repair a drop seen here."""
    spurious: int
    """Retransmissions that were needless."""
    not_known: int
    """Retransmissions of which it is not known whether they were needless."""
    readers: list[Reader]
    """Processes that read its data."""
    queues: list[Queue]
    """Queue disciplines that it passed."""


class PathBudget(Object):
    """What keeping the cost below a share of one CPU came to."""

    share: float
    """The share of one CPU that was not to be exceeded."""
    cost_share: float
    """The share that the measurement took: programs and reader."""
    cost_share_max: float
    """The largest share in ten seconds; 0: it was shorter."""


class PathEstimate(Object):
    """What windows say of the packets of a code path in the whole time; the intervals are of 95 %."""

    path: CodePath
    """Code path."""
    packets: float
    """Packets."""
    low_packets: float
    """Low end of their interval."""
    high_packets: float
    """High end of their interval."""
    median_ns: tuple[float, float, float] | None
    """Median of the time from first to last stage, low and high end, nanoseconds; null: too few packets."""
    p99_ns: tuple[float, float, float] | None
    """99th percentile, likewise."""


class PathOutput(Object):
    """Times of the stages: ``parshall path --json``."""

    format: Literal["path-histograms"]
    """Kind of file, by which readers know it."""
    format_version: str
    """Version of the format; a reader refuses another major version."""
    environment: dict[str, Any]
    """The host: see docs/formats/environment.md."""
    ledger: Ledger
    """The final account; its hooks are `packets` and `reads`."""
    failure: str | None
    """What ended the measurement early; null: nothing."""
    stages: list[str]
    """Stages that were measured."""
    unavailable: list[Unavailable]
    """Stages that this kernel lacks."""
    paths: dict[CodePath, int]
    """Packets by code path."""
    times: list[StageTimes]
    """Times of the stages."""
    waits: list[Wait]
    """Where packets spent their time, by how long the whole took."""
    ungrouped: int
    """Packets whose group found no histograms of its own."""
    drops: list[Drops]
    """Drops by reason."""
    noise: list[Noise]
    """Interrupts and softirqs, with --noise."""
    reads: list[Noise]
    """Times of reads, with --reads."""
    missed: list[tuple[str, int]]
    """Runs that the kernel skipped, by program."""
    probe_cost: list[ProbeCost]
    """What the probes cost, with --probe-cost."""
    measures_probe_cost: bool
    """Whether --probe-cost was asked for."""
    attached_s: float
    """Time during which the programs were attached, seconds."""
    paused_s: float
    """Time between their windows, and before the first and behind the last, seconds; 0: they were never detached."""
    windows: int
    """Windows in which they were."""
    budget: PathBudget | None
    """What the budget came to; null: there was none."""
    estimates: list[PathEstimate]
    """What the windows say of the whole time; empty with fewer than ten pauses between them."""
    uncounted_drops: int
    """Drops for reasons beyond the 256 that are counted."""
    without_histogram: int
    """Packets that ended on a CPU that came online after the start."""
    log: str | None
    """Name of the log; null: none was written."""
    connections: list[Connection] = ABSENT
    """With --tcp-log or --capture: the answers of the joined files."""


class JoinOutput(Object):
    """The answers of joined files: ``parshall path --join --json``."""

    output: str | None
    """Name of the output; null: none was written."""
    connections: list[Connection]
    """One for each direction of each connection, those with most rows first."""
    ledgers: dict[Literal["path", "tcp"], Ledger | None]
    """The account of each log: what of it the connections lack; null: it ended within its first second."""
