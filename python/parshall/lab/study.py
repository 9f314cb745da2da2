"""What a study is made of: levels, hosts, links, programs, measures, figures, statements. Data only."""

import itertools
import math
import runpy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parshall.errors import UsageError
from parshall.testbed.shaping import LINK_OPTIONS, Shaping

if TYPE_CHECKING:
    import polars as pl

    from parshall.lab.run import Run
    from parshall.lab.table import Table

# The value of each factor in one run.
Level = dict[str, Any]

# Runs that measure the laboratory itself: without traffic, and without instruments.
NO_TRAFFIC = "no traffic"
NO_INSTRUMENTS = "no instruments"
CONTROLS = (NO_TRAFFIC, NO_INSTRUMENTS)
# Columns of a table of runs that are neither factors nor measures.
COLUMNS = ("run", "repeat", "cycle", "session", "side", "control", "status", "failure")
# Sides of a comparison within one bundle.
BEFORE, AFTER = "before", "after"

INSTRUMENT, SERVER, WORKLOAD = "instrument", "server", "workload"
ROLES = (INSTRUMENT, SERVER, WORKLOAD)
# What commands name besides hosts.
PLACES = {"directory": "where a program may write files", "ring": "a name for a capture ring"}
# Options of links that were checked, as text.
_RIGHT_LINKS: set[str] = set()
# How long a program may need to start, and to end after it was asked to.
START_S = 60.0
END_S = 120.0


@dataclass(frozen=True)
class Host:
    """A host of the study.

    Attributes
    ----------
    name : str
        Letters, digits and ``_``. Commands refer to it as ``{name.address}``, ``{name.interface}``.
    cpu : int, optional
        CPU of its programs: 0 is the first CPU of the machine, -1 the last. Default: any.
    sysctl : mapping
        Settings below ``net.``, such as ``{"net.ipv4.tcp_congestion_control": "reno"}``.
    commands : sequence of sequences of str
        Commands that run to their end on this host when the links are there, such as ``["ip", "route", "add", ...]``;
        names in braces are replaced, as in a `Program`.
    """

    name: str
    cpu: int | None = None
    sysctl: Mapping[str, object] = field(default_factory=dict)
    commands: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, init=False)
class Link:
    """A link between two hosts.

    Attributes
    ----------
    a, b : str
        The hosts.
    options : dict
        Arguments of `parshall.testbed.Testbed.link`, such as ``rate_bps``, ``delay_ms``, ``queue_packets``.
    napi : bool
        Whether the interfaces run NAPI; on a veth, generated live frames arrive only then.
    """

    a: str
    b: str
    napi: bool
    options: dict[str, Any]

    def __init__(self, a: str, b: str, *, napi: bool = False, **options: Any) -> None:
        # Here a mistake has its line in the study's file; the testbed would find it in the first run. A study makes
        # the same links for thousands of levels.
        if (described := repr(options)) not in _RIGHT_LINKS:
            self._check(options)
            _RIGHT_LINKS.add(described)
        for name, value in (("a", a), ("b", b), ("napi", napi), ("options", options)):
            object.__setattr__(self, name, value)

    @staticmethod
    def _check(options: dict[str, Any]) -> None:
        shape = {name: value for name, value in options.items() if name not in LINK_OPTIONS}
        known = [each.name for each in fields(Shaping)]
        for name in shape:
            if name not in known:
                raise UsageError(f"link: no argument {name!r}; expected one of {', '.join((*known, *LINK_OPTIONS))}")
        Shaping(**shape).with_changes(options.get("reverse"))


