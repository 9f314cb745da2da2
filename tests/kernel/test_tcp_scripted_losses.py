"""Causes of retransmissions and verdicts, where a script decides which segments are lost or late."""

import random
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conversation import connection, transfer
from middle_box import MiddleBox, Rule, real_time
from ports import PORTS
from retransmission_counters import check_counters, counters
from tcp_flow_table import ours, unacknowledged_of
from tcp_logger import EVENT_HOOKS, PACKET_HOOKS, account_text, check_log, rows_of, total

from parshall.instruments.tcp import TcpLog
from parshall.testbed import Testbed
from suites import long_except

pytestmark = pytest.mark.kernel
HOOKS = (*PACKET_HOOKS, *EVENT_HOOKS)
# In each direction, so that what the machine delays is short beside it.
DELAY_MS = 20
# Of the window for reordering, which is a quarter of the round-trip time, less than half.
LATE_MS = 4
# The writes of a scenario, in segments: the first one gives the kernel its round-trip times.
FIRST = 10


def data(action: str, *numbers: int, transmissions: tuple[int, ...] | None = (1,), **options: float) -> Rule:
    """A rule for data segments of the client."""
    return Rule("client", "data", action, numbers, transmissions, **options)


def acks(*numbers: int) -> Rule:
    """Drop the first ACK of the server up to each of these data segments."""
    return Rule("server", "ack", "drop", numbers)


@dataclass(frozen=True)
class Scenario:
    """A script and what must come of it.

    Attributes
    ----------
    rules
        The script of the box.
    expected
        For each retransmission the number of its segment, its cause, and what shows that it was spurious; "needed"
        if nothing does, "unknown" if nothing can.
    counters
        The kernel's counters of the client's host.
    segments
        Segments of the writes; a write begins when the one before it is acknowledged.
    client, server
        Settings of the hosts (``net.ipv4``).
    """

    rules: tuple[Rule, ...]
    expected: tuple[tuple[int, str, str], ...]
    counters: Mapping[str, int]
    segments: tuple[int, ...] = (FIRST, 10)
    client: Mapping[str, int] = field(default_factory=dict)
    server: Mapping[str, int] = field(default_factory=dict)


