"""Several seeds: the parts of the variance, the interval's limits when one of them is all there is, and sharing."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import f, t

from eval.score import seeds, statistics
from eval.score.items import Items


ITEMS = 400


def answered(correct):
    names = [str(i) for i in range(len(correct))]
    return Items(names, list(map(float, correct)), [""] * len(names), names, [""] * len(names))


def apart(*shares):
    """Seeds that answer this share of the items rightly, each the first of them."""
    return [answered(np.arange(ITEMS) < share * ITEMS) for share in shares]


def test_seeds_that_agree_have_the_interval_of_the_items():
    mean = seeds.score(apart(0.6, 0.6, 0.6), False)
    one = statistics.score(apart(0.6)[0], False, "pope")
    assert mean.value == one.value == pytest.approx(60)
    assert mean.ci95 == pytest.approx(one.ci95, abs=0.5)


def test_seeds_far_apart_have_students_interval_of_three_numbers():
    mean = seeds.score(apart(0.3, 0.5, 0.7), False)
    of_three = t.ppf(0.975, 2) * 20 / np.sqrt(3)
    assert of_three < (mean.ci95[1] - mean.ci95[0]) / 2 < 1.05 * of_three


def test_the_parts_of_the_variance_add_up_to_that_of_the_mean():
    """Simulated: the variance of the mean over 4 seeds, and the mean of its estimates."""
    random = np.random.default_rng(0)
    design = statistics.Design.of(answered(np.zeros(ITEMS)), False)
    values, estimates = [], []
    for _ in range(1500):
        level = 0.15 * random.standard_normal(4) + random.standard_normal((ITEMS, 1))
        outcome = (level + random.standard_normal((ITEMS, 4)) > 0).astype(float)
        mean = seeds.of_outcomes(design, outcome, 100 * outcome.mean(axis=0), False)
        values.append(mean.value)
        estimates.append(mean.of_seeds + mean.items - mean.interaction)
    assert np.mean(estimates) == pytest.approx(np.var(values), rel=0.1)


def test_a_difference_is_paired_by_seed():
    """Seeds far apart, but each gains 10 points: the gain is known, the scores are not."""
    baselines, models = apart(0.3, 0.5, 0.7), apart(0.4, 0.6, 0.8)
    gap = seeds.difference(baselines, models, False)
    assert gap.value == pytest.approx(10) and gap.p_value < 0.001
    assert 5 < gap.ci95[0] < 10 < gap.ci95[1] < 15
    assert seeds.score(models, False).ci95[0] < 20


def test_seeds_that_gain_on_opposite_items_need_more_seeds():
    """Two seeds whose gains go against each other: no degree of freedom is left, and no interval is made up."""
    gap = seeds.SeedMean(np.array([1.0, 3.0]), items=0.1, interaction=1.5, exact_end=0.0, paired=True)
    assert gap.degrees_of_freedom == 0 and gap.value == 2 and gap.ci95 is None and gap.p_value is None


def test_p_value_and_interval_agree():
    random = np.random.default_rng(1)
    for _ in range(50):
        baselines, models = ([answered(random.random(60) < 0.5) for _ in range(3)] for _ in range(2))
        gap = seeds.difference(baselines, models, False)
        assert (gap.p_value < 0.05) == (not gap.ci95[0] <= 0 <= gap.ci95[1])


def test_the_mean_over_benchmarks_keeps_what_seeds_do_to_all_of_them():
    """A seed that is good on both benchmarks has twice the weight of seeds whose luck differs."""
    first, turned = seeds.score(apart(0.4, 0.5, 0.6), False), seeds.score(apart(0.6, 0.5, 0.4), False)
    together, against = seeds.mean([first, first]), seeds.mean([first, turned])
    assert together.value == against.value == pytest.approx(50)
    of_both = first.of_seeds / 2  # if they moved independently: one of three degrees of freedom
    assert together.of_seeds == pytest.approx((2 * first.of_seeds + of_both) / 3)
    assert against.of_seeds == pytest.approx(of_both / 3) and against.freedom == 3
    assert together.items == pytest.approx(first.items / 2)


def test_where_nothing_varies_the_ends_are_exact():
    mean = seeds.score(apart(1, 1, 1), False)
    assert mean.ci95 == statistics.score(apart(1)[0], False, "pope").ci95
    same = seeds.difference(apart(1, 1, 1), apart(1, 1, 1), False)
    assert same.p_value == 1 and same.ci95[0] < 0 < same.ci95[1]


def test_seeds_must_have_answered_the_same_items():
    with pytest.raises(ValueError, match="same items"):
        seeds.score([answered([1, 0]), answered([1, 0, 1])], False)


# Differences of two seeds in nine columns as they were measured, in points: each pair is a column.
MEASURED = [(1, 10), (2.8, 1.7), (2.2, 0.8), (7.8, -0.6), (-5.2, 1.9), (3.3, 2.9), (-1.5, 3.5), (3.5, 3), (-1.3, -1.3)]


def measured(*columns):
    return [seeds.SeedMean(np.array(values, float), 3.0, 1.5, 1.0, paired=True) for values in columns]


def test_the_variance_that_columns_share_has_the_largest_likelihood():
    """S^2 / s0^2 has Fisher's F distribution of d and d0 degrees of freedom: here scipy's own."""
    cells = measured((0, 8), (1, 2), (3, 1), (0, 1, 12), (5, 4, 9), (2, 2.5), (1, 3, 8), (0, 7), (3, 4, 9), (0, 1, 6))
    d, squares = np.array([(len(cell.values) - 1, cell.sample_variance) for cell in cells]).T
    common = seeds.prior(cells)

    def best(d0):
        found = minimize(lambda s0: -f.logpdf(squares, d, d0, scale=s0[0]).sum(), [10.0], method="Nelder-Mead")
        return -found.fun, found.x[0]

    largest = (d.sum() - 2) // seeds.WORTH
    assert common.freedom == max(range(1, int(largest) + 1), key=lambda d0: best(d0)[0])
    assert common.variance == pytest.approx(best(common.freedom)[1], rel=1e-3)
    moderated = seeds.shared(cells)[0]
    weighted = common.freedom * common.variance + squares[0]
    assert moderated.between_trainings == pytest.approx(weighted / (common.freedom + 1))
    assert moderated.freedom == common.freedom + 1


def test_equal_variances_are_pooled():
    cells = [seeds.of_numbers([shift, shift + 2.0]) for shift in range(30)]
    for cell in seeds.shared(cells):
        assert cell.between_trainings == pytest.approx(2) and cell.freedom == 1 + seeds.LARGEST_PRIOR
        assert cell.half_width == pytest.approx(t.ppf(0.975, 6))


def test_a_column_alone_has_students_interval():
    (alone,) = seeds.shared([seeds.of_numbers([1.0, 2.0, 4.0])])
    assert alone.prior == seeds.NO_PRIOR
    assert alone.half_width == pytest.approx(t.ppf(0.975, 2) * np.std([1, 2, 4], ddof=1) / np.sqrt(3))


def test_few_columns_tell_each_other_little():
    """Although their variances are equal: a degree of freedom for every four of the others."""
    told = [seeds.shared(measured(*[(0, 1)] * count))[0].freedom - 1 for count in (4, 5, 9, 18, 100)]
    assert told == [0, 1, 2, 4, seeds.LARGEST_PRIOR]


def test_the_order_of_columns_does_not_matter():
    first, turned = seeds.prior(measured(*MEASURED)), seeds.prior(measured(*MEASURED[::-1]))
    assert first.freedom == turned.freedom and first.variance == pytest.approx(turned.variance)


def test_two_seeds_far_apart_in_one_column_have_a_readable_interval_in_all():
    alone = measured(*MEASURED)
    together = [cell.half_width for cell in seeds.shared(alone)]
    assert max(cell.half_width for cell in alone) > 59
    assert max(together) < 10 and max(together) < 2.5 * min(together)
    *others, wild = [cell.half_width for cell in seeds.shared(measured(*MEASURED[1:], (-20, 20)))]
    assert max(others) < 15 and 50 < wild < 100  # alone: 254


def test_seeds_with_equal_scores_count_as_seeds_that_are_close():
    equal, close = (seeds.prior(measured(*MEASURED[:-1], (0, gap))) for gap in (0.0, 0.02))
    assert equal.freedom == close.freedom and equal.variance == pytest.approx(close.variance, rel=0.01)
    assert seeds.prior(measured((1, 1), (2, 2))) == seeds.NO_PRIOR


def test_two_seeds_with_equal_means_have_no_interval_of_the_items_alone():
    """Columns that move, against each other by chance: two seeds do not show that they always do."""
    cells = seeds.shared(measured((0, 4), (4, 0)))
    mean = seeds.mean(cells)
    assert replace(mean, prior=seeds.NO_PRIOR).variance == pytest.approx(mean.items)
    assert mean.between_trainings == pytest.approx(8 / 2 / 2) and mean.freedom == 2
    assert mean.variance == pytest.approx(mean.items + 1 - mean.interaction)
