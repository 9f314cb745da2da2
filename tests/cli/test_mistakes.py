"""Mistakes that newcomers make: one line each, with what to give instead. None needs privileges."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_conventions import LOG

from in_process import parshall
from parshall.errors import UsageError
from parshall.host.quantities import parse_rate

MISTAKES = [
    (("tcp", "--port", "http"), "--port http: expected a port from 1 to 65535"),
    (("tcp", "--port", "70000"), "--port 70000: expected a port from 1 to 65535"),
    (("tcp", "--pid", "self"), "--pid self: expected a whole number"),
    (("gen", "-i", "lo", "--seed", "x"), "--seed x: expected a whole number"),
    (("gen", "-i", "lo", "--seed", "-1"), "--seed -1: expected a whole number from 0 to 2^64 - 1"),
    (("model", "run", "single-queue", "--seed", "-1"), "--seed -1: expected a whole number from 0 to 2^64 - 1"),
    (
        ("model", "run", "single-queue", "--batches", "4", "--replications", "3"),
        "--batches: given beside --replications",
    ),
    (
        ("model", "run", "single-queue", "--batches", "4", "--precision", "0.1"),
        "--batches: given beside --precision, which adds replications; give one of them",
    ),
    (
        ("model", "run", "single-queue", "--precision", "0"),
        "--precision 0: expected a share above 0, such as 0.01 or 1%",
    ),
    (
        ("router", "capacity", "--sizes", "9000"),
        "--sizes 9000: links of the testbed take packets of at most 1500 bytes",
    ),
    (("router", "capacity", "--loss", "2"), "--loss 2: expected a share from 0 to below 1, such as 0.02 or 2%"),
    (("sizes", "imix", "--outlier", "200%"), "--outlier 200%: expected a share from 0 to below 1"),
    (("live", "--path", "200%"), "--path 200%: expected a share of the time above 0, at most 1, such as 0.05 or 5%"),
    (("demo", "-d", "2h"), "--duration 2h: expected at most 1h"),
    (("cpu", "--interval", "1ms"), "--interval 1ms: expected a time from 10ms to 1h"),
    (("router", "measure", "--load", "2000%"), "--load 2000%: expected a share of the capacity above 0, at most 10"),
    (("model", "run", "single-queue", "--confidence", "100%"), "--confidence 100%: expected a share between 0 and 1"),
    (("model", "plan", "single-queue", "--loss", "200%"), "--loss 200%: expected a share of the packets from 0 to 1"),
    (("convert", str(LOG), "--to", "web10g", "--every", "0.1ns"), "--every 0.1ns: expected a time from 1ns to 292"),
    (("show", str(LOG), "-d", "2h"), "--duration: is for --follow"),
    (("gen", "-i", "lo", "--yes-on", "eth7"), "--yes-on eth7: the packets go to lo; name it, or leave the option out"),
    (("sizes", "imix", "-i", "nosuchif"), "--interface: is for --from live; add it, or leave --interface out"),
    (("sizes", "imix", "-d", "5"), "--duration: is for --from live"),
    (("gen", "-i", "lo", "--load", "x"), "--load x: expected a share such as 0.05 or 5%"),
    (("tcp", "-c", "1"), "No such option: -c; see `parshall tcp --help`"),
    (("gen", "-i", "lo", "--rate", "10kpps"), "--rate 10kpps: counts bits; packets per second are --pps"),
    (("gen", "-i", "lo", "--pps", "10mbps"), "--pps 10mbps: counts packets; bits per second are --rate"),
    (("capture", "-i", "lo", "--count", "0"), "--count 0: must be above 0; expected a number such as 1000, 10k or 2M"),
    (("capture", "-i", "lo", "--buffer", "1G"), "--buffer 1G: expected a size from 1M to 256M"),
    (("tcp", "--buffer", "10kb"), "--buffer 10K: expected a size from 32K to 256M"),
    (("path", "--buffer", "512M"), "--buffer 512M: expected a size from 32K to 256M"),
    (("capture", "-i", "any"), "interface any: Linux has none of this name; give -i for each interface"),
    (
        ("capture", "-i", "lo", "--filter", "tcp", "udp", "port", "53"),
        "udp port 53: a second filter beside --filter tcp; give one of them",
    ),
    (
        ("capture", "-i", "lo", "-w", "x.arrow"),
        "--write x.arrow: is the name of a log, and a capture is pcapng or pcap",
    ),
    (("capture", "--join", "blue", "-i", "lo"), "--join blue: a ring has its interfaces already; leave out -i"),
    (("capture", "--join", "blue", "--name", "red"), "--join blue: a ring has its name already; leave out --name"),
    (("path", "-o", "x.pcapng"), "-o x.pcapng: is the name of a capture, and this is a log; name it x.arrow"),
    (("tcp", "-o", "x.pcap"), "-o x.pcap: is the name of a capture, and this is a log; name it x.arrow"),
    (
        ("lab", "run", "siftr", "--quick", "--budget", "5m"),
        "--quick: a study that goes on until it is decided has no fixed repeats; leave one out",
    ),
    (
        ("lab", "run", "siftr", "--until-decided", "--repeats", "3"),
        "--repeats: a study that goes on until it is decided has no fixed repeats; leave one out",
    ),
    (("lab", "check", "siftr", "--copies", "3"), "--copies 3: expected an even number: copies are compared two by two"),
    (("lab", "run", "siftr", "--against", "nosuch"), "--against nosuch: no such program; name a parshall command"),
    (("path", "--share", "5"), "--share 5, which is 500%: expected more than 0 % and at most 100 %, as 5% or 0.05"),
    (("router", "capacity", "--loss", "1x"), "--loss 1x: expected a share such as 0.05 or 5%"),
    (("model", "validate", "x.toml", "--loads", "0.3,much"), "--loads much: expected a share such as 0.05 or 5%"),
    (
        ("model", "validate", "x.toml", "--loads", "30"),
        "--loads 30: expected shares of the capacity above 0, at most 2, such as 0.3 or 30%",
    ),
    (
        ("model", "plan", "bsd-router", "--loss", "5"),
        "--loss 5: expected a share of the packets from 0 to 1, such as 0.001 or 0.1%",
    ),
    (
        ("router", "measure", "--load", "60"),
        "--load 60: expected a share of the capacity above 0, at most 10, such as 0.6 or 60%",
    ),
    (
        ("router", "measure", "--traffic", "nosuch"),
        "--traffic nosuch: expected constant, poisson, bursts, onoff, mixed, random, or gaps as of `parshall gen "
        "--gap`, such as bursts:size=64",
    ),
    (
        ("router", "measure", "-o", "x.csv"),
        "-o x.csv: is the name of a CSV file, and this is a Parquet file; name it x.parquet",
    ),
    (("tcp", "-o", "x.csv"), "-o x.csv: is the name of a CSV file, and this is a log; name it x.arrow"),
    (
        ("model", "sweep", "single-queue", "--over", "load_mbps=1,2", "-o", "x.parquet"),
        "-o x.parquet: is the name of a Parquet file, and this is a table as CSV; name it x.csv",
    ),
    (("model", "plan", "--nosuch"), "No such option: --nosuch; see `parshall model plan --help`"),
    (
        ("model", "sweep", "single-queue", "--over", "load_mbps=200:800"),
        "200:800: is not a range; expected FIRST:LAST:STEP, such as 100:1400:50",
    ),
    (
        ("model", "sweep", "single-queue", "--over", "load_mbps=800:200:100"),
        "800:200:100: ends at 200, before it begins; expected FIRST:LAST:STEP, such as 100:1400:50",
    ),
    (
        ("model", "run", "bsd-router", "--set", "cpu_mhz=2GHz"),
        "bsd-router: cpu_mhz is '2GHz'; expected a number in MHz",
    ),
    (
        ("model", "run", "single-queue", "--confidence", "95"),
        "--confidence 95: expected a share between 0 and 1, such as 0.95 or 95%",
    ),
    (("live", "--path", "5"), "--path 5: expected a share of the time above 0, at most 1, such as 0.05 or 5%"),
    (("lab", "published", "nosuch"), "nosuch: no such directory; name that of a study (parshall lab run)"),
    (("lab", "check", "siftr", "--repeats", "2"), "--repeats 2: expected 3 or more: fewer runs are not compared"),
    (("show", "x.arrow", "--interval", "2"), "--interval: is for --follow; a log that is not followed is shown once"),
    (("path", "--groups-max", "4"), "--groups-max 4: is for --by; without it there is one group"),
    (("report", "before", "after"), "before: no such file or directory; give a log of `parshall tcp` or"),
    (("lab", "run", "siftr", "--quick", "--full"), "--quick: given beside --full; leave one out"),
    (("cpu", "--limit", "x"), "--limit x: expected percent, such as 95 or 95%"),
    (("help", "tpc"), "no command 'tpc'; did you mean `parshall tcp`?"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_a_mistake_is_one_line_that_says_what_to_give(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    answer = parshall(*arguments, cwd=tmp_path)
    lines = answer.stderr.splitlines()
    assert (answer.returncode, answer.stdout, len(lines)) == (2, "", 1), answer
    assert message in lines[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["model", "router", "lab"])
def test_a_command_without_its_subcommand_lists_them(command: str) -> None:
    answer = parshall(command)
    assert (answer.returncode, answer.stdout) == (2, "")
    lines = answer.stderr.splitlines()
    assert lines[0] == f"Usage: parshall {command} [OPTIONS] COMMAND [ARGS]..."
    assert "Commands:" in lines


def test_help_of_a_command_is_asked_for_in_both_orders() -> None:
    assert parshall("help", "tcp").stdout == parshall("tcp", "--help").stdout != ""


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10m", 10e6), ("10mbps", 10e6), ("10Mbit/s", 10e6), ("10mbit", 10e6), ("2.5g", 2.5e9), ("900k", 900e3)],
)
def test_a_rate_is_read_as_other_tools_write_it(text: str, rate: float) -> None:
    assert parse_rate("--rate", text, "bits") == rate


@pytest.mark.parametrize("text", ["10kB/s", "10MiB", "10 M bit", "1e400", "-1", ""])
def test_a_rate_in_another_unit_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rate("--rate", text, "bits")


def test_a_report_of_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    log = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.arrow"))
    log.write_bytes(LOG.read_bytes())
    answer = parshall("report", log)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "\\xff" in (tmp_path / "report.html").read_text()


INTERRUPTING = """
import importlib.abc, os, signal, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            print("interrupted", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from parshall.cli.main import main
main(["sizes", "--from", "dist", "thesis"])
"""


@pytest.mark.parametrize(
    "module",
    [
        "parshall.cli.confinement",
        "parshall.errors",
        "parshall.host.commands",
        "typer",
        "parshall.cli.sizes",
        "parshall.instruments.sizes",
    ],
)
def test_an_interrupt_while_modules_are_imported_shows_no_traceback(module: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", INTERRUPTING, module]
    default = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=60, preexec_fn=default)
    assert done.returncode in (130, -signal.SIGINT)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
