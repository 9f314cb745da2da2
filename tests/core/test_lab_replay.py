"""`parshall.lab.replay`: the file that tcpreplay gets, by tcpdump, and what is said when it does not send."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from parshall.instruments.sizes import Counts
from parshall.lab import replay

SIZES = replay.ip_sizes("thesis", 2000, seed=3)


def test_tcpdump_reads_the_packets_of_the_file_with_right_checksums_and_sizes(tmp_path: Path) -> None:
    file = tmp_path / "made.pcap"
    file.write_bytes(b"".join(replay.records(SIZES)))
    words = ["tcpdump", "-Z", "root", "-nn", "-vv", "-r", file]
    shown = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout
    assert "bad" not in shown and "truncated" not in shown
    lengths = [int(each) for each in re.findall(r"proto UDP \(17\), length (\d+)\)", shown)]
    assert lengths == np.maximum(SIZES, 28).tolist()
    assert shown.count("192.168.10.100.9 > 192.168.10.12.9: ") == len(SIZES)


def test_the_sizes_are_those_of_the_distribution_in_a_random_order() -> None:
    values, packets = map(np.array, zip(*Counts.built_in("thesis").pairs, strict=True))
    drawn = replay.ip_sizes("thesis", replay.COUNT, seed=1)
    expected = packets.cumsum() / packets.sum()
    found = np.searchsorted(np.sort(drawn), values, side="right") / len(drawn)
    assert len(drawn) == replay.COUNT and np.abs(found - expected).max() < 0.02
    assert np.abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.05
    assert replay.ip_sizes("46", 3, seed=1).tolist() == [46, 46, 46]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "tcpreplay: is not installed; install it: apt install tcpreplay"),
        ("echo 'no such device: nosuch' >&2; exit 255", "tcpreplay: ended with status 255: no such device: nosuch"),
        ("echo something else", "tcpreplay: ended with status 0: something else"),
    ],
)
def test_what_is_not_sent_is_one_line(
    script: str | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if script is not None:
        (tmp_path / "tcpreplay").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "tcpreplay").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(shutil.which('sh') or '').parent if script else ''}")
    assert replay.main(["-i", "nosuch", "--sizes", "46", "-d", "1s"]) == 1
    assert capsys.readouterr() == ("", f"parshall: replay: {said}\n")


def test_what_tcpreplay_says_is_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "Actual: 40000 packets (2000 bytes) sent in 1.25 seconds"
    (tmp_path / "tcpreplay").write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/words\necho "{line}"\n')
    (tmp_path / "tcpreplay").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert replay.main(["-i", "v0", "--sizes", "46", "-d", "2.4s"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sent": 40_000, "elapsed_ns": 1_250_000_000}
    words = (tmp_path / "words").read_text().split()
    assert {"--topspeed", "--duration=2", "v0"} <= set(words)
    # The file is gone with the command.
    assert not Path(words[-1]).exists()
