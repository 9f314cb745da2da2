"""All figures of one log, in the order of a report."""

from collections.abc import Collection, Iterator

from parshall.figures import cwnd, loss, rtt, throughput
from parshall.figures.figure import Figure
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction

# Rows of a figure, over all flows: some 40 bytes each in the report, and as many as a screen can show.
ROWS_MAX = 20_000
STATE_BINS = 600
# A bin of throughput must hold many packets; otherwise it shows single arrivals instead of a rate.
RATE_BINS = 200


FIGURES = (throughput.NAME, cwnd.NAME, rtt.NAME, loss.NAME)
"""Names of the figures, in the order of a report."""


def figures_of(
    reduction: Reduction,
    legend: Legend,
    *,
    axis_ns: tuple[int, int] | None = None,
    names: Collection[str] = FIGURES,
) -> Iterator[Figure]:
    """Make the figures of a log, one by one.

    Parameters
    ----------
    reduction : Reduction
        The log, as `reduce` returns it.
    legend : Legend
        Names and colours of its flows.
    axis_ns : tuple of int, optional
        First and last moment of the time axis, when several logs share one; the log's own by default.
    names : collection of str
        The figures to draw, of `FIGURES`.

    Yields
    ------
    Figure
        None for a log without records of full sockets; only throughput when no flow sent payload.
    """
    if not reduction.drawn:
        return
    omitted = reduction.table["records"].count() - len(reduction.drawn)
    note = f" (of {omitted + len(reduction.drawn):,}: those with the most records)" if omitted else ""
    if throughput.NAME in names:
        yield _throughput(reduction, legend, axis_ns, note)
    if not reduction.senders:
        return
    bins = reduction.bins(STATE_BINS, ROWS_MAX, axis_ns)
    for figure in (each for each in (cwnd, rtt) if each.NAME in names):
        reduced = figure.reduce(reduction, bins)
        if not reduced.is_empty():
            yield figure.draw(reduced, legend.subset(reduced["flow"], note), bins)
    if loss.NAME in names:
        retransmissions = loss.reduce(reduction, bins)
        changes = loss.changes(reduction, bins)
        yield loss.draw(retransmissions, changes, legend.subset(retransmissions["flow"], note), bins)


def _throughput(reduction: Reduction, legend: Legend, axis_ns: tuple[int, int] | None, note: str) -> Figure:
    bins = reduction.bins(RATE_BINS, ROWS_MAX, axis_ns, without_gaps=True)
    throughputs = throughput.reduce(reduction, bins)
    names = legend.subset(throughputs["flow"], note)
    sums = throughput.sums(reduction, bins, names.colours) if names.is_crowded else None
    return throughput.draw(throughputs, names, bins, reduction, sums)
