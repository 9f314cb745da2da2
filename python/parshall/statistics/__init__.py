"""Statistics of repeated runs: intervals, comparisons in pairs, changes of the machine, and when to stop."""

from parshall.statistics.comparison import (
    PAIRS_MIN,
    Comparison,
    compare_pairs,
    compare_sessions,
    holm,
    resolution_of,
    trimmed_mean,
)
from parshall.statistics.looks import LOOKS, confidence_of_looks
from parshall.statistics.order import correlation, has_changed
from parshall.statistics.summary import CONFIDENCE, Summary, mean_interval, share_interval, summarise

__all__ = [
    "CONFIDENCE",
    "LOOKS",
    "PAIRS_MIN",
    "Comparison",
    "Summary",
    "compare_pairs",
    "compare_sessions",
    "confidence_of_looks",
    "correlation",
    "has_changed",
    "holm",
    "mean_interval",
    "resolution_of",
    "share_interval",
    "summarise",
    "trimmed_mean",
]
