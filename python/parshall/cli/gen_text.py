"""The account of the generator as lines of text."""

from collections.abc import Iterator, Sequence
from typing import Any

from parshall.host.quantities import duration_text

_PROBABILITIES = ("1 %", "10 %", "25 %", "50 %", "75 %", "90 %", "99 %")


def account_lines(account: dict[str, Any], duration_s: float | None = None) -> Iterator[str]:
    """Yield the lines of a generator's account: packets, rate, sizes, gaps, digest, cost.

    When the sent gaps differ from the requested ones, the first line is a warning.
    """
    if account["gaps"] and not account["gaps"]["is_shape_kept"]:
        yield _gap_warning(account["gaps"])
    time = "" if duration_s is None else duration_text(duration_s * 1e9)
    if account["requested"] is None:
        requested = f"for {time}" if time else "until stopped"
    else:
        requested = f"{account['requested']:,}{time and f' in {time}'}"
    not_sent = f"not sent {account['not_sent']:,}"
    yield f"packets   requested {requested}, sent {account['sent']:,}, {not_sent}, by {account['backend']}"
    yield f"          {_arrival(account)}"
    if account["lost"] and len(account["senders"]) > 1:
        yield (
            f"          an interface with fewer than {len(account['senders'])} queues, here or at the other end, loses "
            f"packets of several CPUs: ethtool -L IF rx {len(account['senders'])} tx {len(account['senders'])} at both"
        )
    if losses := account["carrier_losses"]:
        yield f"          the interface lost its carrier {'once' if losses == 1 else f'{losses} times'} during the run"
    yield (
        f"rate      {_rate(account['rate_pps'])} packets/s, {_megabits(account['rate_bps'])} of frames, "
        f"in {account['elapsed_ns'] / 1e9:.6f} s"
    )
    if len(account["senders"]) > 1:
        yield from _senders(account["senders"])
    if account["sizes"]:
        yield from _sizes(account["sizes"])
    if account["gaps"]:
        yield from _gaps(account["gaps"], account["gap_distribution"])
    if account["digest"] is None:
        yield "digest    none: the kernel's packet generator chooses the packets itself"
        yield "cost      unknown: a kernel thread sends"
        return
    yield f"digest    {account['digest']} (XXH3-128, seed {account['seed']}) of the planned packets"
    yield (
        f"cost      sending {account['sender_cpu_s']:.3f} CPU s, drawing {account['feeder_cpu_s']:.3f} CPU s; "
        f"the sender polled {account['starved_runs']:,} times for packets that were not drawn yet"
    )


def _gap_warning(gaps: dict[str, Any]) -> str:
    distance = "" if gaps["ks_distance"] is None else f", {_distance(gaps)}"
    return (
        f"warning   the gaps differ from the requested ones: {gaps['late_share']:.1%} of the packets left late by a "
        f"mean gap or more, at most {gaps['late_max_ns'] / 1e6:,.3f} ms{distance}; "
        "lower the rate, or keep other work off "
        "the sending CPU (--cpu)"
    )


def _arrival(account: dict[str, Any]) -> str:
    if account["transmitted"] is None:
        return "the interface does not count transmitted packets, so losses are unknown"
    if account["arrived"] is None:
        extra = account["transmitted"] - account["sent"]
        return (
            f"the interface transmitted {extra:,} more, from other senders (IPv6, for example), so losses are "
            f"unknown; it counted {account['lost_counted']:,} as dropped or errors"
        )
    return (
        f"the interface transmitted {account['arrived']:,}, lost {account['lost']:,} "
        f"(it counted {account['lost_counted']:,} as dropped or errors)"
    )


def _senders(senders: Sequence[dict[str, Any]]) -> Iterator[str]:
    for sender in senders:
        rate = sender["sent"] * 1e9 / max(sender["elapsed_ns"], 1)
        line = f"          CPU {sender['cpu']}: sent {sender['sent']:,}, {rate:,.0f} packets/s, "
        line += f"{sender['cpu_s']:.3f} CPU s"
        yield line if sender["error"] is None else f"{line}; {sender['error']}"


def _distance(account: dict[str, Any]) -> str:
    distance, bound = account["ks_distance"], account["ks_bound"]
    return f"Kolmogorov-Smirnov distance {distance:.5f} (5 % critical value: {bound:.5f})"


def _quantiles(*rows: tuple[str, Sequence[float]]) -> Iterator[str]:
    """Yield a table with a column for each probability; columns are as wide as their longest number needs."""
    cells = [("", list(_PROBABILITIES)), *((name, [f"{value:,.0f}" for value in values]) for name, values in rows)]
    width = max(12, *(len(cell) + 2 for _, row in cells for cell in row))
    for name, row in cells:
        yield f"          {name:10}" + "".join(cell.rjust(width) for cell in row)


def _rate(rate: float) -> str:
    """Return a rate without decimals, or a small one with three digits."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _megabits(rate_bps: float) -> str:
    return f"{rate_bps / 1e6:,.1f} Mbit/s" if rate_bps >= 1e5 else f"{rate_bps:,.0f} bit/s"


def _sizes(sizes: dict[str, Any]) -> Iterator[str]:
    yield (
        f"sizes     mean {sizes['mean_bytes']:.2f} bytes, requested {sizes['requested_mean_bytes']:.2f}; "
        f"{_distance(sizes)}"
    )
    yield from _quantiles(("sent", sizes["quantiles_bytes"]), ("requested", sizes["requested_quantiles_bytes"]))
    if sizes["too_small_share"] > 0:
        yield f"          {sizes['too_small_share']:.2%} of the sizes are too small for the headers and were raised"


def _gaps(gaps: dict[str, Any], distribution: str) -> Iterator[str]:
    line = f"gaps      mean {gaps['mean_ns']:,.1f} ns, requested {gaps['requested_mean_ns']:,.1f}"
    line += f" ({distribution}; times in ns)"
    if gaps["mean_spread"]:
        line += f"; standard deviation of the mean {gaps['mean_spread']:.2%}"
    if gaps["ks_distance"] is not None:
        line += f"; {_distance(gaps)}"
    if gaps["error_p99"] is not None:
        line += f"; 99th percentile of the error {gaps['error_p99']:.2%} of the gap"
    yield line
    requested = [("requested", gaps["requested_quantiles_ns"])] if gaps["requested_quantiles_ns"] else []
    yield from _quantiles(("sent", gaps["quantiles_ns"]), *requested, ("late", gaps["late_quantiles_ns"]))
    yield f"          late by {gaps['late_mean_ns']:,.0f} ns on average, {gaps['late_max_ns']:,} ns at most"
