"""The ledger as lines of text and in notebooks: one row for each account, then the cost."""

import re
from collections.abc import Iterable
from typing import Any

from parshall.errors import printable
from parshall.host.quantities import bytes_text, many
from parshall.host.shown import html_table, html_text

_FILTER_SHOWN = 120
_PROGRAMS_SHOWN = 4
# The schema and the flow table outweigh fewer records.
_RECORDS_FOR_MEAN = 1000
# Prefix of programs that time the reader of a log: they are no hooks of packets or events.
_READER_PREFIX = "reader_"
_COLUMNS = ("seen", "filtered", "thinned", "logged", "lost")


def ledger_lines(ledger: dict[str, Any]) -> list[str]:
    """Return the ledger as a table: ``seen = filtered + thinned + logged + lost``, and the cost."""
    lines = _table([(account["hook"], account) for account in ledger["hooks"]])
    return [*lines, "  " + _cost_of(ledger)]


def capture_ledger_lines(ledger: dict[str, Any], *, rotates: bool = False) -> list[str]:
    """Return the ledger of a capture: an account for each file, or series of files, and interface, and the cost."""
    lines = []
    for subscriber in ledger["subscribers"]:
        file = subscriber["file"] or "packets"
        lines.append(f"{_series(file) if rotates else file}: {short_filter(subscriber['filter'])}")
        lines += _table([(account["hook"], account) for account in subscriber["interfaces"]])
    if not ledger["complete"]:
        lines.append("  the keeper of the ring died and its counts are lost, so the ledger does not balance")
    return [*lines, "  " + _cost_line(ledger["cost"])]


def budget_text(budget: dict[str, Any]) -> str:
    """Return what a budget came to, without a full stop."""
    largest = f", {budget['cost_share_max']:.2%} in the most expensive ten seconds" if budget["cost_share_max"] else ""
    return f"budget: {budget['cost_share']:.2%} of a CPU{largest}, of {budget['share']:.2%}"


def _series(file: str) -> str:
    """Return the pattern of the names of a series: ``day.pcapng.zst`` is written as ``day.000001.pcapng.zst``, ..."""
    directory, slash, name = file.rpartition("/")
    plain = re.sub(r"\.(gz|zst|lz4)$", "", name)
    # A name that begins with its only dot has no suffix.
    end = plain.rfind(".") if plain.rfind(".") > 0 else len(plain)
    return f"{directory}{slash}{name[:end]}.*{name[end:]}"


class Ledger(dict[str, Any]):
    """A ledger, which prints as the account that it is; ``docs/ledger.md`` has its keys."""

    def __repr__(self) -> str:
        return "\n".join(shown_lines(self))

    def _repr_html_(self) -> str:
        return shown_html(self)


# What a ledger of a file that ended at once, or is damaged, lacks or has in another type.
_NO_LEDGER = (KeyError, TypeError, ValueError, AttributeError, IndexError)


def shown_lines(ledger: dict[str, Any]) -> list[str]:
    """Return a ledger of any instrument as lines; of a damaged one what there is."""
    try:
        return [printable(line) for line in _lines_of(ledger)]
    except _NO_LEDGER:
        return [_without_account(ledger)]


def shown_html(ledger: dict[str, Any]) -> str:
    """Return a ledger of any instrument as HTML; of a damaged one what there is."""
    try:
        parts = []
        for heading, accounts in _sections(ledger):
            causes = _causes(accounts)
            parts += [f"<p>{html_text(heading)}</p>"] if heading else []
            parts.append(html_table(("", *_COLUMNS), _rows(accounts)))
            parts += [f"<p>{html_text(causes)}</p>"] if causes else []
        return "".join([*parts, f"<p>{html_text(_cost_of(ledger))}</p>"])
    except _NO_LEDGER:
        return f"<p>{html_text(_without_account(ledger))}</p>"


def _without_account(ledger: dict[str, Any]) -> str:
    return printable(dict.__repr__(ledger)) if ledger else "no ledger: it ended within its first second"


def _lines_of(ledger: dict[str, Any]) -> list[str]:
    return capture_ledger_lines(ledger) if "subscribers" in ledger else ledger_lines(ledger)


def _sections(ledger: dict[str, Any]) -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Return a heading and named accounts for each table."""
    if "subscribers" not in ledger:
        return [("", [(account["hook"], account) for account in ledger["hooks"]])]
    return [
        (
            f"{each['file'] or 'packets'}: {short_filter(each['filter'])}",
            [(account["hook"], account) for account in each["interfaces"]],
        )
        for each in ledger["subscribers"]
    ]


def _cost_of(ledger: dict[str, Any]) -> str:
    if "subscribers" in ledger:
        return _cost_line(ledger["cost"])
    # What this hook logs goes to the flow table, not to the records.
    records = sum(account["logged"] for account in ledger["hooks"] if account["hook"] != "tcp_flow")
    return _cost_line(ledger["cost"], records)


def _rows(accounts: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, int, int, int, int, int]]:
    return [
        (name, each["seen"], each["filtered"], each["thinned"], each["logged"], sum(each["lost"].values()))
        for name, each in accounts
    ]


def _causes(accounts: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Return the causes of losses; empty when there were none."""
    causes: dict[str, int] = {}
    for _, account in accounts:
        for cause, count in account["lost"].items():
            causes[cause] = causes.get(cause, 0) + count
    return "lost: " + ", ".join(f"{n:,} {cause}" for cause, n in causes.items() if n) if any(causes.values()) else ""


def _table(accounts: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return a table of named accounts, and the causes of loss if there was any."""
    rows = [("", *_COLUMNS), *((name, *(f"{count:,}" for count in counts)) for name, *counts in _rows(accounts))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  "
        + row[0].ljust(widths[0])
        + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    causes = _causes(accounts)
    return [*lines, f"  {causes}"] if causes else lines


def _cost_line(cost: dict[str, Any], records: int = 0) -> str:
    # The kernel times programs in short windows only, see docs/ledger.md.
    timed = [
        program
        for program in cost["programs"]
        if program["sampled_runs"] and not program["program"].startswith(_READER_PREFIX)
    ]
    # Those that took most of the time; the others run seldom, or do little.
    timed.sort(key=lambda program: program["sampled_runs"] * program["ns_per_run"], reverse=True)
    named = [f"{program['program']} {program['ns_per_run']:,.0f} ns" for program in timed[:_PROGRAMS_SHOWN]]
    if others := timed[_PROGRAMS_SHOWN:]:
        most_ns = max(program["ns_per_run"] for program in others)
        named.append(f"{many(len(others), 'further program')} at most {most_ns:,.0f} ns")
    hooks = ", ".join(named) or "hooks not timed: none ran in the moments in which the kernel times them"
    # A packet socket has none of ours.
    hooks = f"{hooks}; " if cost["programs"] else ""
    reader = f"reader {cost['reader_cpu_s']:.2f} CPU s in {cost['wall_s']:.1f} s"
    written = f"; {bytes_text(cost['log_bytes'])} written" if cost["log_bytes"] else ""
    if written and records >= _RECORDS_FOR_MEAN:
        written += f", {cost['log_bytes'] / records:.1f} bytes per record"
    return f"cost: {hooks}{reader}{written}"


def short_filter(expression: str) -> str:
    """Return a filter on one line, shortened, without terminal control characters."""
    shown = printable(" ".join(expression.split()))
    return f"{shown[:_FILTER_SHOWN]}..." if len(shown) > _FILTER_SHOWN else shown or "everything"
