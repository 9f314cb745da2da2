"""The conventions of the command line (CONTRIBUTING.md), checked for every command and subcommand."""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import in_process
from parshall.cli import main as cli
from parshall.errors import UsageError
from parshall.fleet.shipping import Shipper
from parshall.host.rotation import Rotation
from parshall.instruments.capture import SNAPLEN_MAX, Capture, Output, Ring
from parshall.instruments.generate import Generator, Receiver
from parshall.instruments.live_sizes import count_live
from parshall.instruments.path import PathProfile
from parshall.instruments.sizes import Parameters, SizeDistribution
from parshall.instruments.tcp import TcpLog

PARSHALL = Path(sys.executable).with_name("parshall")
LOG = Path(__file__).parents[1] / "data" / "small.arrow"
HELP_MAX_CHARACTERS = 60
# Wireshark prescribes them.
EXTCAP = ("extcap",)
# Parameter -> its option in all commands.
EVERYWHERE = {
    "interface": ["-i", "--interface"],
    "output": ["-o", "--output"],
    "count": ["-c", "--count"],
    "duration": ["-d", "--duration"],
    "netns": ["--netns"],
    "seed": ["--seed"],
    "cpu": ["--cpu"],
    "buffer": ["--buffer"],
    "policy": ["--policy"],
    "as_json": ["--json"],
    "quiet": ["-q", "--quiet"],
}
# Values with suffixes, by their metavar in the help.
SUFFIXES = {
    "TIME": [("90", 90), ("90s", 90), ("500ms", 0.5), ("10m", 600), ("1h", 3600)],
    "LATENCY": [("300us", 300e-6), ("1.5 ms", 1.5e-3), ("2s", 2)],
    "N": [("1000", 1000), ("10k", 10_000), ("2M", 2_000_000), ("1.5k", 1500)],
    "RATE": [("900k", 900e3), ("10M", 10e6), ("1G", 1e9), ("2.5G", 2.5e9)],
    "SIZE": [("65536", 65536), ("64K", 65536), ("1M", 1 << 20)],
    "SHARE": [("0.6", 0.6), ("60%", 0.6), ("1e-3", 1e-3), ("0.1 %", 1e-3)],
    "PERCENT": [("95", 95), ("95%", 95), ("99.5 %", 99.5)],
    "N[,N...]": [("0", [0]), ("0,2", [0, 2]), ("0-3", [0, 1, 2, 3])],
}


def applications() -> dict[tuple[str, ...], Any]:
    """Every command and subcommand, by its words."""
    found: dict[tuple[str, ...], Any] = {}
    for name, (module_name, *_) in cli.COMMANDS.items():
        module = importlib.import_module(module_name)
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False)
            app.command(name=name)(module.command)
        command = typer.main.get_command(app)
        found[(name,)] = command
        for word, subcommand in getattr(command, "commands", {}).items():
            found[name, word] = subcommand
    return found


COMMANDS = applications()
OPTIONS = [
    pytest.param(words, parameter, id=f"{' '.join(words)} {parameter.opts[-1]}")
    for words, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option"
]
each_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
each_option = pytest.mark.parametrize(("words", "option"), OPTIONS)


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    settings = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 60} | options
    return subprocess.run([PARSHALL, *map(str, arguments)], **settings)


def assert_refused(result: subprocess.CompletedProcess[str], name: str) -> None:
    """One line on standard error, and status 2."""
    lines = result.stderr.splitlines()
    assert (result.returncode, result.stdout, len(lines)) == (2, "", 1), result
    assert lines[0].startswith(f"parshall: {name}: "), result.stderr


