"""What the tools answer: bounded, with texts of others on one line, and with the ledger of what they are about."""

from typing import Any

from parshall.errors import printable
from parshall.outputs.base import Object
from parshall.outputs.hosts import Decision, Probe
from parshall.outputs.ledger import Ledger
from parshall.outputs.models import Balance, Estimate

# Rows of an answer, and characters of a text.
ROWS_MAX = 50
TEXT_MAX = 300


class ProbeLedger(Object):
    """The account of a check: tried = works + degraded + cannot."""

    tried: int
    """Features that were tried."""
    works: int
    """Of these, features that work."""
    degraded: int
    """Features that work in part."""
    cannot: int
    """Features that cannot be used."""


class HostAnswer(Object):
    """What this host can do."""

    commands: list[Decision]
    """Whether each command works, why not, and what to do."""
    problems: list[Probe]
    """Features that do not work in full."""
    left_out: int
    """Further such features."""
    ledger: ProbeLedger
    """The account of the check."""


class FlowRow(Object):
    """A TCP connection as its log last saw it."""

    flow: int
    """Number of the connection in the log."""
    local: str
    """Address and port of this host."""
    remote: str
    """Address and port of the peer."""
    command: str | None
    """Command that opened the socket; null: unknown."""
    pid: int | None
    """Its process."""
    state: str | None
    """State of TCP."""
    ended: bool
    """Whether it has ended."""
    ending: str | None
    """How it ended."""
    duration_s: float | None
    """Time in the log, seconds."""
    acked_bytes: int | None
    """Bytes that the peer acknowledged."""
    received_bytes: int | None
    """Bytes received."""
    retransmitted: int | None
    """Segments that were sent again."""
    srtt_ms: float | None
    """Smoothed round-trip time, milliseconds."""
    cwnd_segments: int | None
    """Congestion window, segments."""
    congestion_control: str | None
    """Congestion control."""


class FlowsAnswer(Object):
    """The connections of a log, also of one that is being written."""

    log: str
    """Name of the log."""
    is_complete: bool
    """Whether the log was ended in order; false while it is being written."""
    until_time_ns: int
    """Until when the log is known, nanoseconds since 1970."""
    flows: list[FlowRow]
    """Connections in the order that was asked for."""
    left_out: int
    """Further connections."""
    ledger: Ledger | None
    """The account of the log; null: none was written yet."""


class RetransmissionRow(Object):
    """A segment that was sent again."""

    time_ns: int
    """When, nanoseconds since 1970."""
    flow: int
    """Number of the connection."""
    payload_bytes: int
    """Bytes that were sent again."""
    segments: int
    """Segments."""
    cause: str | None
    """Why: tlp, rto, fast, rack, mtu, syn, synack; null: the log does not show it."""
    spurious: bool | None
    """Whether the data had arrived already; null: unknown."""
    evidence: str | None
    """How that is known: dsack or undo."""


class RetransmissionsAnswer(Object):
    """Why segments were sent again."""

    log: str
    """Name of the log."""
    total: int
    """Retransmissions of the log, or of the connection."""
    causes: dict[str, int]
    """Retransmissions by cause."""
    spurious: int
    """Retransmissions that were needless."""
    retransmissions: list[RetransmissionRow]
    """The last ones."""
    left_out: int
    """Earlier ones."""
    ledger: Ledger | None
    """The account of the log."""


class DropRow(Object):
    """Packets that were dropped for one reason at one place."""

    reason: str
    """The kernel's reason."""
    place: str | None
    """The last stage that they passed."""
    packets: int
    """Packets."""


class DropsAnswer(Object):
    """Where packets drop."""

    file: str
    """Name of the path log or of the histograms."""
    paths: dict[str, int]
    """Packets by what became of them."""
    drops: list[DropRow]
    """Most frequent drops."""
    left_out: int
    """Further reasons and places."""
    ledger: Ledger | None
    """The account of the measurement."""


class ReportAnswer(Object):
    """What the report of a log says, in numbers."""

    log: str
    """Name of the log."""
    is_complete: bool
    """Whether the log was ended in order."""
    truncation: str | None
    """Why the file ends early; null: it does not."""
    kernel: str | None
    """Kernel of the host."""
    flows: int
    """Connections."""
    endings: dict[str, int]
    """Connections by how they ended."""
    acked_bytes: int
    """Bytes that peers acknowledged."""
    received_bytes: int
    """Bytes received."""
    retransmissions: dict[str, int]
    """Retransmissions by cause."""
    refused: int
    """Segments that full accept queues refused."""
    gaps: int
    """Times that the log does not have."""
    ledger: Ledger | None
    """The account of the log."""


class ModelAnswer(Object):
    """What a model says."""

    model: str
    """Name of the model."""
    duration_s: float
    """Simulated time of each replication, seconds."""
    replications: int
    """Replications."""
    estimates: list[Estimate]
    """Estimates with half of the width of their 95 % intervals; zeros are left out."""
    left_out: int
    """Further estimates."""
    ledger: Balance
    """The account of the packets of all replications."""


def bounded(value: Any) -> Any:
    """Return a value with each of its texts on one line of bounded length: names are chosen by others."""
    if isinstance(value, str):
        text = printable(value)
        return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 4]} ..."
    if isinstance(value, dict):
        return {bounded(key): bounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [bounded(each) for each in value]
    return value
