"""The ledger as lines of text: one account a hook, then the cost. A function of the data, no more."""

from typing import Any

_COLUMNS = ("seen", "filtered", "thinned", "logged", "lost")


def ledger_lines(ledger: dict[str, Any]) -> list[str]:
    """Return the ledger as a table: ``seen = filtered + thinned + logged + lost``, and the cost."""
    rows = [("", *_COLUMNS)]
    for account in ledger["hooks"]:
        lost = sum(account["lost"].values())
        counts = (account["seen"], account["filtered"], account["thinned"], account["logged"], lost)
        rows.append((account["hook"], *(f"{count:,}" for count in counts)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  "
        + row[0].ljust(widths[0])
        + "".join("  " + cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    causes = {cause: sum(account["lost"][cause] for account in ledger["hooks"]) for cause in ledger["hooks"][0]["lost"]}
    if any(causes.values()):
        lines.append("  lost: " + ", ".join(f"{count:,} {cause}" for cause, count in causes.items() if count))
    lines.append("  " + _cost_line(ledger["cost"]))
    return lines


def _cost_line(cost: dict[str, Any]) -> str:
    hooks = ", ".join(
        f"{program['program']} {program['ns_per_run']:.0f} ns"
        for program in cost["programs"]
        if program["sampled_runs"]
    )
    reader = f"reader {cost['reader_cpu_s']:.2f} CPU s in {cost['wall_s']:.1f} s"
    return f"cost: {hooks + '; ' if hooks else ''}{reader}; {cost['log_bytes'] / 1e6:.1f} MB written"
