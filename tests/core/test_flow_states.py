"""The account beside the flows of a log: what is shown while it is written."""

import polars as pl
import pytest

from parshall.cli.show import _cells
from parshall.instruments.flow_states import _COUNT_FACTS, _FACTS, FlowStates


def account(ledger: dict[str, object]) -> dict[str, object] | None:
    states = FlowStates()
    states.ledger = ledger
    return states.account()


def hook(name: str, seen: int, overwritten: int) -> dict[str, object]:
    lost = {"overwritten": overwritten, "dropped": 1}
    return {"hook": name, "seen": seen, "filtered": 2, "thinned": 3, "logged": seen - overwritten - 6, "lost": lost}


def program(name: str, ns: float, runs: int) -> dict[str, object]:
    return {"program": name, "ns_per_run": ns, "sampled_runs": runs}


def test_hooks_are_summed_up_and_only_their_programs_are_timed() -> None:
    programs = [
        program("tcp_ingress", 120.0, 9),
        program("tcp_egress", 340.5, 4),
        program("tcp_retransmit", 0.0, 0),
        program("reader_softirq", 20.0, 70),
        program("note_handshakes", 1_010_850.0, 2),
    ]
    hooks = [hook("tcp_ingress", 100, 10), hook("tcp_egress", 50, 5), hook("tcp_retransmit", 10, 0)]
    cost = {"programs": programs, "reader_cpu_s": 0.5, "wall_s": 10.0, "log_bytes": 77}
    found = account({"hooks": hooks, "cost": cost})
    assert found == {
        "seen": 160,
        "filtered": 6,
        "thinned": 9,
        "logged": 127,
        "lost": {"overwritten": 15, "dropped": 3},
        "reader_cpu_share": pytest.approx(0.05),
        "hooks_ns": [120.0, 340.5],
        "log_bytes": 77,
    }


def test_without_a_timed_hook_their_cost_is_unknown() -> None:
    cost = {"programs": [program("reader_softirq", 20.0, 70)], "reader_cpu_s": 0.0, "wall_s": 0.0, "log_bytes": 0}
    found = account({"hooks": [hook("tcp_ingress", 100, 10)], "cost": cost})
    assert found is not None and (found["hooks_ns"], found["reader_cpu_share"]) == (None, 0.0)
    assert account({}) is None


@pytest.mark.parametrize(("has_pauses", "thinned", "may_lack"), [(True, 0, True), (False, 3, True), (False, 0, False)])
def test_bytes_that_may_lack_a_part_are_marked_where_packets_were_left_out(
    has_pauses: bool, thinned: int, may_lack: bool
) -> None:
    """A connection that was idle for long lacks nothing in a log of all packets."""
    states = FlowStates(has_pauses=has_pauses)
    states.ledger = {"hooks": [{"hook": "tcp_ingress", "thinned": thinned, "lost": {"dropped": 0}}]}
    states.add_flows(pl.DataFrame({"flow": [1]} | {name: [None] for name in (*_FACTS[1:], *_COUNT_FACTS)}))
    numbers = {"begin_ns": 1, "end_ns": 10**9, "acked_bytes": 2_999_000_000, "received_bytes": 7, "records": 9}
    numbers |= {"retransmitted_first": 0, "retransmitted_last": 0, "cwnd_segments": 10, "srtt_us": 143}
    names = {"state": "ESTABLISHED", "retransmitted_for": None, "acked_may_lack": True, "received_may_lack": False}
    states.set_rows(pl.DataFrame([{"flow": 1} | numbers | names]), 9)
    table = states.table()
    assert table.select("acked_may_lack", "received_may_lack").row(0) == (may_lack, False)
    assert table["srtt_ms"].to_list() == [0.143]
    cells = _cells(table.with_columns(rate_Mbps=pl.lit(24.0)).row(0, named=True))
    sign = ">=" if may_lack else ""
    assert (cells["acked"], cells["received"], cells["Mbit/s"]) == (f"{sign}3G", "7", f"{sign}24.00")


def test_an_account_completes_the_bytes_of_a_log_that_is_read_as_a_whole() -> None:
    """The account of flow 1 has come; that of flow 2 has not."""
    for is_whole in (True, False):
        states = FlowStates(has_pauses=True, is_whole=is_whole)
        facts = {name: [None, None] for name in (*_FACTS[1:], *_COUNT_FACTS)}
        facts |= {"flow": [1, 2], "bytes_acked": [7_294_000_000, None], "bytes_received": [7, None]}
        states.add_flows(pl.DataFrame(facts))
        row = {"begin_ns": 1, "end_ns": 10**9, "acked_bytes": 2_999_000_000, "received_bytes": 9, "records": 9}
        row |= {"retransmitted_first": 0, "retransmitted_last": 0, "cwnd_segments": 10, "srtt_us": 143}
        row |= {"state": "CLOSE", "retransmitted_for": None, "acked_may_lack": True, "received_may_lack": False}
        states.set_rows(pl.DataFrame([{"flow": flow} | row for flow in (1, 2)]), 18)
        table = states.table()
        wanted = [(7_294_000_000, 9, False), (2_999_000_000, 9, True)] if is_whole else [(2_999_000_000, 9, True)] * 2
        assert table.select("acked_bytes", "received_bytes", "acked_may_lack").rows() == wanted
