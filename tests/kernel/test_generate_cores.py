"""The generator on several CPUs: one plan, each packet once, the digest of a single sender, one account."""

import json
import os

import numpy as np
import pytest
from wire import SOURCE_MAC, departures, gen, generator, said_after_ctrl_c, tapped

import in_process
from parshall.errors import ParshallError, UsageError

CPUS = sorted(os.sched_getaffinity(0))[:2]
BACKENDS = ("xdp", "af-packet", "af-xdp")
# Where the stamp lies in Ethernet, IPv4 and UDP.
STAMP = slice(42, 50), slice(50, 58)

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs that may be used"),
]


def with_two_queues(link):
    """Give both ends of a link two queues."""
    for host in link[1::-1]:
        host.run(["ethtool", "-L", link[2].interface(host), "rx", "2", "tx", "2"])
    return link


@pytest.fixture
def own_link(xdp_link):
    """A link with two queues for a test that changes it."""
    return with_two_queues(xdp_link)


@pytest.fixture(scope="module")
def link(standing_xdp_link):
    """A link with two queues for all other tests."""
    return with_two_queues(standing_xdp_link)


@pytest.fixture
def tap(link):
    """Read frames at the receiving end of the link."""
    with tapped(link) as read:
        yield read


def numbers(frames):
    return [int.from_bytes(frame[STAMP[0]], "big") for frame in frames]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pace", [{}, {"pps": 50e3, "gap": "poisson"}], ids=["flood", "paced"])
