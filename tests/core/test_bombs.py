"""Files that are made to fill memory are refused in one line, within 256 MiB."""

import gzip
import struct
import sys

import pytest

from parshall.errors import ParshallError
from parshall.instruments.cpu.text import read_profile
from parshall.lab.bundle import Bundle
from parshall.lab.sites import read_hosts
from parshall.model import load
from parshall.router.calibration import Calibration
from peak_memory import peak_memory

PCAP_HEAD = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
PCAPNG_HEAD = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
READ_GAPS = "import sys; from parshall import _native; _native.read_trace_gaps(sys.argv[1])"


def bomb(path, head, part, parts):
    """Write `head` and `parts` times `part`, each time as a member of its own: small, and quickly made."""
    member = gzip.compress(part, 9)
    with path.open("wb") as file:
        file.write(gzip.compress(head))
        for _ in range(parts):
            file.write(member)
    return path


def records(length, number):
    return struct.pack("<IIII", 0, 0, length, length) + bytes(length) if number == 1 else records(length, 1) * number


def interface(name_bytes):
    name = struct.pack("<HH", 2, name_bytes) + bytes([97] * name_bytes) + bytes(4)
    length = 20 + len(name)
    return struct.pack("<IIHHI", 1, length, 1, 0, 65535) + name + struct.pack("<I", length)


def statistics(comments):
    texts = struct.pack("<HHI", 1, 4, 0x61616161) * comments
    length = 24 + len(texts)
    return struct.pack("<IIIQ", 5, length, 0, 0) + texts + struct.pack("<I", length)


@pytest.mark.parametrize(
    ("head", "part", "message"),
    [
        (PCAP_HEAD, records(0, 1 << 19), "has more than 786432 packets"),
        (PCAPNG_HEAD, interface(0) * (1 << 18), "more than 64 MiB about interfaces"),
        (PCAPNG_HEAD, interface(60_000) * 100, "more than 64 MiB about interfaces"),
        (PCAPNG_HEAD + interface(0), statistics(1 << 20), "at most 1048576 of that type"),
    ],
    ids=["packets", "interfaces", "names", "comments"],
)
def test_gaps_of_a_bomb_are_refused(tmp_path, head, part, message):
    path = bomb(tmp_path / "bomb.gz", head, part, 200)
    assert path.stat().st_size < 32 << 20
    status, output, peak_mib = peak_memory(sys.executable, "-c", READ_GAPS, path)
    assert status == 1 and message in output.splitlines()[-1], output
    assert peak_mib < 256


def test_sizes_of_a_bomb_are_counted_in_constant_memory(tmp_path):
    path = bomb(tmp_path / "bomb.gz", PCAP_HEAD, records(60, 1 << 17), 50)
    status, output, peak_mib = peak_memory(sys.executable, "-m", "parshall", "sizes", "--from", "trace", path)
    assert status == 1 and "no IP packet among 6,553,600 packets" in output, output
    assert peak_mib < 256


@pytest.mark.parametrize("value", ["1" * 6000, "[" * 5000, '"' + "x" * 5000 + '"'], ids=["digits", "nesting", "text"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("here.toml", Calibration.read),
        ("hosts.toml", read_hosts),
        ("model.toml", load),
        ("model.json", load),
        ("bundle.json", lambda path: Bundle.open(path.parent)),
        ("cpu", read_profile),
    ],
)
def test_numbers_texts_and_nesting_without_end_are_refused_in_one_line(tmp_path, name, read, value):
    path = tmp_path / name
    path.write_text(f"format = {value}\n" if name.endswith(".toml") else f'{{"format": {value}')
    with pytest.raises(ParshallError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600
