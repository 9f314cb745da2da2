"""What a conversion takes: memory that does not grow with the log, and one line for a log that is damaged."""

import base64
import io
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import resident_memory
from written_log import FLOW_SCHEMA, batch_of, flow_row, random_columns, write_log

from parshall.errors import ParshallError
from parshall.instruments.tcp_log import FORMATS, convert
from suites import long_except

BATCHES, BATCH_ROWS = 4, 8192
GROWTH_MAX_BYTES = 24 << 20
MEMORY_MAX_BYTES = 1 << 30
# Of the processor, because the machine may be busy; who takes no processor time is given up much later.
SECONDS_MAX, HANG_S = 5.0, 60.0

# Of this process alone: what getrusage says begins with what the parent had resident.
_PEAK = """
import re, sys
from parshall.instruments.tcp_log import convert
every = int(sys.argv[3]) or None
for log in sys.argv[1].split(":"):
    rows = convert(log, sys.argv[2], "/dev/null", every_ns=every).rows
    print(rows, int(re.search("VmHWM:\\\\s+([0-9]+) kB", open("/proc/self/status").read())[1]) * 1024)
"""


def peaks_bytes(logs: Iterable[Path], name: str, every_ns: int = 0) -> list[tuple[int, int]]:
    """Convert logs one after another in a process of its own.

    Return the rows of each, and what the process had resident at most until then.
    """
    command = [sys.executable, "-c", _PEAK, ":".join(map(str, logs)), name, str(every_ns)]
    lines = subprocess.run(command, capture_output=True, check=True, timeout=300, text=True).stdout.splitlines()
    return [(int(rows), int(peak)) for rows, peak in map(str.split, lines)]


@pytest.fixture(scope="module")
def small_and_large(tmp_path_factory) -> tuple[Path, Path]:
    """Return two logs of the same rows, one ten times as long as the other."""
    columns = random_columns(BATCH_ROWS, 10, seed=1)
    columns["event"], columns["state"] = np.zeros(BATCH_ROWS, int), np.ones(BATCH_ROWS, int)
    batch = batch_of(columns)
    flows = [flow_row(number) for number in range(1, 11)]
    place = tmp_path_factory.mktemp("memory")
    paths = (place / "small.arrow", place / "large.arrow")
    for path, factor in zip(paths, (1, 10), strict=True):
        write_log(path, [batch] * (BATCHES * factor), flows)
    return paths


@pytest.mark.parametrize(
    ("name", "every_ns"),
    long_except(
        [("siftr-1.3", 0), ("ttprobe", 0), ("web10g", 10**9)], [*((name, 0) for name in FORMATS), ("web10g", 10**9)]
    ),
)
def test_memory_does_not_grow_with_the_log(small_and_large, name, every_ns):
    small, large = peaks_bytes(small_and_large, name, every_ns)
    if not every_ns:
        assert (small[0], large[0]) == (BATCHES * BATCH_ROWS, 10 * BATCHES * BATCH_ROWS)
    # Kept rows would take at least 160 bytes each, that is 47 MB more.
    assert large[1] - small[1] < GROWTH_MAX_BYTES, f"{small[1]} and {large[1]} bytes"


@cache
def base_log(seed: int) -> bytes:
    """Return a log with a few batches to damage."""
    batches = [batch_of(random_columns(rows, 4, seed + rows)) for rows in (1, 20, 60)]
    flows = [flow_row(1), flow_row(2, local_address="2001:db8::1", remote_address="fe80::2", ip_version=6), flow_row(3)]
    with tempfile.NamedTemporaryFile() as file:
        write_log(Path(file.name), batches, flows)
        return Path(file.name).read_bytes()


def mutated(log: bytes, generator: np.random.Generator) -> bytes:
    """Return the log with bytes changed, cut, repeated or out of order, often with check sums that are right."""
    kind = generator.integers(6)
    data = bytearray(log)

    def scribble(where: bytearray, low: int, high: int) -> None:
        for _ in range(int(generator.integers(1, 9))):
            where[int(generator.integers(low, high))] = int(generator.choice([0, 255, 128, generator.integers(256)]))

    if kind == 0:
        scribble(data, 0, len(data))
        return bytes(data)
    if kind == 1:
        return bytes(data[: int(generator.integers(len(data)))])
    if kind == 2:
        begin, end = sorted(int(place) for place in generator.integers(0, len(data), 2))
        return bytes(data[:begin] + (data[begin:end] * int(generator.integers(0, 3))) + data[end:])
    messages = [message.serialize().to_pybytes() for message in pa.ipc.MessageReader.open_stream(log)]
    if kind == 3:
        order = generator.integers(0, len(messages), int(generator.integers(1, 2 * len(messages))))
        return b"".join(messages[int(index)] for index in order)
    summed = [index for index, message in enumerate(messages) if b"parshall.crc32" in message]
    if kind == 4:
        # The last of them is the tick, which has no body.
        index = int(generator.choice(summed[:-1]))
        head_bytes = 8 + struct.unpack_from("<I", messages[index], 4)[0]
        changed = bytearray(messages[index])
        scribble(changed, head_bytes, len(changed))
        rows = pa.ipc.read_message(messages[index])
        old = zlib.crc32(struct.pack("<Q", _row_count(messages[index])) + rows.body.to_pybytes())
        new = zlib.crc32(struct.pack("<Q", _row_count(messages[index])) + bytes(changed[head_bytes:]))
        messages[index] = bytes(changed).replace(f"{old:08x}".encode(), f"{new:08x}".encode())
        return b"".join(messages) + struct.pack("<iI", -1, 0)
    return _with_other_facts(messages, summed[-1], generator)


