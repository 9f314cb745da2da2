"""The ledger of a log as rows of tables, with checks of the balance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

FLOW_LOSS_CAUSES = ("dropped", "overwritten", "unwritten")
# The hook that reports flows; it logs into the flow table, not into the records.
FLOW_HOOK = "tcp_flow"
# Maximum number of unbalanced flows that findings name.
_FINDINGS_MAX = 20


@dataclass(frozen=True)
class Account:
    """One account: of a hook, or of a flow's packets or events.

    Attributes
    ----------
    name : str
        Name of the hook or flow.
    seen, filtered, thinned, logged : int
        Counts of events.
    lost : dict of str to int
        Counts of events by cause.
    """

    name: str
    seen: int
    filtered: int
    thinned: int
    logged: int
    lost: Mapping[str, int]

    @property
    def lost_total(self) -> int:
        """Events lost, over all causes."""
        return sum(self.lost.values())

    @property
    def difference(self) -> int:
        """``seen - (filtered + thinned + logged + lost)``; 0 when the account balances."""
        return self.seen - self.filtered - self.thinned - self.logged - self.lost_total


def hook_accounts(ledger: Mapping[str, Any]) -> list[Account]:
    """Return the account of every hook; none when the log ended before its first ledger."""
    return [
        Account(hook["hook"], hook["seen"], hook["filtered"], hook["thinned"], hook["logged"], hook["lost"])
        for hook in ledger.get("hooks", [])
    ]


def flow_accounts(flows: pl.DataFrame, kind: str) -> dict[int, Account]:
    """Return the account of every flow of a flow table: of its packets, or of its other events (`kind`)."""
    found = {}
    for row in flows.iter_rows(named=True):
        count = {key.removeprefix(f"{kind}_"): value for key, value in row.items() if key.startswith(kind)}
        lost = {cause: count.get(cause, 0) for cause in FLOW_LOSS_CAUSES}
        found[row["flow"]] = Account(
            str(row["flow"]),
            count["seen"],
            count.get("filtered", 0),
            count.get("thinned", 0),
            count["logged"],
            lost,
        )
    return found


def flow_total(flows: pl.DataFrame, kind: str, name: str) -> Account:
    """Return the sum of the accounts of flows."""
    sums = flows.select(pl.lit(0).alias("flow"), pl.selectors.starts_with(f"{kind}_").sum())
    return replace(flow_accounts(sums, kind)[0], name=name)


def total(accounts: list[Account]) -> Account:
    """Return the sum of accounts."""
    causes = {cause: 0 for account in accounts for cause in account.lost}
    lost = {cause: sum(account.lost.get(cause, 0) for account in accounts) for cause in causes}
    counts = ("seen", "filtered", "thinned", "logged")
    sums = {count: sum(getattr(account, count) for account in accounts) for count in counts}
    return Account("all", **sums, lost=lost)


def unchecked_reason(
    ledger: Mapping[str, Any], truncation: str | None, gaps: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return why the accounts of a log cannot be checked; None when they can.

    A file that was removed does not prevent it: each file of a series has an account of its own.
    """
    if not ledger.get("complete", True):
        return "it was taken while the hooks ran, so it need not balance"
    if truncation:
        return "the log is cut"
    if any(gap["cause"] in ("killed", "file_damaged") for gap in gaps):
        return "the log is cut before one of its gaps"
    return None


def without_last_account(flows: pl.DataFrame, gaps: Sequence[Mapping[str, Any]]) -> pl.Series:
    """Return the flows whose last account may be in a missing file, since nothing is known of them after it."""
    begins_ns = [gap["from_time_ns"] for gap in gaps if gap["cause"] == "file_missing" and gap["from_time_ns"]]
    if not begins_ns:
        return flows["flow"].clear()
    last_ns = pl.col("last_time_ns").cast(pl.Int64)
    return flows.filter((last_ns <= max(begins_ns)).fill_null(True))["flow"]


def findings(ledger: Mapping[str, Any], flows: pl.DataFrame, records: int) -> list[str]:
    """Compare the accounts with each other; return a sentence for each contradiction.

    Parameters
    ----------
    ledger
        The ledger of a log.
    flows
        Its flow table.
    records
        Number of records read from the file.

    Returns
    -------
    list of str
        Empty when everything balances.
    """
    hooks = hook_accounts(ledger)
    found = [
        f"hook {account.name}: {account.difference:+,} of {account.seen:,} seen are unaccounted"
        for account in hooks
        if account.difference
    ]
    for kind in ("packets", "events"):
        wrong = _unbalanced(flows, kind)
        found += [
            f"flow {account.name}, {kind}: {account.difference:+,} of {account.seen:,} seen are unaccounted"
            for account in flow_accounts(wrong.head(_FINDINGS_MAX), kind).values()
        ]
        if wrong.height > _FINDINGS_MAX:
            found.append(f"{wrong.height - _FINDINGS_MAX:,} more flows, {kind}: the same")
    overwritten = sum(account.lost.get("overwritten", 0) for account in hooks)
    if hooks and overwritten != ledger.get("sequence_gaps", overwritten):
        found.append(f"{overwritten:,} overwritten, but {ledger['sequence_gaps']:,} gaps in the sequence numbers")
    logged = sum(account.logged for account in hooks if account.name != FLOW_HOOK)
    if hooks and logged != records:
        found.append(f"the hooks logged {logged:,} records, but the file has {records:,}")
    return found


def _unbalanced(flows: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return the flows whose account does not balance."""
    parts = [name for name in flows.columns if name.startswith(f"{kind}_") and name != f"{kind}_seen"]
    signed = (pl.col(name).cast(pl.Int64) for name in parts)
    return flows.filter(pl.col(f"{kind}_seen").cast(pl.Int64) != pl.sum_horizontal(signed))