@dataclass(frozen=True)
class Program:
    """A program that runs on a host during each run.

    Attributes
    ----------
    name : str
        Name of its results: letters, digits, ``_`` and ``-``.
    host : str
        Its host.
    command : sequence of str
        Program and arguments. ``{host.address}``, ``{host.interface}`` (the first; ``{host.interfaces[1]}`` the
        second), ``{directory}`` (where it may write files) and ``{ring}`` (a name for a capture ring) are replaced;
        ``{{`` stands for a brace.
    role : {"instrument", "server", "workload"}
        Instruments and servers start before the counters of the links are read, and end by SIGINT when the workload
        has ended. The workload starts then, all its programs at once, and ends by itself.
    ready : str
        When it is ready: a regular expression for a line of its standard error, or ``tcp:PORT``, a port on which it
        listens. Default: at once.
    is_json : bool
        Whether its standard output is one JSON value.
    cpu : int, optional
        Its CPU, as for `Host`. Default: that of the host.
    is_drained : bool
        Whether SIGINT waits until it uses no more CPU time: tcpdump leaves what it has not read.
    end_s : float
        Seconds that it may need to end: after its start (workload), or after SIGINT.
    statuses : sequence of int
        Exit statuses of success.
    scratch : sequence of str
        Files in its directory that are removed after the run: large ones that nobody reads.
    """

    name: str
    host: str
    command: Sequence[str]
    role: str = INSTRUMENT
    ready: str = ""
    is_json: bool = True
    cpu: int | None = None
    is_drained: bool = False
    end_s: float = END_S
    statuses: Sequence[int] = (0,)
    scratch: Sequence[str] = ()


@dataclass(frozen=True)
class Setting:
    """What runs at one level: hosts, links and programs.

    Attributes
    ----------
    duration_s : float
        How long the workload takes, for the estimate of the time left.
    """

    hosts: Sequence[Host]
    links: Sequence[Link]
    programs: Sequence[Program]
    duration_s: float


@dataclass(frozen=True)
class Measure:
    """A number that each run gives.

    Attributes
    ----------
    name : str
        Name of its column.
    unit : str
        Its unit: ``Mbit/s``, ``%``, ``packets``.
    of : callable
        Returns the number of a `Run`, or None where it has none; not called for runs without traffic. What a run
        without instruments lacks (`Run.result` of a program that did not run) gives None by itself.
    title : str
        Words for axes and tables. Default: the name.
    is_ratio : bool, optional
        Whether levels are compared by their ratio, not by their difference. Default: unless the unit is ``%``, and
        always by difference where values are not positive.
    resolution : float, optional
        Least difference that values can have, such as a clock tick. Default: the least difference that they have.
    ends : sequence of float, optional
        Ends of the scale: where all values are at one of them, there is no verdict. Default: 0 and 100 of
        percentages that are compared by their difference.
    """

    name: str
    unit: str
    of: "Callable[[Run], float | None]"
    title: str = ""
    is_ratio: bool | None = None
    resolution: float | None = None
    ends: Sequence[float] | None = None

    def __post_init__(self) -> None:
        is_share = self.unit == "%"
        if self.is_ratio is None:
            object.__setattr__(self, "is_ratio", not is_share)
        if self.ends is None:
            object.__setattr__(self, "ends", (0.0, 100.0) if is_share and not self.is_ratio else ())

    @property
    def label(self) -> str:
        """Title and unit, as axes have them."""
        return f"{self.title or self.name} ({self.unit})" if self.unit else self.title or self.name


@dataclass(frozen=True)
class Published:
    """Numbers of a document that a figure shows beside the measured ones.

    Attributes
    ----------
    label : str
        Its name in the legend.
    points : sequence of (float or str, float)
        Values of x and y, in the units of the figure.
    """

    label: str
    points: Sequence[tuple[float | str, float]]