@each_command
def test_help_by_both_names_and_at_every_width(words, capsys, monkeypatch):
    outputs = []
    for width, option in (("80", "-h"), ("80", "--help"), ("45", "--help")):
        monkeypatch.setenv("COLUMNS", width)
        assert cli.dispatch([*words, option]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    # Nothing is cut: the same text, however wide the terminal is.
    assert "".join(outputs[0].split()) == "".join(outputs[2].split())


@each_option
def test_help_lines_are_short_phrases(words, option):
    text = option.help or ""
    assert text and len(text) <= HELP_MAX_CHARACTERS, f"{len(text)} characters: {text}"
    assert not text.rstrip().endswith("."), text


@each_option
def test_an_option_has_one_name_in_all_commands(words, option):
    expected = EVERYWHERE.get(option.name)
    if expected is not None and words != EXTCAP:
        assert option.opts == expected
    names = [name for known, opts in EVERYWHERE.items() for name in opts if known != option.name]
    assert not set(option.opts) & set(names)


@each_option
def test_values_take_their_suffixes(words, option):
    suffixes = SUFFIXES.get(option.metavar or "", [])
    # A seed is a name, not an amount.
    if option.name == "seed":
        suffixes = []
    command = COMMANDS[words]
    for text, value in suffixes:
        context = command.make_context("test", [option.opts[-1], text], resilient_parsing=True)
        assert context.params[option.name] == pytest.approx(value)
    if suffixes:
        with pytest.raises(UsageError, match=rf"^{option.opts[-1]} x1: expected "):
            command.make_context("test", [option.opts[-1], "x1"])


@pytest.mark.parametrize(("words", "length"), [(["-s", "0"], SNAPLEN_MAX), (["-s", "96"], 96), ([], SNAPLEN_MAX)])
def test_a_snapshot_length_of_0_is_the_longest_as_of_tcpdump(words, length):
    context = COMMANDS[("capture",)].make_context("test", words, resilient_parsing=True)
    assert context.params["snaplen"] == length


PYTHON = {
    ("tcp",): [TcpLog, Rotation, Shipper],
    ("capture",): [Capture, Ring, Output, Rotation],
    ("path",): [PathProfile],
    ("gen",): [Generator, Receiver.receive],
    ("sizes",): [Parameters, count_live, SizeDistribution.write_draws],
}
# Only on the command line: what is printed, and where.
NOT_IN_PYTHON = {"quiet", "as_json", "output", "write", "show_rings", "receive", "source", "to", "draws", "verify"}
NOT_IN_PYTHON |= {"separator", "pgset", "duration", "list_stages"}
# Other functions and instruments of Python.
NOT_IN_PYTHON |= {"join", "tcp_log", "capture", "metrics", "otlp"}
UNITS = ("", "_s", "_bytes", "_bps", "_share")


@pytest.mark.parametrize("words", PYTHON, ids=" ".join)
def test_arguments_in_python_have_the_names_of_the_options(words):
    arguments = {name for each in PYTHON[words] for name in inspect.signature(each).parameters}
    for option in COMMANDS[words].params:
        if option.name in NOT_IN_PYTHON or option.param_type_name != "option":
            continue
        assert {f"{option.name}{unit}" for unit in UNITS} & arguments, f"{option.opts[-1]} is not among {arguments}"


@each_command
def test_an_unknown_option_is_a_wrong_request(words, capsys):
    assert cli.dispatch([*words, "--no-such-option"]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert output.err.startswith(f"parshall: {words[0]}: ") and "--no-such-option" in output.err


MISSING = [
    ("convert", "/nosuch/x", "--to", "csv"),
    ("convert", LOG, "--to", "csv", "-o", "/nosuch/x"),
    ("report", "/nosuch/x"),
    ("sizes", "/nosuch/x"),
    ("sizes", "--from", "sizes", "/nosuch/x"),
    ("sizes", "--from", "trace", "/nosuch/x"),
    ("sizes", "--from", "procfs", "/nosuch/x"),
    ("sizes", "thesis", "-o", "/nosuch/x"),
    ("sizes", "/"),
    ("cpu", "trim", "/nosuch/x"),
    ("cpu", "-d", "10ms", "-o", "/nosuch/x"),
    ("model", "run", "/nosuch/x.toml"),
    ("model", "draw", "/nosuch/x.toml", "-o", "x.svg"),
    ("model", "compare", "/nosuch/x.csv", "single-queue"),
]
AS_ROOT = [
    ("tcp", "-o", "/nosuch/x"),
    ("tcp", "--netns", "nosuch"),
    ("capture", "-i", "nosuch0", "-w", "/dev/null"),
    ("capture", "-i", "nosuch0", "-w", "/dev/null", "--backend", "af-packet"),
    ("capture", "-i", "lo", "-w", "/nosuch/x"),
    ("capture", "-i", "lo", "--netns", "nosuch"),
    ("capture", "--join", "nosuch"),
    ("path", "-o", "/nosuch/x"),
    ("path", "--netns", "nosuch"),
    ("path", "-i", "nosuch0"),
    ("path", "--stages", "nosuch"),
    ("gen", "-i", "nosuch0"),
    ("gen", "-i", "lo", "--netns", "nosuch"),
    ("gen", "-i", "lo", "--sizes", "dist:/nosuch/x"),
    ("gen", "-i", "lo", "--gap", "trace:/nosuch/x"),
    ("gen", "-i", "lo", "--replay", "/nosuch/x"),
    ("gen", "-i", "nosuch0", "--receive"),
    ("gen", "-i", "lo", "--receive", "--netns", "nosuch"),
    ("sizes", "--from", "live", "-i", "nosuch0"),
    ("sizes", "--from", "live", "-i", "lo", "--netns", "nosuch"),
]


@pytest.mark.parametrize("arguments", MISSING, ids=lambda words: " ".join(map(str, words)))
def test_a_missing_file_is_a_wrong_request(arguments):
    assert_refused(in_process.parshall(*arguments), arguments[0])


@pytest.mark.kernel
@pytest.mark.parametrize("arguments", AS_ROOT, ids=lambda words: " ".join(map(str, words)))
def test_an_unknown_name_is_a_wrong_request(arguments, root):
    assert_refused(in_process.parshall(*arguments), arguments[0])


@pytest.mark.parametrize("arguments", [("tcp", "-o", "x"), ("capture", "-i", "lo", "-w", "x")], ids=" ".join)
def test_missing_privileges_are_a_wrong_request(arguments, root, tmp_path):
    result = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", PARSHALL, *arguments],
        capture_output=True, text=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert_refused(result, arguments[0])


def test_a_calibration_without_privileges_has_not_started(root, tmp_path):
    result = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,+dac_read_search",
         "--ambient-caps=-all,+dac_read_search", PARSHALL, "model", "calibrate", "-o", "/tmp/nosuch.toml"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert_refused(result, "model")
    assert "sudo parshall model calibrate ..." in result.stderr and "started" not in result.stderr


TALKATIVE = [
    ("--help",),
    ("model", "list"),
    ("model", "list", "--json"),
    ("sizes", "thesis"),
    ("sizes", "thesis", "--to", "dist"),
    ("sizes", "thesis", "--to", "sizes", "-n", "1M"),
    ("convert", LOG, "--to", "csv"),
    ("convert", LOG, "--to", "siftr-1.3"),
    ("cpu", "-q", "-d", "200ms", "--interval", "20ms"),
]


@pytest.mark.parametrize("arguments", TALKATIVE, ids=lambda words: " ".join(map(str, words)))
def test_a_closed_pipe_ends_a_command_silently(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        result = run(*arguments, capture_output=False, stdout=closed, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (0, "")


def test_lists_are_plain_text():
    for arguments in (("model", "list"), ("model", "list", "linux-napi"), ("model", "list", "--json")):
        text = in_process.parshall(*arguments).stdout
        assert text
        assert "`" not in text and "**" not in text


def test_output_minus_is_standard_output(tmp_path):
    result = run("sizes", "imix", "--to", "dist", "-q", "-o", "-", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "40 7\n576 4\n1500 1\n", "")
    assert run("cpu", "-q", "-a", "-d", "50ms", "--interval", "20ms", "-o", "-", cwd=tmp_path).stdout.count("Avg") == 1
    swept = in_process.parshall(
        "model", "sweep", "single-queue", "--over", "load_mbps=50", "-d", "10ms", "-o", "-", cwd=tmp_path
    )
    assert swept.stdout.splitlines()[0].startswith("load_mbps,")
    assert list(tmp_path.iterdir()) == []


def test_json_is_on_standard_output_unless_data_is():
    result = run("sizes", "imix", "--json", "-o", "/dev/null")
    assert result.stdout.startswith("{") and result.stderr == ""
    result = run("sizes", "imix", "--json")
    assert result.stdout.startswith("dist ") and result.stderr.startswith("{")


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        ("sizes thesis --from dist --to dist -q -o /dev/full", "sizes: /dev/full: "),
        ("sizes thesis --from dist --to procfs -q", "sizes: standard output: "),
        ("convert tests/data/small.arrow --to csv -o /dev/full", "convert: /dev/full: "),
        ("convert tests/data/small.arrow --to csv", "convert: standard output: "),
        ("cpu -q -d 0.1 -o /dev/full", "cpu: /dev/full: "),
        ("cpu -q -d 0.1", "cpu: standard output: "),
        ("model list", "model: standard output: "),
        ("doctor", "doctor: standard output: "),
    ],
)
def test_a_full_output_is_named_once(line, begins):
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "parshall", *line.split()],
            cwd=Path(__file__).parents[2], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert result.returncode == 1
    (error,) = result.stderr.splitlines()
    assert error.startswith(f"parshall: {begins}") and error.count("/dev/full") == begins.count("/dev/full")
    assert "No space left on device" in error
