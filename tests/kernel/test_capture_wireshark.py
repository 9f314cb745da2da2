"""Captures that Wireshark starts: by the extcap protocol, and by tshark itself."""

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from capturer import EXPERIMENT, PARSHALL, Capturer, frame, packets_of, rings, written_frames
from test_capture_rings import Place, place

from parshall.instruments import extcap

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
KIND = f"ether proto {EXPERIMENT:#x}"


@pytest.fixture
def tshark() -> Iterator[str]:
    """Give a tshark that knows us: by a file in the directory that an installation takes."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed; `scripts/setup packages` installs it")
    directory = extcap.default_directory()
    if (directory / "parshall").exists():
        pytest.skip(f"{directory}/parshall is there already: this host's Wireshark knows another checkout")
    path = extcap.install(directory)
    yield "tshark"
    path.unlink()


def test_packets_go_into_the_pipe_until_wireshark_ends_it(place: Place, until: Any, tmp_path: Path) -> None:
    fifo, file = tmp_path / "fifo", tmp_path / "read.pcapng"
    os.mkfifo(fifo)
    before = set(rings())
    command = [PARSHALL, "extcap", "--capture", f"--extcap-interface=parshall-{place.interface}", f"--fifo={fifo}"]
    with place.host.enter():
        process = subprocess.Popen([*command, f"--extcap-capture-filter={KIND}"], stderr=subprocess.PIPE, text=True)
    with file.open("wb") as read:
        cat = subprocess.Popen(["cat", fifo], stdout=read)
        try:
            until(
                "it captures", lambda: any(ring["subscribers"] for name, ring in rings().items() if name not in before)
            )
            place.sender.send([frame(number, 200) for number in range(50)])
            until("they are through", lambda: written_frames(file) == 50)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=20)
            assert process.returncode == 0, errors
            assert cat.wait(timeout=20) == 0
        finally:
            process.kill()
            cat.kill()
    assert packets_of(file) == [(200, frame(number, 200)) for number in range(50)]


def test_tshark_captures_through_extcap(place: Place, until: Any, tshark: str, tmp_path: Path) -> None:
    file = tmp_path / "tshark.pcapng"
    before = set(rings())
    with place.host.enter():
        process = subprocess.Popen(
            [tshark, "-i", f"parshall-{place.interface}", "-f", KIND, "-c", "20", "-w", file],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    try:
        until("it captures", lambda: any(ring["subscribers"] for name, ring in rings().items() if name not in before))
        place.sender.send([frame(number, 200) for number in range(20)])
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert packets_of(file) == [(200, frame(number, 200)) for number in range(20)], errors
    until("nothing of it is left", lambda: not set(rings()) - before)


def test_tshark_of_root_lists_what_is_in_the_directory_of_its_settings(tmp_path: Path) -> None:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed; `scripts/setup packages` installs it")
    installed = extcap.install(tmp_path / ".config/wireshark/extcap")

    def listed(**variables: str) -> str:
        environment = os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")} | variables
        return subprocess.run(["tshark", "-D"], capture_output=True, text=True, env=environment, timeout=60).stdout

    version = subprocess.run(["tshark", "--version"], capture_output=True, text=True).stdout
    if " 4.0." not in version.partition("\n")[0]:
        pytest.skip("the manual describes Wireshark 4.0")
    assert "Parshall on lo" in listed()
    other = extcap.install(tmp_path / "ext")
    installed.unlink()
    has_system = (extcap.default_directory() / "parshall").exists()
    assert ("Parshall on lo" in listed(WIRESHARK_EXTCAP_DIR=str(other.parent))) == has_system


def test_a_ring_that_runs_is_joined(place: Place, until: Any, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with Capturer(until, place.host, "-i", place.interface, "--write", "/dev/null") as creator:
        listed = subprocess.run([PARSHALL, "extcap", "--extcap-interfaces"], capture_output=True, text=True).stdout
        assert f"{{value=parshall-ring-{creator.ring}}}" in listed
        command = [PARSHALL, "extcap", "--capture", f"--extcap-interface=parshall-ring-{creator.ring}", "--fifo", fifo]
        joiner = subprocess.Popen(command)
        try:
            with fifo.open("rb") as read:
                until("it has joined", lambda: len(rings()[creator.ring]["subscribers"]) == 2)
                place.sender.send([frame(1, 200)])
                received = b""

                def has_received() -> bool:
                    nonlocal received
                    if select.select([read], [], [], 0)[0]:
                        piece = read.read1(65536)
                        assert piece, "the pipe has ended"
                        received += piece
                    return frame(1, 200) in received

                until("the pipe has the packet", has_received)
            # The reader has closed the pipe: the capture ends at the next packet.
            place.sender.send([frame(2, 200)])
            assert joiner.wait(timeout=20) == 0
        finally:
            joiner.kill()
        assert creator.end().returncode == 0