SCENARIOS = {
    "a segment of a long flow is lost": Scenario(
        rules=(data("drop", 100),),
        expected=((100, "fast", "needed"),),
        counters={"TCPFastRetrans": 1},
        segments=(FIRST, 190),
    ),
    "a segment of a long flow is lost, without the duplicate threshold": Scenario(
        rules=(data("drop", 100),),
        expected=((100, "rack", "needed"),),
        counters={"TCPFastRetrans": 1},
        segments=(FIRST, 190),
        client={"tcp_recovery": 5},
    ),
    "three segments of a window are lost": Scenario(
        rules=(data("drop", 12, 13, 15),),
        expected=((12, "fast", "needed"), (13, "fast", "needed"), (15, "fast", "needed")),
        counters={"TCPFastRetrans": 3},
    ),
    "a segment is lost and two follow": Scenario(
        rules=(data("drop", 18),),
        expected=((18, "rack", "needed"),),
        counters={"TCPFastRetrans": 1},
    ),
    "a segment is lost without SACK": Scenario(
        rules=(data("drop", 12),),
        expected=((12, "fast", "unknown"),),
        counters={"TCPFastRetrans": 1},
        client={"tcp_sack": 0},
    ),
    "the last segment is lost": Scenario(
        rules=(data("drop", 20),),
        expected=((20, "tlp", "needed"),),
        counters={"TCPLossProbes": 1, "TCPLossProbeRecovery": 1},
        # The kernel counts the repair when more is acknowledged than was sent before the probe.
        segments=(FIRST, 10, 2),
    ),
    "the last two segments are lost": Scenario(
        # RACK ignores a probe whose answer comes sooner than the minimum round-trip time, so it is slower here.
        rules=(data("drop", 19, 20), data("hold", 20, transmissions=(2,), delay_ms=5)),
        expected=((20, "tlp", "needed"), (19, "rack", "needed")),
        counters={"TCPLossProbes": 1, "TCPFastRetrans": 1},
    ),
    "the last segment and its probe are lost": Scenario(
        rules=(data("drop", 20, transmissions=(1, 2)),),
        expected=((20, "tlp", "needed"), (20, "rto", "needed")),
        counters={"TCPLossProbes": 1, "TCPTimeouts": 1},
    ),
    "a write and its probe are lost": Scenario(
        rules=(data("drop", 11, 12, 13), data("drop", 14, transmissions=(1, 2))),
        expected=(
            (14, "tlp", "needed"),
            (11, "rto", "needed"),
            (12, "rto", "needed"),
            (13, "rto", "needed"),
            (14, "rto", "needed"),
        ),
        counters={"TCPLossProbes": 1, "TCPTimeouts": 1, "TCPSlowStartRetrans": 3},
        segments=(FIRST, 4),
    ),
    "the ACK of the last segment is lost": Scenario(
        rules=(acks(20),),
        expected=((20, "tlp", "dsack"),),
        counters={"TCPLossProbes": 1, "TCPDSACKRecv": 1},
    ),
    "a delay is longer than the retransmission timeout": Scenario(
        rules=(data("hold", 11, delay_ms=700),),
        expected=((14, "tlp", "dsack"), (11, "rto", "dsack")),
        counters={"TCPLossProbes": 1, "TCPTimeouts": 1, "TCPDSACKRecv": 2},
        segments=(FIRST, 4),
    ),
    "a delay is longer than the retransmission timeout, without DSACK": Scenario(
        rules=(data("hold", 11, delay_ms=700),),
        # Nothing shows that the probe was spurious, too: the window is restored before its segment is acknowledged.
        expected=((14, "tlp", "needed"), (11, "rto", "undo")),
        counters={"TCPLossProbes": 1, "TCPTimeouts": 1, "TCPDSACKRecv": 0},
        segments=(FIRST, 4),
        server={"tcp_dsack": 0},
    ),
    "a segment is overtaken": Scenario(
        rules=(data("let_overtake", 12, delay_ms=15),),
        expected=((12, "fast", "dsack"),),
        counters={"TCPFastRetrans": 1, "TCPDSACKRecv": 1},
    ),
    "a segment is overtaken, without DSACK": Scenario(
        rules=(data("let_overtake", 12, delay_ms=15),),
        expected=((12, "fast", "undo"),),
        counters={"TCPFastRetrans": 1, "TCPDSACKRecv": 0},
        server={"tcp_dsack": 0},
    ),
    "a segment is overtaken in a window that has a loss": Scenario(
        rules=(data("let_overtake", 12, delay_ms=15), data("drop", 14)),
        expected=((12, "fast", "dsack"), (14, "fast", "needed")),
        counters={"TCPFastRetrans": 2, "TCPDSACKRecv": 1},
    ),
    "a segment is lost after reordering was seen": Scenario(
        rules=(data("let_overtake", 18, delay_ms=5), data("drop", 22)),
        expected=((22, "rack", "needed"),),
        counters={"TCPFastRetrans": 1, "TCPDSACKRecv": 0},
        segments=(FIRST, 10, 10),
    ),
    "a retransmission is lost and nothing follows": Scenario(
        rules=(data("drop", 18, transmissions=(1, 2)),),
        expected=((18, "rack", "needed"), (18, "rto", "needed")),
        counters={"TCPFastRetrans": 1, "TCPTimeouts": 1},
    ),
    "a delay is longer than the retransmission timeout, and the first segment is lost": Scenario(
        rules=(data("drop", 11), data("hold", 12, delay_ms=700)),
        expected=((14, "tlp", "dsack"), (11, "rto", "needed")),
        counters={"TCPLossProbes": 1, "TCPTimeouts": 1, "TCPDSACKOfoRecv": 1},
        segments=(FIRST, 4),
    ),
    "a segment is lost, and the ACKs until after the timeout": Scenario(
        rules=(data("drop", 11), Rule("server", "ack", "drop", (10,), (2, 3, 4, 5))),
        expected=((14, "tlp", "needed"), (11, "rto", "needed")),
        counters={"TCPLossProbes": 1, "TCPTimeouts": 1},
        segments=(FIRST, 4),
    ),
}


def box_in(bed: Any) -> MiddleBox:
    """Two hosts with a box between them, and a congestion control that does not pace."""
    made = MiddleBox(bed)
    for host in (made.left, made.right):
        host.sysctl("net.ipv4.tcp_congestion_control", "reno")
        # A connection must not begin with what another one measured.
        host.sysctl("net.ipv4.tcp_no_metrics_save", 1)
        # From Linux 6.7 on, a host may answer several segments with one ACK while a process holds the lock of the
        # socket, and then reports only one of several duplicates.
        if Path("/proc/sys/net/ipv4/tcp_backlog_ack_defer").exists():
            host.sysctl("net.ipv4.tcp_backlog_ack_defer", 0)
    return made


