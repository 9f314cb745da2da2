"""Histograms by command, held against tcpdump and what each command sent and read."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, socket_at, transfer

from parshall.host.cgroups import TemporaryCgroup
from parshall.instruments.path import PathProfile, PathSummary

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
SENT = {"alpha": (9001, 137), "beta": (9002, 211)}
"""Command -> port to which it sends, and how many datagrams."""

NAMED = "import socket, sys; open('/proc/self/comm', 'w').write(sys.argv[1]); "
SEND = NAMED + (
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
    "[s.sendto(bytes(100), (sys.argv[2], int(sys.argv[3]))) for _ in range(int(sys.argv[4]))]"
)
READ = NAMED + (
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[2], int(sys.argv[3]))); "
    "print('bound', flush=True); [s.recv(2000) for _ in range(int(sys.argv[4]))]"
)


@pytest.fixture
def pair(bed: Any) -> tuple[Any, Any, Any]:
    """Two hosts, and the link between them."""
    left, right = bed.host("left"), bed.host("right")
    return left, right, bed.link(left, right, backend="veth")


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A control group without processes."""
    group = TemporaryCgroup("reads")
    yield group.path
    group.remove()


def packets_by_command(summary: PathSummary, path: str) -> dict[str, int]:
    """Return packets of a code path by command."""
    rows = [row for row in summary.times if row["group"] and row["stage"] == "whole" and row["path"] == path]
    return {row["group"]["command"]: row["packets"] for row in rows}


def run_each(host: Any, program: str, address: str) -> list[Any]:
    """Start a program for each command."""
    arguments = [[name, address, str(port), str(count)] for name, (port, count) in SENT.items()]
    return [host.popen([sys.executable, "-c", program, *each], stdout=subprocess.PIPE, text=True) for each in arguments]


def end_each(processes: Sequence[Any]) -> None:
    """Wait for the programs."""
    for process in processes:
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_what_commands_send_is_what_tcpdump_sees_at_their_ports(pair: Any) -> None:
    left, right, link = pair
    command = ["tcpdump", "-i", link.interface(left), "-n", "-l", "--immediate-mode", "udp and portrange 9001-9002"]
    tap = left.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any("listening" in line for line in iter(tap.stderr.readline, ""))
    with PathProfile(netns=left.namespace, by="command", filter="udp portrange 9001-9002") as profile:
        end_each(run_each(left, SEND, str(link.address(right))))
    lines = [tap.stdout.readline() for _ in range(sum(count for _, count in SENT.values()))]
    tap.terminate()
    tap.communicate()
    seen = {name: sum(f".{port}: " in line for line in lines) for name, (port, _) in SENT.items()}
    assert seen == {name: count for name, (_, count) in SENT.items()}
    assert packets_by_command(profile.summary, "sent") == seen
    assert profile.summary.ungrouped == 0


def test_delivered_packets_have_the_command_that_reads_them(pair: Any) -> None:
    left, right, link = pair
    address = str(link.address(right))
    readers = run_each(right, READ.replace("[s.recv", "s.recv(2000); print('read', flush=True); [s.recv"), address)
    assert [process.stdout.readline() for process in readers] == ["bound\n"] * 2
    stages = ["netif_rx", "receive", "local_in", "data_ready"]
    options: dict[str, Any] = {"by": "command", "filter": "udp portrange 9001-9002", "stages": stages}
    with PathProfile(netns=right.namespace, reads=True, **options) as profile:
        # A packet that ends before its socket was read for the first time has no name.
        with socket_at(left, address, socket.SOCK_DGRAM) as first:
            for process, (port, _) in zip(readers, SENT.values(), strict=True):
                first.sendto(b"first", (address, port))
                assert process.stdout.readline() == "read\n"
        # Other names send, so that no name is there by chance.
        end_each(run_each(left, SEND.replace("sys.argv[1]", "'sender'"), address))
        end_each(readers)
    assert packets_by_command(profile.summary, "delivered") == {name: 1 + count for name, (_, count) in SENT.items()}


