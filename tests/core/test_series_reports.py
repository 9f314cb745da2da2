"""Logs whose files are not all there: what reports and tables say of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_log import BEGIN_NS, hook_account
from written_log import COLUMNS, NAMES, batch_of, flow_row, write_log

import in_process
import parshall
from parshall.figures import reduce
from parshall.instruments.flow_states import Follower
from parshall.instruments.tcp_log import Log
from parshall.report import write_report

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS


def record(at_ns: int, **changes: Any) -> dict[str, Any]:
    """Return a row of flow 1, which sends."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS, 0) | {name: names[0] for name, names in NAMES.items()}
    row |= dict.fromkeys(("app_limited", "reordering_seen", "can_undo", "original_acked"), False)
    row |= {"time_ns": BEGIN_NS + at_ns, "flow": 1, "direction": "out", "state": "ESTABLISHED", "ending": None}
    return row | {"cwnd_segments": 10, "srtt_us": 500, "gso_segs": 1, "pkt_flags": 16} | changes


def sending(begin_ns: int, **changes: Any) -> list[dict[str, Any]]:
    """Return ten rows of a flow, one a second."""
    numbers = [{"snd_una": 1000 + at * 1448, "snd_nxt": 1000 + (at + 2) * 1448} for at in range(1, 11)]
    return [record(begin_ns + at * SECOND_NS, **each, **changes) for at, each in enumerate(numbers, 1)]


def write_part(
    directory: Path, number: int, rows: list[dict[str, Any]], flows: list[dict[str, Any]], **ledger: Any
) -> None:
    """Write a file of a series, which has an hour; the hour before the first one is hour 0."""
    account = {
        "hooks": [hook_account("tcp_egress", len(rows))],
        "sequence_gaps": 0,
        "cost": {"programs": [], "reader_cpu_s": 0.1, "reader_softirq_s": 0.0, "wall_s": 10.0, "log_bytes": 1000},
        "complete": False,
        "from_time_ns": BEGIN_NS + number * HOUR_NS,
        "until_time_ns": BEGIN_NS + (number + 1) * HOUR_NS,
    }
    part = {"run": "r", "number": number, "began_ns": BEGIN_NS + number * HOUR_NS}
    batch = batch_of({name: [row[name] for row in rows] for name in COLUMNS})
    write_log(directory / f"x.{number:06}.arrow", [batch], flows, account | ledger, part=part)


def report_text(directory: Path) -> str:
    """Return the report of a series."""
    path = write_report({"x": parshall.read(directory / "x.arrow")}, directory / "report", "X", images=False)
    return " ".join(path.read_text().split())


