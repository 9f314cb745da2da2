"""Each example of the manuals runs as printed, page by page, on a machine of its own with somebody to talk to."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest
from running_command import read_until

from manual_examples import ROOT, examples, pages

pytestmark = pytest.mark.kernel

HERE = Path(__file__).parent
TRAFFIC = HERE / "manual_traffic.py"
# In the place of the reader's own words.
WORDS = {"CMD...": "bash talk.sh", " HOST": " 10.9.0.2 --time 1"}
# No line takes longer: a page promises an answer.
MOST_S = 900
# Ends when somebody presses Ctrl-C, after so many rounds of traffic.
ROUNDS = 200
# Lines that go on until Ctrl-C.
ENDLESS = {
    "docs/budget.md": ["parshall tcp --budget *"],
    "docs/capture-backends.md": ["parshall capture *"],
    "docs/capture.md": ["parshall capture -i *", "parshall capture --join *"],
    "docs/cpu.md": ["parshall cpu"],
    "docs/first-five-minutes.md": ["parshall live *"],
    "docs/fleet.md": ["parshall tcp *"],
    "docs/gen.md": ["parshall gen * --gap onoff", "parshall gen * --stamp"],
    "docs/live.md": ["parshall live*"],
    "docs/mcp.md": ["parshall tcp *"],
    "docs/metrics.md": ["*"],
    "docs/path-timeline.md": ["parshall path -o *"],
    "docs/path.md": ["parshall path -o *"],
    "docs/pcap.md": ["parshall pcap -- *", "parshall pcap --join *", "parshall capture *"],
    "docs/rotation.md": ["parshall tcp *"],
    "docs/tcp.md": ["parshall tcp -o flows.arrow"],
}
# Programs that say in other words that they have begun.
READY = {"-- tcpdump": "listening on"}
LOG = "parshall tcp -q -o flows.arrow -- bash talk.sh"
LINK = """
ip netns add receiver
ip link add veth0 type veth peer name veth1 netns receiver
ip link set veth0 addrgenmode none up
ip -n receiver link set veth1 up
ip netns exec receiver ethtool -K veth1 gro on
"""
TRACE = "parshall capture -q -i eth0 -d 1 -w {} & bash talk.sh; wait $!"
SERVER = "iperf3 --server --one-off --daemon; until ss -ltn | grep -q :5201; do sleep 0.05; done"
STORE_PORT = 5000
# A store that speaks S3, with the bucket of the manual.
STORE = (
    f"python3 -m moto.server -H 127.0.0.1 -p {STORE_PORT} > /dev/null 2>&1 & "
    f"until ss -ltn | grep -q :{STORE_PORT}; do sleep 0.05; done; "
    """python3 -c 'import boto3; boto3.client("s3").create_bucket(Bucket="bucket")'"""
)
# What a reader of a page has set.
ENVIRONMENT = {
    "docs/fleet.md": {
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{STORE_PORT}",
    }
}
# What the reader of a page has before the first line.
GIVEN = {
    "README.md": [LINK],
    "docs/convert.md": [LOG],
    "docs/fleet.md": [STORE],
    "docs/gaps.md": [LINK],
    "docs/gen-backends.md": [LINK],
    "docs/gen-receive.md": [LINK],
    "docs/gen.md": [LINK, TRACE.format("trace.pcap")],
    "docs/live.md": [LOG, "cp flows.arrow /var/log/parshall/"],
    "docs/path.md": ["ip netns add router"],
    "docs/pcap.md": ["grep -q ^sensors: /etc/group || echo sensors:x:64999: >> /etc/group"],
    "docs/show.md": [LOG, "cp flows.arrow /var/log/parshall/"],
    "docs/sizes.md": [LINK, TRACE.format("day.pcapng.zst")],
}
RING = "parshall capture -i eth0 -w /dev/null"
# What goes on beside a line.
BESIDE = {
    "parshall capture --join eth0 --filter icmp --write ping.pcapng": RING,
    "parshall pcap --join sensors -- tcpdump -i eth0 -w all.pcap": f"{RING} --name sensors",
    "parshall gen -i veth0 --stamp --count 100000": ("parshall gen -i veth1 --netns receiver --receive --count 100000"),
}
FIRST_LOG = "parshall tcp -o mine.arrow -- iperf3 --client 127.0.0.1 --time 2 --bitrate 100M > /dev/null"
# What goes before a line.
BEFORE = {
    FIRST_LOG: SERVER,
    "parshall report before after -o comparison": "cp -r results before; cp -r results after",
}
# A first look in place of the whole, which takes from twenty minutes to hours.
SHORTER = {
    "parshall lab run siftr": "--budget 60s",
    "parshall lab run siftr --against /opt/old/bin/parshall -o turns": "--quick",
    "parshall lab check siftr": "--copies 4 --repeats 3 -o check",
    "parshall lab resume lab-siftr --budget 20m": "--budget 60s",
    "parshall lab run router": "--quick",
}
NOT_RUN = {
    "make build && .venv/bin/parshall live": "the checkout is built; docs/live.md has the command",
    "parshall doctor --clean": "would remove what tests beside it leave on purpose; test_leftovers.py has it",
    "parshall lab run all -o all && parshall lab published all": "hours: docs/measurements/lab.md has its newest run",
    "parshall live --tui": "needs a terminal, which tests/core/test_live_tui.py has",
    "parshall pcap -- suricata --pcap=eth0 -c /etc/suricata/suricata.yaml": "test_pcap_programs.py has Suricata",
    "parshall gen -i veth1 --netns receiver --receive --count 100000": "runs beside the line below it",
}


@dataclass
class Machine:
    """Namespaces that a process holds, and the directory in which a reader types."""

    place: Path
    pid: int
    environment: dict[str, str] = field(default_factory=dict)
    made: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, line: str, **more: object) -> subprocess.Popen[str]:
        """Begin a line of bash, in a process group of its own."""
        words = ["nsenter", f"--target={self.pid}", "--mount", "--net", f"--wd={self.place}", "bash", "-c", line]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        path = f"{self.place}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "TERM": "xterm"} | self.environment
        started = subprocess.Popen(words, env=environment, start_new_session=True, **options | more)
        self.made.append(started)
        return started

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of bash to its end."""
        running = self.start(line)
        output = running.communicate(timeout=MOST_S)
        return subprocess.CompletedProcess(line, running.returncode, *output)


