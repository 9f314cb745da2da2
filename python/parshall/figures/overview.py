"""All figures of one log, in the order of a report."""

from parshall.figures import cwnd, loss, rtt, throughput
from parshall.figures.figure import Figure
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction

# Rows of a figure, over all flows: some 40 bytes each in the report, and as many as a screen can show.
ROWS_MAX = 20_000
STATE_BINS = 600
# A bin of throughput must hold many packets; otherwise it shows single arrivals instead of a rate.
RATE_BINS = 200


def figures_of(reduction: Reduction, legend: Legend, *, axis_ns: tuple[int, int] | None = None) -> list[Figure]:
    """Return the figures of a log.

    Parameters
    ----------
    reduction : Reduction
        The log, as `reduce` returns it.
    legend : Legend
        Names and colours of its flows.
    axis_ns : tuple of int, optional
        First and last moment of the time axis, when several logs share one; the log's own by default.

    Returns
    -------
    list of Figure
        Empty for a log without records of full sockets; only throughput when no flow sent payload.
    """
    if not reduction.drawn:
        return []
    rate_bins = reduction.bins(RATE_BINS, ROWS_MAX, axis_ns, without_gaps=True)
    state_bins = reduction.bins(STATE_BINS, ROWS_MAX, axis_ns)
    omitted = reduction.table["records"].count() - len(reduction.drawn)
    note = f" (of {omitted + len(reduction.drawn):,}: those with the most records)" if omitted else ""
    throughputs = throughput.reduce(reduction, rate_bins)
    names = legend.subset(throughputs["flow"], note)
    sums = throughput.sums(reduction, rate_bins, names.colours) if names.is_crowded else None
    flows = len(reduction.drawn) + omitted
    found = [throughput.draw(throughputs, names, rate_bins, reduction.counted_bytes, sums, flows)]
    if not reduction.senders:
        return found
    windows, round_trips, retransmissions = (figure.reduce(reduction, state_bins) for figure in (cwnd, rtt, loss))
    found.append(cwnd.draw(windows, legend.subset(windows["flow"], note), state_bins))
    if not round_trips.is_empty():
        found.append(rtt.draw(round_trips, legend.subset(round_trips["flow"], note), state_bins))
    changes = loss.changes(reduction, state_bins)
    found.append(loss.draw(retransmissions, changes, legend.subset(retransmissions["flow"], note), state_bins))
    return found