@pytest.fixture(scope="module")
def box(root: None) -> Iterator[MiddleBox]:
    """A box for all tests after which its hosts are as before."""
    with Testbed() as bed:
        yield box_in(bed)


@contextmanager
def set_at(host: Any, settings: Mapping[str, int]) -> Iterator[None]:
    """Give a host these settings (``net.ipv4``) for the length of the block."""
    before = {name: host.sysctl(f"net.ipv4.{name}") for name in settings}
    try:
        for name, value in settings.items():
            host.sysctl(f"net.ipv4.{name}", value)
        yield
    finally:
        for name, value in before.items():
            host.sysctl(f"net.ipv4.{name}", value)


def since(before: dict[str, int], host: Any) -> dict[str, int]:
    """What the counters of a host have counted since they were read."""
    return {name: value - before[name] for name, value in counters(host).items()}


def converse(box: MiddleBox, family: int, port: int, scenario: Scenario, path: Path) -> dict[str, int]:
    """Log a connection under a script; return what the client's host counted before the connection closes."""
    before = counters(box.left)
    with (
        set_at(box.left, scenario.client),
        set_at(box.right, scenario.server),
        TcpLog(path, port=[port]),
        box.forwarding(port, scenario.rules, DELAY_MS),
        real_time(),
        connection(box.left, box.right, box.address(family), port) as (active, passive),
    ):
        segment_bytes = active.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        for segments in scenario.segments:
            transfer(active, passive, segments * segment_bytes)
            wait_for_quiet(box, active)
        counted = since(before, box.left)
    return counted


def wait_for_quiet(box: MiddleBox, active: socket.socket) -> None:
    """Wait until all data is acknowledged and no late packet is under way."""
    deadline_s = time.monotonic() + 20
    while unacknowledged_of(active):
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    box.wait_for_quiet()


def retransmissions(log: Any, box: MiddleBox, port: int, source: str = "client") -> list[tuple[int, str, str]]:
    """Return number, cause and verdict of the retransmissions of one end, except of a FIN, in the order of time."""
    flow = ours(log, port)[("client", "server").index(source)]["flow"]
    found = pl.from_arrow(log.retransmissions).filter(flow=flow)
    numbered = box.log.filter(pl.col("source") == source, pl.col("kind") != "ack").unique("seq")
    numbers = numbered.select(pl.col("seq").cast(pl.UInt32), "number", "kind")
    named = found.join(numbers, left_on="pkt_seq", right_on="seq", how="left", maintain_order="left")
    # What the script says of data ends before: when an answer to the FIN is late, it is sent again.
    named = named.filter(pl.col("kind").is_null() | (pl.col("kind") != "fin"))
    return [
        (row["number"], row["cause"], row["evidence"] or {False: "needed", None: "unknown"}[row["spurious"]])
        for row in named.iter_rows(named=True)
    ]


def sent_again(box: MiddleBox, source: str = "client") -> pl.DataFrame:
    """Return the retransmissions that came to the box, except those of a FIN."""
    return box.log.filter(pl.col("kind").is_in(["syn", "data"]), pl.col("transmission") > 1, source=source)


def witnessed(box: MiddleBox, port: int, counted: dict[str, int], path: Path) -> tuple[Any, list[tuple[int, str, str]]]:
    """Return a log and its `retransmissions`, held against two witnesses that need no script.

    They are what came to the box, and what the kernel counted.
    """
    log, ledger = check_log(path)
    assert total(ledger, "dropped", HOOKS) == 0, account_text(ledger)
    found = retransmissions(log, box, port)
    assert [number for number, _, _ in found] == sent_again(box)["number"].to_list()
    check_counters(log, ours(log, port)[0]["flow"], counted)
    return log, found


# What TCP does is the same over IPv6, so one script is enough to show that the log reads its headers.
# Verdicts over IPv6 have a test of their own, too.
WITH_IPV6 = ("the last segment is lost",)
SCRIPTS = [
    pytest.param(
        name,
        family,
        id=f"{name.replace(' ', '_')}-{family}",
        marks=pytest.mark.long if family == 6 and name not in WITH_IPV6 else (),
    )
    for name in SCENARIOS
    for family in (4, 6)
]


