"""Intervals and verdicts: how often they are wrong, on data that were made without the code's own assumptions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from parshall.statistics import (
    LOOKS,
    compare_pairs,
    compare_sessions,
    confidence_of_looks,
    has_changed,
    holm,
    mean_interval,
    resolution_of,
    summarise,
)
from parshall.statistics.summary import order_statistics

BUNDLES = 1000
# A binomial count of 1,000 with 95 % leaves 930 to 970 once in 300 times; the seeds are fixed.
COVERED = range(930, 971)
# At most so many of 1,000 equal systems are called different: 6 %, and what chance adds once in 300 times.
FALSE_MAX = 80
Pairs = tuple[np.ndarray, np.ndarray]


def machine(random: np.random.Generator, blocks: int, levels: int, scale: float = 1.0) -> np.ndarray:
    """Return runs as this machine varies on a busy day: AR(1) from run to run, and noise; levels shuffled in blocks."""
    from scipy import signal

    count = blocks * levels
    steps = random.normal(0, 0.73 * np.sqrt(1 - 0.9**2), count)
    steps[0] = random.normal(0, 0.73)
    runs = signal.lfilter([1], [1, -0.9], steps) + random.normal(0, 0.36, count)
    shuffled = np.argsort(random.random((blocks, levels)), axis=1) + levels * np.arange(blocks)[:, None]
    return np.asarray(np.exp(scale * runs[shuffled]))


def drifting(random: np.random.Generator, count: int) -> Pairs:
    found = machine(random, count, 8)
    return found[:, 0], found[:, 1]


def calm(random: np.random.Generator, count: int) -> Pairs:
    found = machine(random, count, 8, 0.1)
    return found[:, 0], found[:, 1]


def rare_counts(random: np.random.Generator, count: int) -> Pairs:
    return random.poisson(1, count).astype(float), random.poisson(1, count).astype(float)


def counts(random: np.random.Generator, count: int) -> Pairs:
    return random.poisson(5, count).astype(float), random.poisson(5, count).astype(float)


def ticks(random: np.random.Generator, count: int) -> Pairs:
    """CPU times in ticks of 10 ms, of which there are few."""
    one, other = (np.round(random.normal(0.05, 0.01, count), 2) for _ in range(2))
    return one, other


def disturbed(random: np.random.Generator, count: int) -> Pairs:
    """One run in twenty is slowed down to a quarter."""
    shares = ([1, 0.25], count, True, [0.95, 0.05])
    one, other = (np.exp(random.normal(0, 0.1, count)) * random.choice(*shares) for _ in range(2))
    return one, other


@pytest.mark.parametrize("pairs", [3, 5, 10, 20])
@pytest.mark.parametrize("make", [drifting, calm, rare_counts, counts, ticks, disturbed])
def test_equal_systems_are_rarely_called_different(
    make: Callable[[np.random.Generator, int], Pairs], pairs: int
) -> None:
    random = np.random.default_rng(pairs)
    found = [compare_pairs(*make(random, pairs)) for _ in range(BUNDLES)]
    assert sum(each.sign != 0 for each in found if each) <= FALSE_MAX
    assert sum(each.p < 0.05 for each in found if each) <= FALSE_MAX
    # No number of equal pairs by chance is a proof.
    assert min(each.p for each in found if each) >= 2.0 ** (1 - pairs)
    assert all(each.high > each.low for each in found if each)


@pytest.mark.parametrize("repeats", [3, 7, 20])
def test_intervals_of_the_mean_cover_it_as_often_as_they_say(repeats: int) -> None:
    random = np.random.default_rng(repeats)
    found = [mean_interval(random.normal(100, 15, repeats)) for _ in range(BUNDLES)]
    assert sum(low <= 100 <= high for low, high in found) in COVERED


@pytest.mark.parametrize("is_ratio", [True, False])
@pytest.mark.parametrize("repeats", [3, 7, 20])
def test_intervals_of_changes_cover_them_although_the_machine_drifts(repeats: int, is_ratio: bool) -> None:
    random = np.random.default_rng(repeats)
    covered = 0
    for _ in range(BUNDLES):
        # Both halves of a pair see the same state of the machine, which changes much between pairs.
        state, noise = random.normal(0, 0.5, repeats), random.normal(0, 0.05, (2, repeats))
        before, after = state + noise[0], state + noise[1] + np.log(1.1)
        if is_ratio:
            found = compare_pairs(np.exp(before).tolist(), np.exp(after).tolist())
            truth = 0.1
        else:
            found, truth = compare_pairs(before.tolist(), after.tolist(), is_ratio=False), float(np.log(1.1))
        assert found is not None and found.is_ratio == is_ratio
        covered += found.low <= truth <= found.high
    assert covered in COVERED


def test_an_interval_agrees_with_a_textbook_and_another_library() -> None:
    # Student (1908): additional hours of sleep of ten patients.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = compare_pairs(first, second)
    assert found is not None and not found.is_ratio
    assert (found.low, found.high) == pytest.approx((0.7001, 2.4599), abs=1e-4)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    # A tenth is trimmed at each end of twenty, after Yuen; of constants, her test is that of one sample.
    first, second = np.random.default_rng(1).standard_t(2, (2, 20)).tolist()
    found = compare_pairs(first, second)
    trimmed = stats.ttest_ind(np.subtract(second, first), np.zeros(20), trim=0.1, equal_var=False)
    interval = trimmed.confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_a_few_runs_that_something_disturbed_do_not_widen_the_interval_as_they_would() -> None:
    random = np.random.default_rng(1)
    widths = []
    for _ in range(200):
        before, after = disturbed(random, 20)
        found = compare_pairs(before.tolist(), after.tolist())
        assert found is not None
        plain = mean_interval(np.log(after / before))
        widths.append(np.log1p(found.high) - np.log1p(found.low) < plain[1] - plain[0])
    assert sum(widths) > 150
    # What has no grid has next to no resolution.
    assert resolution_of(random.normal(100, 1, 10)) < 1e-3


def test_equal_pairs_have_the_width_of_their_resolution() -> None:
    assert [resolution_of(each) for each in ([5.0, 5.0], [5.0, 9.0, 15.0], [0.25], [0.04, 0.07, 0.3])] == pytest.approx(
        [1, 2, 0.01, 0.01]
    )
    three, six = (compare_pairs([5.0] * count, [6.0] * count) for count in (3, 6))
    assert three is not None and six is not None
    assert three.sign == 0 and six.sign == 1
    assert (three.p, six.p) == (0.25, 2**-5)
    same = compare_pairs([100.0] * 6, [100.0] * 6, ends=(0, 100))
    assert same is not None and same.end == 100 and same.low < 0 < same.high
    named = compare_pairs([5.0] * 6, [6.0] * 6, resolution=4.0)
    assert named is not None and named.sign == 0
    assert compare_pairs([1.0, 1.0], [2.0, 2.0]) is None
    assert np.isnan(mean_interval([1.0])).all() and summarise([]) is None


def test_the_mean_of_a_share_is_none_beyond_its_scale() -> None:
    wide = summarise([100.0, 2.0], (0.0, 100.0))
    assert wide is not None and (wide.low, wide.mean, wide.high) == (0.0, 51.0, 100.0)
    # Corrected by its neighbours, a stretch may be above.
    above = summarise([100.4, 100.2, 100.3], (0.0, 100.0))
    assert above is not None and (above.mean, above.high, above.maximum) == (100.0, 100.0, 100.4)
    unknown = summarise([3.0], (0.0, 100.0))
    assert unknown is not None and unknown.mean == 3.0 and np.isnan([unknown.low, unknown.high]).all()


def test_sessions_are_compared_after_welch() -> None:
    random = np.random.default_rng(1)
    before, after = (random.normal(mean, spread, count) for mean, spread, count in ((-5, 5, 5), (10, 15, 8)))
    found = compare_sessions([[each] for each in before], [[each] for each in after])
    test = stats.ttest_ind(after, before, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high, found.p) == pytest.approx((interval.low, interval.high, test.pvalue))
    assert compare_sessions([[1.0, 2.0, 3.0]], [[2.0, 3.0, 4.0]]) is None


def test_equal_sessions_are_rarely_called_different_however_many_runs_they_have() -> None:
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(BUNDLES):
        sides = [[machine(random, 10, 1)[:, 0] for _ in range(3)] for _ in range(2)]
        found = compare_sessions(*sides)
        wrong += found is not None and found.p < 0.05
    assert wrong <= FALSE_MAX


def test_intervals_hold_at_all_looks_together() -> None:
    random = np.random.default_rng(1)
    confidence = confidence_of_looks()
    wrong = 0
    for _ in range(300):
        runs = machine(random, LOOKS[-1], 4)
        looks = [compare_pairs(runs[:count, 0], runs[:count, 1], confidence=confidence) for count in LOOKS]
        wrong += any(each is not None and each.sign for each in looks)
    # 5 % of 300 are 15; 28 and more come once in 300 times.
    assert wrong < 28
    # With 95 % at each look, more would be wrong: the test can fail.
    random = np.random.default_rng(1)
    naive = 0
    for _ in range(300):
        runs = machine(random, LOOKS[-1], 4)
        looks = [compare_pairs(runs[:count, 0], runs[:count, 1]) for count in LOOKS]
        naive += any(each is not None and each.sign for each in looks)
    assert naive >= 40


def test_probabilities_are_corrected_for_their_number() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def runs_of(
    random: np.random.Generator, factor: Callable[[int], float], blocks: int = 7
) -> tuple[list[int], list[float]]:
    """Return levels and values of runs in blocks; all vary by a quarter, and by a factor in their order."""
    levels = np.concatenate([random.permutation(6) for _ in range(blocks)])
    values = np.exp(random.normal(0, 0.25, len(levels))) * (levels + 1)
    return levels.tolist(), (values * [factor(number) for number in range(len(levels))]).tolist()


@pytest.mark.parametrize(
    ("factor", "least", "most"),
    [
        (lambda _: 1.0, 0, 3),
        # A third of the runs, in the middle, fell to a quarter; a step; a drift.
        (lambda number: 0.25 if 14 <= number < 28 else 1.0, 40, 40),
        (lambda number: 0.5 if number >= 21 else 1.0, 38, 40),
        (lambda number: 1 + number / 20, 38, 40),
    ],
)
def test_a_machine_that_changes_is_found(factor: Callable[[int], float], least: int, most: int) -> None:
    random = np.random.default_rng(1)
    assert least <= sum(has_changed(*runs_of(random, factor)) for _ in range(40)) <= most


def test_many_runs_are_searched_in_bounded_time() -> None:
    random = np.random.default_rng(1)
    assert not has_changed(*runs_of(random, lambda _: 1.0, blocks=1000))
    assert has_changed(*runs_of(random, lambda number: 0.9 if 2000 <= number < 4000 else 1.0, blocks=1000))


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 20, [0.0] * 20, [1.0, 2.0, 3.0]])
def test_too_little_shows_no_change(values: list[float]) -> None:
    levels: list[Any] = ["level"] * len(values)
    assert not has_changed(levels, values)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("count", [1, 9, 150, 5000])
def test_order_statistics_hold_a_quantile_as_often_as_the_binomial_distribution_says(count: int, share: float) -> None:
    low, high = order_statistics(count, share)
    below = stats.binom(count, share)
    # The quantile is beyond the upper end, or below the lower one, in at most 2.5 % of the cases, and hardly less.
    assert below.sf(high - 1) <= 0.025 and below.cdf(low - 1) <= 0.025
    assert below.sf(high - 2) > 0.025 and below.cdf(low) >= 0.025
    assert 0 <= low < high <= count + 1
