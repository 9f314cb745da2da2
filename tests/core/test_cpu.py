"""The CPU profile: shares, stretches, and the formats of cpusage, held against trimusage.awk itself."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parshall.errors import ParshallError
from parshall.instruments import cpu

# What trimusage.awk does, as printed in the thesis (appendix A.4), in the fewest lines.
AWK = r"""
BEGIN { limit = 95; FS = ":"; set = 0; longestset = 0; last = 0; longest = 0 }
/---/ { next } /Min/ { next } /Max/ { next } /Avg/ { next }
{ if (NR == 1) { n = NF; for (i = 1; i <= n; i++) { min[i] = 100; max[i] = 0 } }
  print $0
  for (i = 1; i <= n; i++) { if ($(i) > max[i]) max[i] = $(i); if ($(i) < min[i]) min[i] = $(i) }
  if ($4 < limit) {
    if (last == 0) { last++; set++; for (i = 1; i <= n; i++) values[set, last, i] = $(i) }
    else { last++; for (i = 1; i <= n; i++) values[set, last, i] = $(i)
           if (last > longest) { longest = last; longestset = set } } }
  else if (last != 0) last = 0 }
END { print "---Summary----"; printf("Min"); for (i = 1; i <= n; i++) printf(":%.1f", min[i])
  printf("\nMax"); for (i = 1; i <= n; i++) printf(":%.1f", max[i])
  for (l = 1; l <= longest; l++) for (i = 1; i <= n; i++) sum[i] += values[longestset, l, i]
  for (i = 1; i <= n; i++) avg[i] = sum[i] / longest
  printf("\nAvg"); for (i = 1; i <= n; i++) printf(":%.1f", avg[i]) }
