"""The ledger, which every output of a measurement carries: see ``docs/ledger.md``."""

from parshall.outputs.base import Object


class Lost(Object):
    """Events that were lost, by cause."""

    overwritten: int
    """Overwritten in the ring before the reader came."""
    dropped: int
    """Dropped because the ring was full."""
    missed: int
    """The kernel skipped the program, because it was already running on this CPU."""
    failed: int
    """No memory for the state of a flow or packet."""
    unwritten: int
    """Read, but not written to the file."""


class HookAccount(Object):
    """The account of a hook or an interface: seen = filtered + thinned + logged + lost."""

    hook: str
    """Name of the hook; of a capture, of the interface."""
    seen: int
    """Events that reached the hook."""
    filtered: int
    """Excluded by filters."""
    thinned: int
    """Left out on request."""
    logged: int
    """In the log or file."""
    lost: Lost
    """Neither of these, by cause."""
    unowned: int
    """Outside `seen`: packets without a socket that is followed."""


class ProgramCost(Object):
    """Run time of one eBPF program."""

    program: str
    """Name of the program in the kernel."""
    sampled_runs: int
    """Runs that were timed."""
    ns_per_run: float
    """Mean time of a run, nanoseconds."""


class Cost(Object):
    """What the measuring cost."""

    programs: list[ProgramCost]
    """Run times of the eBPF programs."""
    reader_cpu_s: float
    """User and system CPU time of the reader, seconds."""
    reader_softirq_s: float
    """CPU time that the kernel charged to the reader for softirqs, seconds."""
    wall_s: float
    """Time from attach to detach, seconds."""
    log_bytes: int
    """Bytes written."""


class Ledger(Object):
    """The account of a log: of each hook, and the cost."""

    hooks: list[HookAccount]
    """One account for each hook."""
    sequence_gaps: int
    """Gaps in the record numbers: equals the sum of `lost.overwritten`."""
    cost: Cost
    """What the measuring cost."""
    complete: bool
    """Whether no hook runs any more, so that the account must balance."""
    from_time_ns: int
    """When the account begins, nanoseconds since 1970 (CLOCK_REALTIME)."""
    until_time_ns: int
    """When it was drawn up, nanoseconds since 1970 (CLOCK_REALTIME)."""


class HookTally(Object):
    """What one hook of a capture counted for one subscriber."""

    hook: str
    """Interface, direction and kind."""
    seen: int
    """Packets that passed the hook."""
    matched: int
    """Packets that the filter matched."""
    dropped: int
    """Of these, packets dropped because the ring was full."""
    read: int
    """Packets that were read from the ring."""


class SubscriberAccount(Object):
    """The account of one file of a capture."""

    file: str
    """Name of the file; `-`: standard output; empty: packets went to a program."""
    filter: str
    """Capture filter; empty: all packets."""
    snaplen: int
    """Maximum captured bytes of a packet."""
    interfaces: list[HookAccount]
    """One account for each interface, both directions together."""
    hooks: list[HookTally]
    """What kernel and reader counted at each hook."""


class CaptureLedger(Object):
    """The account of a capture: of each file, and the cost."""

    ring: str
    """Name of the ring; empty without one."""
    subscribers: list[SubscriberAccount]
    """One account for each file."""
    sequence_gaps: int
    """Packets overwritten before this process read them, by the gaps in their numbers."""
    cost: Cost
    """What the capture cost; `programs` are the hooks with all their subscribers."""
    complete: bool
    """Whether no hook runs any more, so that the account must balance."""