@cache
def _row_count(message: bytes) -> int:
    schema = batch_of(random_columns(1, 1, 0)).schema
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, schema) as writer:
        writer.write_batch(batch_of(random_columns(1, 1, 0)))
    head = list(pa.ipc.MessageReader.open_stream(stream.getvalue()))[:-1]
    whole = b"".join(part.serialize().to_pybytes() for part in head) + message + struct.pack("<iI", -1, 0)
    return pa.ipc.open_stream(whole).read_next_batch().num_rows


def _text_from(message: bytes, first: bytes) -> bytes:
    """Return the value of a message that begins so; empty where there is none."""
    begin = message.find(first)
    return message[begin : message.index(b"\0", begin)] if begin >= 0 else b""


def _with_other_facts(messages: list[bytes], tick: int, generator: np.random.Generator) -> bytes:
    """Change the flow table or the ledger, and sum up again."""
    message = messages[tick]
    found = re.search(rb"[A-Za-z0-9+/=]{400,}", message)
    assert found is not None
    text = bytearray(found[0])
    if generator.integers(2):
        table = pa.ipc.open_stream(base64.b64decode(text)).read_all().to_pylist()
        for row in table:
            for name in generator.choice(FLOW_SCHEMA.names, 6, replace=False):
                field = FLOW_SCHEMA.field(str(name))
                if pa.types.is_integer(field.type):
                    row[str(name)] = (0, 1, (1 << field.type.bit_width) - 1)[generator.integers(3)]
                elif pa.types.is_string(field.type):
                    row[str(name)] = str(generator.choice(["", "nonsense", "::", "1.2.3.4", "a,b;c\t\n", "ü" * 50]))
                elif pa.types.is_timestamp(field.type):
                    row[str(name)] = (0, -(1 << 63), (1 << 63) - 1)[generator.integers(3)]
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, FLOW_SCHEMA) as writer:
            writer.write_table(pa.Table.from_pylist(table, FLOW_SCHEMA))
        other = bytearray(base64.b64encode(stream.getvalue()))
        # The text keeps its place in the message when it keeps its length.
        text = other if len(other) == len(text) else text
    else:
        for _ in range(4):
            text[int(generator.integers(len(text)))] = int(generator.choice(list(b"AB/+=z9")))
    changed = message.replace(found[0], bytes(text))
    listeners = b"[]" if b"parshall.listeners" in message else b""
    behind = listeners + _text_from(message, b'{"hooks"') + b"true"
    values, before = bytes(text) + behind, found[0] + behind
    old, new = (zlib.crc32(struct.pack("<Q", 0) + value) for value in (before, values))
    assert f"{old:08x}".encode() in changed
    messages[tick] = changed.replace(f"{old:08x}".encode(), f"{new:08x}".encode())
    return b"".join(messages) + struct.pack("<iI", -1, 0)


def attempt(path: Path, seed: int) -> str:
    """Damage a log and convert it; returns what came of it."""
    generator = np.random.default_rng(seed)
    path.write_bytes(mutated(base_log(seed % 8), generator))
    name = str(generator.choice(list(FORMATS)))
    every_ns = 3_600_000_000_000 if name == "web10g" and generator.integers(2) else None

    def give_up() -> None:
        os.write(2, f"seed {seed}: {name} hangs\n".encode())
        os._exit(99)

    watchdog = threading.Timer(HANG_S, give_up)
    watchdog.start()
    began_s = time.process_time()
    try:
        convert(path, name, "/dev/null", every_ns=every_ns)
        return "converted"
    except ParshallError as error:
        message = str(error)
        assert message.strip() and len(message.splitlines()) == 1 and len(message) < 1000, f"seed {seed}: {message!r}"
        assert str(path) in message or "--every" in message, f"seed {seed}: {message!r}"
        return "refused"
    finally:
        watchdog.cancel()
        assert time.process_time() - began_s < SECONDS_MAX, f"seed {seed}: {name}"


def attempts(path: Path, seeds: Iterable[int]) -> dict[str, int]:
    """Damage and convert many logs; every other outcome than an answer or one line raises, or ends the process."""
    outcomes = {"converted": 0, "refused": 0}
    resident_memory.forget_peak()
    for seed in seeds:
        outcomes[attempt(path, seed)] += 1
    peak = resident_memory.peak_bytes()
    assert peak < MEMORY_MAX_BYTES, f"{peak} bytes resident"
    return outcomes


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.long)])
def test_damaged_logs_are_converted_or_refused_with_one_line(tmp_path, count):
    outcomes = attempts(tmp_path / "damaged.arrow", range(count))
    assert min(outcomes.values()) > count / 15, outcomes
