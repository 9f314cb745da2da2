"""The description of the host in a measurement."""

import json
import sys

import pytest

from parshall.host.environment import comment_of_capture, environment


def test_a_capture_describes_only_its_host_and_its_interfaces():
    described = json.loads(comment_of_capture(["lo"]))
    whole = environment()
    assert described == {key: whole[key] for key in described} | {"interfaces": {"lo": whole["interfaces"]["lo"]}}
    assert {"parshall", "kernel", "cpus", "command_line"} <= set(described)


@pytest.mark.parametrize("interfaces", [["lo"], [f"veth{number}" for number in range(400)]])
@pytest.mark.parametrize("words", [["parshall"], ["parshall", "port 80 or " * 5000]])
def test_the_comment_of_a_capture_fits_what_wireshark_reads(monkeypatch, interfaces, words):
    monkeypatch.setattr(sys, "argv", words)
    comment = comment_of_capture(interfaces)
    assert len(comment) <= 1600
    described = json.loads(comment)
    assert described["kernel"]
    assert ("interfaces" in described, "command_line" in described) == (len(interfaces) == 1, len(words) == 1)
