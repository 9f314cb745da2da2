"""The ledger that is printed at the end of a log."""

from typing import Any

import pytest

from parshall.host.ledger_text import capture_ledger_lines, ledger_lines, short_filter


def account(hook: str, logged: int) -> dict[str, Any]:
    """Return the account of a hook that logged all that it saw."""
    return {"hook": hook, "seen": logged, "filtered": 0, "thinned": 0, "logged": logged, "lost": {}}


@pytest.mark.parametrize(
    ("records", "end"),
    [(1000, "2.0 MB written, 2000.0 bytes per record"), (999, "2.0 MB written"), (0, "2.0 MB written")],
)
def test_the_cost_ends_with_the_bytes_per_record(records, end):
    cost = {"programs": [], "reader_cpu_s": 0.5, "wall_s": 2.0, "log_bytes": 2_000_000}
    hooks = [account("tcp_ingress", records // 4), account("tcp_egress", records * 3 // 4), account("tcp_flow", 77)]
    assert ledger_lines({"hooks": hooks, "cost": cost})[-1].endswith(end)


@pytest.mark.parametrize(
    ("size", "text"), [(38_008, "38,008 bytes"), (1, "1 byte"), (99_999, "99,999 bytes"), (100_000, "0.1 MB")]
)
def test_a_small_log_is_written_in_bytes(size, text):
    cost = {"programs": [], "reader_cpu_s": 0.5, "wall_s": 2.0, "log_bytes": size}
    assert ledger_lines({"hooks": [account("tcp_ingress", 1)], "cost": cost})[-1].endswith(f"; {text} written")


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("day.pcapng.zst", "day.*.pcapng.zst"),
        ("to/a.b.pcap", "to/a.b.*.pcap"),
        ("to.d/day", "to.d/day.*"),
        ("day.gz", "day.*.gz"),
        (".hidden", ".hidden.*"),
    ],
)
def test_a_series_of_files_has_the_pattern_of_their_names(file, pattern):
    interface = account("eth0", 3)
    subscriber = {"file": file, "filter": "", "interfaces": [interface]}
    cost = {"programs": [], "reader_cpu_s": 0.5, "wall_s": 2.0, "log_bytes": 0}
    ledger = {"subscribers": [subscriber], "complete": True, "cost": cost}
    assert capture_ledger_lines(ledger, rotates=True)[0] == f"{pattern}: everything"
    assert capture_ledger_lines(ledger)[0] == f"{file}: everything"


def test_a_filter_is_shown_on_one_short_line():
    assert short_filter("") == "everything"
    assert short_filter("tcp\nport  80") == "tcp port 80"
    assert short_filter("tcp \x1b[31m \u202e") == r"tcp \x1b[31m \u202e"
    assert len(short_filter("port 1 or " * 10_000)) < 130


def test_a_cost_without_a_timed_hook_says_so():
    program = {"program": "reader_softirq", "sampled_runs": 3, "ns_per_run": 343.0}
    cost = {"programs": [program], "reader_cpu_s": 0.5, "wall_s": 2.0, "log_bytes": 0}
    assert (
        "hooks not timed: none ran in the moments in which the kernel times them; reader"
        in ledger_lines({"hooks": [account("tcp_ingress", 1)], "cost": cost})[-1]
    )
    cost["programs"] = [program, {"program": "tcp_ingress", "sampled_runs": 1, "ns_per_run": 150.0}]
    line = ledger_lines({"hooks": [account("tcp_ingress", 1)], "cost": cost})[-1]
    assert line.startswith("  cost: tcp_ingress 150 ns; reader ")
    # A packet socket has no program of ours.
    none = cost | {"programs": []}
    line = ledger_lines({"hooks": [account("packets", 1)], "cost": none})[-1]
    assert line.startswith("  cost: reader 0.50 CPU s")


def test_a_cost_names_the_programs_that_took_most_of_the_time():
    runs = {"seldom": (1, 900.0), "often": (1000, 120.0), **{f"small_{number}": (10, 20.0) for number in range(9)}}
    programs = [
        {"program": name, "sampled_runs": sampled_runs, "ns_per_run": ns_per_run}
        for name, (sampled_runs, ns_per_run) in runs.items()
    ]
    cost = {"programs": programs, "reader_cpu_s": 0.5, "wall_s": 2.0, "log_bytes": 0}
    line = ledger_lines({"hooks": [account("tcp_ingress", 1)], "cost": cost})[-1]
    assert line.startswith(
        "  cost: often 120 ns, seldom 900 ns, small_0 20 ns, small_1 20 ns, 7 further programs at most 20 ns; reader "
    )