@pytest.mark.parametrize(("name", "family"), SCRIPTS)
def test_cause_and_verdict_are_those_of_the_script(box: MiddleBox, tmp_path: Path, name: str, family: int) -> None:
    scenario, port = SCENARIOS[name], next(PORTS)
    counted = converse(box, family, port, scenario, tmp_path / "log")
    log, found = witnessed(box, port, counted, tmp_path / "log")
    if not box.was_on_time(LATE_MS):
        # TCP saw other times than those of the script, so it may rightly have decided otherwise.
        return
    assert found == list(scenario.expected), rows_of(log)
    expected = {"TcpRetransSegs": len(scenario.expected), **scenario.counters}
    assert {counter: counted[counter] for counter in expected} == expected


@pytest.mark.parametrize("family", long_except([4], [4, 6]))
def test_a_lost_retransmission_is_known_by_what_follows_it(box: MiddleBox, tmp_path: Path, family: int) -> None:
    port = next(PORTS)
    scenario = Scenario((data("drop", 100, transmissions=(1, 2)),), (), {}, (FIRST, 900))
    counted = converse(box, family, port, scenario, tmp_path / "log")
    log, found = witnessed(box, port, counted, tmp_path / "log")
    if not box.was_on_time(LATE_MS):
        return
    assert counted["TcpRetransSegs"] == len(found) == 2, rows_of(log)
    came = box.log.filter(source="client", kind="data")
    _, second, third = came.filter(number=100)["time_s"]
    # On a busy host the acknowledgements come together, and all that the window permits may be sent before the first
    # retransmission: nothing but the timeout shows then that it is lost.
    is_followed = not came.filter(pl.col("time_s").is_between(second, third, closed="none")).is_empty()
    assert found == [(100, "fast", "needed"), (100, "rack" if is_followed else "rto", "needed")], rows_of(log)
    expected = {"TCPFastRetrans": 2, "TCPLostRetransmit": 1} if is_followed else {"TCPFastRetrans": 1, "TCPTimeouts": 1}
    assert {counter: counted[counter] for counter in expected} == expected


@pytest.mark.parametrize("family", long_except([4], [4, 6]))
def test_a_lost_syn(box: MiddleBox, tmp_path: Path, family: int) -> None:
    port = next(PORTS)
    scenario = Scenario((Rule("client", "syn", "drop"),), ((0, "syn", "unknown"),), {}, (FIRST,))
    counted = converse(box, family, port, scenario, tmp_path / "log")
    log, _ = check_log(tmp_path / "log")
    assert retransmissions(log, box, port) == list(scenario.expected)
    assert counted["TcpRetransSegs"] == counted["TCPSynRetrans"] == 1


# In the first, the server's timer starts late: the SYN that is sent again comes before it.
LOST_SYNACKS = {
    "sent_again_for_a_SYN": Rule("client", "syn", "hold", delay_ms=300),
    "sent_again_by_the_timer": Rule("client", "syn", "drop", transmissions=(2, 3)),
}


@pytest.mark.parametrize("how", LOST_SYNACKS)
@pytest.mark.parametrize("family", long_except([4], [4, 6]))
def test_a_lost_synack(box: MiddleBox, tmp_path: Path, family: int, how: str) -> None:
    port = next(PORTS)
    rules = (Rule("server", "syn", "drop"), LOST_SYNACKS[how])
    before = counters(box.right)
    counted = converse(box, family, port, Scenario(rules, (), {}, (FIRST,)), tmp_path / "log")
    log, _ = check_log(tmp_path / "log")
    syns, synacks = (len(sent_again(box, source)) for source in ("client", "server"))
    handshake = box.log.filter(kind="syn").rows()
    assert synacks >= 1, handshake
    assert syns >= 1 or how == "sent_again_by_the_timer", handshake
    assert retransmissions(log, box, port) == [(0, "syn", "unknown")] * syns, handshake
    assert retransmissions(log, box, port, "server") == [(0, "synack", "unknown")] * synacks, handshake
    assert counted["TCPSynRetrans"] == syns
    assert since(before, box.right)["TCPSynRetrans"] == synacks


