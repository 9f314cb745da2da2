"""Where packets spend their time in the kernel, and where they are dropped, as the page shows it."""

from typing import Any

from parshall.errors import printable
from parshall.instruments.path.reasons import described

_ROWS_MAX = 60


def shown(account: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the account of a measurement of paths that runs, as words and numbers for people; None: none yet.

    Parameters
    ----------
    account : dict or None
        As `PathProfile.account` returns it.

    Returns
    -------
    dict or None
        ``attached_s`` and ``wall_s``: the programs were attached for so long of that; ``stages``: a row for each code
        path and stage, with the ``packets`` and the time since the stage before, ``median_us`` and ``p99_us``;
        ``drops``: a row for each reason, most first; the packets' ledger, ``seen`` = ``filtered`` + ``thinned`` +
        ``logged`` + ``lost`` + ``under_way``; ``reader_cpu_share``.
    """
    if account is None or not account["ledger"]["hooks"]:
        return None
    ledger = account["ledger"]
    packets = next(hook for hook in ledger["hooks"] if hook["hook"] == "packets")
    drops = sorted((row for row in account["drops"] if row["followed"]), key=lambda row: -row["followed"])
    cost, lost = ledger["cost"], sum(packets["lost"].values())
    ended = packets["filtered"] + packets["thinned"] + packets["logged"] + lost
    return {
        "attached_s": round(account["attached_s"], 3),
        "wall_s": round(cost["wall_s"], 3),
        "stages": [
            {
                "path": row["path"],
                "stage": row["stage"],
                "packets": row["packets"],
                "median_us": row["median_ns"] / 1e3,
                "p99_us": row["p99_ns"] / 1e3,
            }
            for row in account["times"][:_ROWS_MAX]
        ],
        "drops": [
            {
                "packets": row["followed"],
                "reason": printable(row["name"]),
                "after": sorted(row["places"], key=lambda place: -row["places"][place]),
                "meaning": described(row["name"]).removeprefix(": "),
            }
            for row in drops[:_ROWS_MAX]
        ],
        **{name: packets[name] for name in ("seen", "filtered", "thinned", "logged")},
        "lost": lost,
        "under_way": max(packets["seen"] - ended, 0),
        "reader_cpu_share": cost["reader_cpu_s"] / cost["wall_s"] if cost["wall_s"] else 0.0,
    }
