"""What Wireshark is told: sentences that its parser takes, for every name that it may ask about."""

import re

import pytest

from parshall import extcap
from parshall.errors import ParshallError, UsageError

SENTENCE = re.compile(r"(extcap|interface|dlt|arg|value) (\{[a-z]+=[^{}]*\})+")
RING = {"name": "day", "hooks": ["eth0 in (tcx)"], "subscribers": []}


def test_every_line_is_a_sentence_of_the_protocol() -> None:
    lines = extcap.interface_lines("1.0", ["eth0", "odd{name}"], [RING])
    lines += extcap.link_type_lines(extcap.Place("lo"))
    for place in (extcap.Place("lo"), extcap.Place(None, "day")):
        lines += extcap.option_lines(place)
    for line in lines:
        assert SENTENCE.fullmatch(line), line


def test_what_is_listed_can_be_asked_for() -> None:
    lines = extcap.interface_lines("1.0", ["eth0"], [RING, {"name": "other", "unreadable": "not yours"}])
    names = [re.search(r"\{value=([^}]*)\}", line)[1] for line in lines if line.startswith("interface ")]
    assert [extcap.Place.of(name) for name in names] == [extcap.Place("eth0"), extcap.Place(None, "day")]


def test_who_joins_a_ring_cannot_choose_how_it_is_made() -> None:
    calls = [re.search(r"\{call=([^}]*)\}", line) for line in extcap.option_lines(extcap.Place(None, "day"))]
    assert [call[1] for call in calls if call] == ["--snaplen"]


def test_what_is_not_ours_is_refused() -> None:
    with pytest.raises(UsageError, match="--extcap-interfaces"):
        extcap.Place.of("eth0")
    with pytest.raises(ParshallError, match="no-such"):
        extcap.link_type_lines(extcap.Place("no-such"))


def test_the_program_that_is_written_is_executable(tmp_path) -> None:
    path = extcap.install(tmp_path / "new")
    assert path.stat().st_mode & 0o111 == 0o111
    assert "parshall extcap" in path.read_text()
