"""Messages of commands when a part of the installation, or a capability, is missing."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from forked import Forked

import parshall
from parshall.cli.main import USAGE
from parshall.host.commands import COMMANDS
from parshall.host.doctor.decisions import RULES
from suites import long_except

ROOT = Path(__file__).parents[2]
PACKAGE = Path(parshall.__file__).parent
LOG = ROOT / "tests" / "data" / "small.arrow"
OF_A_LOG = f"live {LOG} --duration 1"
# At least one line of each command.
LINES = {
    "tcp": ["tcp -o x.arrow --duration 1"],
    "capture": [
        "capture -i lo --duration 1 --write x.pcapng",
        "capture -i lo --backend af-packet --duration 1 --write x.pcapng",
        "capture --list",
    ],
    "path": ["path --duration 1"],
    "pcap": ["pcap -- true"],
    "extcap": ["extcap --extcap-interfaces"],
    "convert": [f"convert {LOG} --to siftr-1.3 -o x.siftr"],
    "model": ["model list", "model run linux-napi --duration 0.001"],
    "gen": ["gen -i lo --dst 127.0.0.1 --count 1"],
    "router": ["router measure --count 100 --pps 1k"],
    "sizes": ["sizes x.sizes --from sizes --to dist"],
    "cpu": ["cpu -- true", "cpu --hooks -- true"],
    "show": [f"show {LOG}"],
    "live": [OF_A_LOG, "live --duration 1"],
    "mcp": ["mcp"],
    "report": [f"report {LOG} -o report"],
    "lab": ["lab run model --quick -o lab"],
    "demo": ["demo -o demo --duration 1"],
    "doctor": ["doctor", "doctor --clean"],
}
OF_THE_KERNEL = [name for name in COMMANDS if name != "mcp" and (RULES[name].needs or RULES[name].uses)]
ALL = [line for name in COMMANDS for line in LINES[name]]


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Return a function that runs a line of the command, of another copy of the package or behind a prefix."""
    started: dict[tuple[Path | None, tuple[str, ...]], Forked] = {}
    with ExitStack() as stack:

        def run(line: str, place: Path, *, package: Path | None = None, prefix: tuple[str, ...] = ()):
            (place / "x.sizes").write_text("64 3\n1500 1\n")
            if (package, prefix) not in started:
                environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONSAFEPATH": "1"}
                if package is not None:
                    environment["PYTHONPATH"] = str(package)
                started[package, prefix] = stack.enter_context(Forked(prefix, env=environment))
            return started[package, prefix].run(*line.split(), cwd=place, environment={"HOME": str(place)})

        yield run


def one_line(answer: subprocess.CompletedProcess[str]) -> str:
    """Return the one line on standard error of a refused command."""
    (line,) = answer.stderr.splitlines()
    assert answer.stdout == ""
    return line


