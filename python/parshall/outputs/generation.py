"""Outputs of ``parshall gen``."""

from typing import Literal

from parshall.outputs.base import Object

# At 1, 10, 25, 50, 75, 90 and 99 %.
Quantiles = tuple[float, float, float, float, float, float, float]


class SizeAccount(Object):
    """Sizes that were sent beside their distribution."""

    mean_bytes: float
    """Mean of the IP packets sent, bytes."""
    requested_mean_bytes: float
    """Mean of the distribution, bytes."""
    quantiles_bytes: Quantiles
    """Quantiles (1, 10, 25, 50, 75, 90, 99 %) of what was sent, bytes."""
    requested_quantiles_bytes: Quantiles
    """Quantiles of the distribution, bytes."""
    ks_distance: float
    """Kolmogorov-Smirnov distance of the two."""
    ks_bound: float
    """Critical value of this distance at a level of 5 %."""
    too_small_share: float
    """Share of the sizes that are too small for headers and stamp; these packets were made larger."""


class GapAccount(Object):
    """Gaps that were sent beside their distribution."""

    mean_ns: float
    """Mean gap, nanoseconds."""
    requested_mean_ns: float
    """Mean of the distribution, nanoseconds."""
    quantiles_ns: Quantiles
    """Quantiles (1, 10, 25, 50, 75, 90, 99 %) of the gaps, nanoseconds."""
    requested_quantiles_ns: Quantiles | None
    """Quantiles of the distribution, nanoseconds; null: not known in closed form."""
    ks_distance: float | None
    """Kolmogorov-Smirnov distance of the two; null: not known."""
    ks_bound: float | None
    """Critical value of this distance at a level of 5 %."""
    error_p99: float | None
    """99th percentile of the relative error, where all requested gaps are equal."""
    late_mean_ns: float
    """Mean lateness of packets, nanoseconds."""
    late_quantiles_ns: Quantiles
    """Quantiles of the lateness, nanoseconds."""
    late_max_ns: int
    """Maximum lateness, nanoseconds."""
    late_share: float
    """Share of the packets that left late by at least the mean gap."""
    is_shape_kept: bool
    """Whether the gaps have the requested shape."""
    mean_spread: float | None
    """Relative standard deviation of the mean gap by chance; null: not known."""


class Sender(Object):
    """One sender's part of the account."""

    cpu: int | None
    """Its CPU; null: whichever the kernel gave it."""
    sent: int
    """Packets handed to the interface."""
    elapsed_ns: int
    """Time from its first packet to its last, nanoseconds."""
    cpu_s: float
    """CPU time of its thread, seconds."""
    error: str | None
    """What ended it early; null: nothing."""


class SentOutput(Object):
    """The account of a generator: requested = sent + not_sent, and sent = arrived + lost."""

    requested: int | None
    """Packets requested, or due in the time that was; null: until stopped, or for a time without gaps."""
    backend: Literal["xdp", "af-packet", "af-xdp", "pktgen"]
    """How packets were sent."""
    sent: int
    """Packets handed to the interface."""
    not_sent: int
    """Packets that were not sent: the run ended before."""
    arrived: int | None
    """Packets that the interface counted; null: it did not count, or others sent, too."""
    lost: int | None
    """Packets that the interface did not count."""
    lost_counted: int | None
    """Packets that the interface counted as dropped, of any sender."""
    frame_bytes: int
    """Bytes of the frames, without check sequences."""
    elapsed_ns: int
    """Time from the first packet to the last, nanoseconds."""
    rate_pps: float
    """Packets per second."""
    rate_bps: float
    """Bits of frames per second."""
    sizes: SizeAccount | None
    """Sizes beside their distribution; null: nothing was sent."""
    gaps: GapAccount | None
    """Gaps beside their distribution; null: none were requested."""
    gap_distribution: str
    """Distribution of the gaps."""
    digest: str | None
    """XXH3-128 of all packets of the plan that were sent; null: the sender draws by itself."""
    transmitted: int | None
    """Packets that the interface counted meanwhile, of any sender."""
    generator: str
    """The random number generator."""
    seed: int
    """The seed."""
    waited_runs: int
    """Runs of the program that found no packet due."""
    starved_runs: int
    """Runs of the program that found no packet drawn."""
    carrier_losses: int
    """How often the interface lost its carrier."""
    error: str | None
    """Why it ended early; null: it did not."""
    sender_cpu_s: float
    """CPU time of the senders, seconds."""
    feeder_cpu_s: float
    """CPU time of the thread that draws, seconds."""
    senders: list[Sender]
    """What each sender did."""


class ReceivedOutput(Object):
    """The account of a receiver: sent = received - duplicates + lost."""

    sent: int | None
    """Packets sent, by --count; null: up to the highest sequence number that arrived."""
    received: int
    """Packets received."""
    duplicates: int
    """Of these, packets that came again."""
    reordered: int
    """Packets that came behind a later one."""
    too_short: int
    """Packets without a stamp."""
    foreign: int
    """Packets of another run."""
    lost: int
    """Packets that did not come."""
    latency_ns: tuple[float, float, float, float, float] | None
    """Latency: minimum, median, 90 %, 99 %, maximum, nanoseconds; null: nothing came."""
    capture_lost: int
    """Packets that the receiver itself lost."""
    filter: str
    """What the packets of a run match."""
    others: int
    """Packets that came to the interface and did not match."""


GenOutput = SentOutput | ReceivedOutput
