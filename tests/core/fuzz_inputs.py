"""Mutated captures, texts and arguments through everything that reads them: one clear line, or a right answer.

``python tests/core/fuzz_inputs.py captures|texts|extcap SEED COUNT`` runs COUNT of them in this process and prints what
came of them. One that takes more than 5 s of CPU, or a minute, ends it, and so does a gigabyte of memory.
`test_fuzz_inputs.py` runs some.
"""

import collections
import contextlib
import faulthandler
import gzip
import io
import json
import random
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# This file also runs as a program.
sys.path.append(str(Path(__file__).resolve().parents[1]))
from mutated_models import peak_memory_kib

from workloads import REQUEST

TIME_MAX_S = 5
# On a busy machine a file waits for its CPU, and that is no hang.
HANG_S = 60
MEMORY_MAX_KIB = 1 << 20
NUMBERS = [
    "7",
    "40",
    "1500",
    "0",
    "-1",
    "1e9",
    "nan",
    "inf",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "65536",
    "1.7",
    "",
]
WORDS = (0, 1, 2, 0x7F, 0xFFFF, 0x10000, 0x40000000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


# ---- seeds ------------------------------------------------------------------------------------


def packets(random_numbers: random.Random) -> list[tuple[bytes, int]]:
    """Return Ethernet frames of some kinds: what was captured, and the length on the wire.

    They are cut at 96 bytes, or whole, as they can be sent again.
    """
    is_whole = random_numbers.random() < 0.5
    made = []
    for _ in range(random_numbers.randrange(1, 12)):
        size = random_numbers.choice([40, 52, 576, 1500, 0])
        wire = size or random_numbers.randrange(2000, 200_000)
        kind = random_numbers.randrange(5)
        if kind == 0:
            head = b"\x86\xdd" + struct.pack(">IHBB32x", 6 << 28, max(size - 40, 0), 6, 64)
        elif kind == 1:
            jumbo = struct.pack(">BBBBI", 6, 0, 0xC2, 4, wire)
            head = b"\x86\xdd" + struct.pack(">IHBB32x", 6 << 28, 0, 0, 64) + jumbo
        elif kind == 2:
            head = b"\x81\x00\x00\x05\x08\x00" + struct.pack(">BBH16x", 0x45, 0, size)
        elif kind == 3:
            head = b"\x08\x06" + bytes(28)
        else:
            head = b"\x08\x00" + struct.pack(">BBH16x", 0x45, 0, size)
        frame = bytes(12) + head
        if is_whole:
            wire = min(wire, 1500)
        frame = frame.ljust(max(60, wire + 14 if is_whole else min(96, wire)), b"x")
        made.append((frame, max(wire + 14, len(frame))))
    return made


def pcap(random_numbers: random.Random) -> bytes:
    """Return a classic capture file of either byte order and resolution."""
    order, magic = random_numbers.choice("<>"), random_numbers.choice([0xA1B2C3D4, 0xA1B23C4D])
    link_type = random_numbers.choice([1, 1, 1, 1, 1, 1, 101, 113, 276, 0])
    content = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 262144, link_type)
    for number, (frame, wire) in enumerate(packets(random_numbers)):
        content += struct.pack(f"{order}IIII", number, 7, len(frame), wire) + frame
    return content


def pcapng(random_numbers: random.Random) -> bytes:
    """Return a pcapng file with interfaces, options, packets of three kinds and statistics."""
    order = random_numbers.choice("<>")

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack(f"{order}II", kind, len(body) + 12) + body + struct.pack(f"{order}I", len(body) + 12)

    def option(code: int, value: bytes) -> bytes:
        return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)

    end = option(0, b"")
    content = block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1) + option(4, b"somebody") + end)
    for resolution in (6, 9, 0x8A):
        description = struct.pack(f"{order}HHI", random_numbers.choice([1, 1, 1, 1, 1, 101]), 0, 262144)
        content += block(1, description + option(2, b"eth0") + option(9, bytes([resolution])) + end)
    for number, (frame, wire) in enumerate(packets(random_numbers)):
        padded = frame + bytes(-len(frame) % 4)
        if random_numbers.random() < 0.2:
            content += block(3, struct.pack(f"{order}I", wire) + padded)
        else:
            head = struct.pack(f"{order}IIIII", number % 3, 0, number * 1000, len(frame), wire)
            content += block(6, head + padded + option(1, b"a remark") + end)
    counters = option(4, struct.pack(f"{order}Q", 9)) + option(5, struct.pack(f"{order}Q", 2)) + end
    return content + block(5, struct.pack(f"{order}III", 0, 0, 9) + counters)


