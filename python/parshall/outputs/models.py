"""Outputs of ``parshall model`` and ``parshall router``."""

from typing import Literal

from pydantic import ConfigDict, Field

from parshall.outputs.base import ABSENT, Object

Cell = str | float | bool | None


class ModelRow(Object):
    """A built-in model: ``parshall model list --json``."""

    model: str
    """Its name."""
    what: str
    """What it is a model of."""


class ParameterRow(Object):
    """A parameter of a model: ``parshall model list MODEL --json``."""

    parameter: str
    """Its name."""
    default: Cell
    """Its default value."""
    unit: str
    """Its unit; empty: a number or a name."""
    what: str
    """What it is."""


ModelListOutput = list[ModelRow] | list[ParameterRow]


class Balance(Object):
    """Packets of a replication: inside_before + entered + cloned = left + lost + inside."""

    inside_before: int
    """Packets and clones inside when counting began."""
    entered: int
    """Packets that sources sent."""
    cloned: int
    """Clones that were made."""
    left: int
    """Packets and clones that reached a sink."""
    lost: int
    """Packets and clones that a full queue dropped."""
    inside: int
    """Packets and clones inside at the end."""


class SinkCounts(Object):
    """Packets of a class that left by a sink."""

    sink: str
    """Name of the sink."""
    class_name: str = Field(alias="class")
    """Name of the class."""
    packets: int
    """Packets, without clones."""
    clones: int
    """Clones."""
    bytes: int
    """Bytes."""
    throughput_pps: float
    """Packets per second."""
    throughput_bps: float
    """Bits per second."""
    latency_ns: float | None
    """Mean time from source to sink, nanoseconds."""
    clone_latency_ns: float | None
    """Mean time of clones, nanoseconds."""


class Tail(Object):
    """The tail of the latencies at a sink."""

    sink: str
    """Name of the sink."""
    p99_ns: float | None
    """99th percentile of the latency of all classes, nanoseconds."""


class QueueCounts(Object):
    """Packets of a class at a queue."""

    queue: str
    """Name of the queue."""
    class_name: str = Field(alias="class")
    """Name of the class."""
    arrived: int
    """Arrivals."""
    lost: int
    """Packets that were dropped because the queue was full."""
    lost_bytes: int
    """Their bytes."""
    served: int
    """Packets whose service ended."""
    loss: float | None
    """lost / arrived."""
    wait_ns: float | None
    """Mean time from arrival to the first start of service, nanoseconds."""
    sojourn_ns: float | None
    """Mean time from arrival to the end of service, nanoseconds."""


class QueueLength(Object):
    """The length of a queue."""

    queue: str
    """Name of the queue."""
    mean: float
    """Time average, packets waiting or in service."""
    longest: int
    """Maximum, packets."""
    utilisation: float
    """Utilisation of the station's servers by its packets, 0 to 1."""


class StationLoad(Object):
    """The load of a station."""

    station: str
    """Name of the station."""
    utilisation: float
    """Mean share of busy servers; of a delay, mean number of packets."""
    blocked: float = ABSENT
    """Mean share of servers that are blocked after service; of a shared station, mean number of blocked packets."""


class Replication(Object):
    """The results of one replication or batch."""

    number: int
    """Its number, from 0."""
    time_s: float
    """Measured time, seconds."""
    events: int
    """Events in that time."""
    balance: Balance
    """Packets that entered, left and are inside."""
    sinks: list[SinkCounts]
    """One for each sink and class."""
    tails: list[Tail]
    """One for each sink."""
    queues: list[QueueCounts]
    """One for each queue and class."""
    lengths: list[QueueLength]
    """One for each queue."""
    stations: list[StationLoad]
    """One for each station."""


class Estimate(Object):
    """An estimate of a measure over all replications."""

    kind: Literal["network", "sink", "queue", "station"]
    """Kind of the place."""
    place: str
    """Its name; empty for the network."""
    class_name: str = Field(alias="class")
    """Name of the class; empty: all classes."""
    measure: str
    """The measure; its unit is the end of its name."""
    mean: float
    """Mean over the replications."""
    half_width: float | None
    """Half the width of the confidence interval; null: one replication."""


