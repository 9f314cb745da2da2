"""The sentences of the summary; every number is computed from the logs."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from parshall.figures import Reduction
from parshall.host.quantities import bytes_text, many
from parshall.host.rotation import gap_sentence
from parshall.report.account import FLOW_HOOK, Account, hook_accounts, total

# They have a sequence number each: a connection that moved no more moved nothing.
_SYN_AND_FIN = 2
_CONNECTIONS_NAMED = 4
# Fewer do not outweigh the schema and the flow table.
_RECORDS_FOR_MEAN = 1000
# From here on a difference of sequence numbers does not say how far one is ahead of another.
_AMBIGUOUS_BYTES = 2**31
# Hooks whose programs run for every packet.
_PACKET_HOOKS = ("tcp_ingress", "tcp_egress")


def log_sentences(
    reduction: Reduction,
    ledger: Mapping[str, Any],
    *,
    flows: int,
    findings: Sequence[str],
    unchecked: str | None = None,
    unchecked_flows: int = 0,
    truncation: str | None = None,
    gaps: Sequence[Mapping[str, Any]] = (),
    thinning: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Return the sentences about one log.

    `flows` is the number of rows of its flow table, `findings` has the contradictions between its accounts,
    `unchecked` says why these were not checked, and `unchecked_flows` is how many flows were not.
    """
    records = reduction.records
    sentences = [f"{many(records, 'record')} of {many(flows, 'flow')}{_duration(reduction.table)}."]
    pairs = reduction.table.filter(~pl.col("is_counted")).height
    if pairs:
        sentences.append(
            f"Both ends of {many(pairs, 'connection')} are in the log, as two flows each; "
            "their payload is counted once, at the sending end."
        )
    if truncation:
        sentences.append("The log is truncated: this report covers the part that could be read.")
    sentences += [gap_sentence(gap) for gap in gaps]
    accounts = hook_accounts(ledger)
    if accounts:
        reports = sum(account.logged for account in accounts if account.name == FLOW_HOOK)
        verdict = _verdict(findings, unchecked, unchecked_flows)
        sentences += [_loss(total(accounts), reports, verdict), *_cost(ledger, records)]
    else:
        sentences.append("It has no ledger: it ended within its first second.")
    return sentences + _thinned(thinning)


def _thinned(thinning: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a budget left out, by the rows of `Log.thinning`; nothing without a change."""
    every = [row["packets_per_log"] for row in thinning]
    if max(every, default=1) == min(every, default=1) == 1:
        return []
    times_ns = [row["time_ns"] for row in thinning]
    # When the log ended after the last change is not known.
    spans = list(zip(every, times_ns, times_ns[1:], strict=False))
    pauses_ns = [until - since for each, since, until in spans if each == 0]
    paused_ns = sum(pauses_ns)
    share = paused_ns / max(times_ns[-1] - times_ns[0], 1)
    paused = f", none for {share:.0%} of the time until the last change" if paused_ns else ""
    paused += ", none after the last change" if every[-1] == 0 else ""
    rates = sorted({each for each in every if each})
    logged = " to ".join(dict.fromkeys(_every_packet(each) for each in (rates[0], rates[-1]))) if rates else "no packet"
    longest_s = max(pauses_ns, default=0) / 1e9
    wrapped = ""
    if longest_s:
        rate_Mbps = 8e-6 * _AMBIGUOUS_BYTES / longest_s
        wrapped = (
            f" In its longest pause of {longest_s:.1f} s, flows of {rate_Mbps:,.0f} Mbit/s or more moved "
            "2 GiB: figures, and flows without an account, may lack a part of their bytes."
        )
    return [
        f"To keep to its budget it logged {logged} of each flow{paused}: "
        f"log.estimates() has bytes, retransmissions and round-trip times with intervals.{wrapped}"
    ]


def _every_packet(packets_per_log: int) -> str:
    """Return which packets were logged; numbers are powers of two."""
    if packets_per_log == 1:
        return "every packet"
    is_second = packets_per_log % 10 == 2 and packets_per_log % 100 != 12
    return f"every {packets_per_log:,}{'nd' if is_second else 'th'} packet"


def flows_sentence(reduction: Reduction, labels: Mapping[int, str]) -> str | None:
    """Return a sentence about the connections that moved most bytes; None when none moved any."""
    moved = reduction.table.filter(pl.col("is_counted") & (pl.col("bytes") > _SYN_AND_FIN))
    if moved.is_empty():
        return None
    rows = moved.sort("bytes", descending=True, maintain_order=True).head(_CONNECTIONS_NAMED)
    parts = [
        f"{labels[row['flow']]} moved {bytes_text(row['bytes'])}"
        + (f" at {row['Mbps']:,.1f} Mbit/s" if row["Mbps"] is not None else "")
        + f" ({row['bytes'] / reduction.counted_bytes:.0%})"
        + (f", retransmitting {many(row['retransmitted'], 'segment')}" if row["retransmitted"] else "")
        for row in rows.iter_rows(named=True)
    ]
    rest = moved.height - rows.height
    return "; ".join(parts) + (f"; and {many(rest, 'more connection')}" if rest > 0 else "") + "."


def _duration(table: pl.DataFrame) -> str:
    last_s = table.select((pl.col("begin_s") + pl.col("duration_s")).max()).item()
    return "" if last_s is None else f" in {last_s:,.2f} s"


def _verdict(findings: Sequence[str], unchecked: str | None, unchecked_flows: int) -> str:
    if unchecked:
        return f"the ledger was not checked: {unchecked}"
    verdict = "the ledger does not balance, see below" if findings else "the ledger balances"
    if unchecked_flows:
        were = "was" if unchecked_flows == 1 else "were"
        verdict += (
            f"; {many(unchecked_flows, 'flow')} {were} not checked: the last account may be in the file that is missing"
        )
    return verdict


def _loss(account: Account, reports: int, verdict: str) -> str:
    causes = ", ".join(f"{count:,} {cause}" for cause, count in account.lost.items() if count)
    lost = f"{account.lost_total:,} were lost ({causes})" if account.lost_total else "none was lost"
    withheld = "".join(
        f", {count:,} were {what}"
        for what, count in (("filtered", account.filtered), ("thinned out", account.thinned))
        if count
    )
    logged = f"Of {account.seen:,} events that reached the hooks, {account.logged:,} were logged"
    if reports:
        # They explain why there are more events than records.
        logged += f" ({account.logged - reports:,} as records, {reports:,} in the flow table)"
    return f"{logged}{withheld}, {lost}; {verdict}."


def _cost(ledger: Mapping[str, Any], records: int) -> list[str]:
    cost = ledger.get("cost") or {}
    timed = {program["program"]: program for program in cost.get("programs", []) if program["sampled_runs"]}
    sentences = [
        f"A run of {hook} cost {timed[hook]['ns_per_run']:,.0f} ns on average over "
        f"{many(timed[hook]['sampled_runs'], 'timed run')}."
        for hook in _PACKET_HOOKS
        if hook in timed
    ]
    if cost.get("wall_s"):
        share = cost["reader_cpu_s"] / cost["wall_s"]
        is_mean = records >= _RECORDS_FOR_MEAN
        size = f" ({cost['log_bytes'] / records:,.0f} bytes per record)" if is_mean else ""
        sentences.append(
            f"The reader took {cost['reader_cpu_s']:.2f} CPU seconds in {cost['wall_s']:.1f} s "
            f"({share:.1%} of one CPU) and wrote {bytes_text(cost['log_bytes'])}{size}."
        )
    return sentences
