"""A calibration of this kernel's router, held against what it then does."""

import subprocess
import sys
from pathlib import Path

import pytest

from parshall.router.calibrate import calibrate
from parshall.router.calibration import Calibration
from parshall.router.validation import validate

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
PARSHALL = Path(sys.executable).with_name("parshall")


@pytest.fixture(scope="module")
def calibration():
    return calibrate(repeats=2, count=40_000)


def test_a_calibration_describes_this_machine(calibration, tmp_path):
    path = tmp_path / "here.toml"
    calibration.write(path)
    read = Calibration.read(path)
    assert read.differences() == []
    assert 100 < read.service.median_ns < 20_000
    assert read.wake.median_ns > read.service.median_ns
    assert read.low_overload_pps <= read.overload_pps <= read.high_overload_pps
    assert sum(stage["share"] for stage in read.stages) == pytest.approx(1, abs=1e-4)
    assert len(read.correlations) >= 1
    assert any(each["kind"] == "timer_irq" for each in read.interrupts)


def test_the_network_is_nearer_than_the_single_queue_at_the_median(calibration):
    found = validate(calibration, kinds=["constant", "poisson"], loads=[0.3], repeats=3, count=30_000)
    medians = found.table().filter(quantile="p50")
    assert medians.height == 2
    for row in medians.iter_rows(named=True):
        assert abs(row["network_error"]) < abs(row["queue_error"]), row


def test_an_interrupted_calibration_leaves_nothing(tmp_path):
    path = tmp_path / "here.toml"
    command = [PARSHALL, "model", "calibrate", "-o", path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert "started" in running.stderr.readline()
        running.send_signal(2)
        _, error = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
