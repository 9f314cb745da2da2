"""Bindings of libpcap for other languages: on a ring beside the same client on a packet socket, at the same time.

For Python, scapy is among the programs.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from capturer import frame
from languages import built
from test_pcap import KIND, Place, both, place

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
CLIENTS = Path(__file__).with_name("pcap_clients")
GO_PACKAGES = Path("/usr/share/gocode")
COUNT = 60
SNAPLEN_BYTES = 200


class Binding(NamedTuple):
    """What a binding lets its client tell: the length on the wire, counts and link type, or less."""

    has_wire_lengths: bool = True
    last_line: str = f"{COUNT} 0 1"


BINDINGS = {
    "perl": Binding(),
    "ruby": Binding(),
    "go": Binding(),
    "rust": Binding(),
    "pypcap": Binding(has_wire_lengths=False),
    "node": Binding(last_line="ETHERNET"),
}


def interpreted(check: list[str], client: str) -> list[object]:
    """Return the words that start a client whose binding is a package of the system."""
    if shutil.which(check[0]) is None or subprocess.run(check, capture_output=True).returncode:
        pytest.skip(f"{check[0]} has no binding here; `scripts/setup packages programs` installs it")
    return [check[0], CLIENTS / client]


def client_of(language: str, directory: Path) -> list[object]:
    """Return the words that start the client of a language, or skip."""
    if language == "perl":
        return interpreted(["perl", "-MNet::Pcap", "-e1"], "client.pl")
    if language == "ruby":
        return interpreted(["ruby", "-rpcaprub", "-e1"], "client.rb")
    if language == "go":
        if not (GO_PACKAGES / "src/github.com/google/gopacket").exists():
            pytest.skip("gopacket is not installed; `scripts/setup packages languages` installs it")
        cache = {"GO111MODULE": "off", "GOPATH": str(GO_PACKAGES), "GOFLAGS": "", "GOCACHE": str(directory / "cache")}
        built(["go", "build", "-o", directory / "client", CLIENTS / "client.go"], directory, **cache)
        return [directory / "client"]
    if language == "rust":
        target = directory / "target"
        built(
            ["cargo", "build", "--release", "--manifest-path", copied("rust", directory), "--target-dir", target],
            directory,
        )
        return [target / "release/client"]
    if language == "pypcap":
        built([sys.executable, "-m", "pip", "install", "--quiet", "--target", directory, "pypcap"], directory)
        return ["env", f"PYTHONPATH={directory}", sys.executable, CLIENTS / "client_of_pypcap.py"]
    # Its script of installation would fetch the headers of Node.
    built(["npm", "install", "--silent", "--ignore-scripts", "cap"], directory)
    built(["npx", "--yes", "node-gyp", "rebuild", "--nodedir=/usr"], directory / "node_modules/cap")
    return ["env", f"NODE_PATH={directory / 'node_modules'}", "node", CLIENTS / "client.js"]


def copied(client: str, directory: Path) -> Path:
    """Copy a client beside which its build writes."""
    shutil.copytree(CLIENTS / client, directory / client)
    return directory / client / "Cargo.toml"


LONG = ("go", "rust", "pypcap", "node")


@pytest.mark.parametrize("language", [pytest.param(one, marks=[pytest.mark.long] * (one in LONG)) for one in BINDINGS])
def test_a_client_of_each_language_reads_the_same(
    place: Place, until: Callable[..., None], tmp_path: Path, language: str
) -> None:
    words, binding = client_of(language, tmp_path), BINDINGS[language]
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
    lengths = [len(one) if binding.has_wire_lengths else min(len(one), SNAPLEN_BYTES) for one in frames]
    read = [f"{length} {one[:SNAPLEN_BYTES].hex()}" for length, one in zip(lengths, frames, strict=True)]
    assert ring == [*read, binding.last_line]
