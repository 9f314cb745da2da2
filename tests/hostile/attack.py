"""The attacks of this directory at length: mutated inputs under a fuzzer, hostile messages, kills at random moments.

``make attack`` or ``.venv/bin/python3 tests/hostile/attack.py [--inputs 10M] [--messages 1M] [--rounds 100]``, as
root. Each attack is a part that can be left out by 0. Prints one JSON object, which ``--archive`` keeps beside those of
the benchmarks; fails when an attack found a fault. What it found is kept in ``target/fuzz/found/``.

`fuzz` is libFuzzer, guided by coverage, on the functions of ``crates/core/tests/hostile/parsers.rs``: 1 s and 256 MiB
of heap for each input, and overflows count as faults. The corpus stays in ``target/fuzz/corpus/``.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "benches"))

from _record import finish, parser_for, version_of  # noqa: E402

FUZZ = ROOT / "target" / "fuzz"
# What cargo-fuzz gives to rustc, but for the sanitizers, which need an unstable compiler.
COVERAGE = [
    "-Cpasses=sancov-module",
    *(
        f"-Cllvm-args=-sanitizer-coverage-{option}"
        for option in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")
    ),
]
# The fuzzer's own memory comes on top of what an input may take.
RESIDENT_MAX_MIB = 768
# One that is slow for other reasons than the machine's load is found by its processor time, see limits.rs.
HANG_S = 20
TEXTS = ("captures", "texts", "extcap", "files")


def number(text: str) -> int:
    """Return a number with k or M behind it."""
    factor = {"k": 1000, "M": 1_000_000}.get(text[-1:], 1)
    return int(float(text.rstrip("kM")) * factor)


def parsers() -> list[str]:
    """Return the names of the parsers, as they stand with their functions."""
    functions = ROOT / "crates" / "core" / "tests" / "hostile" / "parsers.rs"
    (names,) = re.findall(r"\$macro! \{ ([a-z_ ]+) \}", functions.read_text())
    return names.split()


def fuzz(inputs: int) -> dict[str, Any]:
    """Give every parser its part of the inputs."""
    # With a target the flags are for the program alone, not for what builds it.
    target = version_of("rustc", "--print", "host-tuple")
    environment = os.environ | {"RUSTFLAGS": " ".join(COVERAGE), "CARGO_TARGET_DIR": str(FUZZ)}
    build = ["cargo", "build", "--release", "--target", target]
    subprocess.run(build, cwd=HERE / "fuzz", env=environment, check=True, stdout=sys.stderr)
    program = FUZZ / target / "release" / "parshall-fuzz"
    names = parsers()
    return {name: fuzz_one(program, name, inputs // len(names)) for name in names}


def fuzz_one(program: Path, name: str, inputs: int) -> dict[str, Any]:
    """Fuzz one parser; return what libFuzzer counted."""
    corpus, found = FUZZ / "corpus" / name, FUZZ / "found"
    for directory in (corpus, found):
        directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            program, f"-runs={inputs}", f"-timeout={HANG_S}", f"-rss_limit_mb={RESIDENT_MAX_MIB}", "-max_len=16384",
            f"-artifact_prefix={found}/{name}-", "-print_final_stats=1", "-verbosity=0", corpus,
        ],
        env=os.environ | {"PARSHALL_PARSER": name, "PARSHALL_CORPUS": str(corpus)},
        capture_output=True, text=True, errors="replace",
    )  # fmt: skip
    counted = dict(re.findall(r"^stat::(\w+):\s+(\d+)$", done.stderr, re.MULTILINE))
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
    return {"faults": int(done.returncode != 0), "corpus_files": len(list(corpus.iterdir()))} | {
        key: int(counted.get(key, 0)) for key in ("number_of_executed_units", "peak_rss_mb", "slowest_unit_time_sec")
    }


def texts(inputs: int) -> dict[str, Any]:
    """Give the commands their part of the inputs, in processes of their own."""
    tests = ROOT / "tests" / "core"
    results = {}
    for what in TEXTS:
        words = ["fuzz_files.py"] if what == "files" else ["fuzz_inputs.py", what]
        command = [sys.executable, tests / words[0], *words[1:], str(inputs), str(inputs // len(TEXTS))]
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        results[what] = {"inputs": inputs // len(TEXTS), "faults": int(done.returncode != 0)}
    return results


def tests(selection: list[str], **environment: int) -> dict[str, Any]:
    """Run tests with other numbers."""
    # Without an expression of marks: the slow ones, too.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *selection]
    values = {f"PARSHALL_{name}": str(value) for name, value in environment.items()}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | values, stdout=subprocess.PIPE, text=True)
    print(done.stdout[-3000:], file=sys.stderr)
    return {**environment, "faults": int(done.returncode != 0), "said": done.stdout.splitlines()[-1]}


def main() -> int:
    """Attack; return 1 when a fault was found."""
    # `--rounds` are kills of every process.
    parser = parser_for(__doc__, rounds=100)
    parser.add_argument("--inputs", type=number, default=number("10M"), help="mutated inputs for the parsers")
    parser.add_argument(
        "--texts", type=number, default=number("30k"), help="of them for whole commands, which are slow"
    )
    parser.add_argument("--messages", type=number, default=number("1M"), help="hostile messages to a keeper")
    arguments = parser.parse_args()
    members = "tests/kernel/test_capture_members.py::test_hostile_messages_change_nothing_for_others"
    attacks = {
        "inputs": lambda: fuzz(arguments.inputs),
        "texts": lambda: texts(arguments.texts),
        "messages": lambda: {"keeper": tests([members], HOSTILE_MESSAGES=arguments.messages)},
        "rounds": lambda: {"kills": tests(["tests/hostile"], ATTACK_ROUNDS=arguments.rounds)},
    }
    results: dict[str, Any] = {}
    for name, attack in attacks.items():
        if getattr(arguments, name):
            print(f"attack: {name}", file=sys.stderr, flush=True)
            began_s = time.monotonic()
            parts = attack()
            results[name] = {"hours": (time.monotonic() - began_s) / 3600, "parts": parts}
    results["faults"] = sum(part["faults"] for result in results.values() for part in result["parts"].values())
    versions = {"rustc": version_of("rustc", "--version"), "tcpdump": version_of("tcpdump", "--version")}
    finish("attack", results, versions, arguments.archive)
    return 1 if results["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