# In the second, a timer of the sender is first; on a busy machine, it may be in the first, too.
@pytest.mark.parametrize(("family", "late_ms"), long_except([(4, 0), (6, 0), (4, 100)], product((4, 6), (0, 100))))
def test_the_mtu_of_the_path_shrinks(bed: Any, tmp_path: Path, family: int, late_ms: int) -> None:
    # Its host keeps the MTU of the path.
    box = box_in(bed)
    port, mtu = next(PORTS), 1300
    scenario = Scenario((data("too_big", *range(11, 21), mtu=mtu, delay_ms=late_ms),), (), {})
    counted = converse(box, family, port, scenario, tmp_path / "log")
    log, _ = check_log(tmp_path / "log")
    found = check_counters(log, ours(log, port)[0]["flow"], counted)
    came = box.log.filter(source="client", kind="data")
    lost = came.filter(pl.col("number").is_between(11, 20), transmission=1)
    again = came[came["number"].index_of(20) + 1 :]
    assert (
        found.select(seq="pkt_seq", payload_bytes="payload_bytes").rows() == again.select("seq", "payload_bytes").rows()
    )
    # What is longer than the MTU was sent before the sender learned of it, and the box let it pass.
    probes, pieces = found.filter(pl.col("payload_bytes") > mtu), found.filter(pl.col("payload_bytes") <= mtu)
    assert set(probes["cause"]) <= {"tlp", "rto"}
    # The answer to a probe may come before the messages about the MTU, and then shows a loss itself. Where it comes
    # later than a round trip takes, TCP has it for the answer to pieces sent meanwhile, and the others for lost.
    answers = box.log.filter(pl.col("time_s") > again["time_s"][0], source="server", kind="ack")
    is_answered = len(probes) > 0 and answers["forwarded_s"].min() < lost["forwarded_s"].max()
    is_first = pl.col("pkt_seq").is_first_distinct()
    first, repeated = pieces.filter(is_first), pieces.filter(~is_first)
    assert {"mtu"} <= set(first["cause"]) <= {"mtu", *(["rack", "fast"] if is_answered else [])}
    assert not len(repeated) or (len(probes) > 0 and set(repeated["cause"]) <= {"rack"}), repeated
    assert first["payload_bytes"].sum() == lost["payload_bytes"].sum()
    assert not late_ms or len(probes) > 0
    delivered = {seq + offset for seq in probes["pkt_seq"] for offset in (0, pieces["payload_bytes"].max())}
    delivered = {seq % (1 << 32) for seq in delivered} | set(repeated["pkt_seq"])
    assert set(pieces.filter("spurious")["pkt_seq"]) == delivered
    assert not probes["spurious"].any()


@pytest.mark.parametrize(("seed", "family"), long_except([(0, 4), (1, 6)], product(range(3), (4, 6))))
def test_verdicts_are_what_the_box_delivered(box: MiddleBox, tmp_path: Path, seed: int, family: int) -> None:
    """A retransmission is spurious if another transmission of the segment was delivered before it, and TCP knows it.

    A receiver says so in one D-SACK, of one segment: where two came twice before it answered, the sender learns of one.
    """
    rng, port = random.Random(seed), next(PORTS)
    once, twice, late = (tuple(rng.sample(range(11, 400), number)) for number in (15, 5, 5))
    rules = (
        data("drop", *twice, transmissions=(1, 2)),
        data("drop", *once),
        data("let_overtake", *late, delay_ms=15),
    )
    # With time stamps, a server would discard some of the segments that a retransmission has overtaken (PAWS).
    scenario = Scenario(rules, (), {}, (FIRST, 390), client={"tcp_timestamps": 0})
    counted = converse(box, family, port, scenario, tmp_path / "log")
    log, _ = check_log(tmp_path / "log")
    check_counters(log, ours(log, port)[0]["flow"], counted)
    delivered: set[int] = set()
    came_twice: set[int] = set()
    spurious: dict[tuple[int, int], bool] = {}
    for row in box.log.filter(source="client", kind="data").sort("forwarded_s", nulls_last=True).iter_rows(named=True):
        is_there = row["number"] in delivered
        spurious[row["number"], row["transmission"]] = is_there and row["forwarded_s"] is not None
        if row["forwarded_s"] is not None:
            delivered.add(row["number"])
            came_twice |= {row["seq"]} if is_there else set()
    said = set(box.log.filter(source="server")["duplicate_begin"].drop_nulls())
    assert said <= came_twice and len(said) >= len(came_twice) / 2
    expected = [
        (row["number"], spurious[row["number"], row["transmission"]] and row["seq"] in said)
        for row in sent_again(box).iter_rows(named=True)
    ]
    found = [(number, verdict != "needed") for number, _, verdict in retransmissions(log, box, port)]
    assert found == expected
