"""Outputs of ``parshall lab`` and ``parshall demo``."""

from typing import Any

from parshall.outputs.base import Object


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
    equal: list[dict[str, Any]]
    """Comparisons of equal levels, of a study that has copies of them."""


LabRunOutput = StudyOutput | list[StudyOutput]


class LabCheckOutput(StudyOutput):
    """How often equal levels are called different: ``parshall lab check --json``."""

    compared: int
    """Comparisons of equal levels."""
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
    """Whether the shape is the same; null: open."""
    reason: str
    """Why it is open, or not measured."""


LabPublishedOutput = list[PublishedRow]


class DemoOutput(Object):
    """The tour: ``parshall demo --json``."""

    report: str
    """Name of the report."""
    flows: list[dict[str, Any]]
    """The flows that competed."""
    logs: dict[str, Any]
    """How the log of each end ended."""
    testbed: dict[str, Any]
    """Hosts and links: docs/testbed.md."""
