"""The eBPF programs load and run, whichever clang compiled them: all that are installed here.

With ``PARSHALL_BPF_OBJECTS`` in the environment, the objects in that directory (``scripts/every-clang``).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wire import generator

from parshall.host.doctor.probes import probe_host
from parshall.instruments.path.stages import STAGES
from suites import long_except

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
PARSHALL = Path(sys.executable).with_name("parshall")
GIVEN = os.environ.get("PARSHALL_BPF_OBJECTS")
COMPILERS = [GIVEN] if GIVEN else [f"clang-{n}" for n in range(15, 31) if shutil.which(f"clang-{n}")]
COUNT = 100
# Every branch of the generator's program but the trace.
WORKLOADS = {
    "many flows, paced": {"sizes": "imix", "src": "10.0.0.1-10.0.0.9", "pps": 100e3},
    "stamped TCP over IPv6": {
        "sizes": "100-1400",
        "stamp": True,
        "protocol": "tcp",
        "src": "fd00::1",
        "dst": "fd00::2",
    },
    "stamped UDP, paced": {"sizes": "64", "stamp": True, "pps": 100e3},
}
PATH_MODES = [
    "",
    "--by interface --noise",
    "--by connection --reads",
    "--by cgroup --every 2",
    "--cgroup / --netns /proc/self/ns/net",
    "-o /dev/null --reads --noise",
    "-i INTERFACE -o /dev/null --filter udp",
]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> Path:
    """Compile the programs with every clang of this machine."""
    directory = tmp_path_factory.mktemp("objects")
    subprocess.run([ROOT / "scripts" / "every-clang", "--compile", directory], check=True, timeout=300)
    return directory


@pytest.fixture(params=long_except(COMPILERS[-1:], COMPILERS))
def objects(request, root, monkeypatch) -> Path:
    """Let the module load the objects of one compiler."""
    directory = Path(GIVEN) if GIVEN else request.getfixturevalue("compiled") / request.param
    assert {path.name for path in directory.iterdir()} == {path.stem + ".o" for path in (ROOT / "bpf").glob("*.bpf.c")}
    monkeypatch.setenv("PARSHALL_BPF_OBJECTS", str(directory))
    return directory


def test_there_is_a_compiler() -> None:
    assert COMPILERS, "the programs were compiled by `clang`, and no clang-N is there"


def test_the_kernel_takes_the_programs_of_instruments(objects: Path) -> None:
    probes = {probe.name: probe for probe in probe_host()}
    for name in ("program.of_tcp", "program.of_capture"):
        assert probes[name].status == "works", probes[name]
    # A kernel may lack stages.
    assert "loaded" in probes["program.of_path"].detail, probes["program.of_path"]


@pytest.mark.parametrize("mode", long_except(["-o /dev/null --reads --noise"], PATH_MODES))
def test_the_kernel_takes_the_programs_of_paths_in_each_mode(objects: Path, bed: Any, mode: str) -> None:
    """The verifier sees other code with each: the loader sets the options before."""
    here = bed.host("here")
    interface = bed.link(here, bed.host("there"), backend="veth").interface(here)
    words = mode.replace("INTERFACE", interface).split()
    command = [PARSHALL, "path", "--duration", "0.2", "--stages", ",".join(STAGES), *words]
    done = here.run(command, check=False, timeout_s=600)
    assert done.returncode == 0, done.stderr


def test_objects_that_are_not_there_are_named(monkeypatch, root) -> None:
    monkeypatch.setenv("PARSHALL_BPF_OBJECTS", "/nonexistent")
    probes = {probe.name: probe for probe in probe_host()}
    assert "/nonexistent/tcp.bpf.o: No such file" in probes["program.of_tcp"].detail


def test_the_generator_and_the_program_of_af_xdp_run(objects: Path, xdp_link: Any, tmp_path: Path, until: Any) -> None:
    _, receiver, link = xdp_link
    for name, workload in WORKLOADS.items():
        account = generator(xdp_link, count=COUNT, seed=1, backend="xdp", **workload).wait().account
        assert (account["sent"], account["arrived"]) == (COUNT, COUNT), name
    trace = tmp_path / "trace.pcap"
    command = [PARSHALL, "capture", "-i", link.interface(receiver), "--count", str(COUNT), "--write", trace]
    with receiver.enter():
        capture = subprocess.Popen([*command, "--backend", "af-xdp"], stderr=subprocess.PIPE, text=True)
    try:
        until("af-xdp has its program", lambda: "xdp" in receiver.run(["ip", "link"]).stdout or capture.poll(), 120)
        generator(xdp_link, count=COUNT, seed=2, sizes="60-1500", src="10.0.0.1-10.0.0.9").wait()
        assert capture.wait(120) == 0, capture.stderr.read()
    finally:
        capture.kill()
        capture.wait()
        capture.stderr.close()
    account = generator(xdp_link, count=COUNT, backend="xdp", replay=trace).wait().account
    assert (account["sent"], account["arrived"]) == (COUNT, COUNT)