def test_without_readers_nobody_is_named_for_what_arrives(pair: Any) -> None:
    left, right, link = pair
    address = str(link.address(right))
    readers = run_each(right, READ, address)
    assert [process.stdout.readline() for process in readers] == ["bound\n"] * 2
    with PathProfile(netns=right.namespace, by="command", filter="udp portrange 9001-9002") as profile:
        end_each(run_each(left, SEND, address))
        end_each(readers)
    assert packets_by_command(profile.summary, "delivered") == {"(softirq)": sum(count for _, count in SENT.values())}


def test_every_sent_packet_of_tcp_is_of_a_command_or_of_the_softirq(pair: Any) -> None:
    left, right, link = pair
    with PathProfile(netns=left.namespace, by="command", filter="tcp") as profile:
        with connection(left, right, str(link.address(right)), 5050) as (active, passive):
            transfer(active, passive, 3_000_000)
    found = packets_by_command(profile.summary, "sent")
    assert sum(found.values()) == profile.summary.paths["sent"] > 0
    ours = Path("/proc/thread-self/comm").read_text().rstrip()
    kernel_threads = re.compile(r"ksoftirqd/|kworker/|napi/")
    assert all(name in (ours, "(softirq)") or kernel_threads.match(name) for name in found), found
    assert found[ours] > 0


def test_reads_are_those_of_the_chosen_control_group(pair: Any, control_group: Path) -> None:
    left, right, link = pair
    address = str(link.address(right))
    # The socket belongs to the group in which it is made.
    enter = f"open({str(control_group / 'cgroup.procs')!r}, 'w').write('0') if sys.argv[1] == 'alpha' else None; "
    readers = run_each(right, READ.replace("s = socket", f"{enter}s = socket", 1), address)
    assert [process.stdout.readline() for process in readers] == ["bound\n"] * 2
    options: dict[str, Any] = {"cgroup": control_group, "filter": "udp portrange 9001-9002"}
    stages = ["netif_rx", "receive", "socket_in", "data_ready"]
    with PathProfile(netns=right.namespace, reads=True, stages=stages, **options) as profile:
        end_each(run_each(left, SEND, address))
        end_each(readers)
    count = SENT["alpha"][1]
    assert profile.summary.paths["delivered"] == count
    (whole,) = (row for row in profile.summary.reads if row["kind"] == "whole")
    assert 0 < whole["events"] <= count
    assert whole["events"] == profile.summary.ledger["hooks"][1]["seen"]


@pytest.mark.parametrize("by", ["none", "cgroup"])
def test_what_a_control_group_receives_is_known_without_a_log(pair: Any, control_group: Path, by: str) -> None:
    left, right, link = pair
    address = str(link.address(right))
    enter = f"open({str(control_group / 'cgroup.procs')!r}, 'w').write('0') if sys.argv[1] == 'alpha' else None; "
    readers = run_each(right, READ.replace("s = socket", f"{enter}s = socket", 1), address)
    assert [process.stdout.readline() for process in readers] == ["bound\n"] * 2
    options: dict[str, Any] = {"by": by} if by == "cgroup" else {"cgroup": control_group}
    with PathProfile(netns=right.namespace, filter="udp portrange 9001-9002", **options) as profile:
        end_each(run_each(left, SEND, address))
        end_each(readers)
    counts = [count for _, count in SENT.values()]
    if by == "none":
        assert profile.summary.paths["delivered"] == SENT["alpha"][1]
        return
    found = {
        row["group"]["cgroup_id"]: row["packets"]
        for row in profile.summary.times
        if row["group"] and (row["path"], row["stage"]) == ("delivered", "whole")
    }
    assert found[control_group.stat().st_ino] == SENT["alpha"][1]
    assert sum(found.values()) == sum(counts) and 0 not in found
    names = {row["group"]["cgroup_id"]: row["group"]["cgroup"] for row in profile.summary.times if row["group"]}
    assert names[control_group.stat().st_ino].endswith(f"/{control_group.name}")