@dataclass(frozen=True)
class Figure:
    """A figure: measures against a factor or a measure.

    Attributes
    ----------
    name, title : str
        File name without suffix, and title.
    x : str
        A factor or a measure.
    y : sequence of str
        Measures of one unit; several become separate lines.
    colour, panel : str
        Factors whose values become lines and panels.
    where : mapping
        Levels to draw: values of factors, or a list of values for each.
    is_log_x, is_log_y : bool
        Whether an axis is logarithmic.
    published : sequence of Published
        Numbers of the document.
    finding : callable
        Returns a sentence of what was found, computed from a `Table`, or the `Finding` of a statement.
    rows : callable, optional
        Returns other rows to draw from a `Table`: ``x``, ``y``, and optionally ``line`` and ``panel``. With a column
        ``repeat``, they are values of runs at a ``level`` (default: x), and means are drawn, too.
    x_title, y_title : str
        Titles of the axes, for `rows`.
    is_stepped, is_scatter : bool
        Whether lines are steps, and whether there are only points; for `rows`.
    """

    name: str
    title: str
    x: str = ""
    y: Sequence[str] = ()
    colour: str = ""
    panel: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    is_log_x: bool = False
    is_log_y: bool = False
    published: Sequence[Published] = ()
    finding: "Callable[[Table], str | Finding] | None" = None
    rows: "Callable[[Table], pl.DataFrame] | None" = None
    x_title: str = ""
    y_title: str = ""
    is_stepped: bool = False
    is_scatter: bool = False

    def sentence(self, table: "Table") -> str:
        """Return what was found, as a sentence; empty without a finding."""
        found = self.finding(table) if self.finding else ""
        return found.sentence if isinstance(found, Finding) else found


@dataclass(frozen=True)
class Finding:
    """What was measured for a statement of a document.

    Attributes
    ----------
    measured : str
        What was found, with numbers.
    is_same : bool or None
        Whether it is as published; None where this machine cannot tell.
    reason : str
        Why it has not, or why it cannot be told.
    is_open : bool
        Whether more runs may decide it.
    low, high : float, optional
        The interval that decides.
    limit : float, optional
        What it is held against: the smallest change that matters, or a limit of a mean.
    unit : str
        The unit of these three; of ratios, percent of the value before.
    needed : float, optional
        About how many times as many runs would decide it, by the width of the interval; infinite where no width would,
        None where nothing is known of it.
    """

    measured: str
    is_same: bool | None
    reason: str = ""
    is_open: bool = False
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    unit: str = ""
    needed: float | None = None

    @property
    def sentence(self) -> str:
        """What was measured, as a sentence."""
        return f"{self.measured[:1].upper()}{self.measured[1:]}."

    def without_verdict(self, why: str) -> "Finding":
        """Return the same measurement where it answers no question of the document, whatever it is."""
        return replace(self, is_same=None, is_open=False, reason=why, needed=None)


@dataclass(frozen=True)
class Statement:
    """A statement of a document, and how it is held against the measurements.

    Attributes
    ----------
    source : str
        Figure, table or section of the document.
    published : str
        What the document says, with its numbers.
    check : callable
        Returns the `Finding` of a `Table`.
    """

    source: str
    published: str
    check: "Callable[[Table], Finding]"