"""


def busy(idle):
    return (100.0 - idle, 0.0, 0.0, float(idle), 0.0, 0.0, 0.0, 0.0)


def test_shares_are_those_of_the_time_between():
    before, after = (10, 0, 5, 100, 0, 0, 0, 0), (40, 0, 15, 150, 0, 0, 10, 0)
    assert cpu.usage_between(before, after) == (30.0, 0.0, 10.0, 50.0, 0.0, 0.0, 10.0, 0.0)
    assert cpu.usage_between(after, after) is None
    # iowait may go back.
    assert cpu.usage_between((0, 0, 0, 0, 50, 0, 0, 0), (10, 0, 0, 10, 40, 0, 0, 0))[4] == 0.0


def test_the_kernels_file_is_understood(tmp_path):
    ticks = cpu.read_ticks()
    assert len(ticks["cpu"]) == len(cpu.STATES) and "cpu0" in ticks
    stat = tmp_path / "stat"
    for text, message in [
        ("cpu 1 2 3\n", "expected cpu and 8 numbers"),
        ("cpu a b c d e f g h\n", "expected cpu and 8"),
        ("intr 1\n", "no line for all CPUs"),
    ]:
        stat.write_text(text)
        with pytest.raises(ParshallError, match=message):
            cpu.read_ticks(stat)
    with pytest.raises(ParshallError, match="cannot be read"):
        cpu.read_ticks(tmp_path / "none")


def test_a_cpu_that_goes_off_and_comes_back_has_gaps():
    profile = cpu.Profile()
    look = lambda total, **cpus: profile.add({"cpu": (total, 0, 0, 0, 0, 0, 0, 0), **cpus})  # noqa: E731
    eight = lambda n: (n, 0, 0, 0, 0, 0, 0, 0)  # noqa: E731
    assert look(0, cpu0=eight(0), cpu1=eight(0)) is None
    assert look(10, cpu0=eight(10)) is not None
    assert look(20, cpu0=eight(20), cpu1=eight(3)) is not None
    assert look(20, cpu0=eight(20), cpu1=eight(3)) is None
    assert look(30, cpu0=eight(30), cpu1=eight(5)) is not None
    assert [share is None for share in profile.per_cpu["cpu1"]] == [True, True, False]
    assert len(profile.lines) == len(profile.per_cpu["cpu0"]) == 3


def test_the_longest_stretch_below_the_limit():
    lines = [busy(idle) for idle in (99, 50, 99, 40, 41, 42, 95, 10, 20)]
    summary = cpu.summarise(lines, 95)
    assert (summary.first, summary.intervals) == (3, 3)
    assert (summary.minimum[3], summary.maximum[3], summary.average[3]) == (40.0, 42.0, 41.0)
    first = cpu.summarise(lines[:3], 95)
    assert (first.first, first.intervals) == (1, 1)
    assert cpu.summarise([busy(99)], 95) is None


def test_a_short_last_interval_counts_for_as_long_as_it_was():
    """Two seconds at 50 % and a tenth at 10 %; and of an interval that is hardly shorter, its shares are some."""
    stretch = cpu.LongestStretch(95)
    stretch.add(busy(50), 2.0)
    stretch.add(busy(90), 0.1)
    found = stretch.summary
    assert found.average[3] == pytest.approx((2 * 50 + 0.1 * 90) / 2.1)
    assert (found.minimum[3], found.maximum[3], found.intervals) == (50.0, 50.0, 2)
    stretch.add(busy(80), 1.9)
    assert stretch.summary.maximum[3] == 80.0


def test_a_profile_that_keeps_no_lines_has_the_last_one():
    profile = cpu.Profile(is_kept=False)
    for ticks in range(0, 50, 10):
        profile.add({"cpu": (ticks, 0, 0, 0, 0, 0, 0, 0), "cpu0": (ticks, 0, 0, 0, 0, 0, 0, 0)})
    assert len(profile.lines) == len(profile.per_cpu["cpu0"]) == 1


def test_lines_of_the_thesis_are_written_and_read(tmp_path):
    assert cpu.text_line(busy(38.3)).startswith("user: 61.7%, nice: 0.0%, system: 0.0%, idle: 38.3%, iowait: 0.0%,")
    figure = tmp_path / "freebsd"
    figure.write_text(
        ":\nuser: 35.2%, nice: 0.0%, system: 3.1%, idle: 38.3%, interrupt: 23.4%,\n"
        "user: 32.8%, nice: 0.0%, system: 1.6%, idle: 35.9%, interrupt: 29.7%,\n---Summary---\n"
        "Min: user: 10.9%, nice: 0.0%, system: 0.0%, idle: 32.0%, interrupt: 19.5%,\n"
    )
    lines, usages = cpu.read_profile(figure)
    assert len(lines) == 2 and usages[0] == (35.2, 0.0, 3.1, 38.3, 23.4)
    for text, message in [
        ("1:2:3:4:5\n1:2:3:4\n", ":2: '1:2:3:4': expected 5 percentages"),
        ("1:2:x:4:5\n", ":1: '1:2:x:4:5': expected 5 to 8"),
        ("---Summary---\n", "no line with percentages"),
    ]:
        figure.write_text(text)
        with pytest.raises(ParshallError, match=message):
            cpu.read_profile(figure)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40))
def test_the_summary_is_that_of_the_script(tmp_path_factory, idles):
    if shutil.which("awk") is None:
        pytest.skip("awk is not installed")
    # The script overlooks stretches of one line, and divides by zero without a longer one.
    usages = [busy(idle / 10) for idle in [*idles, 100, 5, 7, 100]]
    path = Path(tmp_path_factory.mktemp("usage")) / "usage"
    path.write_text("".join(cpu.machine_line(usage) + "\n" for usage in usages))
    script = subprocess.run(["awk", AWK, path], capture_output=True, text=True, check=True).stdout
    lines, read = cpu.read_profile(path)
    ours = "\n".join([*lines, *cpu.summary_lines(read, 95)])
    theirs, printed = script.rsplit("\nAvg:", 1)
    assert ours.rsplit("\nAvg:", 1)[0] == theirs
    average = ours.rsplit("\nAvg:", 1)[1]
    # The last digit may be rounded the other way.
    for mine, its in zip(average.split(":"), printed.split(":"), strict=True):
        assert float(mine) == pytest.approx(float(its), abs=0.1000001)


def test_hook_times_are_differences_and_outlive_their_program():
    profile = cpu.HookProfile()
    profile.add([(1, "old", 10, 5_000), (2, "idle", 7, 70)])
    profile.add([(1, "old", 110, 205_000), (2, "idle", 7, 70), (3, "short", 4, 400)])
    profile.add([(1, "old", 210, 405_000), (2, "idle", 7, 70)])
    old, short = profile.times(elapsed_s=0.001)
    assert (old.number, old.runs, old.run_ns, old.ns_per_run) == (1, 200, 400_000, 2000)
    assert old.share == pytest.approx(40.0)
    assert (short.number, short.runs, short.run_ns) == (3, 4, 400)
    assert cpu.hook_line(replace(old, name="")).startswith("hook without a name (program 1): 200 runs")
    assert cpu.hook_line(old) == "hook old (program 1): 200 runs of 2,000 ns, 40.0 % of a CPU"
