"""The ledger as lines of text: one account a row, then the cost. Functions of the data, no more."""

from typing import Any

from parshall.errors import printable

_FILTER_SHOWN = 120
# Programs that watch the reader of a log, and no hook of packets or events.
_OF_THE_READER = "reader_"
_COLUMNS = ("seen", "filtered", "thinned", "logged", "lost")


def ledger_lines(ledger: dict[str, Any]) -> list[str]:
    """Return the ledger as a table: ``seen = filtered + thinned + logged + lost``, and the cost."""
    lines = _table([(account["hook"], account) for account in ledger["hooks"]])
    # Facts of flows are in the flow table, and no records.
    records = sum(account["logged"] for account in ledger["hooks"] if account["hook"] != "tcp_flow")
    return [*lines, "  " + _cost_line(ledger["cost"], records)]


def capture_ledger_lines(ledger: dict[str, Any]) -> list[str]:
    """Return the ledger of a capture: for each file and interface an account, and the cost."""
    lines = []
    for subscriber in ledger["subscribers"]:
        wants = filter_in_short(subscriber["filter"])
        lines.append(f"{subscriber['file'] or 'packets'}: {wants}")
        lines += _table([(account["hook"], account) for account in subscriber["interfaces"]])
    if not ledger["complete"]:
        lines.append("  the keeper of the ring died: what it had counted is not known, so this does not balance")
    return [*lines, "  " + _cost_line(ledger["cost"])]


def _table(accounts: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return a table of named accounts, and the causes of loss if there was any."""
    rows: list[tuple[str, ...]] = [("", *_COLUMNS)]
    for name, account in accounts:
        lost = sum(account["lost"].values())
        counts = (account["seen"], account["filtered"], account["thinned"], account["logged"], lost)
        rows.append((name, *(f"{count:,}" for count in counts)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  "
        + row[0].ljust(widths[0])
        + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    causes: dict[str, int] = {}
    for _, account in accounts:
        for cause, count in account["lost"].items():
            causes[cause] = causes.get(cause, 0) + count
    if any(causes.values()):
        lines.append("  lost: " + ", ".join(f"{count:,} {cause}" for cause, count in causes.items() if count))
    return lines


def _cost_line(cost: dict[str, Any], records: int = 0) -> str:
    timed = [program for program in cost["programs"] if program["sampled_runs"]]
    hooks = ", ".join(f"{program['program']} {program['ns_per_run']:.0f} ns" for program in timed)
    # The kernel times programs in short windows only, see docs/ledger.md.
    if all(program["program"].startswith(_OF_THE_READER) for program in timed):
        hooks = "hooks not timed, they did not run in a timed window" + (f"; {hooks}" if hooks else "")
    reader = f"reader {cost['reader_cpu_s']:.2f} CPU s in {cost['wall_s']:.1f} s"
    written = f"; {cost['log_bytes'] / 1e6:.1f} MB written" if cost["log_bytes"] else ""
    if written and records:
        written += f", {cost['log_bytes'] / records:.1f} bytes a record"
    return f"cost: {hooks}; {reader}{written}"


def filter_in_short(expression: str) -> str:
    """Return a filter for people: on one line, not long, without what would steer a terminal."""
    shown = printable(" ".join(expression.split()))
    return f"{shown[:_FILTER_SHOWN]}..." if len(shown) > _FILTER_SHOWN else shown or "everything"