@pytest.mark.parametrize("count", [1, 2001])
def test_each_packet_of_the_seed_arrives_once(link, tap, backend, pace, count):
    from parshall import _native

    run = generator(
        link,
        cpu=CPUS,
        count=count,
        seed=11,
        backend=backend,
        sizes="thesis",
        stamp=True,
        src="10.0.0.0/28",
        **pace,
    )
    account = run.wait().account
    assert (account["requested"], account["sent"], account["lost"], account["error"]) == (count, count, 0, None)
    assert [(sender["cpu"], sender["sent"]) for sender in account["senders"]] == [
        (CPUS[0], count - count // 2),
        (CPUS[1], count // 2),
    ]
    frames = tap(count)
    for share in range(2):
        of_one = [number for number in numbers(frames) if number % 2 == share]
        assert of_one == sorted(of_one)
    frames.sort(key=lambda frame: frame[STAMP[0]])
    assert numbers(frames) == list(range(count))
    sent_ns = [int.from_bytes(frame[STAMP[1]], "big") for frame in frames]
    assert frames == [frame for _, frame in _native.planned_frames(json.dumps(run.request), sent_ns)]


def test_the_digest_is_that_of_a_single_sender(link):
    digests, arrived = set(), set()
    for backend in BACKENDS:
        for cpu in (CPUS[0], CPUS, CPUS[::-1]):
            account = generator(link, sizes="imix", count=10_001, seed=8, backend=backend, cpu=cpu).wait().account
            digests.add(account["digest"])
            arrived.add(account["arrived"])
            assert account["sizes"]["mean_bytes"] > 300
    assert (len(digests), arrived) == (1, {10_001})


def test_flows_of_one_sender_keep_their_order(link, tap):
    generator(link, cpu=CPUS, count=4000, sizes="60", stamp=True, src="10.0.0.1-10.0.0.4").wait()
    flows = {}
    for frame in tap(4000):
        flows.setdefault(frame[26:30], []).append(int.from_bytes(frame[STAMP[0]], "big"))
    assert [len(order) for order in flows.values()] == [1000] * 4
    assert all(order == sorted(order) for order in flows.values())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pace", [{}, {"pps": 100e3}], ids=["flood", "paced"])
def test_a_stopped_run_has_sent_the_beginning_of_the_plan(own_link, until, backend, pace):
    run = generator(own_link, sizes="imix", seed=3, cpu=CPUS, backend=backend, **pace)
    until("some packets were sent", lambda: run.status()["packets"] > 20_000)
    run.stop()
    run.stop()
    account = run.wait().account
    assert account["requested"] is None and account["sent"] > 20_000
    assert account["sent"] == account["arrived"] + account["lost"]
    first, second = (sender["sent"] for sender in account["senders"])
    assert (first + second, first - second in (0, 1)) == (account["sent"], True)
    again = generator(own_link, sizes="imix", seed=3, count=account["sent"]).wait().account
    assert again["digest"] == account["digest"]


@pytest.mark.parametrize("backend", ["af-packet", "af-xdp"])
def test_an_interface_that_goes_down_ends_all_senders(own_link, until, backend):
    sender, _, link = own_link
    run = generator(own_link, sizes="64", pps=50e3, backend=backend, cpu=CPUS)
    until("some packets were sent", lambda: run.status()["packets"] > 500)
    sender.run(["ip", "link", "set", "dev", link.interface(sender), "down"])
    until("it ended by itself", lambda: run.status()["has_ended"])
    account = run.wait().account
    assert "down" in account["error"] and account["sent"] > 500
    assert account["sent"] == sum(sender["sent"] for sender in account["senders"])


def test_the_gaps_of_all_senders_follow_one_distribution(link, tmp_path):
    # Two senders with one gap process each would send in pairs, or half as often.
    account, times = departures(link, tmp_path / "log", sizes="64", count=8000, pps=40e3, cpu=CPUS)
    assert account["sent"] == 8000
    assert set(np.diff(times.due_ns)) == {25_000}
    times.assert_punctual()


def command(link, *options):
    return gen(link, "--src-mac", SOURCE_MAC, *options)


LISTED = ",".join(map(str, CPUS))


def test_ctrl_c_gives_one_account(link, tap):
    text = said_after_ctrl_c(command(link, "--cpu", LISTED, "--sizes", "60", "--pps", "50k"), lambda: tap(500))
    assert text.count("packets   requested until stopped, sent ") == 1
    for cpu in CPUS:
        assert text.count(f"CPU {cpu}: sent ") == 1


@pytest.mark.parametrize(
    ("options", "errors"),
    [
        (["--cpu", f"{CPUS[0]},4000"], "--cpu 4000: expected a CPU of this host"),
        (["--cpu", f"{CPUS[0]},{CPUS[0]}"], "each CPU once"),
        (["--cpu", "1-"], "--cpu 1-: expected a number or a list"),
        (["--cpu", "3-1"], "--cpu 3-1: expected a number or a list"),
        (["--cpu", LISTED, "--backend", "pktgen"], "one CPU with --backend pktgen"),
        (["--queue", "1"], "--queue 1: expected --backend af-xdp"),
        (["--queue", "1", "--backend", "af-xdp", "--cpu", LISTED], "--queue 1: expected as many queues"),
        (["--queue", "1,1", "--backend", "af-xdp", "--cpu", LISTED], "--queue 1,1: expected each queue once"),
        (["--queue", "2", "--backend", "af-xdp"], "has no queue 2"),
    ],
)
def test_an_impossible_request_is_refused_in_one_line(link, options, errors):
    refused = in_process.parshall(*command(link, "--count", "10", *options)[3:])
    assert refused.returncode in (1, 2)
    assert errors in refused.stderr and refused.stderr.count("\n") == 1


def test_af_xdp_sends_by_the_requested_queue(link):
    for options in ({"queue": 1}, {"queue": [1, 0], "cpu": CPUS}):
        account = generator(link, sizes="80", count=3000, backend="af-xdp", **options).wait().account
        assert account["sent"] == account["arrived"] == 3000
    # The queue that another has is busy; the next one is free.
    first = generator(link, sizes="80", pps=1000, backend="af-xdp", queue=1)
    with pytest.raises(ParshallError, match="queue 1 has an AF_XDP socket already"):
        generator(link, sizes="80", count=1, backend="af-xdp", queue=1)
    account = generator(link, sizes="80", count=50, backend="af-xdp").wait().account
    assert account["sent"] == 50 <= account["transmitted"]
    first.stop()
    first.wait()


def test_a_number_below_zero_is_no_cpu(link):
    for wrong in (-1, [], [0, -1]):
        with pytest.raises(UsageError, match="--cpu"):
            generator(link, count=1, cpu=wrong)
