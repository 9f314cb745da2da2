"""Where packets spend their time in the kernel, and where they are dropped, as the page shows it."""

from typing import Any

from parshall.errors import printable
from parshall.instruments.path.reasons import described

# The first eight are of one nanosecond each.
_BUCKETS_OF_OCTAVE = 8


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
        path and stage, with the ``packets`` and the time since the stage before, ``median_us`` and ``p99_us``, and a
        histogram, ``octaves``: packets below 8 ns, from 8 to 16 ns, and so on;
        ``drops``: a row for each reason, most first; ``unnamed_drops`` of the host, for reasons beyond those that have
        counts of their own; the packets' ledger, ``seen`` = ``filtered`` + ``thinned`` + ``logged`` + ``lost`` +
        ``under_way``; ``reader_cpu_s``, and ``hooks_ns``: shortest and longest mean time of a program, or None.
    """
    if account is None or not account["ledger"]["hooks"]:
        return None
    ledger = account["ledger"]
    packets = next(hook for hook in ledger["hooks"] if hook["hook"] == "packets")
    drops = sorted((row for row in account["drops"] if row["followed"]), key=lambda row: -row["followed"])
    cost, lost = ledger["cost"], sum(packets["lost"].values())
    timed_ns = [each["ns_per_run"] for each in cost["programs"] if each["sampled_runs"]]
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
                "octaves": _octaves(row.get("buckets", [])),
            }
            for row in account["times"]
        ],
        "drops": [
            {
                "packets": row["followed"],
                "reason": printable(row["name"]),
                "after": sorted(row["places"], key=lambda place: -row["places"][place]),
                "meaning": described(row["name"]).removeprefix(": "),
            }
            for row in drops
        ],
        **{name: packets[name] for name in ("seen", "filtered", "thinned", "logged")},
        "lost": lost,
        "under_way": max(packets["seen"] - ended, 0),
        "unnamed_drops": account["uncounted_drops"],
        "reader_cpu_s": cost["reader_cpu_s"],
        "hooks_ns": [min(timed_ns), max(timed_ns)] if timed_ns else None,
    }


def _octaves(buckets: list[list[int]]) -> list[int]:
    """Return the counts of a histogram of the kernel by octaves; docs/formats/path-log.md has its buckets."""
    counts = [0] * (max((number for number, _ in buckets), default=-1) // _BUCKETS_OF_OCTAVE + 1)
    for number, packets in buckets:
        counts[number // _BUCKETS_OF_OCTAVE] += packets
    return counts
