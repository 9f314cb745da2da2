"""All figures of one log, in the order in which a reader wants them."""

from parshall.figures import cwnd, loss, rtt, throughput
from parshall.figures.frame import Figure
from parshall.figures.legend import Legend
from parshall.figures.reduction import Reduction

# Rows of a figure, over all flows: some 40 bytes each in the report, and as much as a screen shows.
ROWS_MAX = 20_000
BINS_OF_STATE = 600
# A bin of throughput must hold many packets, or it shows their arrivals and not a rate.
BINS_OF_RATE = 200


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
        None for a log without records of full sockets; throughput alone where no flow sent payload.
    """
    if not reduction.drawn:
        return []
    of_rate = reduction.bins(BINS_OF_RATE, ROWS_MAX, axis_ns, without_gaps=True)
    of_state = reduction.bins(BINS_OF_STATE, ROWS_MAX, axis_ns)
    left_out = reduction.table["records"].count() - len(reduction.drawn)
    note = f" (of {left_out + len(reduction.drawn):,}: those with the most records)" if left_out else ""
    moved = throughput.reduce(reduction, of_rate)
    found = [throughput.draw(moved, legend.only(moved["flow"], note), of_rate, reduction.counted_bytes)]
    if not reduction.senders:
        return found
    window, times, again = (figure.reduce(reduction, of_state) for figure in (cwnd, rtt, loss))
    found.append(cwnd.draw(window, legend.only(window["flow"], note), of_state))
    if not times.is_empty():
        found.append(rtt.draw(times, legend.only(times["flow"], note), of_state))
    changed = loss.changes(reduction, of_state)
    found.append(loss.draw(again, changed, legend.only(again["flow"], note), of_state))
    return found
