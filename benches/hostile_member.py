"""What an honest reader loses at a million packets a second, beside a hostile member of its ring and without one.

A study: ``benches/run hostile_member`` or ``parshall lab run benches/hostile_member.py``. Needs root; takes 25 minutes.
``parshall gen`` sends from one CPU, on which the ring's programs run, too; the reader has the other CPU, and so has the
member, which sends messages of the tests' protocol fuzzer (``tests/kernel/hostile_member.py``).
Minutes with it and minutes without are paired.
"""

import grp
import sys
from pathlib import Path

from parshall.lab import (
    Figure,
    Finding,
    Host,
    Link,
    Measure,
    Program,
    Setting,
    Statement,
    Study,
    capture,
    generate,
)
from parshall.lab.study import WORKLOAD

# A user's file is loaded from its place; a bundle keeps a copy elsewhere.
MEMBER = next(
    path
    for parent in (Path(__file__).resolve().parent.parent, Path.cwd())
    if (path := parent / "tests" / "kernel" / "hostile_member.py").exists()
)
MEMBER_GROUP = grp.getgrgid(65534).gr_name
ALONE, BESIDE = {"member": "none"}, {"member": "hostile"}


def setting(level, duration_s):
    """Return a generator, a reader, and perhaps a hostile member."""
    reader = ["--direction", "in", "--name", "{ring}", "-s", 96, "--group", MEMBER_GROUP]
    command = [sys.executable, str(MEMBER), "{ring}", str(duration_s)]
    member = Program("member", "receiver", command, WORKLOAD, is_json=False, end_s=duration_s + 60)
    return Setting(
        [Host("sender", cpu=0), Host("receiver", cpu=-1)],
        [Link("sender", "receiver", napi=True, backend="veth")],
        [
            capture("receiver", *reader),
            *([member] if level == BESIDE else []),
            generate("sender", duration_s, "--pps", "1M", "-d", f"{duration_s:g}s"),
        ],
        duration_s,
    )


def lost(run):
    """Return the share that the reader lost, percent."""
    ledger = run.ledger("capture")
    return 100 * ledger["lost"] / max(1, ledger["seen"])


def harm(table):
    """Whether the member makes the reader lose more."""
    text, sign = table.change("lost", ALONE, BESIDE, ".3f")
    return Finding(f"without and beside the member: {text}", sign <= 0, "" if sign <= 0 else "the member does harm")


study = Study(
    name="hostile_member",
    title="Does a hostile member of a ring make an honest reader lose packets?",
    question="A reader captures a million packets a second, beside a member that sends nonsense to the ring's keeper.",
    setting=setting,
    levels=[ALONE, BESIDE],
    has_controls=False,
    duration_s=60,
    repeats=10,
    measures=[
        Measure("lost", "%", lost, "lost by the reader"),
        Measure("sent", "packets", lambda run: run.result("gen")["sent"], "packets sent"),
        Measure("messages", "", lambda run: int(run.text("member").split()[0]), "messages of the member"),
    ],
    figures=[Figure("lost", "What the reader loses", "member", ["lost"])],
    statements=[Statement("requirement", "an honest reader loses no more beside a hostile member", harm)],
)
