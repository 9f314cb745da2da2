"""Conventions that need the kernel: a line when measuring has begun, and network namespaces by option."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conversation import connection, transfer

import in_process
import parshall
from parshall.instruments.tcp import TcpLog

pytestmark = pytest.mark.kernel
PARSHALL = Path(sys.executable).with_name("parshall")
PORT = 23_457

# Command, and what its first line says after "started, ".
MEASURING = {
    "tcp": (["tcp", "-o", "{dir}/x.arrow"], "logging to {dir}/x.arrow"),
    "capture": (["capture", "-i", "{right}", "--netns", "{netns}", "-w", "{dir}/x.pcapng"], "capturing at {right} ("),
    "capture-socket": (
        ["capture", "-i", "{right}", "--netns", "{netns}", "-w", "{dir}/x.pcap", "--backend", "af-packet"],
        "capturing at {right}",
    ),
    "gen": (["gen", "-i", "{left}", "--netns", "{sender}", "--pps", "100"], "sending from {left}"),
    "receive": (["gen", "-i", "{right}", "--netns", "{netns}", "--receive"], "receiving at {right}"),
    "sizes": (["sizes", "--from", "live", "-i", "{right}", "--netns", "{netns}"], "counting at {right}"),
    "cpu": (["cpu", "--interval", "20ms"], "one sample every 0.02 s"),
}


def command_of(name: str, standing_xdp_link: Any, directory: Path) -> tuple[list[str], str]:
    """Return a command that measures at a link of this test, and its first line."""
    sender, receiver, link = standing_xdp_link
    words, says = MEASURING[name]
    values = {
        "dir": directory,
        "left": link.interface(sender),
        "right": link.interface(receiver),
        "sender": sender.namespace,
        "netns": receiver.namespace,
    }
    line = f"parshall: {words[0]}: started, {says.format(**values)}"
    return [word.format(**values) for word in words], line


@pytest.mark.parametrize("name", MEASURING)
def test_a_line_reports_the_start(standing_xdp_link: Any, name: str, tmp_path: Path) -> None:
    command, line = command_of(name, standing_xdp_link, tmp_path)
    with subprocess.Popen(
        [PARSHALL, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            first = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert first.startswith(line), first


@pytest.mark.parametrize("name", ["tcp", "capture", "gen", "cpu"])
def test_quiet_prints_nothing(standing_xdp_link: Any, name: str, tmp_path: Path) -> None:
    command, _ = command_of(name, standing_xdp_link, tmp_path)
    command += ["--quiet", "-d", "200ms", *(["-a"] if name == "cpu" else [])]
    result = in_process.parshall(*command)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_log_of_one_namespace_has_its_sockets_only(ends: Any, tmp_path: Path) -> None:
    """The numbers of the namespaces are those that stat(1) shows."""
    left, right, link = ends
    by_name, by_path = tmp_path / "name.arrow", tmp_path / "path.arrow"
    with (
        TcpLog(by_name, netns=left.namespace, port=PORT) as first,
        TcpLog(by_path, netns=right.path, port=PORT) as second,
    ):
        with connection(left, right, link.address(right), PORT) as (active, passive):
            transfer(active, passive, 100_000)
    for log, host, port_column in ((first, left, "remote_port"), (second, right, "local_port")):
        flows = parshall.read(log.path).flows.to_pylist()
        assert [flow[port_column] for flow in flows] == [PORT]
        inode = int(host.run(["stat", "-L", "-c", "%i", "/proc/self/ns/net"]).stdout)
        assert {flow["netns_inode"] for flow in flows} == {inode}
        hooks = {hook["hook"]: hook for hook in log.stop().ledger["hooks"]}
        assert hooks["tcp_ingress"]["seen"] > hooks["tcp_ingress"]["filtered"] > 0
        assert log.stop().ledger["complete"]


def test_a_log_of_another_namespace_sees_nothing(ends: Any, tmp_path: Path) -> None:
    left, right, link = ends
    with TcpLog(tmp_path / "log.arrow", netns="/proc/self/ns/net", port=PORT) as log:
        with connection(left, right, link.address(right), PORT) as (active, passive):
            transfer(active, passive, 10_000)
    assert log.stop().flows == 0


def test_a_ring_of_a_namespace_is_joined_from_another(standing_xdp_link: Any, tmp_path: Path, until: Any) -> None:
    sender, receiver, link = standing_xdp_link
    name = f"netns-{os.getpid()}"
    where = ["-i", link.interface(receiver), "--netns", receiver.path, "--name", name]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    files = [tmp_path / "first.pcap", tmp_path / "second.pcap"]
    with subprocess.Popen([PARSHALL, "capture", *where, "-w", files[0], "--json"], **pipe) as first:
        assert "started" in first.stderr.readline()
        with subprocess.Popen([PARSHALL, "capture", "--join", name, "-w", files[1], "--json"], **pipe) as second:
            assert "started" in second.stderr.readline()
            words = ["-i", link.interface(sender), "--netns", sender.namespace, "-c", "1k", "--json"]
            sent = in_process.parshall("gen", *words)
            assert json.loads(sent.stdout)["arrived"] == 1000
            ledgers = []
            for process in (second, first):
                process.send_signal(signal.SIGINT)
                output, _ = process.communicate(timeout=30)
                ledgers.append(json.loads(output)["ledger"])
    for ledger, file in zip(ledgers, reversed(files), strict=True):
        assert ledger["complete"]
        counted = subprocess.run(
            ["tcpdump", "-nr", file, "udp port 9"], capture_output=True, text=True, check=True
        ).stdout.count("\n")
        assert counted == 1000


@pytest.mark.parametrize("command", ["tcp", "capture"])
def test_a_pipe_whose_reader_closes_it_is_no_failure(ends: Any, command: str) -> None:
    left, right, link = ends
    words = {
        "tcp": ["tcp", "-o", "-", "--netns", right.namespace],
        "capture": ["capture", "-w", "-", "-i", link.interface(right), "--netns", right.namespace],
    }[command]
    with subprocess.Popen([PARSHALL, *words, "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.read(4)
            process.stdout.close()
            # A log is written once a second, and only a write shows that a pipe has no reader.
            while process.poll() is None:
                with connection(left, right, link.address(right), PORT) as (active, passive):
                    transfer(active, passive, 10_000)
            errors = process.stderr.read()
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, b"")
