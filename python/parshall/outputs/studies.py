"""Outputs of ``parshall lab`` and ``parshall demo``."""

from typing import Any, Literal

from parshall.outputs.base import Object
from parshall.outputs.instruments import TcpOutput


class StudyRow(Object):
    """A built-in study: ``parshall lab list --json``."""

    name: str
    """Its name."""
    title: str
    """What it studies."""
    quick_s: float
    """Time of a run with --quick, seconds."""
    full_s: float
    """Time of a run with --full, seconds."""
    budget_s: float | None
    """Longest time until it is decided, seconds; null: it runs once."""


LabListOutput = list[StudyRow]


class EqualLevels(Object):
    """A comparison of two equal levels."""

    copies: tuple[int, int]
    """Numbers of the copies."""
    measure: str
    """What is compared."""
    before: float
    """Mean of the first; of ratios, geometric."""
    after: float
    """Mean of the second."""
    change: float
    """Change: of ratios, as a share; otherwise in the unit of the measure."""
    low: float
    """Low end of its interval."""
    high: float
    """High end of its interval."""
    p: float
    """Probability of a change at least as large when there is none."""
    pairs: int
    """Pairs that were compared."""
    missing: int
    """Pairs of which one half is missing."""
    is_ratio: bool
    """Whether they are compared by their ratio."""
    end: None
    """The end of the scale at which all values lie: such pairs are not compared."""
    confidence: float
    """Level of the interval."""
    sign: Literal[-1, 0, 1]
    """1 or -1: called different; 0: not."""


class StudyOutput(Object):
    """A study that ran: ``parshall lab run --json``."""

    study: str
    """Its name."""
    report: str
    """Name of its report."""
    runs: int
    """Runs that are done."""
    planned: int
    """Runs that are planned."""
    failed: int
    """Runs that failed."""
    unbalanced: int
    """Ledgers that do not balance."""
    equal: list[EqualLevels]
    """Comparisons of equal levels, of a study that has copies of them."""


LabRunOutput = StudyOutput | list[StudyOutput]


class LabCheckOutput(StudyOutput):
    """How often equal levels are called different: ``parshall lab check --json``."""

    compared: int
    """Comparisons of equal levels."""
    pairs: int
    """Pairs of equal levels, each compared by each measure: the interval is that of so many cases."""
    false: int
    """Of these, called different."""
    low: float
    """Low end of the 95 % interval of that share."""
    high: float
    """High end of it."""


class PublishedRow(Object):
    """A statement of a document beside the measurement."""

    study: str
    """The study."""
    source: str
    """Place in the document."""
    published: str
    """What the document says."""
    measured: str
    """What was measured; empty: nothing."""
    is_same: bool | None
    """Whether it is the same; null: open."""
    reason: str
    """Why it is open, or not measured."""


LabPublishedOutput = list[PublishedRow]


class DemoFlow(Object):
    """A flow of the tour."""

    port: int
    """Port of the receiver."""
    local_port: int
    """Port of the sender."""
    congestion_control: str
    """Congestion control."""
    handed_over_bytes: int
    """Bytes that the sender handed over."""
    received_bytes: int
    """Bytes that the receiver received."""


class DemoOutput(Object):
    """The tour: ``parshall demo --json``."""

    report: str
    """Name of the report."""
    flows: list[DemoFlow]
    """The flows that competed."""
    logs: dict[str, TcpOutput]
    """How the log of each end ended."""
    testbed: dict[str, Any]
    """Hosts and links: docs/testbed.md."""
