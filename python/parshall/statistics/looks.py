"""When to stop: intervals that may be looked at several times."""

from parshall.statistics.summary import CONFIDENCE

# Numbers of blocks after which a study looks at its statements; each is some 1.4 times the one before.
LOOKS = (4, 6, 8, 11, 16, 22, 32, 45, 64)
# Times that a study may end before: its time is over, or somebody stops it.
_ENDS = 3


def confidence_of_looks(looks: int = len(LOOKS) + _ENDS) -> float:
    """Return the confidence of each interval so that all of several looks hold together with 95 %.

    Notes
    -----
    The error is spent in equal parts, as Lan and DeMets (1983) allow, and the parts are added (Bonferroni): that holds
    whatever the looks have in common. Looks at numbers that grow by a factor have little in common, so that the bound
    costs a quarter of the runs beside the exact one: 2.87 standard errors at twelve looks, not 2.58.
    """
    return 1 - (1 - CONFIDENCE) / looks
