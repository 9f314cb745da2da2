"""`parshall path` beside the kernel's own counters, under mixes of traffic that are drawn at random.

Each seed draws boxes (network namespaces with equal addresses and numbers of interfaces), what they have, noise, and
workloads that run partly at once. Every packet that path calls dropped, delivered, sent or forwarded is then held
against /proc/net, rules, queue disciplines, interfaces, and the programs themselves. A failure names its seed.
"""

import itertools
import os
import random
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from backlog import dropped_packets
from conversation import socket_at
from path_noise import noise
from path_run import check_balance
from path_traffic import STEPS, Traffic, queue_too_short
from path_witness import IN_SOCKETS, all_counters, counters, drops_of, grown, tcp_is_quiet, text_of
from path_world import Box, Features, world

from hidden_events import HiddenEvents
from parshall.instruments.path import PathLog, PathProfile
from parshall.instruments.path.stages import ALL_STAGES, LIGHT_STAGES
from suites import long_except

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("root")]
SEEDS = long_except([1, 3], range(4))
FIRST_SEED = 1000
"""Of those of an hour."""
STEPS_OF_A_BOX = 40
LONG_S = 3600
DATAGRAMS = 10_000_000
NOISES = ["unix", "netlink", "packet"]
FEW_STAGES = [*LIGHT_STAGES, "socket_in", "data_ready", "xmit", "consume"]
KNOWN = {"NOT_SPECIFIED", "NO_TX_TARGET", "VXLAN_VNI_NOT_FOUND"}
"""Drops that the kernel counts nowhere: only the programs know them."""


@dataclass
class Found:
    """What a measurement counts of the packets of one or more namespaces."""

    name: str
    paths: Counter[str]
    drops: Counter[str]
    stages: set[str]
    missed: int = 0
    """Packets that are lost, and runs of programs that the kernel skipped: so many at most are not seen
    (docs/path-packets.md)."""


@dataclass
class Expected:
    """What the witnesses count of the packets of one or more namespaces."""

    drops: Counter[str] = field(default_factory=Counter)
    delivered: int = 0
    left: int = 0
    joined: int = 0

    def add(self, other: "Expected") -> None:
        """Add the packets of another namespace."""
        self.drops += other.drops
        self.delivered += other.delivered
        self.left += other.left
        self.joined += other.joined


def expected_of(growth: Counter[str], asked: Counter[str]) -> Expected:
    """Return what witnesses of a namespace say; `asked` is what its programs know."""
    known = Counter({reason: asked[reason] for reason in KNOWN})
    # IPv6 names the closed port as the reason, and counts the wrong checksum.
    known["NO_SOCKET"] += asked["NO_SOCKET, wrong checksum"]
    known["UDP_CSUM"] -= asked["NO_SOCKET, wrong checksum"]
    drops = Counter(drops_of(growth, known))
    joined = sum(growth[f"{ip}.ReasmReqds"] - growth[f"{ip}.ReasmOKs"] for ip in ("Ip", "Ip6"))
    return Expected(
        drops=drops,
        delivered=growth["Ip.InDelivers"] + growth["Ip6.InDelivers"] - sum(drops[reason] for reason in IN_SOCKETS),
        # What leaves by a bridge leaves by its port.
        left=sum(growth[name] for name in growth if name.endswith(".tx_packets") and ".br0." not in name),
        joined=joined - drops["FRAG_REASM_TIMEOUT"],
    )


def differences(found: Found, expected: Expected) -> list[str]:
    """Return where a measurement and the witnesses differ, as text."""
    drops, left, paths = Counter(expected.drops), expected.left, found.paths
    if "xmit" not in found.stages:
        # What a driver drops behind `start_xmit` has ended there.
        left += drops.pop("FULL_RING", 0)
    pairs = {f"dropped for {name}": (found.drops[name], drops[name]) for name in {*found.drops, *drops}}
    pairs |= {
        "dropped": (paths["dropped"], sum(drops.values())),
        "delivered": (paths["delivered"], expected.delivered),
        "sent and forwarded": (paths["sent"] + paths["forwarded"], left),
        # Of a fragment that was joined and freed unseen, the end is not known; of nothing else.
        "merged, or unknown": (paths["merged"] + paths["unknown"] + paths["open"] + paths["consumed"], expected.joined),
    }
    if expected.joined:
        # IPv6 joins behind `local_in`: which fragment is the datagram is not always known, their number is.
        ends = [pairs.pop(name) for name in ("delivered", "merged, or unknown")]
        pairs["delivered, merged, or unknown"] = (sum(ours for ours, _ in ends), sum(theirs for _, theirs in ends))
    # Two packets may want one place in the table, also in one with room; so rarely that this hides nothing.
    slack = found.missed + paths["displaced"]
    assert paths["displaced"] < 5, found
    return [
        f"{found.name}: {name}: {ours}, expected {theirs}" + (f" within {slack}" if slack else "")
        for name, (ours, theirs) in pairs.items()
        if abs(ours - theirs) > slack
    ]


