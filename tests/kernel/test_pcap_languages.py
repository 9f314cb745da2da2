"""Bindings of libpcap for other languages: on a ring beside the same client on a packet socket, at the same time.

For Python, scapy is among the programs.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from capturer import frame
from test_pcap import KIND, Place, both, place

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
CLIENTS = Path(__file__).with_name("pcap_clients")
GO_PACKAGES = Path("/usr/share/gocode")
COUNT = 60
REMEDY = "is not installed; `scripts/setup packages programs` installs it"


def client_of(language: str, directory: Path) -> list[object]:
    """Return the words that start the client of a language, or skip."""
    tests = {
        "perl": ("perl", "-MNet::Pcap", "-e1"),
        "ruby": ("ruby", "-rpcaprub", "-e1"),
    }
    if language == "go":
        if not (GO_PACKAGES / "src/github.com/google/gopacket").exists() or shutil.which("go") is None:
            pytest.skip("gopacket is not installed; `scripts/setup packages languages` installs it")
        program = directory / "client"
        environment = os.environ | {"GO111MODULE": "off", "GOPATH": str(GO_PACKAGES), "GOFLAGS": ""}
        environment["GOCACHE"] = str(directory / "cache")
        subprocess.run(["go", "build", "-o", program, CLIENTS / "client.go"], env=environment, check=True)
        return [program]
    (interpreter, *check), suffix = tests[language], {"perl": "pl", "ruby": "rb"}[language]
    if shutil.which(interpreter) is None or subprocess.run([interpreter, *check], capture_output=True).returncode:
        pytest.skip(f"the binding for {language} {REMEDY}")
    return [interpreter, CLIENTS / f"client.{suffix}"]


@pytest.mark.parametrize("language", ["perl", "ruby", pytest.param("go", marks=pytest.mark.long)])
def test_a_client_of_each_language_reads_the_same(
    place: Place, until: Callable[..., None], tmp_path: Path, language: str
) -> None:
    words = client_of(language, tmp_path)
    with ExitStack() as stack:
        programs = [stack.enter_context(program) for program in both(place, *words, place.interface, KIND, COUNT)]
        for program in programs:
            program.wait_for("ready")
        assert len(place.rings()) == 1
        frames = [frame(number, 60 + 5 * number) for number in range(COUNT)]
        place.sender.send(frames)
        done = [program.end() for program in programs]
    assert [one.returncode for one in done] == [0, 0], done
    ring, own = (one.stdout.splitlines() for one in done)
    assert ring == own
    assert ring == [*(f"{len(one)} {one[:200].hex()}" for one in frames), f"{COUNT} 0 1"]
