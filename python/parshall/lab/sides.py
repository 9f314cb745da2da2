"""Two sides in one bundle: another version or other settings in turns with these; equal levels beside each other."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parshall.errors import UsageError
from parshall.host.input_file import brief
from parshall.lab.programs import PARSHALL
from parshall.lab.study import Level, Program, Setting, Study, load
from parshall.statistics import share_interval

# The text of the other study in a bundle.
AGAINST = "against.py"
COPY = "copy"
_ANSWER_S = 30.0


def described(path: Path) -> dict[str, Any]:
    """Return what a bundle keeps of the side before: ``program`` and its ``version``, or the name of a ``study`` file.

    Raises
    ------
    UsageError
        It is neither a study nor a program that says its version.
    """
    if path.suffix == ".py":
        load(path)
        return {"study": str(path)}
    # A name without a directory is looked for as a shell does.
    program = shutil.which(str(path))
    if program is None:
        raise UsageError(f"--against {path}: no such program; name a parshall command, or a study file (.py)")
    program = str(Path(program).resolve())
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--against {path}: does not say its version ({error}); name a parshall command") from None
    words = done.stdout.split()
    if done.returncode != 0 or not words or words[0] != "parshall":
        raise UsageError(f"--against {path}: does not say its version; name a parshall command")
    return {"program": program, "version": brief(done.stdout.strip())}


def before_of(study: Study, against: dict[str, Any], directory: Path) -> Study:
    """Return a study with the settings of the side before.

    Parameters
    ----------
    study : Study
        The study as it is now.
    against : dict
        What `described` returned.
    directory : pathlib.Path
        Directory of the bundle, which keeps the text of another study.
    """
    if "study" in against:
        return replace(study, setting=load(directory / AGAINST).setting)

    def setting(level: Level, duration_s: float) -> Setting:
        found = study.setting(level, duration_s)
        return replace(found, programs=[_with_program(each, against["program"]) for each in found.programs])

    return replace(study, setting=setting)


def _with_program(program: Program, path: str) -> Program:
    """Return a program that runs another parshall where it runs this one."""
    words, ours = [*program.command], [*PARSHALL]
    for begin in range(len(words) - len(ours), -1, -1):
        if words[begin : begin + len(ours)] == ours:
            words[begin : begin + len(ours)] = [path]
    return replace(program, command=words)


def words_of(against: dict[str, Any]) -> str:
    """Return in words what stands for the side before."""
    return str(against["study"]) if "study" in against else f"{against['program']} ({against['version']})"


def equal(study: Study, copies: int) -> Study:
    """Return a study that measures one level of another several times, as if it were several.

    What it calls different is a false verdict of the laboratory on this machine.

    Parameters
    ----------
    study : Study
        The other study, of which its control level is measured.
    copies : int
        How often; an even number, since copies are compared two by two.
    """
    whole = dict(study.control_level or study.levels_of(is_quick=True)[0])
    levels = [{COPY: number, **whole} for number in range(1, copies + 1)]

    def setting(level: Level, duration_s: float) -> Setting:
        return study.setting({name: value for name, value in level.items() if name != COPY}, duration_s)

    return replace(
        study,
        name=f"{study.name}-equal",
        title=f"Equal levels of the study {study.name}",
        question=(
            "One level is measured as if it were several. They are equal, so what is called different is a false "
            "verdict of the laboratory on this machine."
        ),
        document="",
        setting=setting,
        levels=levels,
        quick_levels=(),
        control_level=levels[0],
        has_controls=False,
        switched=[COPY] if study.switched else [],
        figures=(),
        statements=(),
        omitted={},
    )


def text_of_equal(text: str, copies: int) -> str:
    """Return the text of the study that `equal` makes, for its bundle."""
    return f"{text}\n\nfrom parshall.lab.sides import equal\n\nstudy = equal(study, {copies})\n"


def false_verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many comparisons of equal levels are called different, with the 95 % interval of their share.

    One thing may disturb all measures of a run, so they count as many as pairs of copies.

    Parameters
    ----------
    rows : sequence of dict
        ``equal`` of an evaluation.

    Returns
    -------
    dict
        ``compared``, ``pairs``, ``false``; ``low`` and ``high`` of the share.
    """
    false = sum(row["sign"] != 0 for row in rows)
    pairs = len({tuple(row["copies"]) for row in rows})
    low, high = share_interval(false * pairs / max(1, len(rows)), pairs)
    return {"compared": len(rows), "pairs": pairs, "false": false, "low": low, "high": high}


def pairs_of_copies(levels: Sequence[Level]) -> list[tuple[Level, Level]]:
    """Return the copies two by two: no value is in two comparisons."""
    copies = [level for level in levels if COPY in level]
    return list(zip(copies[::2], copies[1::2], strict=False))