@pytest.mark.parametrize("numbers", [(1, 2), (2, 3)])
def test_a_series_whose_oldest_file_was_removed_is_checked(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    """Each file has an account of its own, so the removal of one explains no imbalance of the others."""
    flows = [flow_row(1, packets_seen=500, packets_logged=20)]
    for number in numbers:
        write_part(tmp_path, number, sending(number * HOUR_NS), flows, complete=number == numbers[-1], sequence_gaps=7)
    log = parshall.read(tmp_path / "x.arrow")
    assert log.complete == (numbers[0] == 1)
    text = report_text(tmp_path)
    assert "the ledger does not balance, see below" in text
    assert "flow 1, packets: +480 of 500 seen are unaccounted" in text
    assert "0 overwritten, but 14 gaps in the sequence numbers" in text
    assert "not checked" not in text and "hooks ran" not in text


def test_a_series_without_its_oldest_file_that_balances_is_said_to_balance(tmp_path: Path) -> None:
    for number in (2, 3):
        flows = [flow_row(1, packets_seen=500, packets_logged=500)]
        write_part(tmp_path, number, sending(number * HOUR_NS), flows, complete=number == 3)
    text = report_text(tmp_path)
    assert "none was lost; the ledger balances." in text
    assert "Every hook and every flow balances" in text
    assert "not checked" not in text and "hooks ran" not in text


def test_a_ledger_of_running_hooks_is_not_said_to_balance(tmp_path: Path) -> None:
    """The last file is missing: the account of the others is a snapshot, which balances by chance."""
    write_part(tmp_path, 1, sending(HOUR_NS), [flow_row(1, packets_seen=10, packets_logged=10)])
    text = report_text(tmp_path)
    reason = "it was taken while the hooks ran, so it need not balance"
    assert f"none was lost; the ledger was not checked: {reason}." in text
    assert f"This ledger was not checked: {reason}." in text
    assert "balances." not in text


def test_a_log_cut_in_the_middle_is_not_said_to_balance(tmp_path: Path) -> None:
    for number in (1, 2):
        write_part(tmp_path, number, sending(number * HOUR_NS), [flow_row(1)], complete=number == 2)
    first = tmp_path / "x.000001.arrow"
    first.write_bytes(first.read_bytes()[:-9])
    assert [gap["cause"] for gap in parshall.read(tmp_path / "x.arrow").gaps.to_pylist()] == ["killed"]
    text = report_text(tmp_path)
    assert "the ledger was not checked: the log is cut before one of its gaps." in text
    assert "the ledger balances" not in text and "hooks ran" not in text


def test_flows_that_a_missing_file_may_end_are_not_checked(tmp_path: Path) -> None:
    """Packets of flow 2 waited in the ring when the first file ended; its last row is in the file that is missing."""

    def flow(number: int, last_ns: int) -> dict[str, Any]:
        return flow_row(number, packets_seen=13, packets_logged=10, last_time_ns=BEGIN_NS + last_ns)

    write_part(tmp_path, 1, sending(HOUR_NS), [flow(1, HOUR_NS), flow(2, HOUR_NS)])
    write_part(tmp_path, 3, sending(3 * HOUR_NS), [flow(1, 3 * HOUR_NS)], complete=True)
    text = report_text(tmp_path)
    assert "flow 1, packets: +3 of 13 seen are unaccounted" in text
    assert "flow 2, packets" not in text
    assert "1 flow was not checked: the last account may be in the file that is missing" in text
    # `parshall show --json` has the gap, too.
    shown = json.loads(in_process.parshall("show", str(tmp_path / "x.arrow"), "--json").stdout)
    assert [gap["cause"] for gap in shown["gaps"]] == ["file_missing"] and shown["truncation"] is None


def moved(log: Log) -> dict[int, int]:
    """Return what each flow sent again, which the report and `parshall show` count alike."""
    shown = {row["flow"]: row["retransmitted"] for row in log.flow_states().table().iter_rows(named=True)}
    reported = {row["flow"]: row["retransmitted"] for row in reduce(log).table.iter_rows(named=True)}
    assert shown == reported
    return shown


def flows_of_two_hours(began_ns: int) -> list[dict[str, Any]]:
    """Return a flow that began in hour 1, and one that began later."""
    first, second = BEGIN_NS + HOUR_NS + 5 * SECOND_NS, BEGIN_NS + began_ns
    return [flow_row(1, first_time_ns=first), flow_row(2, first_time_ns=second)]


def rows_of_two_flows(begin_ns: int) -> list[dict[str, Any]]:
    """Return rows of the two flows: of the older one with 10,000 segments sent again before, and then 3 more."""
    older = sending(begin_ns, total_retrans=10_000)
    older[-1]["total_retrans"] = 10_003
    # The first event of the younger one, a SYN, was no row of a socket.
    younger = sending(begin_ns + SECOND_NS // 2, total_retrans=4) if begin_ns else []
    return sorted([*older, *(row | {"flow": 2} for row in younger)], key=lambda row: row["time_ns"])


@pytest.mark.parametrize("numbers", [(2,), (2, 3)])
def test_segments_sent_again_in_a_removed_file_are_not_of_the_rest(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    """The first row that is left has the kernel's count of the flow's whole life."""
    flows = flows_of_two_hours(2 * HOUR_NS + SECOND_NS)
    for number in numbers:
        rows = rows_of_two_flows(2 * HOUR_NS) if number == 2 else sending(number * HOUR_NS, total_retrans=10_003)
        write_part(tmp_path, number, rows, flows, complete=number == numbers[-1])
    assert moved(parshall.read(tmp_path / "x.arrow")) == {1: 3, 2: 4}


def test_segments_sent_again_in_a_file_missing_in_the_middle_are_of_those_whose_begin_is_read(tmp_path: Path) -> None:
    """Flow 1 began before the missing file, flow 2 in it."""
    write_part(tmp_path, 1, sending(HOUR_NS), flows_of_two_hours(2 * HOUR_NS)[:1])
    flows = flows_of_two_hours(2 * HOUR_NS + 60 * SECOND_NS)
    write_part(tmp_path, 3, rows_of_two_flows(3 * HOUR_NS), flows, complete=True)
    assert moved(parshall.read(tmp_path / "x.arrow")) == {1: 10_003, 2: 0}


def test_a_flow_that_wakes_up_in_a_followed_file_sent_nothing_again_at_once(tmp_path: Path) -> None:
    """A follower begins with the newest file; here the flow began an hour before it."""
    write_part(tmp_path, 7, rows_of_two_flows(7 * HOUR_NS), flows_of_two_hours(7 * HOUR_NS + SECOND_NS))
    follower = Follower(tmp_path / "x.arrow")
    follower.read()
    table = follower.states.table()
    assert dict(table.select("flow", "retransmitted").iter_rows()) == {1: 3, 2: 4}
    assert not {"first_time_ns", "retransmits_total"} & {*table.columns, *follower.states.changing().columns}


def test_rows_that_waited_in_the_ring_begin_no_flow_anew(tmp_path: Path) -> None:
    """An older flow's first row in a file is a little older than the file."""
    rows = sending(2 * HOUR_NS - SECOND_NS - SECOND_NS // 10, total_retrans=10_000)
    write_part(tmp_path, 2, rows, flows_of_two_hours(0)[:1], complete=True)
    assert moved(parshall.read(tmp_path / "x.arrow")) == {1: 0}


@pytest.mark.parametrize("total", [3, 1])
def test_the_segment_that_an_old_flow_begins_with_is_counted(tmp_path: Path, total: int) -> None:
    """The kernel counts before it sends, so the first row has it; also where the flow table is older than the rows."""
    rows = [record(at * SECOND_NS, event="retransmit", total_retrans=100 + at, snd_nxt=2000) for at in (1, 2, 3)]
    rows[0]["snd_nxt"] = 1000
    flows = [flow_row(1, began_before=True, first_time_ns=rows[0]["time_ns"], retransmits_total=total)]
    write_part(tmp_path, 1, rows, flows, complete=True)
    assert moved(parshall.read(tmp_path / "x.arrow")) == {1: 3}


def test_what_the_flow_table_counted_in_a_removed_file_is_not_of_the_rest(tmp_path: Path) -> None:
    flows = [flow_row(1, began_before=True, first_time_ns=BEGIN_NS + HOUR_NS, retransmits_total=500)]
    rows = sending(2 * HOUR_NS, total_retrans=600)
    write_part(tmp_path, 2, rows, flows, complete=True)
    assert moved(parshall.read(tmp_path / "x.arrow")) == {1: 0}
