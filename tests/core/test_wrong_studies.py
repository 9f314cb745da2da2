"""Wrong studies: each is refused with its file and line, in one line."""

from pathlib import Path

import pytest

from parshall.errors import UsageError
from parshall.lab import load

GOOD = """
from parshall.lab import *
def setting(level, duration_s):
    return Setting([Host("a")], [], [Program("p", "a", ["true"], "workload")], duration_s)
study = Study("mine", "title", "question", setting, levels=grid(n=[1]), measures=[])
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("study = Study", "study = (Study", r"mine.py:5: SyntaxError"),
        ("study = Study", "other = Study", "defines no study"),
        ('Host("a")', "Host(undefined)", r"mine.py:4: setting of \{'n': 1\}: NameError"),
        (
            "duration_s):",
            "duration_s):\n    Link('a', 'a', queue_packtes=5)",
            r"mine.py:4: setting of \{'n': 1\}: link: no argument 'queue_packtes'; expected one of rate_bps, delay_ms",
        ),
        (
            "duration_s):",
            "duration_s):\n    Link('a', 'a', reverse={'queue_packets': 'many'})",
            r"mine.py:4: setting of \{'n': 1\}: .*queue_packets 'many'",
        ),
        ('"p", "a"', '"p", "b"', "program p: no host 'b'; hosts are a"),
        ('Host("a")', 'Host("ring")', "host 'ring': {ring} in commands is a name for a capture ring; rename the host"),
        ('Host("a")', 'Host("a"), Host("a")', "two hosts are called 'a'; rename one"),
        ('"workload"', '"server"', "no program has the role workload"),
        ('"workload"', '"load"', "role 'load': expected instrument, server, workload"),
        ("levels=grid(n=[1])", "levels=[]", "levels: is empty"),
        ("grid(n=[1])", "grid(run=[1])", "'run': is a column of every table"),
        ("measures=[]", "measures=[], repeats=0", "repeats 0: expected at least 1"),
        ("measures=[]", 'measures=[], figures=[Figure("f", "t", "m", ["n"])]', "figure f: no factor or measure 'm'"),
        ("from parshall.lab import *", "raise ValueError('no')", "mine.py:2: ValueError: no"),
        ("setting, levels", "lambda level, s: None, levels", "is NoneType; expected a Setting"),
    ],
)
def test_a_wrong_study_is_refused_with_file_and_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    assert load(path).name == "mine"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(UsageError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