@dataclass(frozen=True)
class Study:
    """An experiment: levels x repeats, what runs at each level, and what follows from it.

    Attributes
    ----------
    name, title : str
        Name for the command line, and title of the report.
    question : str
        What it measures, in two or three sentences.
    setting : callable
        Returns the `Setting` of a level, for a workload of some seconds.
    levels, quick_levels : sequence of dict
        The levels, and fewer for ``--quick``; see `grid`. Default: the levels.
    measures : sequence of Measure
        What each run gives.
    figures : sequence of Figure
        What the report draws.
    statements : sequence of Statement
        What the document says.
    units : mapping
        Unit of each factor that has one.
    duration_s, quick_duration_s : float
        Seconds of the workload.
    repeats, quick_repeats : int
        Runs of each level.
    control_level : dict, optional
        The level at which the laboratory itself is measured: instruments without traffic, and traffic without
        instruments. Default: the first level that runs.
    has_controls : bool
        Whether to measure the laboratory itself; not for a study without traffic.
    document : str
        The document that the study repeats.
    omitted : mapping of str to str
        Figures and tables of the document that no statement is about, and why: diagrams, other hardware.
    switched : sequence of str
        Factors that change while the workload runs: the settings of their values differ in instruments only. Levels
        that differ in nothing else are one run of stretches; the first of them is its base.
    stretch_s, settle_s : float
        Length of a stretch, and what is left out after each change, seconds.
    cycles : int
        How often each state of a run is measured.
    """

    name: str
    title: str
    question: str
    setting: Callable[[Level, float], Setting]
    levels: Sequence[Level]
    measures: Sequence[Measure]
    figures: Sequence[Figure] = ()
    statements: Sequence[Statement] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    quick_levels: Sequence[Level] = ()
    duration_s: float = 10.0
    quick_duration_s: float = 1.0
    repeats: int = 7
    quick_repeats: int = 3
    control_level: Level | None = None
    has_controls: bool = True
    document: str = ""
    omitted: Mapping[str, str] = field(default_factory=dict)
    switched: Sequence[str] = ()
    stretch_s: float = 0.5
    settle_s: float = 0.2
    cycles: int = 2

    @property
    def factors(self) -> list[str]:
        """The names of the factors, in the order of their first use."""
        return list(dict.fromkeys(name for level in (*self.levels, *self.quick_levels) for name in level))

    def levels_of(self, *, is_quick: bool) -> list[Level]:
        """Return the levels that run."""
        return [*(self.quick_levels or self.levels)] if is_quick else [*self.levels]

    def runs_of(self, levels: Sequence[Level]) -> list[list[Level]]:
        """Return the runs that measure some levels: the states of each, of which the first is its base.

        Without switched factors each level is a run of its own.
        """
        groups: dict[str, list[Level]] = {}
        for level in [*self.levels, *self.quick_levels]:
            groups.setdefault(self._fixed(level), []).append(level)
        found: dict[str, list[Level]] = {}
        for level in levels:
            states = found.setdefault(self._fixed(level), groups[self._fixed(level)][:1])
            if level not in states:
                states.append(level)
        return list(found.values())

    def _fixed(self, level: Level) -> str:
        """Return what does not change while a workload runs."""
        names = [name for name in level if name not in self.switched] if self.switched else [*level]
        return repr([(name, level[name]) for name in names])

    def narrowed(self, at: Mapping[str, Sequence[str]], *, is_quick: bool) -> "Study":
        """Return this study with only the levels whose factors have one of these values, which are written as text.

        Raises
        ------
        UsageError
            No level has this factor or value, or none has all of them at once.
        """
        levels = self.levels_of(is_quick=is_quick)
        for name, values in at.items():
            known = list(dict.fromkeys(str(level[name]) for level in levels if name in level))
            for value in values:
                if not known:
                    raise UsageError(
                        f"--at {name}={value}: {self.name} has no such factor; name one of {', '.join(self.factors)}"
                    )
                if value not in known:
                    raise UsageError(f"--at {name}={value}: no such value; name one of {', '.join(known)}")
        chosen = [level for level in levels if all(str(level.get(name)) in values for name, values in at.items())]
        if not chosen:
            raise UsageError(f"--at: no level of {self.name} has all of these values")
        return replace(self, quick_levels=chosen) if is_quick else replace(self, levels=chosen)

    def measure(self, name: str) -> Measure:
        """Return the measure of a name."""
        return next(each for each in self.measures if each.name == name)

    def label(self, name: str) -> str:
        """Return the title of a factor or a measure, with its unit."""
        if any(each.name == name for each in self.measures):
            return self.measure(name).label
        unit = self.units.get(name)
        return f"{name} ({unit})" if unit else name


def grid(**factors: Sequence[Any]) -> list[Level]:
    """Return every combination of the values of factors; the last factor changes fastest."""
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]


def load(path: Path) -> Study:
    """Return the study of a file: a Python file that defines ``study``.

    Raises
    ------
    UsageError
        The file cannot be read, fails, or defines no valid study; the message has the line.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file; name a study (parshall lab list) or a Python file that defines one")
    try:
        defined = runpy.run_path(str(path), run_name="parshall_study")
    except Exception as error:
        line = _line_in(path, error)
        where = f"{path}:{line}" if line else str(path)
        raise UsageError(f"{where}: {type(error).__name__}: {error}") from error
    study = defined.get("study")
    if not isinstance(study, Study):
        raise UsageError(f"{path}: defines no study; assign one: study = Study(...)")
    check(study, str(path))
    return study


def _line_in(path: Path, error: BaseException) -> int | None:
    """Return the last line of a file in the traceback of an error, or that of its syntax error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else None


