"""What the histograms of the kernel say, held against the log of the same packets."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parshall.figures.path import reduce, reduce_histograms
from parshall.figures.path.reduction import PathReduction
from parshall.instruments.path import PathHistograms, PathLog, PathProfile
from parshall.instruments.path.histograms import as_object

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
COMMAND = [sys.executable, "-m", "parshall"]
STAGES = ["gro", "netif_rx", "receive", "local_in", "local_out", "queue", "start_xmit", "drop"]


@pytest.fixture
def both(router: Any, tmp_path: Path) -> tuple[PathReduction, PathReduction]:
    """Return the log's reduction and that of the histograms, of packets that are forwarded and dropped."""
    profile = PathProfile(tmp_path / "path.arrow", netns=router.router.namespace, stages=STAGES, filter="udp")
    with profile:
        router.send(8000)
        router.send(40, address=router.links[0].address(router.router))
        router.send(24, ttl=1)
    path = tmp_path / "path.json"
    path.write_text(json.dumps(as_object(profile.summary, profile.environment)))
    return reduce(PathLog(tmp_path / "path.arrow")), reduce_histograms(PathHistograms(path).summary)


def test_histograms_agree_with_the_log(both: tuple[PathReduction, PathReduction]) -> None:
    log, histograms = both
    assert dict(histograms.paths.iter_rows()) == dict(log.paths.iter_rows())
    assert histograms.drops.sort("reason", "place").rows() == log.drops.sort("reason", "place").rows()
    assert log.drops["packets"].sum() == 64
    keys = ["path", "stage"]
    joined = log.times.join(histograms.times, on=keys, suffix="_kernel")
    assert joined.height == log.times.height == histograms.times.height > 6
    # Beside its first stage a log has none of 0 ns, and no bucket is wider than 12.5 %.
    assert joined["packets"].to_list() == joined["packets_kernel"].to_list()
    assert joined["mean_ns"].to_list() == pytest.approx(joined["mean_ns_kernel"].to_list())
    assert joined["median_ns"].to_list() == pytest.approx(joined["median_ns_kernel"].to_list(), rel=0.16)
    assert joined["max_ns"].to_list() == joined["max_ns_kernel"].to_list()


def test_where_packets_waited_agrees_with_the_log(both: tuple[PathReduction, PathReduction]) -> None:
    log, histograms = (
        one.waits.filter(path="forwarded").pivot("stage", index="percentile", values="mean_ns").sort("percentile")
        for one in both
    )
    assert histograms["percentile"].to_list() == ["p50", "p90", "p99"]
    for percentile, tolerance in (("p50", 0.05), ("p90", 0.1)):
        ours, theirs = (one.filter(percentile=percentile).row(0, named=True) for one in (histograms, log))
        for stage in ("receive", "queue", "start_xmit"):
            # One packet of seven, and buckets of other widths: so parts of the whole are held, not times.
            assert ours[stage] / ours["whole"] == pytest.approx(theirs[stage] / theirs["whole"], abs=tolerance)


def test_the_command_makes_a_report_without_a_log(router: Any, tmp_path: Path) -> None:
    arguments = ["path", "--netns", router.router.namespace, "--json"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr and any("started" in line for line in iter(process.stderr.readline, ""))
    router.send(2000)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    path = tmp_path / "path.json"
    path.write_text(text)
    done = subprocess.run([*COMMAND, "report", str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures = {one.name for one in (tmp_path / "figures").glob("*.png")}
    assert {"path-times-forwarded.png", "path-waits-forwarded.png"} <= figures
    assert "✗" not in (tmp_path / "report.html").read_text()
