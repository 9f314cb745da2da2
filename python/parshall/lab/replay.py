"""Sends packets whose sizes follow a distribution with tcpreplay: from a file, as fast as it goes.

Run as ``python -m parshall.lab.replay -i IF --sizes thesis -d 2s``. It writes the file, which tcpreplay reads into its
memory, and prints what tcpreplay says of itself as one JSON object: ``sent`` (packets), ``elapsed_ns``.
"""

import argparse
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from parshall.errors import ParshallError
from parshall.host.messages import say
from parshall.host.quantities import parse_seconds
from parshall.instruments.sizes import Counts, SizeDistribution

# Packets of the file; tcpreplay sends them again and again.
COUNT = 20_000
_ADDRESSES = bytes((192, 168, 10, 100, 192, 168, 10, 12))
_ETHERNET = bytes.fromhex("020000000002 000000000000 0800")
_HEADERS_BYTES = 28
_DISCARD_PORT = 9
_UDP = 17
_ACTUAL = re.compile(r"Actual: (\d+) packets .* in ([\d.]+) seconds")


def ip_sizes(sizes: str, count: int, seed: int) -> np.ndarray:
    """Return sizes of IP packets, bytes, in a random order: of one size, or of a built-in distribution."""
    if sizes.isdecimal():
        return np.full(count, int(sizes))
    drawn = SizeDistribution.from_counts(Counts.built_in(sizes)).draw(count, seed)
    values, packets = zip(*drawn.pairs, strict=True)
    return np.random.default_rng(seed).permutation(np.repeat(values, packets))


def frame(size: int) -> bytes:
    """Return an Ethernet frame with a UDP datagram whose IP packet has a size, bytes, at least 28."""
    words = (0x4500, size, 0, 0, 0x4000 | _UDP, 0)
    sum_of_words = sum(words) + sum(struct.unpack(">4H", _ADDRESSES))
    sum_of_words = (sum_of_words & 0xFFFF) + (sum_of_words >> 16)
    checksum = ~((sum_of_words & 0xFFFF) + (sum_of_words >> 16)) & 0xFFFF
    ip = struct.pack(">6H", *words[:5], checksum) + _ADDRESSES
    udp = struct.pack(">4H", _DISCARD_PORT, _DISCARD_PORT, size - len(ip), 0)
    return _ETHERNET + ip + udp + bytes(size - _HEADERS_BYTES)


def records(sizes: np.ndarray) -> Iterator[bytes]:
    """Yield the parts of a capture file (pcap) of packets a microsecond apart."""
    yield struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    for number, size in enumerate(sizes.tolist()):
        made = frame(max(size, _HEADERS_BYTES))
        yield struct.pack("<IIII", number // 10**6, number % 10**6, len(made), len(made)) + made


def replay(interface: str, sizes: str, duration_s: float, file: IO[bytes]) -> dict[str, int]:
    """Write packets into a file, and send them with tcpreplay.

    Parameters
    ----------
    interface
        Where to send.
    sizes
        A size of IP packets, bytes, or the name of a built-in distribution.
    duration_s
        Seconds to send; rounded to whole ones, at least 1.
    file
        The file.

    Returns
    -------
    dict
        ``sent``, packets, and ``elapsed_ns``, as tcpreplay says.

    Raises
    ------
    ParshallError
        tcpreplay is not installed, or failed.
    """
    if shutil.which("tcpreplay") is None:
        raise ParshallError("tcpreplay: is not installed; install it: apt install tcpreplay")
    file.writelines(records(ip_sizes(sizes, COUNT, seed=1)))
    file.flush()
    seconds = max(1, round(duration_s))
    command = ["tcpreplay", "--quiet", "--topspeed", "--preload-pcap", "--loop=1000000000", f"--duration={seconds}"]
    done = subprocess.run([*command, "-i", interface, file.name], capture_output=True, text=True)
    found = _ACTUAL.search(done.stdout)
    if done.returncode or found is None:
        last = (done.stderr.strip() or done.stdout.strip() or "said nothing").splitlines()[-1]
        raise ParshallError(f"tcpreplay: ended with status {done.returncode}: {last}")
    return {"sent": int(found[1]), "elapsed_ns": round(1e9 * float(found[2]))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Send for some seconds; SIGINT ends it without a result."""
    parser = argparse.ArgumentParser(prog="python -m parshall.lab.replay", description=__doc__)
    parser.add_argument("-i", "--interface", required=True)
    parser.add_argument("--sizes", default="thesis")
    parser.add_argument("-d", "--duration", default="2s")
    parser.add_argument("--directory", type=Path, help="Where the file is meanwhile [default: the temporary one]")
    given = parser.parse_args(arguments)
    try:
        with tempfile.NamedTemporaryFile(suffix=".pcap", dir=given.directory) as file:
            done = replay(given.interface, given.sizes, parse_seconds("--duration", given.duration), file.file)
    except KeyboardInterrupt:
        return 130
    except ParshallError as error:
        say("replay", str(error))
        return 1
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
