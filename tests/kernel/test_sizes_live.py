"""Sizes counted at an interface, of what the generator sent."""

import subprocess
import sys

import pytest
from running_command import read_until

pytestmark = pytest.mark.kernel


def test_live_counts_are_those_that_were_sent(xdp_link, tmp_path):
    from parshall.instruments.generate import Generator
    from parshall.instruments.sizes import Counts

    sender, receiver, link = xdp_link
    target = tmp_path / "live.dist"
    command = [sys.executable, "-m", "parshall", "sizes", "--from", "live", "-i", link.interface(receiver)]
    command += ["--count", "20000", "--to", "dist", "-o", str(target)]
    program = receiver.popen(command, stderr=subprocess.PIPE, text=True)
    read_until(program.stderr, "counting at")
    run = Generator(link.interface(sender), netns=sender.path, sizes="imix", pps=50e3, count=21_000, seed=4)
    run.wait()
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert "seen 20,000" in errors and "lost by capture 0" in errors
    counts = dict(Counts.from_dist(target).pairs)
    # Hosts may say something of their own.
    assert sum(counts[size] for size in (40, 576, 1500)) >= 19_900
    assert counts[40] / sum(counts.values()) == pytest.approx(7 / 12, abs=0.02)
