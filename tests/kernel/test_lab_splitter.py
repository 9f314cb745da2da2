"""Several observers of the same packets in one run."""

from pathlib import Path

import pytest

from parshall.errors import UsageError
from parshall.lab import Host, Measure, Setting, Study, capture, generate, grid, run, splitter, tcpdump
from parshall.lab.evaluation import table_of
from parshall.lab.programs import tcpdump_counts

PACKETS = 3000
SNIFFERS = ("shared", "alone", "idle")


@pytest.mark.kernel
@pytest.mark.usefixtures("root")
def test_every_sniffer_gets_every_packet(tmp_path: Path) -> None:
    def setting(_: dict, duration_s: float) -> Setting:
        tap, links = splitter("tap", "sender", SNIFFERS)
        programs = [
            capture("shared"),
            tcpdump("alone"),
            generate("sender", duration_s, "--pps", "10k", "-c", PACKETS),
        ]
        hosts = [Host("sender"), tap, *map(Host, SNIFFERS)]
        return Setting(hosts, links, programs, duration_s)

    study = Study(
        "observed",
        "Observed",
        "Do all sniffers get the same?",
        setting,
        levels=grid(n=[1]),
        repeats=1,
        duration_s=0.3,
        has_controls=False,
        measures=[
            Measure("sent", "packets", lambda run: run.sent("sender")),
            *(Measure(host, "packets", lambda run, host=host: run.received(host)) for host in SNIFFERS),
            Measure("captured", "packets", lambda run: run.ledger("capture")["logged"]),
            Measure("dumped", "packets", lambda run: tcpdump_counts(run.errors("tcpdump"))["captured"]),
        ],
    )
    (row,) = table_of(run(study, "", tmp_path / "out", stops_on_failure=True), study).frame.to_dicts()
    names = ("sent", *SNIFFERS, "captured", "dumped")
    assert {name: row[name] for name in names} == dict.fromkeys(names, PACKETS)


@pytest.mark.parametrize(
    ("name", "source", "sniffers"),
    [("tap", "a", []), ("tap", "a", ["b", "b"]), ("tap", "tap", ["b"]), ("t", "a", ["a"])],
)
def test_a_splitter_without_hosts_of_their_own_is_refused(name: str, source: str, sniffers: list[str]) -> None:
    with pytest.raises(UsageError, match=f"splitter {name}: expected a source and sniffers"):
        splitter(name, source, sniffers)
