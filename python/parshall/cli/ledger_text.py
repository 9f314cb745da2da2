"""The ledger as lines of text: one row for each account, then the cost."""

import re
from typing import Any

from parshall.host.quantities import bytes_text
from parshall.instruments.capture import short_filter

# The schema and the flow table outweigh fewer records.
_RECORDS_FOR_MEAN = 1000
# Prefix of programs that time the reader of a log: they are no hooks of packets or events.
_READER_PREFIX = "reader_"
_COLUMNS = ("seen", "filtered", "thinned", "logged", "lost")


def ledger_lines(ledger: dict[str, Any]) -> list[str]:
    """Return the ledger as a table: ``seen = filtered + thinned + logged + lost``, and the cost."""
    lines = _table([(account["hook"], account) for account in ledger["hooks"]])
    # Records of this hook become rows of the flow table.
    records = sum(account["logged"] for account in ledger["hooks"] if account["hook"] != "tcp_flow")
    return [*lines, "  " + _cost_line(ledger["cost"], records)]


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


def _series(file: str) -> str:
    """Return the pattern of the names of a series: ``day.pcapng.zst`` is written as ``day.000001.pcapng.zst``, ..."""
    directory, slash, name = file.rpartition("/")
    plain = re.sub(r"\.(gz|zst|lz4)$", "", name)
    # A name that begins with its only dot has no suffix.
    end = plain.rfind(".") if plain.rfind(".") > 0 else len(plain)
    return f"{directory}{slash}{name[:end]}.*{name[end:]}"


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
    if all(program["program"].startswith(_READER_PREFIX) for program in timed):
        hooks = "hooks not timed: none ran in a timed window"
    reader = f"reader {cost['reader_cpu_s']:.2f} CPU s in {cost['wall_s']:.1f} s"
    written = f"; {bytes_text(cost['log_bytes'])} written" if cost["log_bytes"] else ""
    if written and records >= _RECORDS_FOR_MEAN:
        written += f", {cost['log_bytes'] / records:.1f} bytes per record"
    return f"cost: {hooks}; {reader}{written}"