def copy_without_module(directory: Path) -> Path:
    """Copy the package but for its compiled module."""
    shutil.copytree(PACKAGE, directory / "parshall", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return directory / "parshall"


@pytest.fixture(scope="module")
def without_libpcap(tmp_path_factory) -> Path:
    """Make a copy of the package whose module needs a libpcap that no machine has."""
    directory = tmp_path_factory.mktemp("without_libpcap")
    (module,) = PACKAGE.glob("_native*.so")
    bytes_of_it = module.read_bytes()
    needed = re.search(rb"\0(libpcap\.so\.[\d.]+)\0", bytes_of_it)
    assert needed, "the module does not need libpcap"
    absent = needed[1].translate(bytes.maketrans(b"0123456789", b"9" * 10))
    copy = copy_without_module(directory) / module.name
    copy.write_bytes(bytes_of_it.replace(b"\0" + needed[1] + b"\0", b"\0" + absent + b"\0"))
    return directory


@pytest.fixture(scope="module")
def for_analysis(tmp_path_factory) -> Path:
    """Make a copy of the package whose module has only what is built with ``--no-default-features``."""
    source = (ROOT / "crates" / "py" / "src" / "lib.rs").read_text()
    uses = re.findall(r'#\[cfg\(feature = "kernel"\)\]\n\s+#\[pymodule_export\]\n\s+use crate::\w+::([^;]+);', source)
    # Not the modules on the way.
    names = re.findall(r"\b\w+\b(?!::)", " ".join(uses))
    assert {"TcpLog", "Capture", "probe_capabilities"} <= set(names)
    (module,) = PACKAGE.glob("_native*.so")
    directory = tmp_path_factory.mktemp("for_analysis")
    (copy_without_module(directory) / "_native.py").write_text(
        "import sys\n"
        "from importlib import machinery, util\n"
        f"loader = machinery.ExtensionFileLoader('parshall._native', {str(module)!r})\n"
        "module = util.module_from_spec(util.spec_from_file_location('parshall._native', loader=loader))\n"
        "loader.exec_module(module)\n"
        f"for name in {names!r}:\n"
        "    delattr(module, name)\n"
        "sys.modules['parshall._native'] = module\n"
    )
    return directory


def test_every_command_has_a_line():
    assert set(LINES) == set(COMMANDS)


# Two that need libpcap, and all that say something else.
WITHOUT_LIBPCAP = ["path --duration 1", "model run linux-napi --duration 0.001", "cpu -- true", "model list", "doctor"]


@pytest.mark.parametrize("line", long_except(WITHOUT_LIBPCAP, ALL))
def test_without_libpcap_a_command_works_or_says_so(run, line, without_libpcap, tmp_path):
    answer = run(line, tmp_path, package=without_libpcap)
    if line == "cpu -- true" or line == "model list":
        assert answer.returncode == 0, answer.stderr
    elif line == "doctor":
        assert answer.returncode == 1
        assert "libpcap.so.9.9 is missing" in answer.stdout
        assert "apt-get install libpcap" in answer.stdout
    else:
        assert answer.returncode == USAGE
        name = line.split()[0]
        assert re.fullmatch(
            rf"parshall: {name}: the shared library libpcap\.so\.9\.9 is missing; "
            r"install it \(Debian: apt-get install libpcap0\.8\)",
            one_line(answer),
        )


@pytest.mark.parametrize("line", ALL)
def test_without_the_kernel_side_a_command_works_or_says_so(run, line, for_analysis, tmp_path):
    answer = run(line, tmp_path, package=for_analysis)
    name = line.split()[0]
    if line == "doctor" or line == "doctor --clean":
        assert answer.returncode == 1
        assert "built without the kernel side" in answer.stdout
    elif (name in OF_THE_KERNEL and line != OF_A_LOG) or line == "cpu --hooks -- true":
        assert answer.returncode == USAGE
        error = one_line(answer)
        assert error.startswith(f"parshall: {name}: this installation is for analysis only: ")
        assert "--no-default-features" in error
    else:
        assert answer.returncode == 0, answer.stderr


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("dropped", "line", "missing"),
    [
        *(("all", line, "CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF") for line in [*LINES["tcp"], *LINES["capture"][:1]]),
        ("all", LINES["gen"][0], "CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF"),
        ("all", LINES["demo"][0], "CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF"),
        ("all", "cpu --hooks -- true", "CAP_SYS_ADMIN"),
        ("sys_admin", LINES["demo"][0], "CAP_SYS_ADMIN"),
        # CAP_SYS_ADMIN does not include it.
        ("net_admin", LINES["tcp"][0], "CAP_NET_ADMIN"),
    ],
)
def test_root_without_capabilities_gets_the_missing_ones(run, root, dropped, line, missing, tmp_path):
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    answer = run(line, tmp_path, prefix=("setpriv", f"--bounding-set=-{dropped}"))
    assert answer.returncode == USAGE
    error = one_line(answer)
    assert f" needs {missing}: root lacks {missing} here; " in error
    assert "as root" not in error


@pytest.mark.kernel
def test_doctor_does_not_advise_root_to_become_root(run, root, tmp_path):
    answer = run("doctor", tmp_path, prefix=("setpriv", "--bounding-set=-all"))
    assert answer.returncode == 1
    assert "root lacks CAP_BPF" in answer.stdout
    assert "Root without all capabilities: " in answer.stdout
    assert "run as root" not in answer.stdout.lower()


@pytest.mark.kernel
def test_without_type_information_doctor_says_what_the_commands_do(run, root, tmp_path):
    hide = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/kernel/btf && exec "$@"', "sh")
    answer = run("doctor --json", tmp_path, prefix=hide)
    assert answer.stderr == ""
    commands = {each["command"]: each for each in json.loads(answer.stdout)["commands"]}
    for line in ("tcp -o x.arrow", "capture -i lo -w x.pcapng", "gen -i lo --dst 127.0.0.1 -c 1", "demo -o demo"):
        name = line.split()[0]
        assert "type information is missing" in one_line(run(line, tmp_path, prefix=hide))
        assert commands[name]["status"] == "cannot" and "/sys/kernel/btf/vmlinux" in commands[name]["why"]
    for line in ("cpu --hooks -- true", "sizes --from live -i lo --to dist"):
        name = line.split()[0]
        assert "type information is missing" in one_line(run(line, tmp_path, prefix=hide))
        assert commands[name]["status"] == "degraded" and line.split()[1] in commands[name]["why"]
