"""The stage of native XDP: its times, held against tcpdump at both ends of a link, and what it leaves alone."""

import signal
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from conversation import connection, transfer
from path_run import Measurement
from router import Router
from test_path_faults import error_line, links_now, links_with_numbers, run
from test_path_truth import measured, paths_of, to_sink

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
COUNT = 50
STAGES = ["xdp", "gro", "netif_rx", "receive", "local_in", "start_xmit", "drop"]


@pytest.fixture
def taps(router: Router, tmp_path: Path) -> Iterator[list[Path]]:
    """Run tcpdump at both ends of the link to the router."""
    files, processes = [], []
    for host, interface in ((router.source, router.source_if), (router.router, router.in_if)):
        files.append(tmp_path / f"{host.name}.pcap")
        command = ["tcpdump", "-i", interface, "-U", "--immediate-mode", "--time-stamp-precision=nano", "-w", files[-1]]
        processes.append(host.popen([*command, "udp port 9000"], stderr=subprocess.PIPE, text=True))
        assert any("listening" in line for line in iter(processes[-1].stderr.readline, ""))
    yield files
    for process in processes:
        process.terminate()
        process.communicate()


def times_ns(file: Path) -> list[int]:
    """Return the times of a capture, as tcpdump prints them."""
    command = ["tcpdump", "-r", str(file), "-tt", "-n", "--nano"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0].replace(".", "")) for line in text.splitlines()]


def has_xdp(router: Router, interface: str) -> bool:
    """Whether an XDP program is attached, as iproute2 sees it."""
    return "prog/xdp" in router.router.run(["ip", "link", "show", "dev", interface]).stdout


def test_packets_begin_between_the_sender_and_the_stack(
    router: Router, taps: list[Path], tmp_path: Path, until: Callable[..., None]
) -> None:
    with measured(tmp_path, router.router, {"stages": STAGES, "interface": [router.in_if]}) as found:
        assert has_xdp(router, router.in_if)
        router.send(COUNT)
        for file in taps:
            until("tcpdump has all", lambda file=file: file.exists() and file.stat().st_size >= 24 + COUNT * (16 + 142))
    assert not has_xdp(router, router.in_if)
    rows = to_sink(found["log"])
    assert paths_of(rows) == {"forwarded": COUNT}
    assert set(rows["first_stage"].to_pylist()) == {"xdp"}
    assert set(rows["xdp_ns"].to_pylist()) == {0}
    assert pc.all(pc.less_equal(rows["gro_ns"], rows["receive_ns"])).as_py()
    began_ns = [value.value for value in rows["time"].combine_chunks()]
    sent_ns, received_ns = (times_ns(file) for file in taps)
    assert len(sent_ns) == len(began_ns) == len(received_ns) == COUNT
    # The wall clock of tcpdump is slewed, and a virtual machine may stop in between; so the middle of all is held.
    assert statistics.median(at - sent for at, sent in zip(began_ns, sent_ns, strict=True)) > -50_000
    assert statistics.median(received - at for at, received in zip(began_ns, received_ns, strict=True)) > -50_000
    stack_ns = [at + offset for at, offset in zip(began_ns, rows["receive_ns"].to_pylist(), strict=True)]
    assert abs(statistics.median(tap - at for tap, at in zip(received_ns, stack_ns, strict=True))) < 50_000


def test_gro_still_merges_segments(router: Router, tmp_path: Path) -> None:
    """Marks of XDP in the metadata of a packet would differ from segment to segment, and GRO would merge none."""
    # The kernel cuts a large segment up before the link, so that its parts come in one poll.
    router.source.run(["ethtool", "-K", router.source_if, "tx", "on", "sg", "on", "gso", "on", "tso", "off"])
    router.router.run(["ethtool", "-K", router.in_if, "gro", "on"])
    address = str(router.links[0].address(router.router))
    with (
        measured(tmp_path, router.router, {"stages": STAGES, "interface": [router.in_if]}) as found,
        connection(router.source, router.router, address, 5050) as (active, passive),
    ):
        transfer(active, passive, 4_000_000)
    packets = found["log"].packets
    segments = packets.filter(pc.and_(pc.equal(packets["destination_port"], 5050), pc.equal(packets["protocol"], 6)))
    assert paths_of(segments)["merged"] > segments.num_rows / 2
    assert segments["xdp_ns"].null_count == 0


def test_it_stays_attached_between_windows_and_goes_at_the_end(router: Router, until: Callable[..., None]) -> None:
    stages = ",".join(STAGES)
    with router.router.enter():
        measurement = Measurement("--stages", stages, "-i", router.in_if, "--share", "15%")
    with measurement:
        held: set[int] = set()

        def alone() -> bool:
            links = links_with_numbers(measurement.process.pid)
            held.update(links)
            return len(links) == 1

        until("a window is open", lambda: not alone())
        # A busy machine may open the next window before ip has ended.
        until("it alone is attached", lambda: alone() and has_xdp(router, router.in_if) and alone())
        answer = measurement.end(signal.SIGINT)
    assert answer.returncode == 0, answer.stderr
    assert not has_xdp(router, router.in_if)
    assert len(held) > len(STAGES)
    until("the kernel has freed its links", lambda: not held & links_now())


def test_an_interface_that_cannot_have_it(router: Router, tmp_path: Path) -> None:
    with router.router.enter():
        loopback = run("--stages", "xdp,receive", "-i", "lo", "--duration", "1")
        with measured(tmp_path, router.router, {"stages": STAGES, "interface": [router.in_if]}):
            second = run("--stages", "xdp,receive", "-i", router.in_if, "--duration", "1")
            assert has_xdp(router, router.in_if)
    for answer, interface, reason in (
        (loopback, "lo", "its driver has no native XDP"),
        (second, router.in_if, "another XDP program is attached to it"),
    ):
        line = error_line(answer.stderr)
        assert line.startswith(f"--stages xdp: expected stages that {interface} has: {reason} ("), line
        assert line.endswith("leave out xdp"), line
        assert answer.returncode == 2


def test_without_an_interface_it_is_named(router: Router, tmp_path: Path) -> None:
    with measured(tmp_path, router.router, {"stages": STAGES}) as found:
        router.send(COUNT)
    lacking: dict[str, Any] = {one["stage"]: one["reason"] for one in found["summary"].unavailable}
    assert lacking["xdp"] == "it is attached to interfaces; name them with -i"
    assert to_sink(found["log"])["xdp_ns"].null_count == COUNT
