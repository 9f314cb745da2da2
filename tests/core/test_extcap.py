"""Answers to Wireshark: lines that its parser accepts, for every name that it may query."""

import re

import pytest

from in_process import parshall
from parshall.errors import ParshallError, UsageError
from parshall.host.installation import version
from parshall.instruments import extcap

SENTENCE = re.compile(r"(extcap|interface|dlt|arg|value) (\{[a-z]+=[^{}]*\})+")
RING = {"name": "day", "hooks": ["eth0 in (tcx)"], "subscribers": []}


def test_every_line_is_a_sentence_of_the_protocol() -> None:
    lines = extcap.interface_lines("1.0", ["eth0", "odd{name}"], [RING])
    lines += extcap.link_type_lines(extcap.CaptureSource("lo"))
    for place in (extcap.CaptureSource("lo"), extcap.CaptureSource(None, "day")):
        lines += extcap.option_lines(place)
    for line in lines:
        assert SENTENCE.fullmatch(line), line


def test_listed_interfaces_can_be_captured() -> None:
    lines = extcap.interface_lines("1.0", ["eth0"], [RING, {"name": "other", "unreadable": "not yours"}])
    names = [re.search(r"\{value=([^}]*)\}", line)[1] for line in lines if line.startswith("interface ")]
    assert [extcap.CaptureSource.parse(name) for name in names] == [
        extcap.CaptureSource("eth0"),
        extcap.CaptureSource(None, "day"),
    ]


def test_a_running_ring_has_only_the_snaplen_option() -> None:
    calls = [re.search(r"\{call=([^}]*)\}", line) for line in extcap.option_lines(extcap.CaptureSource(None, "day"))]
    assert [call[1] for call in calls if call] == ["--snaplen"]


def test_foreign_names_are_refused() -> None:
    with pytest.raises(UsageError, match="--extcap-interfaces"):
        extcap.CaptureSource.parse("eth0")
    with pytest.raises(ParshallError, match="no-such"):
        extcap.link_type_lines(extcap.CaptureSource("no-such"))


def test_the_installed_program_is_executable(tmp_path) -> None:
    path = extcap.install(tmp_path / "new")
    assert path.stat().st_mode & 0o111 == 0o111
    assert "parshall extcap" in path.read_text()


def test_the_command_says_its_version_in_one_field() -> None:
    first = parshall("extcap", "--extcap-interfaces").stdout.splitlines()[0]
    assert first == f"extcap {{version={version()}}}{{display=Parshall: capture through a shared ring}}"
