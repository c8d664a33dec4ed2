"""Several seeds: the parts of the variance, and the interval's limits when one of them is all there is."""

import numpy as np
import pytest
from scipy.stats import t

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
    assert together.of_seeds == pytest.approx(first.of_seeds) and against.of_seeds == pytest.approx(0)
    assert together.items == pytest.approx(first.items / 2)


def test_where_nothing_varies_the_ends_are_exact():
    mean = seeds.score(apart(1, 1, 1), False)
    assert mean.ci95 == statistics.score(apart(1)[0], False, "pope").ci95
    same = seeds.difference(apart(1, 1, 1), apart(1, 1, 1), False)
    assert same.p_value == 1 and same.ci95[0] < 0 < same.ci95[1]


def test_seeds_must_have_answered_the_same_items():
    with pytest.raises(ValueError, match="same items"):
        seeds.score([answered([1, 0]), answered([1, 0, 1])], False)
