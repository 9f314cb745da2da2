"""Outputs of what measures packets on this host: ``tcp``, ``capture``, ``live``, ``show``, ``convert``."""

from typing import Literal

from parshall.outputs.base import Object
from parshall.outputs.ledger import CaptureLedger, Ledger


class Listener(Object):
    """A listener whose accept queue was full when somebody came."""

    listener: int
    """Number of the listener in this log, from 1."""
    local_address: str
    """Address that it listens at; unspecified: all of this host."""
    local_port: int
    """Port that it listens at."""
    ip_version: Literal[4, 6]
    """Version of IP."""
    socket_cookie: int
    """The kernel's number of the socket."""
    netns_cookie: int
    """The kernel's number of the network namespace."""
    netns_inode: int
    """Inode of the network namespace."""
    cgroup_id: int
    """Number of the control group of the socket."""
    cgroup: str | None
    """Path of that control group; null: unknown."""
    command: str | None
    """Command that listens; null: unknown."""
    pid: int | None
    """Process that listens; null: unknown."""
    backlog_connections: int
    """Limit of the accept queue, connections."""
    queue_last_connections: int
    """Length of the accept queue at the last segment of a handshake, connections."""
    queue_longest_connections: int
    """Greatest length of the accept queue at a segment of a handshake, connections."""
    syns_refused: int
    """SYNs that the full accept queue refused."""
    acks_refused: int
    """Segments that would have completed a handshake, and that the full accept queue refused."""
    first_refused_time_ns: int | None
    """First refusal, nanoseconds since 1970."""
    last_refused_time_ns: int | None
    """Last refusal, nanoseconds since 1970."""
    ended: bool
    """Whether the socket no longer listens."""


class Budget(Object):
    """What keeping the cost below a share of one CPU came to."""

    share: float
    """The share of one CPU that was not to be exceeded."""
    cost_share: float
    """The share that the log took: programs and reader."""
    cost_share_max: float
    """The largest share in ten seconds; 0: it was shorter."""
    observed_s: float
    """Time for which packets were observed, seconds."""
    packets_per_log_max: int
    """The most that was thinned: every n-th packet of each flow."""
    changes: int
    """Changes of the thinning, and pauses."""


class Shipping(Object):
    """What was sent to a store."""

    url: str
    """The directory or URL of the store."""
    host: str
    """Name of this host there."""
    files_shipped: int
    """Files that were sent."""
    files_waiting: int
    """Finished files that were not sent, and stay."""
    files_refused: int
    """Files without a head, which have no name in a store, and stay."""
    failures: int
    """Attempts that failed."""
    bytes_shipped: int
    """Bytes that were sent."""
    cpu_s: float
    """CPU time of sending, seconds."""
    failure: str | None
    """Why the last attempt failed; null: it did not."""


class TcpOutput(Object):
    """How a TCP log ended: ``parshall tcp --json``."""

    log: str
    """Name of the log; `-`: standard output."""
    ledger: Ledger
    """The final account."""
    failure: str | None
    """What ended the log early; null: nothing."""
    flows: int
    """Connections in the log."""
    listeners: list[Listener]
    """Listeners that refused segments."""
    segments_unlisted: int
    """Segments that came to listeners for which the kernel's table had no room."""
    budget: Budget | None
    """What the budget came to; null: there was none."""
    shipping: Shipping | None
    """What was sent to a store; null: there was none."""


class CaptureOutput(Object):
    """How a capture ended: ``parshall capture --json``."""

    ledger: CaptureLedger
    """The final account."""
    failure: str | None
    """What ended the capture early, or the first file that could not be written; null: nothing."""


class RingSubscriber(Object):
    """A subscriber of a ring."""

    pid: int
    """Its process."""
    filter: str
    """Its capture filter; empty: all packets."""
    snaplen: int
    """Maximum bytes of a packet that it wants."""
    seen: int
    """Packets that passed its hooks so far."""
    matched: int
    """Of these, what its filter matched."""
    dropped: int
    """Of these, what found no room in the ring."""


class Ring(Object):
    """A ring that runs."""

    name: str
    """Its name."""
    keeper_pid: int
    """Process that keeps it."""
    hooks: list[str]
    """Names of its hooks."""
    interfaces: list[str]
    """Names of its interfaces."""
    indices: list[int]
    """Their indices."""
    namespace: int
    """Number of their network namespace."""
    ring_bytes: int
    """Size for each CPU, bytes."""
    lanes: int
    """CPUs."""
    policy: Literal["fast", "slow"]
    """What happens when a reader lags: overwrite (fast) or drop (slow)."""
    group: str | None
    """Group whose members may join; null: root only."""
    subscribers: list[RingSubscriber]
    """Its subscribers."""


class UnreadableRing(Object):
    """A ring that does not answer."""

    name: str
    """Its name."""
    unreadable: str
    """Why it cannot be read."""


RingsOutput = list[Ring | UnreadableRing]


class LiveStarted(Object):
    """The first line of ``parshall live --json``: the page is served."""

    url: str
    """Address of the page, with its token."""
    log: str
    """Name of the log that is shown."""


class LivePaths(Object):
    """Packets that the page followed, with --path."""

    ledger: Ledger
    """The final account."""
    attached_s: float
    """Time during which the programs were attached, seconds."""


class LiveEnded(Object):
    """The last line of ``parshall live --json``, of what it measured itself."""

    ledger: Ledger | None
    """The final account of its log; null: it showed the log of another."""
    flows: int | None
    """Connections in its log; null: as above."""
    path: LivePaths | None
    """Packets that it followed; null: without --path."""
    failure: str | None
    """What ended it early; null: nothing."""


LiveOutput = LiveStarted | LiveEnded


class ConvertOutput(Object):
    """What was converted: ``parshall convert --json``."""

    format: str
    """Format of the output."""
    output: str | None
    """Name of the output; null: standard output."""
    rows: int
    """Rows written."""
    warnings: list[str]
    """What the format cannot hold."""
