"""The answers of the tools: of bounded size, with foreign texts on one line, and with a ledger."""

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
    """Number of further features with problems."""
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
    """Process number of the command; null: unknown."""
    state: str | None
    """TCP state."""
    ended: bool
    """Whether the connection has ended."""
    ending: str | None
    """How the connection ended."""
    duration_s: float | None
    """Time that the log observed the connection, seconds."""
    acked_bytes: int | None
    """Bytes that the peer acknowledged."""
    received_bytes: int | None
    """Bytes received."""
    acked_may_lack: bool
    """Whether acked_bytes may be too small, since the log has few packets of the connection and not its account yet."""
    received_may_lack: bool
    """The same of received_bytes."""
    retransmitted: int | None
    """Segments that were sent again, as the kernel counts them: also those that did not leave this host."""
    retransmitted_for: str | None
    """Why they were, segments and cause, such as 12 fast, 1 rto, of those whose event the log has; null: of none."""
    srtt_ms: float | None
    """Smoothed round-trip time, milliseconds."""
    cwnd_segments: int | None
    """Congestion window, segments."""
    congestion_control: str | None
    """Congestion control algorithm."""


class FlowsAnswer(Object):
    """The connections of a log, also of one that is being written."""

    log: str
    """Name of the log."""
    is_complete: bool
    """Whether the log was ended in order; false while it is being written."""
    until_time_ns: int
    """Time of the newest record or account in the log, nanoseconds since 1970."""
    flows: list[FlowRow]
    """Connections in the requested order."""
    left_out: int
    """Number of further connections."""
    ledger: Ledger | None
    """The account of the log; null: not written yet."""


class RetransmissionRow(Object):
    """An event: one or more segments that were sent again at once."""

    time_ns: int
    """Time of the retransmission, nanoseconds since 1970."""
    flow: int
    """Number of the connection."""
    payload_bytes: int
    """Bytes that were sent again."""
    segments: int
    """Segments that were sent again."""
    cause: str | None
    """Why: tlp, rto, fast, rack, mtu, syn, synack; null: the log does not show it."""
    spurious: bool | None
    """Whether the data had arrived already; null: unknown."""
    evidence: str | None
    """What shows that the data had arrived: dsack or undo."""


class RetransmissionsAnswer(Object):
    """Why segments were sent again."""

    log: str
    """Name of the log."""
    segments: int
    """Segments that were sent again, of the log or of the connection: those whose event the log has."""
    causes: dict[str, int]
    """These segments by cause."""
    spurious_segments: int
    """Of these, segments whose data had arrived already."""
    not_known_segments: int
    """Of these, segments of which this is not known."""
    retransmissions: list[RetransmissionRow]
    """The last events, each of one or more segments."""
    left_out: int
    """Number of earlier events."""
    ledger: Ledger | None
    """The account of the log."""


class DropRow(Object):
    """Packets that were dropped for one reason after one stage."""

    reason: str
    """The kernel's reason."""
    place: str | None
    """The last stage that the packets passed."""
    packets: int
    """Number of packets."""


class DropsAnswer(Object):
    """Where packets are dropped."""

    file: str
    """Name of the path log or of the histograms."""
    paths: dict[str, int]
    """Packets by their code path, such as forwarded or dropped."""
    drops: list[DropRow]
    """Most frequent drops."""
    left_out: int
    """Number of further reasons and stages."""
    ledger: Ledger | None
    """The account of the measurement."""


class ReportAnswer(Object):
    """The numbers of a log's report."""

    log: str
    """Name of the log."""
    is_complete: bool
    """Whether the log was ended in order."""
    truncation: str | None
    """Why the file ends early; null: it is whole."""
    kernel: str | None
    """Kernel of the host."""
    flows: int
    """Number of connections."""
    endings: dict[str, int]
    """Connections by how they ended."""
    acked_bytes: int
    """Bytes that peers acknowledged."""
    received_bytes: int
    """Bytes received."""
    retransmissions: dict[str, int]
    """Segments that were sent again by cause: those whose event the log has."""
    refused: int
    """Segments that full accept queues refused."""
    gaps: int
    """Number of intervals that the log lacks."""
    ledger: Ledger | None
    """The account of the log."""


class ModelAnswer(Object):
    """The results of a model."""

    model: str
    """Name of the model."""
    duration_s: float
    """Simulated time of each replication, seconds."""
    replications: int
    """Number of replications."""
    estimates: list[Estimate]
    """Estimates with the half-width of their 95 % intervals; without zeros."""
    left_out: int
    """Number of further estimates."""
    ledger: Balance
    """The account of the packets of all replications."""


def bounded(value: Any) -> Any:
    """Return a value with each of its texts on one line of bounded length, since others choose names."""
    if isinstance(value, str):
        text = printable(value)
        return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 4]} ..."
    if isinstance(value, dict):
        return {bounded(key): bounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [bounded(each) for each in value]
    return value