class LatencySummary(Object):
    """Latencies at a sink over all replications."""

    sink: str
    """Name of the sink."""
    class_name: str = Field(alias="class")
    """Name of the class; empty: all classes."""
    packets: int
    """Packets."""
    min_ns: float
    """Minimum, nanoseconds."""
    max_ns: float
    """Maximum, nanoseconds."""
    quantiles: list[tuple[float, float]]
    """Probability and quantile, nanoseconds."""
    ccdf: list[tuple[float, float]]
    """A latency, nanoseconds, and the share of packets above it."""


class RunOptions(Object):
    """The options of a run."""

    seed: int
    """Seed of all random numbers."""
    duration_ns: float | None
    """Measured time of a replication, nanoseconds; null: until all sources have ended."""
    warm_up_ns: float | None
    """Time before that, nanoseconds; null: a pilot run finds it."""
    replications: int
    """Replications or batches."""
    by_batches: bool
    """Whether one long run is divided into batches."""
    replications_max: int
    """Maximum of them, with --precision."""
    relative_half_width: float | None
    """--precision: half the width of intervals as a share of the mean; null: not given."""
    confidence: float
    """Level of the intervals."""
    threads: int | None
    """Threads; null: all cores."""
    trace: bool
    """Whether the trace of the first replication is kept."""
    allow_unstable: bool
    """Whether networks that are unstable run, too."""
    jobs_max: int
    """Maximum number of packets in the network."""
    events_max: int
    """Maximum number of events."""


class ModelRunOutput(Object):
    """The results of a model: ``parshall model run --json``."""

    model: str
    """Name of the model."""
    options: RunOptions
    """The options of the run."""
    generator: str
    """The random number generator."""
    warm_up_ns: float
    """Warm-up time, nanoseconds."""
    is_steady: bool | None
    """Whether the pilot run reached a steady state; null: the warm-up time was given, or too few packets say
    so."""
    is_precise: bool | None
    """Whether the intervals reached --precision; null: it was not given."""
    is_uncorrelated: bool | None
    """Whether batches are nearly independent; null: independent replications."""
    is_long_enough: bool | None
    """Whether replications are long enough to know the intervals of p99_ns; null: there is one."""
    replications: list[Replication]
    """Replications or batches."""
    estimates: list[Estimate]
    """Estimates over all replications."""
    latencies: list[LatencySummary]
    """Latencies at the sinks."""
    clone_latencies: list[LatencySummary]
    """Latencies of clones, from the source of their packet."""


class SummaryRow(Object):
    """What left by a sink; further keys are named by the parameters that vary, and by stations."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Cell] = Field(init=False)

    class_name: str = Field(alias="class")
    """Name of the class; empty: all classes."""
    throughput_mbps: float
    """Throughput, megabits per second."""
    throughput_pps: float
    """Throughput, packets per second."""
    share: float
    """Share of the bits, 0 to 1."""
    latency_us: float | None
    """Mean latency, microseconds; null: nothing left."""
    p99_us: float | None
    """99th percentile of the latency, microseconds."""
    loss: float
    """Lost packets as a share of all."""
    lost_in: str
    """The queue that loses most."""


ModelSweepOutput = list[SummaryRow]


class ModelComparisonRow(Object):
    """A model beside a measurement; further keys, `distance.NAME`, are distances from other rows."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)

    model: str
    """Name of the model, or `measured`."""
    packets: int
    """Packets that got through."""
    lost: int
    """Packets that were lost."""
    loss: float
    """Lost packets as a share of all."""
    mean_us: float | None
    """Mean latency, microseconds."""


ModelCompareOutput = list[ModelComparisonRow]