def line_of(study: Study, error: BaseException) -> str:
    """Return "FILE:LINE: ", where a function of a study failed; "" when that is unknown."""
    code = getattr(study.setting, "__code__", None)
    path = Path(code.co_filename) if code else None
    line = _line_in(path, error) if path else None
    return f"{path}:{line}: " if line else ""


def check(study: Study, where: str) -> None:
    """Raise `UsageError` unless every level of a study gives a valid setting.

    Parameters
    ----------
    where : str
        The file or the name of the study, for messages.
    """
    if not study.levels:
        raise UsageError(f"{where}: levels: is empty; give at least one, for example grid(flows=[1, 10])")
    names = [*study.factors, *(measure.name for measure in study.measures)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{where}: {name!r}: is the name of two columns; rename a factor or a measure")
        if name in COLUMNS:
            raise UsageError(
                f"{where}: {name!r}: is a column of every table; rename this factor or measure (taken: "
                f"{', '.join(COLUMNS)})"
            )
    for value, what in ((study.repeats, "repeats"), (study.quick_repeats, "quick_repeats")):
        if value < 1:
            raise UsageError(f"{where}: {what} {value}: expected at least 1")
    for level in (*study.levels, *study.quick_levels):
        try:
            setting = study.setting(level, study.duration_s)
        except Exception as error:
            line = _line_in(Path(where), error)
            at = f"{where}:{line}" if line else where
            kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
            raise UsageError(f"{at}: setting of {level}: {kind}{error}") from error
        _check_setting(setting, f"{where}: setting of {level}")
    for name in study.switched:
        if name not in study.factors:
            raise UsageError(f"{where}: switched: no factor {name!r}; factors are {', '.join(study.factors)}")
    if study.switched:
        _check_states(study, where)
    known = set(names)
    for figure in study.figures:
        used = () if figure.rows else (figure.x, *figure.y)
        for name in (*used, *filter(None, (figure.colour, figure.panel)), *figure.where):
            if name not in known:
                raise UsageError(f"{where}: figure {figure.name}: no factor or measure {name!r}")


def _check_states(study: Study, where: str) -> None:
    """Raise `UsageError` when levels of one run differ in more than their instruments."""
    for states in study.runs_of([*study.levels, *study.quick_levels]):
        first, *others = (_without_instruments(study.setting(state, study.duration_s)) for state in states)
        for state, other in zip(states[1:], others, strict=True):
            if other != first:
                raise UsageError(
                    f"{where}: setting of {state}: differs from that of {states[0]} in more than its instruments; "
                    f"take what differs out of switched"
                )


def _without_instruments(setting: Setting) -> Setting:
    return replace(setting, programs=[each for each in setting.programs if each.role != INSTRUMENT])


def _check_setting(setting: Setting, where: str) -> None:
    if not isinstance(setting, Setting):
        raise UsageError(f"{where}: is {type(setting).__name__}; expected a Setting")
    hosts = [host.name for host in setting.hosts]
    for name in hosts:
        if name in PLACES:
            raise UsageError(f"{where}: host {name!r}: {{{name}}} in commands is {PLACES[name]}; rename the host")
        if hosts.count(name) > 1:
            raise UsageError(f"{where}: two hosts are called {name!r}; rename one")
    for link in setting.links:
        for name in (link.a, link.b):
            if name not in hosts:
                raise UsageError(f"{where}: link to {name!r}: no such host; hosts are {', '.join(hosts)}")
    seen: set[str] = set()
    for program in setting.programs:
        if program.name in seen:
            raise UsageError(f"{where}: two programs are called {program.name!r}; rename one")
        seen.add(program.name)
        if program.host not in hosts:
            raise UsageError(f"{where}: program {program.name}: no host {program.host!r}; hosts are {', '.join(hosts)}")
        if program.role not in ROLES:
            raise UsageError(f"{where}: program {program.name}: role {program.role!r}: expected {', '.join(ROLES)}")
    if not any(program.role == WORKLOAD for program in setting.programs):
        raise UsageError(f"{where}: no program has the role workload; the run would never end")
    if not (math.isfinite(setting.duration_s) and setting.duration_s >= 0):
        raise UsageError(f"{where}: duration_s {setting.duration_s}: expected seconds")