def text(kind: str, random_numbers: random.Random) -> bytes:
    """Return a text of sizes, of a distribution, or of a procfs file."""
    if kind == "sizes":
        return b"# sizes\n" + b" ".join(b"%d" % random_numbers.randrange(1, 9000) for _ in range(30)) + b"\n"
    if kind == "dist":
        return b"".join(
            b"%d %d\n" % (random_numbers.randrange(1, 1500), random_numbers.randrange(9000)) for _ in range(9)
        )
    return b'pgset "dist 100 20 1500 2 2"\noutl 40 30\noutl 1500 20\nhist 40 60\npgset "hist 1480 40"\nflag X\n'


# ---- mutations ----------------------------------------------------------------------------------


def mutate(content: bytes, random_numbers: random.Random, *, is_text: bool) -> bytes:
    """Return the content after one to four changes."""
    changed = bytearray(content)
    for _ in range(random_numbers.choice([1, 1, 1, 2, 4])):
        place = random_numbers.randrange(len(changed) + 1)
        kind = random_numbers.choice([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 6])
        if is_text and random_numbers.random() < 0.6:
            tokens = re.split(rb"(\d+)", bytes(changed))
            tokens[random_numbers.randrange(len(tokens))] = random_numbers.choice(NUMBERS).encode()
            changed = bytearray(b"".join(tokens))
        elif kind == 0 and changed:
            changed[place % len(changed)] ^= 1 << random_numbers.randrange(8)
        elif kind == 1 and changed:
            changed[place % len(changed)] = random_numbers.choice([0, 10, 27, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            aligned = place // 4 * 4
            changed[aligned : aligned + 4] = random_numbers.choice(WORDS).to_bytes(
                4, random_numbers.choice(["little", "big"])
            )
        elif kind == 3:
            del changed[place:]
        elif kind == 4:
            del changed[place : place + random_numbers.randrange(1, 40)]
        elif kind == 5:
            changed[place:place] = changed[place : place + random_numbers.randrange(1, 200)]
        else:
            changed[place:place] = random_numbers.randbytes(random_numbers.randrange(1, 40))
    return bytes(changed)


# ---- what is right --------------------------------------------------------------------------------


def packets_of_pcap(content: bytes) -> int | None:
    """Return how many packets a classic capture file has; None when it is no whole one. After pcap-savefile(5)."""
    orders = {b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">", b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<"}
    order = orders.get(content[:4])
    if order is None or len(content) < 24:
        return None
    number, place = 0, 24
    while place < len(content):
        if place + 16 > len(content):
            return None
        (captured,) = struct.unpack_from(f"{order}I", content, place + 8)
        place += 16 + captured
        if place > len(content):
            return None
        number += 1
    return number


def sizes_of_text(content: bytes) -> collections.Counter[int]:
    """Return the counts of a text of sizes that was accepted."""
    lines = (line.split(b"#")[0] for line in content.split(b"\n"))
    return collections.Counter(int(word) for line in lines for word in line.split())


# ---- runs -----------------------------------------------------------------------------------------


def dispatched(arguments: list[str]) -> tuple[int, str, str]:
    """Run the command line in this process; return status, output and messages."""
    from parshall.cli import main as cli

    out, messages = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(messages):
        try:
            cli.main(arguments)
        except SystemExit as end:
            return int(end.code or 0), out.getvalue(), messages.getvalue()
    raise AssertionError("the command line did not end")


def check_refusal(message: str) -> None:
    """Raise unless a refusal is one clear line."""
    assert message.endswith("\n") and message.count("\n") == 1, f"not one line: {message!r}"
    check_line(message[:-1])


def check_line(line: str) -> None:
    """Raise unless a line can be shown on a terminal and blames nobody else."""
    assert line.isprintable(), f"not printable: {line!r}"
    assert len(line) < 700, f"{len(line)} characters: {line!r}"
    for word in ("Traceback", "internal error", "nobody foresaw", "panicked", "at line 1 column"):
        assert word not in line, line


def called(function: Callable[[], object]) -> str:
    """Call what reads a file; return what came of it."""
    from parshall.errors import ParshallError

    try:
        function()
    except ParshallError as error:
        check_line(str(error))
        return "refused"
    return "read"


def run_capture(path: Path, content: bytes, is_whole_pcap: bool) -> str:
    """Count a capture's sizes, and read it to be sent again."""
    from parshall import _native

    status, out, messages = dispatched(
        ["sizes", "--from", "trace", str(path), "--to", "dist", "-o", "/dev/null", "--json"]
    )
    if status == 0:
        ledger = json.loads(out)["ledger"]
        parts = ledger["ipv4"] + ledger["ipv6"] + ledger["not_ip"] + ledger["cut_short"]
        assert ledger["seen"] == parts and json.loads(out)["packets"] == ledger["ipv4"] + ledger["ipv6"], ledger
        if is_whole_pcap:
            assert ledger["seen"] == packets_of_pcap(content)
    else:
        check_refusal(messages)
    gaps = called(lambda: _native.read_trace_gaps(path))
    request = json.dumps({**REQUEST, "replay": str(path)})
    replay = called(lambda: _native.describe_workload(request))
    return f"sizes {status}, gaps {gaps}, replay {replay}"


def run_text(path: Path, content: bytes, kind: str) -> str:
    """Read a text of sizes for the command and for the generator."""
    from parshall import _native

    to = "procfs" if kind == "procfs" else "dist"
    status, _, messages = dispatched(["sizes", "--from", kind, str(path), "--to", to, "-o", f"{path}.out", "-q"])
    if status == 0 and kind == "sizes":
        written = (line.split() for line in Path(f"{path}.out").read_text().splitlines())
        assert sizes_of_text(content) == {int(size): int(count) for size, count in written}
    elif status:
        check_refusal(messages)
    drawn, _, messages = dispatched(
        ["sizes", "--from", kind, str(path), "-o", "/dev/null", "-q", "--verify", "-n", "1k"]
    )
    if drawn and kind != "procfs":
        check_refusal(messages)
    request = json.dumps({**REQUEST, "sizes": f"{kind}:{path}"})
    return f"{kind} {status}, distribution {drawn}, generator {called(lambda: _native.describe_workload(request))}"


def run_extcap(random_numbers: random.Random) -> str:
    """Ask as Wireshark does, with what it never says; nothing is captured."""
    names = [
        "parshall:lo",
        "parshall:ring:day",
        "parshall-lo",
        "lo",
        "parshall:",
        "../../etc",
        "\x1b[31m",
        "a" * 300,
        "",
    ]
    values = [*NUMBERS, "ip", "tcp port (", "\x1b]0;x\x07", "{value=x}", "4.0.17", "é\udc80"]
    given = [
        "--extcap-interfaces", "--extcap-dlts", "--extcap-config", "--extcap-interface", "--extcap-version",
        "--extcap-capture-filter", "--snaplen", "--hook", "--buffer", "--promiscuous",
    ]  # fmt: skip
    words = ["extcap", random_numbers.choice(given[:3]), "--extcap-interface", random_numbers.choice(names)]
    for option in random_numbers.sample(given, random_numbers.randrange(4)):
        words.append(option)
        if random_numbers.random() < 0.8:
            words.append(random_numbers.choice(names + values))
    status, out, messages = dispatched(words)
    if status:
        check_refusal(messages)
    for line in out.splitlines():
        assert re.fullmatch(r"(extcap|interface|dlt|arg|value) (\{[a-z]+=[^{}]*\})+", line), line
    return f"extcap {status}, {'refused' if status else 'answered'}"


def main(what: str, seed: int, count: int) -> None:
    """Run mutated files; print how many came to what."""
    random_numbers = random.Random(f"{what} {seed}")
    came_to: collections.Counter[str] = collections.Counter()
    # What is imported at the first run is no file's time.
    dispatched(["sizes", "imix", "-q", "-o", "/dev/null"])
    with tempfile.TemporaryDirectory() as directory:
        for number in range(count):
            path = Path(directory) / "mutant"
            kind = random_numbers.choice(["pcap", "pcapng"] if what == "captures" else ["sizes", "dist", "procfs"])
            seed_content = {"pcap": pcap, "pcapng": pcapng}[kind](random_numbers) if what == "captures" else None
            content = mutate(seed_content or text(kind, random_numbers), random_numbers, is_text=what != "captures")
            is_compressed = what == "captures" and random_numbers.random() < 0.1
            path.write_bytes(gzip.compress(content, 1) if is_compressed else content)
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            began_s = time.process_time()
            try:
                if what == "extcap":
                    result = run_extcap(random_numbers)
                elif what == "captures":
                    result = run_capture(path, content, is_whole_pcap=content[:4] != b"\n\r\r\n")
                else:
                    result = run_text(path, content, kind)
            except BaseException:
                kept = Path(tempfile.gettempdir()) / f"parshall-fuzz-{what}-{seed}-{number}"
                kept.write_bytes(path.read_bytes())
                print(f"{kept}: {kind}, number {number} of seed {seed}", file=sys.stderr)
                raise
            faulthandler.cancel_dump_traceback_later()
            took_s = time.process_time() - began_s
            assert took_s < TIME_MAX_S, f"{took_s} s for number {number} of seed {seed}"
            came_to[result] += 1
            peak_kib = peak_memory_kib()
            assert peak_kib < MEMORY_MAX_KIB, f"{peak_kib} KiB after number {number} of seed {seed}"
    print(json.dumps({"files": count, "peak_kib": peak_kib, "came_to": came_to}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