class PlanOutput(SummaryRow):
    """The largest load, or the smallest parameter, within limits; the key with its name has the value."""

    low: float | None
    """Low end of its interval; null: unknown."""
    high: float | None
    """High end of its interval; null: unknown."""
    confidence: float
    """Level of the interval."""


class Answer(Object):
    """An answer for the router of a calibration."""

    question: str
    """What was asked."""
    answer: float | str | None
    """The answer."""
    low: float | None
    """Low end of its interval; null: unknown."""
    high: float | None
    """High end of its interval; null: unknown."""
    unit: str
    """Unit of these."""


ModelPlanOutput = PlanOutput | list[Answer]


class BalanceRow(Object):
    """How the parts of a calibration add up to a measured latency; each key with a unit is one part."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)

    workload: str
    """The workload."""
    packets: int
    """Packets."""
    lost: int
    """Of these, lost packets."""
    latency_ns: float
    """Mean latency, nanoseconds."""


class StretchRow(Object):
    """The state of the machine in a repeat."""

    at_s: float
    """Since the first repeat, seconds."""
    overload_pps: float
    """Rate under overload, packets per second."""
    service_ns: float
    """Mean of the services that are not long, nanoseconds."""
    wake_ns: float
    """Median time to wake up, nanoseconds."""
    link_ns: float
    """Time of the links, nanoseconds."""
    stalls: int
    """Stalls at half load."""
    span_s: float
    """Time in which these were, seconds."""


class ModelCalibrateOutput(Object):
    """The parameters of a router: ``parshall model calibrate --json``."""

    overload_pps: float
    """Rate under overload, packets per second."""
    service_ns: float
    """Mean service time, nanoseconds."""
    wake_us: float
    """Median time to wake up, microseconds."""
    link_us: float
    """Time of the links, microseconds."""
    stalls_per_s: float
    """Stalls per second."""
    stall_us: float
    """Mean stall, microseconds."""
    parts_pps: float | None
    """Rate that the parts of the service time give, packets per second."""
    stretches: list[StretchRow]
    """The state of the machine in each repeat."""
    balance: list[BalanceRow]
    """How the parts add up to the measured latencies."""


class ValidationRow(Object):
    """Errors of a calibrated model in one workload and quantile."""

    traffic: str
    """Workload."""
    load: float
    """Share of the rate under overload."""
    quantile: str | float
    """Quantile of the latency."""
    runs: int
    """Runs."""
    measured_us: float | None
    """Median of the runs, microseconds."""
    spread: float | None
    """Largest less smallest, as a share of it."""
    low_us: float | None
    """Low end of the 90 % interval of the forecast, median of the runs, microseconds."""
    high_us: float | None
    """Its high end."""
    inside: int
    """Runs whose measured value lies within the interval of its forecast."""
    network_error: float | None
    """Relative error of the network: median of the runs."""
    network_low: float | None
    """Lowest error of the network."""
    network_high: float | None
    """Highest error of the network."""
    queue_error: float | None
    """Relative error of a single queue: median of the runs."""
    lost: float | None
    """Share of packets that were lost."""
    network_lost: float | None
    """Share of packets that the network loses."""
    beside_error: float | None = ABSENT
    """With --beside: relative error of the forecast from the stretches beside, median of the runs."""
    beside_low_us: float | None = ABSENT
    """Low end of the 90 % interval of that forecast, median of the runs, microseconds."""
    beside_high_us: float | None = ABSENT
    """Its high end."""
    beside_inside: int | None = ABSENT
    """Runs whose measured value lies within its interval."""


ModelValidateOutput = list[ValidationRow]


class PublishedQuantity(Object):
    """A published number beside that of the models."""

    section: str
    """Section of the document."""
    quantity: str
    """What it is."""
    unit: str
    """Unit."""
    published: float
    """Published value."""
    kind: str
    """What kind of number it is."""
    judged_by: str
    """The calibration of the section."""
    A: float | None
    """Value under calibration A."""
    error_A: float | None
    """Its relative error; of percentages in points."""
    B: float | None
    """Value under calibration B."""
    error_B: float | None
    """Its relative error; of percentages in points."""
    note: str
    """What a reader should know."""


class PublishedStatement(Object):
    """A statement of the document."""

    section: str
    """Section of the document."""
    figure: str
    """Figure that shows it."""
    statement: str
    """The statement."""
    holds: bool
    """Whether the models agree."""
    seen: str
    """What they do."""
    note: str
    """Why it does not hold."""


class ModelPublishedOutput(Object):
    """Published numbers beside those of the models: ``parshall model published --json``."""

    quantities: list[PublishedQuantity]
    """Numbers."""
    statements: list[PublishedStatement]
    """Statements."""


class RouterSetup(Object):
    """A router's set-up."""

    receive: Literal["rps", "threaded"]
    """Where packets are processed: softirq by RPS, or a NAPI thread."""
    gro: bool
    """Whether its interfaces merge packets."""
    routes: int
    """Entries of the routing table."""
    rules: int
    """nftables rules that each packet passes."""
    tunnel: Literal["aes-gcm", "chacha20"] | None
    """Cipher of the security gateway; null: none."""
    cpu: int
    """CPU of the router."""
    sender_cpu: int
    """CPU of the generator."""
    destinations: int
    """Entries of the routing table that packets go to."""


