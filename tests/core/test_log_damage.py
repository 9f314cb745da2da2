"""Damaged logs: a right answer or one clear line, quickly and in little memory, even if the checksums are right."""

import base64
import random
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import resident_memory

import parshall
from parshall.errors import ParshallError
from parshall.figures import legends, reduce
from parshall.host.rows import plain_rows
from parshall.report import summary
from parshall.report.account import unchecked_reason

LOG = (Path(__file__).parents[1] / "data" / "small.arrow").read_bytes()
LONG = [b"\xff" * 8, bytes(8), (1 << 40).to_bytes(8, "little"), (1 << 33).to_bytes(8, "little")]
SECONDS_MAX = 5
GROWTH_MAX_BYTES = 256 << 20


@dataclass
class Message:
    """A record batch of the file: the positions of its head and body, and the input of its checksum."""

    head: slice
    body: slice
    rows: int
    values: list[bytes]

    def checksum(self, body: bytes, values: list[bytes]) -> bytes:
        """Return the checksum as it stands in the file."""
        return b"%08x" % zlib.crc32(self.rows.to_bytes(8, "little") + b"".join(values) + body)


def messages() -> list[Message]:
    """Return the record batches of the log, by arrow's own reader."""
    found, at = [], 0
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(LOG))
    with pa.ipc.open_stream(pa.BufferReader(LOG)) as batches:
        for message in reader:
            head = slice(at + 8, at + 8 + int.from_bytes(LOG[at + 4 : at + 8], "little"))
            at = head.stop + (len(message.body) if message.body is not None else 0)
            if message.type == "record batch":
                batch, metadata = batches.read_next_batch_with_custom_metadata()
                values = [value for key, value in metadata.items() if key != b"parshall.crc32"]
                found.append(Message(head, slice(head.stop, at), batch.num_rows, values))
    return found


def spoilt(generator: random.Random, content: bytes) -> bytes:
    """Return content of the same length with some bytes changed."""
    changed = bytearray(content)
    for _ in range(generator.choice([1, 1, 3, 10])):
        at = generator.randrange(len(changed))
        long = generator.choice(LONG)[: len(changed) - at]
        changed[at : at + len(long)] = (
            long if generator.random() < 0.5 else bytes([changed[at] ^ 1]) + changed[at + 1 : at + len(long)]
        )
    return bytes(changed)


def anywhere(generator: random.Random) -> bytes:
    """Return the log with bytes changed, cut out, put in or cut off anywhere."""
    changed = bytearray(spoilt(generator, LOG))
    at, length = generator.randrange(len(LOG)), generator.randrange(1, 400)
    kind = generator.choice(["as it is", "as it is", "without", "twice", "cut"])
    if kind == "without":
        del changed[at : at + length]
    elif kind == "twice":
        changed[at:at] = changed[at : at + length]
    elif kind == "cut":
        del changed[at:]
    return bytes(changed)


def with_right_checksums(generator: random.Random) -> bytes:
    """Return the log with a body, a flow table or a ledger changed, and the checksum that fits."""
    message = generator.choice(messages())
    changed = bytearray(LOG)
    body, values = LOG[message.body], list(message.values)
    if body:
        body = spoilt(generator, body)
        changed[message.body] = body
    else:
        number = generator.randrange(len(values))
        before = values[number]
        if before.startswith(b"{"):
            at = generator.randrange(len(before))
            letter = generator.choice(b'0123456789"{}[],:-eE.nulltrfas')
            values[number] = before[:at] + bytes([letter]) + before[at + 1 :]
        elif len(before) > 100:
            values[number] = base64.b64encode(spoilt(generator, base64.b64decode(before)))
        at = LOG.index(before, message.head.start)
        changed[at : at + len(before)] = values[number]
    was = message.checksum(LOG[message.body], message.values)
    at = LOG.index(was, message.head.start, message.head.stop)
    changed[at : at + 8] = message.checksum(body, values)
    return bytes(changed)


@pytest.mark.parametrize("count", [60, pytest.param(400, marks=pytest.mark.long)])
@pytest.mark.parametrize("damage", [anywhere, with_right_checksums])
def test_a_damaged_log_gives_a_right_answer_or_one_line(tmp_path, damage, count):
    path = tmp_path / "damaged.arrow"
    generator = random.Random(20_251_123)
    resident_memory.forget_peak()
    before_bytes = resident_memory.peak_bytes()
    refused = 0
    for _ in range(count):
        path.write_bytes(damage(generator))
        begin_s = time.process_time()
        try:
            log = parshall.read(path)
            reduced = reduce(log)
            (legend,) = legends([reduced])
            unchecked = unchecked_reason(log.ledger, log.truncation, plain_rows(log.gaps))
            assert summary.log_sentences(reduced, log.ledger, flows=2, findings=[], unchecked=unchecked)
            assert summary.flows_sentence(reduced, legend.labels) is None or reduced.counted_bytes
            assert log.environment is not None
            assert reduced.records <= 300 + 200 * (damage is anywhere)
        except ParshallError as error:
            refused += 1
            assert str(error).startswith(str(path))
            assert str(error).isprintable() and len(str(error)) < 600
        assert time.process_time() - begin_s < SECONDS_MAX
    # Both ends are tried.
    assert count / 4 < refused < count
    assert resident_memory.peak_bytes() - before_bytes < GROWTH_MAX_BYTES


def test_text_of_damaged_files_is_escaped_in_messages(tmp_path):
    """A NUL in a checksum must survive C, whose strings end at NUL."""
    path = tmp_path / "damaged.arrow"
    message = messages()[0]
    at = LOG.index(message.checksum(LOG[message.body], message.values), message.head.start)
    path.write_bytes(LOG[:at] + b"\x00\n\x1b[2J" + LOG[at + 6 :])
    with pytest.raises(ParshallError, match=r"its checksum is [0-9a-f]{8}, not \\u\{0\}\\n\\u\{1b\}\[2J") as caught:
        _ = parshall.read(path).records
    assert str(caught.value).isprintable()