@pytest.fixture
def machine(root: None, tmp_path: Path) -> Iterator[Machine]:
    """Make one, with a peer that answers."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (place / "sudo").chmod(0o755)
    (place / ".venv").symlink_to(Path(sys.prefix))
    (place / "talk.sh").write_text(f"exec {sys.executable} {TRAFFIC} once\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = f"source {HERE / 'manual_world.sh'}; echo made; exec cat"
    with subprocess.Popen(
        ["unshare", "--mount", "--net", "bash", "-c", script],
        env=os.environ | {"PATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        read_until(holder.stdout, "made")
        made = Machine(place, holder.pid)
        serving = made.start(f"exec ip netns exec peer {sys.executable} {TRAFFIC} serve", stdin=subprocess.PIPE)
        read_until(serving.stdout, "serving")
        made.start("exec ip netns exec peer iperf3 --server")
        try:
            yield made
        finally:
            for each in made.made:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each.pid, signal.SIGKILL)
                each.communicate()
            holder.stdin.close()


def write_files(place: Path) -> None:
    """Write what pages show and then use."""
    for name, page, language in (("router.toml", "docs/model.md", "toml"), ("mine.py", "docs/studies.md", "python")):
        text = (ROOT / page).read_text()
        shown = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert shown
        (place / name).write_text(shown[1])


@contextlib.contextmanager
def beside(machine: Machine, line: str) -> Iterator[None]:
    """Keep a line of bash running, if there is one; it ends well by itself or by Ctrl-C."""
    if not line:
        yield
        return
    running = machine.start(line)
    read_until(running.stderr, "started")
    yield
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.wait(timeout=2)
    os.killpg(running.pid, signal.SIGINT) if running.poll() is None else None
    _, said = running.communicate(timeout=60)
    assert running.returncode == 0, said


def type_line(machine: Machine, line: str, is_endless: bool) -> subprocess.CompletedProcess[str]:
    """Type a line, and press Ctrl-C where the reader has to."""
    for word, own in WORDS.items():
        line = line.replace(word, own)
    if not is_endless:
        return machine.run(line)
    # A pipe would be read at the end only. A program that waits for room in it fails at Ctrl-C.
    with tempfile.TemporaryFile("w+") as shown:
        running = machine.start(line, stdout=shown)
        if "-- ngrep" in line:
            # It says nothing before its output is full, but its ring is there.
            assert machine.run("until parshall capture --list | grep process; do :; done").returncode == 0
        else:
            read_until(running.stderr, next((said for program, said in READY.items() if program in line), "started"))
        talking = machine.start(f"exec {sys.executable} {TRAFFIC}")
        for _ in range(ROUNDS):
            read_until(talking.stdout, "round")
        os.killpg(talking.pid, signal.SIGKILL)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=120)
        shown.seek(0)
        return subprocess.CompletedProcess(running.args, running.returncode, shown.read(), said)


def test_each_exception_is_a_line_of_a_manual() -> None:
    lines = {example.line for example in examples()}
    assert {*BESIDE, *BEFORE, *SHORTER, *NOT_RUN} <= lines
    assert {*GIVEN, *ENVIRONMENT} <= set(pages())
    for page, patterns in ENDLESS.items():
        for pattern in patterns:
            assert any(fnmatch(each.line, pattern) for each in examples() if each.page == page), (page, pattern)


@pytest.mark.long
@pytest.mark.parametrize("page", pages())
def test_the_examples_of_the_page(page: str, machine: Machine) -> None:
    write_files(machine.place)
    machine.environment |= ENVIRONMENT.get(page, {})
    for line in GIVEN.get(page, ()):
        given = machine.run(f"set -e; {line}")
        assert given.returncode == 0, f"{line}\n{given.stderr}"
    wrong = []
    for line in (example.line for example in examples() if example.page == page):
        if line in NOT_RUN:
            continue
        if line in BEFORE:
            assert machine.run(BEFORE[line]).returncode == 0
        with beside(machine, BESIDE.get(line, "")):
            is_endless = any(fnmatch(line, pattern) for pattern in ENDLESS.get(page, ()))
            ended = type_line(machine, f"{line} {SHORTER.get(line, '')}".strip(), is_endless)
        # tshark has a status of its own after Ctrl-C.
        is_other = is_endless and line.endswith("tshark -r -")
        if (ended.returncode and not is_other) or "Traceback" in ended.stderr:
            wrong.append(f"$ {line}\nstatus {ended.returncode}\n{ended.stdout[-500:]}{ended.stderr[-1500:]}")
    assert not wrong, "\n\n".join(wrong)