class RouterTraffic(Object):
    """A workload."""

    kind: str
    """Distribution of the gaps."""
    pps: float
    """Mean rate, packets per second."""
    sizes: str
    """Sizes of the IP packets."""
    flows: int
    """Flows."""
    seed: int
    """Seed."""


class RouterLedger(Object):
    """The account of a measurement: sent = received + the sum of lost."""

    sent: int
    """Packets sent."""
    received: int
    """Packets received."""
    lost: dict[str, int]
    """Packets lost, by place."""


class Overload(Object):
    """What a router forwards when more is offered than it can forward."""

    pps: float | None
    """Mean rate that reached the sink, packets per second."""
    low_pps: float | None
    """Lowest repeat, packets per second."""
    high_pps: float | None
    """Highest repeat, packets per second."""
    sent_pps: float | None
    """Mean rate offered, packets per second."""
    lost_share: float | None
    """Share of the packets that were lost."""
    lost: dict[str, int]
    """Packets lost by place."""
    is_sender_limited: bool
    """Whether the generator sent hardly more than the router forwarded, which may then forward more."""


class Trial(Object):
    """One trial of a search."""

    pps: float
    """Requested rate, packets per second."""
    sent_pps: float
    """Rate that the generator reached, packets per second."""
    sent: int
    """Packets sent."""
    lost: int
    """Packets lost."""


class Capacity(Object):
    """The capacity of a router."""

    pps: float | None
    """Estimate, packets per second."""
    low_pps: float | None
    """Low end of its interval, packets per second."""
    high_pps: float | None
    """High end of its interval, packets per second; null: unknown."""
    confidence: float
    """Level of the interval."""
    is_sender_limited: bool
    """Whether the generator ended the search."""
    trials: list[Trial]
    """Trials in their order."""


class RouterMeasureOutput(Object):
    """Latencies of a router: ``parshall router measure --json``."""

    setup: RouterSetup
    """The router."""
    traffic: RouterTraffic
    """The workload."""
    capacity: Capacity | None
    """With --load: its capacity."""
    overload: Overload | None
    """With --load above 1: its rate under overload."""
    is_calibrated: bool | None
    """With --calibrate: whether a calibration was written."""
    offered_pps: float
    """Rate of arrivals, packets per second."""
    lost_share: float
    """Share of the packets that were lost."""
    ledger: RouterLedger
    """The account."""
    latency_us: dict[str, float | None]
    """Quantiles of the latency, microseconds."""


class RouterCapacityOutput(Object):
    """The capacity of a router: ``parshall router capacity --json``."""

    setup: RouterSetup
    """The router."""
    zero_loss: Capacity
    """Highest rate without loss."""
    overload: Overload
    """Rate under overload."""
