"""What a reader must know first, in sentences; every number is computed from the logs."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from parshall.report.account import Account, hook_accounts, total

# Their programs run for every packet.
_PACKET_HOOKS = ("tcp_ingress", "tcp_egress")


def of_log(
    name: str,
    measured: pl.DataFrame,
    ledger: Mapping[str, Any],
    *,
    records: int,
    flows: int,
    complete: bool,
    findings: Sequence[str],
) -> list[str]:
    """Return the sentences about one log.

    Parameters
    ----------
    name
        Of the log.
    measured
        What `measures` returns.
    ledger
        Of the log.
    records, flows
        How many there are.
    complete
        Whether the log ended as it should.
    findings
        Where its accounts disagree.
    """
    said = [f"{_many(records, 'record')} of {_many(flows, 'flow')}{_duration(measured)}."]
    if not complete:
        said.append("The log ended early: what is told here is what could be read up to there.")
    accounts = hook_accounts(ledger)
    if accounts:
        said += [_loss(total(accounts), findings, complete), *_cost(ledger, records)]
    else:
        said.append("It holds no ledger: it ended before its first second was over.")
    return said


def of_flows(measured: pl.DataFrame, labels: Mapping[int, str], most: int = 4) -> str | None:
    """Return a sentence about the flows that moved most, None when nothing moved."""
    if measured.is_empty() or not measured["bytes"].sum():
        return None
    together = measured["bytes"].sum()
    rows = measured.filter(pl.col("bytes") > 0).sort("bytes", descending=True).head(most)
    parts = [
        f"{labels[row['flow']]} moved {row['bytes'] / 1e6:,.1f} MB"
        + (f" at {row['Mbps']:,.1f} Mbit/s" if row["Mbps"] is not None else "")
        + f" ({row['bytes'] / together:.0%})"
        + (f", retransmitting {_many(row['retransmitted'], 'segment')}" if row["retransmitted"] else "")
        for row in rows.iter_rows(named=True)
    ]
    rest = measured.filter(pl.col("bytes") > 0).height - rows.height
    return "; ".join(parts) + (f"; and {_many(rest, 'more flow')}" if rest > 0 else "") + "."


def _duration(measured: pl.DataFrame) -> str:
    if measured.is_empty():
        return ""
    last_s = measured.select((pl.col("begin_s") + pl.col("duration_s")).max()).item()
    return f" in {last_s:,.2f} s"


def _loss(account: Account, findings: Sequence[str], complete: bool) -> str:
    causes = ", ".join(f"{count:,} {cause}" for cause, count in account.lost.items() if count)
    lost = f"{account.lost_total:,} were lost ({causes})" if account.lost_total else "none was lost"
    kept_back = "".join(
        f", {count:,} were {what}"
        for what, count in (("filtered", account.filtered), ("thinned out", account.thinned))
        if count
    )
    verdict = "the ledger balances" if not findings else "the ledger does not balance, see below"
    if not complete:
        verdict = "the ledger is one taken while the hooks ran, which need not balance"
    logged = f"Of {account.seen:,} events that reached the hooks, {account.logged:,} were logged"
    return f"{logged}{kept_back}, {lost}; {verdict}."


def _cost(ledger: Mapping[str, Any], records: int) -> list[str]:
    cost = ledger.get("cost") or {}
    timed = {program["program"]: program for program in cost.get("programs", []) if program["sampled_runs"]}
    said = [
        f"A run of {hook} cost {timed[hook]['ns_per_run']:,.0f} ns in the mean of "
        f"{_many(timed[hook]['sampled_runs'], 'timed run')}."
        for hook in _PACKET_HOOKS
        if hook in timed
    ]
    if cost.get("wall_s"):
        share = cost["reader_cpu_s"] / cost["wall_s"]
        size = f" ({cost['log_bytes'] / records:,.0f} bytes a record)" if records else ""
        said.append(
            f"The reader took {cost['reader_cpu_s']:.2f} CPU seconds in {cost['wall_s']:.1f} s "
            f"({share:.1%} of one CPU) and wrote {cost['log_bytes'] / 1e6:,.1f} MB{size}."
        )
    return said


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
