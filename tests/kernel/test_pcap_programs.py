"""Programs of Debian and PyPI on a ring: each finds what it finds on its own packet socket, with the same traffic."""

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from capturer import frame, packets_of
from conversation import connection, socket_at
from running_command import read_until
from test_pcap import KIND, Place, Program, place

from parshall.instruments import pcap

__all__ = ["place"]
pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]


def needs(program: str) -> None:
    """Skip without a program."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed; `scripts/setup packages programs` installs it")


def test_each_listed_program_has_a_test() -> None:
    tests = "".join(Path(__file__).with_name(name).read_text() for name in ("test_pcap.py", Path(__file__).name))
    for program in pcap.PROGRAMS:
        assert f"def test_{program.name.replace('-', '_')}_" in tests, program


def test_tshark_captures_the_same(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    needs("tshark")
    files = [tmp_path / "ring.pcapng", tmp_path / "socket.pcapng"]
    programs = [
        Program(place, number == 0, "tshark", "-q", "-i", place.interface, "-f", KIND, "-c", 50, "-w", file)
        for number, file in enumerate(files)
    ]
    with programs[0], programs[1]:
        # tshark says this before its dumpcap captures; dumpcap's packet socket or ring is there when the file is.
        programs[0].wait_for_ring()
        until("both have begun", lambda: all(file.exists() for file in files))
        place.sender.send([frame(number, 60 + number) for number in range(50)])
        done = [program.end() for program in programs]
    assert [one.returncode for one in done] == [0, 0], done
    assert "without the ring" not in done[0].stderr
    assert packets_of(files[0]) == packets_of(files[1])
    assert len(packets_of(files[0])) == 50


def test_ngrep_finds_the_same(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    needs("ngrep")
    address = place.link.address(place.host)
    outputs = [tmp_path / "ring.txt", tmp_path / "socket.txt"]
    with outputs[0].open("w") as ring_file, outputs[1].open("w") as socket_file:
        programs = [
            Program(place, number == 0, "ngrep", "-l", "-d", place.interface, "needle", "udp", stdout=file)
            for number, file in enumerate((ring_file, socket_file))
        ]
        with programs[0], programs[1]:
            programs[0].wait_for_ring()
            until("both have begun", lambda: all("filter:" in file.read_text() for file in outputs))
            with socket_at(place.left, address, socket.SOCK_DGRAM) as sending:
                for number in range(10):
                    sending.sendto(b"a needle %d" % number if number % 2 else b"hay", (address, 9))
            until("both have found", lambda: all("needle 9" in file.read_text() for file in outputs))
            for program in programs:
                program.end(signal.SIGINT)
    found = [re.findall(r"^U .*\n.*needle \d", file.read_text(), re.MULTILINE) for file in outputs]
    assert found[0] == found[1]
    assert len(found[0]) == 5


def scans(place: Place, *command: object) -> list[str]:
    """What a scan of the other host prints, on the ring and as it is."""
    done = [Program(place, True, *command).wait_for_ring().end(), Program(place, False, *command).end()]
    assert [one.returncode for one in done] == [0, 0], done
    assert "without the ring" not in done[0].stderr
    return [one.stdout for one in done]


def test_arp_scan_finds_the_same_hosts(place: Place) -> None:
    needs("arp-scan")
    network = place.link.address(place.host).rsplit(".", 1)[0] + ".0/28"
    printed = scans(place, "arp-scan", "--interface", place.interface, "--retry=2", "--timeout=200", network)
    found = [re.findall(r"^[\d.]+\t[0-9a-f:]{17}", text, re.MULTILINE) for text in printed]
    assert found[0] == found[1]
    assert [line.split("\t")[0] for line in found[0]] == [place.link.address(place.left)]


def test_nmap_finds_the_same_hosts(place: Place) -> None:
    needs("nmap")
    network = place.link.address(place.host).rsplit(".", 1)[0] + ".0/28"
    printed = scans(place, "nmap", "-n", "-sn", "--max-retries", "2", "-oG", "-", network)
    found = [re.findall(r"Host: ([\d.]+)", text) for text in printed]
    assert found[0] == found[1]
    assert set(found[0]) == {place.link.address(place.left), place.link.address(place.host)}


def test_p0f_reads_the_same_signatures(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    needs("p0f")
    logs = [tmp_path / "ring.log", tmp_path / "socket.log"]
    programs = [
        Program(place, number == 0, "p0f", "-i", place.interface, "-o", log, stderr=subprocess.STDOUT)
        for number, log in enumerate(logs)
    ]
    with programs[0], programs[1]:
        programs[0].wait_for_ring()
        for program in programs:
            read_until(program.process.stdout, "Entered main event loop")
        address = place.link.address(place.host)
        with connection(place.left, place.host, address, 8080):
            pass
        until("both have both sides", lambda: all(log.read_text().count("mod=syn") == 2 for log in logs))
        for program in programs:
            program.process.send_signal(signal.SIGINT)
            program.process.wait(30)
    signatures = [re.findall(r"mod=syn.*?raw_sig=(\S+)", log.read_text()) for log in logs]
    assert signatures[0] == signatures[1]


def test_scapy_sniffs_the_same(place: Place, tmp_path: Path) -> None:
    pytest.importorskip("scapy", reason="scapy is not installed; it is in the extra `dev`")
    script = tmp_path / "sniff.py"
    script.write_text(SNIFFING)
    for on_ring in place.both_ways():
        with Program(place, on_ring, sys.executable, script, place.interface, KIND) as program:
            program.wait_for("ready")
            assert bool(place.rings()) == on_ring
            place.sender.send([frame(number, 60 + number) for number in range(20)])
            done = program.end()
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [frame(number, 60 + number).hex() for number in range(20)]


def suricata() -> tuple[Path, dict[str, str]]:
    """Suricata that is installed, or that `scripts/setup suricata` unpacked, and the environment that it needs."""
    installed = shutil.which("suricata")
    if installed:
        return Path(installed), dict(os.environ)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = cache / "parshall/programs/suricata"
    if not root.exists():
        pytest.skip("suricata is not installed; `scripts/setup suricata` unpacks it")
    libraries = ":".join(str(path) for path in (root / "usr/lib").glob("*-linux-gnu"))
    return root / "usr/bin/suricata", os.environ | {"LD_LIBRARY_PATH": libraries}


def test_suricata_sees_the_same(place: Place, until: Callable[..., None], tmp_path: Path) -> None:
    program, environment = suricata()
    rules = tmp_path / "needle.rules"
    rules.write_text('alert udp any any -> any any (msg:"needle"; content:"needle"; sid:1; rev:1;)\n')
    started = []
    for name in ("ring", "socket"):
        directory = tmp_path / name
        directory.mkdir()
        settings = directory / "suricata.yaml"
        settings.write_text(SURICATA)
        words = (program, "-c", settings, "-S", rules, "-l", directory, "-k", "none", f"--pcap={place.interface}")
        with (directory / "output").open("w") as output:
            started.append(
                Program(place, name == "ring", *words, stdout=output, stderr=subprocess.STDOUT, env=environment)
            )
    address = place.link.address(place.host)
    with started[0], started[1]:
        outputs = [tmp_path / name / "output" for name in ("ring", "socket")]
        until("both have begun", lambda: all("Engine started" in file.read_text() for file in outputs), timeout_s=60)
        assert place.rings()
        with socket_at(place.left, address, socket.SOCK_DGRAM) as sending:
            for number in range(100):
                sending.sendto(b"a needle %d" % number if number % 2 else b"hay", (address, 9))
        with connection(place.left, place.host, address, 8080):
            pass
        logs = [file.with_name("eve.json") for file in outputs]
        until("both have alerted", lambda: all(log.read_text().count(ALERT) >= 50 for log in logs))
        # It asks for the counts at the first packet of a second.
        second = int(time.time())
        until("another second has begun", lambda: int(time.time()) > second)
        with (
            socket_at(place.host, address, socket.SOCK_DGRAM) as quiet,
            socket_at(place.left, address, socket.SOCK_DGRAM) as sending,
        ):
            quiet.bind((address, 0))
            sending.sendto(b"a needle 101", quiet.getsockname())
            until("both have read it", lambda: all(log.read_text().count(ALERT) >= 51 for log in logs))
        for one in started:
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(60) == 0
    assert "without the ring" not in outputs[0].read_text()
    events = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    alerts = [[one["payload"] for one in seen if one["event_type"] == "alert"] for seen in events]
    # Its threads write the alerts of two flows in any order.
    needles = [b"a needle %d" % number for number in range(1, 102, 2)]
    for one in alerts:
        assert sorted(map(base64.b64decode, one)) == sorted(needles)
    ports = ({9}, {8080})
    flows = [
        sorted(
            (one["proto"], one["src_ip"], one["dest_port"], *(one["flow"][key] for key in COUNTED))
            for one in seen
            if one["event_type"] == "flow" and one["proto"] in ("TCP", "UDP") and {one["dest_port"]} in ports
        )
        for seen in events
    ]
    assert flows[0] == flows[1]
    assert [(flow[0], flow[3]) for flow in flows[0]][1] == ("UDP", 100)
    statistics = [[one["stats"] for one in seen if one["event_type"] == "stats"][-1] for seen in events]
    for one in statistics:
        # Packets that libpcap counted and those that the program decoded.
        assert one["capture"]["kernel_packets"] == one["decoder"]["pkts"]
        assert one["capture"]["kernel_drops"] == 0


# The word alone is twice in each.
ALERT = '"event_type":"alert"'
COUNTED = ("pkts_toserver", "bytes_toserver", "pkts_toclient", "bytes_toclient")
SURICATA = """%YAML 1.1
---
outputs:
  - eve-log:
      enabled: yes
      filename: eve.json
      types: [alert: {payload: yes}, flow, stats]
stats: {enabled: yes, interval: 1}
logging:
  default-log-level: notice
  outputs:
    - console: {enabled: yes}
pcap:
  - interface: default
unix-command: {enabled: no}
"""

SNIFFING = """
import sys
from scapy.config import conf
conf.use_pcap = True
from scapy.sendrecv import sniff
report = lambda: print("ready", file=sys.stderr, flush=True)
for packet in sniff(iface=sys.argv[1], filter=sys.argv[2], count=20, timeout=30, started_callback=report):
    print(bytes(packet).hex())
"""