def host_wide(found: Found, expected: Expected, unseen: Counter[str]) -> tuple[Found, Expected]:
    """Return both as they are without the stages of netfilter, which are attached in one namespace only.

    Packets of a host begin at the queue or a socket then, behind rules that have dropped some: these are `unseen`. What
    was delivered has ended unseen, or was consumed, unless it passed another stage of sockets.
    """
    paths, drops, theirs = Counter(found.paths), Counter(found.drops), Counter(expected.drops)
    theirs["NETFILTER_DROP"] -= unseen["NETFILTER_DROP"]
    ended = sum(paths.pop(name, 0) for name in ("delivered", "unknown", "open", "consumed", "merged"))
    if "socket_out" not in found.stages:
        theirs["TC_EGRESS"] -= unseen["TC_EGRESS"]
    paths["delivered"], paths["merged"] = ended - expected.joined, expected.joined
    return (
        Found(found.name, paths, drops, found.stages, found.missed),
        Expected(theirs, expected.delivered, expected.left, expected.joined),
    )


class Measurements:
    """Measurements of each box, and of the host, with and without a log."""

    def __init__(self, boxes: list[Box], directory: Path, chance: random.Random) -> None:
        self._boxes = boxes
        scopes: list[tuple[str, dict[str, Any]]] = [
            *((box.host.name, {"netns": box.host.namespace}) for box in boxes),
            ("all", {"filter": boxes[0].addresses.filter}),
        ]
        self._requests = [
            (name, path, options | {"stages": chance.choice([ALL_STAGES, FEW_STAGES]) if path else LIGHT_STAGES})
            for name, options in scopes
            for path in (None, directory / f"{name}.arrow")
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self._profiles = list(
                pool.map(lambda one: PathProfile(one[1], packets_max=1 << 17, **one[2]), self._requests)
            )

    def stop(self) -> tuple[dict[str, list[Found]], int]:
        """Stop all; return what they count by the name of a host, and of `all`, and the number of packets."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            summaries = list(pool.map(lambda profile: profile.stop(), self._profiles))
        found: dict[str, list[Found]] = {}
        packets = 0
        for (name, path, _), summary in zip(self._requests, summaries, strict=True):
            account = check_balance(summary.ledger)["packets"]
            lost = {cause: count for cause, count in account["lost"].items() if count}
            # Two CPUs may want one place in the table at once: the packet of one is lost, and counted.
            failed = lost.pop("failed", 0)
            assert not lost and failed < 5, (name, lost, failed)
            packets += account["logged"]
            paths = Counter(summary.paths)
            drops = Counter({row["name"]: row["followed"] for row in summary.drops if row["followed"]})
            stages, missed = set(summary.stages), failed + sum(count for _, count in summary.missed)
            one = Found(f"{name}, {'log' if path else 'histograms'}", paths, drops, stages, missed)
            found.setdefault(name, []).append(one)
            if path:
                rows = self._of_rows(path, None, one)
                assert (rows.paths, rows.drops) == (+paths, drops), f"{name}: rows and summary differ"
                if name == "all":
                    for host in (host for box in self._boxes for host in (box.host, box.peer)):
                        found.setdefault(host.name, []).append(self._of_rows(path, host, one))
        return found, packets

    @staticmethod
    def _of_rows(path: Path, host: Any, all_of_it: Found) -> Found:
        log = PathLog(path)
        assert log.complete
        rows = log.packets
        if host is not None:
            rows = rows.filter(pc.equal(rows["netns_inode"], host.path.stat().st_ino))
        codes = rows["path"].cast("string")
        reasons = rows.filter(pc.equal(codes, "dropped"))["drop_reason"].cast("string").to_pylist()
        name = f"all, rows of {host.name}" if host else path.stem
        return Found(name, Counter(codes.to_pylist()), Counter(reasons), all_of_it.stages, all_of_it.missed)


@contextmanager
def on_cpu(cpu: int) -> Iterator[None]:
    """Keep the calling thread on a CPU, whose packets keep their order."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_traffic(traffics: list[Traffic], chance: random.Random, steps: int) -> list[str]:
    """Run workloads at each box, in one thread or two; return what was drawn, and raise what they raise."""
    cpus, drawn, failures = sorted(os.sched_getaffinity(0)), [], []

    def work(traffic: Traffic, names: list[Callable[..., None]], own: random.Random, cpu: int) -> None:
        try:
            with on_cpu(cpu):
                for step in names:
                    step(traffic, own)
        except BaseException as error:
            failures.append(error)

    threads = []
    for traffic in traffics:
        count = chance.choice((1, 2))
        for _ in range(count):
            # Of what a queue sends beside noise, some kernels hide much: tests/hidden_events.py.
            steps_here = [step for step in STEPS if not (traffic.is_disturbed and step is queue_too_short)]
            names = chance.choices(steps_here, k=steps // count)
            drawn += [step.__name__ for step in names]
            own = random.Random(chance.random())
            threads.append(threading.Thread(target=work, args=(traffic, names, own, chance.choice(cpus))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return drawn


def wait_for_the_end(traffics: list[Traffic], before: dict[str, Counter[str]], until: Callable[..., None]) -> None:
    """Wait until every packet has met its fate, and those of each CPU have passed."""
    hosts = [host for traffic in traffics for host in (traffic.box.host, traffic.box.peer)]
    for traffic in traffics:
        name = traffic.box.host.name
        until(f"{name}: its programs have read all", traffic.has_read_all)
        until(
            f"{name}: its connections have ended",
            lambda box=traffic.box: tcp_is_quiet(box.host) and tcp_is_quiet(box.peer),
        )
        until(f"{name}: no fragment waits", lambda box=traffic.box: not _fragments_wait(box.host))
        until(f"{name}: its queue is empty", lambda box=traffic.box: not all_counters(box.host)["backlog"])
    seen: list[Counter[str]] = []

    def are_still() -> bool:
        latest = [counters(host) for host in hosts]
        was = list(seen)
        seen[:] = latest
        return was == latest

    until("the counters stand still", are_still)
    for cpu in sorted(os.sched_getaffinity(0)):
        with on_cpu(cpu):
            for traffic in traffics:
                traffic.mark(True)
                traffic.mark(False)
    for traffic in traffics:
        traffic.had["read tun"] += traffic.box.read_tun()


def _fragments_wait(host: Any) -> bool:
    lines = [line for name in ("sockstat", "sockstat6") for line in text_of(host, name).splitlines()]
    return any(line.startswith("FRAG") and line.split()[-1] != "0" for line in lines)


def differential(seed: int, directory: Path, until: Callable[..., None], boxes_max: int = 4) -> int:
    """Run one seed; return the number of packets that were compared. What it raises names the seed."""
    try:
        return _differential(seed, directory, until, boxes_max)
    except BaseException as error:
        error.add_note(f"seed {seed}, at most {boxes_max} boxes")
        raise


def _differential(seed: int, directory: Path, until: Callable[..., None], boxes_max: int) -> int:
    chance = random.Random(seed)
    with world([Features.draw(chance) for _ in range(chance.randint(1, boxes_max))]) as boxes, ExitStack() as stack:
        traffics = [Traffic(box) for box in boxes]
        for traffic in traffics:
            stack.callback(traffic.close)
        cpus = sorted(os.sched_getaffinity(0))
        for box in boxes:
            kinds = chance.sample(NOISES, chance.randint(0, len(NOISES)))
            if kinds:
                for each in traffics:
                    each.is_disturbed = True
                stack.enter_context(noise(box.host, *kinds, cpu=chance.choice(cpus)))
        hosts = [host for box in boxes for host in (box.host, box.peer)]
        until("IPv6 is silent", _silence(hosts))
        for box in boxes:
            box.read_tun()
        before = {host.name: all_counters(host) for host in hosts}
        measurements = Measurements(boxes, directory, chance)
        drawn = run_traffic(traffics, chance, STEPS_OF_A_BOX)
        wait_for_the_end(traffics, before, until)
        after = {host.name: all_counters(host) for host in hosts}
        found, packets = measurements.stop()
    context = f"seed {seed}, {[box.features for box in boxes]}, {Counter(drawn)}"
    expected, wrong = {"all": Expected()}, []
    unseen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for traffic in traffics:
        for host, asked in ((traffic.box.host, traffic.asked), (traffic.box.peer, Counter[str]())):
            expected[host.name] = expected_of(grown(before[host.name], after[host.name]), asked)
            expected["all"].add(expected[host.name])
        for name in (traffic.box.host.name, "all"):
            unseen[name] += traffic.before_queue
        wrong += traffic.unmet(expected[traffic.box.host.name].drops)
    for name, each in found.items():
        for one in each:
            pair = (one, expected[name])
            if one.name.startswith("all"):
                pair = host_wide(*pair, unseen[name])
            wrong += differences(*pair)
    assert not wrong, "\n".join([context, *wrong])
    return packets


def _silence(hosts: list[Any]) -> Callable[[], bool]:
    seen: list[Any] = []
    since = [time.monotonic()]

    def is_silent() -> bool:
        latest = [counters(host)["Ip6.OutRequests"] for host in hosts]
        if latest != seen:
            seen[:], since[0] = latest, time.monotonic()
        return time.monotonic() - since[0] > 0.1

    return is_silent


@pytest.mark.parametrize("seed", SEEDS)
def test_path_counts_what_the_kernel_counts(tmp_path: Path, until: Callable[..., None], seed: int) -> None:
    assert differential(seed, tmp_path, until, boxes_max=2) > 1000, f"seed {seed}: hardly a packet"


@pytest.mark.long
def test_path_counts_what_the_kernel_counts_for_an_hour(
    tmp_path: Path, until: Callable[..., None], hidden_events: HiddenEvents
) -> None:
    """Half of the hour; the other half is the next test's."""
    end_s, packets, hidden = time.monotonic() + LONG_S / 2, 0, {}
    for seed in itertools.count(FIRST_SEED):
        if time.monotonic() > end_s:
            break
        hidden_events.forget()
        try:
            packets += differential(seed, tmp_path, until)
        except AssertionError:
            if not hidden_events.count():
                raise
            hidden[seed] = hidden_events.count()
    seeds = seed - FIRST_SEED
    print(f"{seeds} seeds, {packets:,} packets; differences in those with events that the kernel hid: {hidden}")
    assert len(hidden) < seeds / 4


def read_datagrams(host: Any, directory: Path, count: int, with_log: bool) -> None:
    """Send datagrams of a host to itself and read each; only a full backlog may drop some."""
    batch, version = 100, 4 if count % 2 else 6
    address = "::1" if version == 6 else "127.0.0.1"
    path = directory / "read.arrow" if with_log else None
    before, read, sent = dropped_packets(), 0, count // batch * batch
    profile = PathProfile(path, netns=host.namespace, buffer_bytes=64 << 20)
    with socket_at(host, address, socket.SOCK_DGRAM) as sender, socket_at(host, address, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(5)
        receiver.bind((address, 9000))
        to = receiver.getsockname()
        for _ in range(count // batch):
            for _ in range(batch):
                sender.sendto(b"x" * 100, to)
            read += received(receiver, batch)
        # What came too late for its batch.
        read += received(receiver, sent - read)
    summary = profile.stop()
    check_balance(summary.ledger)
    # All hosts share the backlog, and traffic beside this test may fill it.
    missing = sent - read
    assert missing <= min(batch, dropped_packets() - before)
    followed = {row["name"]: row["followed"] for row in summary.drops if row["followed"]}
    assert (followed, summary.paths["dropped"]) == ({"CPU_BACKLOG": missing} if missing else {}, missing)
    assert (summary.paths["sent"], summary.paths["delivered"]) == (sent, read)
    if path:
        rows = PathLog(path).packets
        assert rows.num_rows == summary.ledger["hooks"][0]["logged"]
        assert set(rows["path"].cast("string").to_pylist()) - {"dropped"} == {"sent", "delivered"}


def received(receiver: socket.socket, count: int) -> int:
    """Read so many datagrams, or those that come."""
    for number in range(count):
        try:
            assert receiver.recv(200)
        except TimeoutError:
            return number
    return count


def test_datagrams_that_are_read_are_never_dropped(bed: Any, tmp_path: Path) -> None:
    host = bed.host("reader")
    with noise(host, *NOISES, cpu=0), noise(host, *NOISES, cpu=max(os.sched_getaffinity(0))):
        read_datagrams(host, tmp_path, 10_000, False)
        read_datagrams(host, tmp_path, 10_001, True)


@pytest.mark.long
def test_ten_million_datagrams_that_are_read_are_never_dropped(bed: Any, tmp_path: Path) -> None:
    host = bed.host("reader")
    end_s, packets = time.monotonic() + LONG_S / 2, 0
    with noise(host, *NOISES, cpu=0), noise(host, *NOISES, cpu=max(os.sched_getaffinity(0))):
        while packets < DATAGRAMS and time.monotonic() < end_s:
            count = 200_000 + packets // 200_000 % 2
            read_datagrams(host, tmp_path, count, packets // 400_000 % 2 == 1)
            packets += count
    print(f"{packets:,} datagrams")
