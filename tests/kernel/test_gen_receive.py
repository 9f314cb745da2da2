"""The other end of a stamped run: what became of the packets, from the generator to the capture."""

import json
import os
import subprocess
import sys

import pytest

import in_process
from parshall.cli.gen_receive import reception_lines

pytestmark = pytest.mark.kernel


def test_stamps_show_loss_reordering_and_latency(standing_xdp_link):
    from parshall.instruments.capture import Capture, Output, Ring
    from parshall.instruments.generate import Generator, Reception

    sender, receiver, link = standing_xdp_link
    with receiver.enter():
        capture = Capture([Output(None, "udp port 9", snaplen=64)], Ring([link.interface(receiver)]), count=5000)
    run = Generator(link.interface(sender), netns=sender.path, sizes="imix", pps=50e3, count=5000, seed=4, stamp=True)
    reception = Reception()
    for batch in capture.batches():
        reception.add(batch)
    capture.stop()
    summary = reception.summary(run.wait().account["sent"])
    assert (summary["received"], summary["lost"], summary["reordered"]) == (5000, 0, 0)
    least_ns, median_ns, *_ = summary["latency_ns"]
    assert -1e6 < least_ns <= median_ns < 1e7


RECEIVE = [sys.executable, "-m", "parshall", "gen", "--receive", "--json"]


def receiving(receiver, link, *words):
    """Start a receiving end, and wait until it receives."""
    command = [*RECEIVE, "-i", link.interface(receiver), *words]
    program = receiver.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "receiving at" in program.stderr.readline()
    return program


def account_of(program):
    """Wait for the end of a receiving end, and return what it counted."""
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    return json.loads(output)


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        ({}, []),
        (
            {"src": "fd00::1", "dst": "fd00::2", "protocol": "tcp", "dport": "7-9", "flows": 3},
            ["--dst", "fd00::2", "--protocol", "tcp", "--dport", "7-9"],
        ),
        ({"protocol": "253"}, ["--protocol", "253"]),
    ],
)
def test_the_receiver_reports_loss_and_latency(standing_xdp_link, headers, options):
    from parshall.instruments.generate import Generator

    sender, receiver, link = standing_xdp_link
    program = receiving(receiver, link, "--count", "2000", *options)
    # What has no stamp, or is for others, does not count.
    Generator(link.interface(sender), netns=sender.path, sizes="80", count=50, dst="198.18.1.9").wait()
    run = Generator(
        link.interface(sender), netns=sender.path, sizes="imix", pps=50e3, count=2000, stamp=True, **headers
    )
    run.wait()
    account = account_of(program)
    assert account["received"] == 2000 == account["sent"]
    assert account["lost"] == account["duplicates"] == account["capture_lost"] == 0
    least_ns, median_ns, *_ = account["latency_ns"]
    assert -1e6 < least_ns <= median_ns < 1e7


def test_the_receiver_counts_lost_packets(standing_xdp_link):
    from parshall.instruments.generate import Generator

    sender, receiver, link = standing_xdp_link
    program = receiving(receiver, link, "--count", "5000", "--duration", "3")
    options = {"sizes": "80", "count": 3000, "stamp": True, "pps": 50e3}
    Generator(link.interface(sender), netns=sender.path, **options).wait()
    account = account_of(program)
    assert (account["received"], account["lost"]) == (3000, 2000)


def test_a_receiver_of_another_port_says_so(standing_xdp_link):
    from parshall.instruments.generate import Generator

    sender, receiver, link = standing_xdp_link
    program = receiving(receiver, link, "--count", "300", "--duration", "3", "--dport", "7")
    Generator(link.interface(sender), netns=sender.path, sizes="80", count=300, stamp=True).wait()
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 1, errors
    account = json.loads(output)
    assert (account["received"], account["lost"]) == (0, 300) and account["others"] >= 300
    assert account["filter"] == "ip and udp dst portrange 7-7"
    (said,) = (line for line in reception_lines(account) if "match" in line)
    assert (
        "packets came that did not match 'ip and udp dst portrange 7-7': give the --dst, --protocol and --dport" in said
    )


@pytest.mark.parametrize("option", [["--pps", "5k"], ["--stamp"], ["--vlan", "7"]])
def test_an_option_of_the_sending_end_is_refused(option):
    refused = in_process.parshall("gen", "--receive", "--json", "-i", "lo", *option)
    assert refused.returncode == 2
    assert f"--receive {option[0]}: " in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_the_receiver_counts_the_packets_of_several_senders(standing_xdp_link):
    from parshall.instruments.generate import Generator

    sender, receiver, link = standing_xdp_link
    program = receiving(receiver, link, "--count", "8000", "--duration", "4")
    cpus = sorted(os.sched_getaffinity(0))[:2]
    options = {"sizes": "80", "count": 8000, "stamp": True, "pps": 50e3}
    run = Generator(link.interface(sender), netns=sender.path, cpu=cpus, **options)
    sent = run.wait().account
    account = account_of(program)
    # A veth queues 256 packets while its peer has no CPU; both ends must report the dropped ones.
    assert (sent["sent"], account["duplicates"], account["capture_lost"]) == (8000, 0, 0)
    assert (account["received"], account["lost"]) == (sent["arrived"], sent["lost"])
