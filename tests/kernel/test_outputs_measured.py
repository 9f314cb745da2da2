"""What `--json` prints of measurements is as the schemas in `docs/formats/schemas` say: see tests/cli, too."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accept_queues import Clients, listener_at, overflows
from conversation import connection, transfer
from ports import PORTS
from running_command import read_until
from tcp_logger import STARTED, Logger

import in_process
from made_calibration import known
from output_cases import AS_ROOT, json_words
from output_schemas import validated

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
PARSHALL = Path(sys.executable).with_name("parshall")
STUDY = """
from parshall.lab import *

def setting(level, duration_s):
    send = "exec 3>/dev/udp/{b.address}/9; for i in 1 2 3; do echo >&3; done"
    return Setting(
        [Host("a"), Host("b")], [Link("a", "b")],
        [Program("send", "a", ["bash", "-c", send], "workload", is_json=False)], duration_s,
    )

study = Study(
    "small", "Small", "Does it run?", setting, levels=grid(n=[1]), repeats=1, duration_s=0,
    measures=[Measure("received", "packets", lambda run: run.received("b"))],
)
"""


@pytest.fixture(scope="module")
def made(root: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A calibration, and a study that ran."""
    directory = tmp_path_factory.mktemp("made")
    known().write(directory / "router.toml")
    (directory / "study.py").write_text(STUDY)
    answer = in_process.parshall("lab", "run", directory / "study.py", "-o", directory / "out")
    assert answer.returncode == 0, answer.stderr
    return {"calibration": directory / "router.toml", "study": directory / "out"}


@pytest.mark.parametrize("name", AS_ROOT)
def test_what_is_printed_is_as_the_schema_says(
    name: str, standing_xdp_link: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sender, receiver, link = standing_xdp_link
    command, words = AS_ROOT[name]
    (tmp_path / "study.py").write_text(STUDY)
    values = {"tmp": tmp_path, "sender": sender.namespace, "receiver": receiver.namespace}
    values |= {"left": link.interface(sender), "right": link.interface(receiver)}
    if any("{calibration}" in word or "{study}" in word for word in words):
        values |= request.getfixturevalue("made")
    answer = in_process.parshall(*json_words(command), *(word.format(**values) for word in words))
    # Nothing came to some of them, and this host may not have all that doctor tries.
    assert answer.returncode in (0, 1), answer.stderr
    assert validated(command, answer.stdout) is not None


def test_rings_flows_and_drops_are_as_the_schemas_say(
    pair: Any, clients_at: Callable[[Any], Clients], tmp_path: Path, until: Callable[..., None]
) -> None:
    """With all that they have only while something happens: a ring, a full accept queue, joined files."""
    left, right, address = pair
    port = next(PORTS)
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    interface = left.run(["sh", "-c", "ls /sys/class/net | grep -v lo"]).stdout.split()[0]
    path = ["path", "-o", tmp_path / "p.arrow", "--tcp-log", tmp_path / "t.arrow", "--capture", tmp_path / "c.pcapng"]
    path += ["-i", interface, "--netns", left.namespace, "--reads", "--by", "command", "--probe-cost", "--json"]
    path += ["--stages", "gro,netif_rx,receive,pre_routing,local_in,data_ready,local_out,queue,start_xmit,drop"]
    with (
        Logger(until, "-o", tmp_path / "x.arrow", "--port", str(port), "--json") as log,
        subprocess.Popen([PARSHALL, *path], **pipe) as paths,
        listener_at(right, address, port, backlog=1),
    ):
        STARTED.add(paths.pid)
        read_until(paths.stderr, "started")
        before = overflows(right)
        clients_at(left).connect(address, port, 12)
        until("the kernel has refused some", lambda: overflows(right) > before)
        with connection(left, right, address, next(PORTS)) as (active, passive):
            transfer(active, passive, 100_000)
        listed = validated("capture", in_process.parshall("capture", "--list", "--json").stdout)
        assert paths.pid in (each["pid"] for one in listed if "hooks" in one for each in one["subscribers"])
        paths.send_signal(signal.SIGINT)
        printed, _ = paths.communicate(timeout=60)
        logged = log.end(signal.SIGINT).stdout
    assert validated("tcp", logged)["listeners"]
    assert validated("path", printed)["connections"]
    files = [tmp_path / name for name in ("p.arrow", "t.arrow", "c.pcapng")]
    joined = in_process.parshall("path", "--join", *files, "--json")
    assert validated("path", joined.stdout)["connections"]
    assert validated("show", in_process.parshall("show", tmp_path / "x.arrow", "--json").stdout)["flows"]


def test_sizes_that_are_counted_live_are_as_the_schema_says(standing_xdp_link: Any) -> None:
    sender, receiver, link = standing_xdp_link
    words = ["sizes", "--json", "--from", "live", "-i", link.interface(receiver), "--netns", receiver.namespace]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([PARSHALL, *words, "-c", "100", "-o", "/dev/null"], **pipe) as counting:
        STARTED.add(counting.pid)
        read_until(counting.stderr, "started")
        in_process.parshall("gen", "-i", link.interface(sender), "--netns", sender.namespace, "-c", "200")
        printed, _ = counting.communicate(timeout=60)
    assert validated("sizes", printed)["ledger"]


@pytest.mark.parametrize("more", [[], ["--path", "100%"]], ids=["tcp", "path"])
def test_the_lines_of_the_page_are_as_the_schema_says(tmp_path: Path, more: list[str]) -> None:
    answer = in_process.parshall("live", "--json", "-d", "1s", "--port", str(next(PORTS)), *more, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    first, last = (validated("live", line) for line in answer.stdout.splitlines())
    assert "url" in first and last["ledger"]["complete"]
    assert (last["path"] is not None) == bool(more)


@pytest.mark.long
def test_published_numbers_are_as_the_schema_says() -> None:
    answer = subprocess.run([PARSHALL, "model", "published", "--json"], capture_output=True, text=True, timeout=1200)
    assert validated("model published", answer.stdout)["quantities"]
