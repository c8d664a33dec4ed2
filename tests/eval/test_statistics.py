import numpy as np
import pytest
from scipy.stats import binom

from eval.suite import statistics
from eval.suite.samples import Items


def items(correct, stratum=None, cluster=None):
    made = Items()
    for index, value in enumerate(correct):
        made.add(str(index), value, stratum[index] if stratum else "", cluster[index] if cluster else "")
    return made


def test_interval_of_an_accuracy_is_the_binomial_one():
    """A bootstrap of independent right/wrong items draws from Binomial(n, accuracy)."""
    result = statistics.score(items([1] * 130 + [0] * 70), False, "pope")
    assert result.value == 65
    expected = binom.ppf([0.025, 0.975], 200, 0.65) / 2
    assert result.ci95 == pytest.approx(expected, abs=0.51)


def test_questions_about_one_image_count_as_one_draw():
    """With all 10 answers of an image alike, 100 answers carry no more than 10 do."""
    outcome = np.repeat([1, 1, 1, 0, 1, 0, 1, 1, 0, 0], 10)
    clustered = statistics.score(items(outcome, cluster=[str(i // 10) for i in range(100)]), False, "pope")
    independent = statistics.score(items(outcome), False, "pope")
    expected = binom.ppf([0.025, 0.975], 10, 0.6) * 10
    assert clustered.ci95 == pytest.approx(expected)
    assert independent.ci95[1] - independent.ci95[0] < 0.5 * (clustered.ci95[1] - clustered.ci95[0])


def test_macro_score_weighs_categories_not_items():
    made = items([1] * 90 + [0] * 10, stratum=["a"] * 90 + ["b"] * 10)
    assert statistics.score(made, True, "mmstar").value == 50
    assert statistics.score(made, False, "mmlu").value == 90
    # Drawn within categories that are all right or all wrong, nothing can vary.
    assert statistics.score(made, True, "mmstar").ci95 == pytest.approx((50, 50))


def test_a_paired_difference_is_sharper_than_two_scores():
    baseline = items([1] * 100 + [0] * 100)
    better = items([1] * 110 + [0] * 90)
    result = statistics.difference(baseline, better, False, "pope")
    assert result.value == pytest.approx(5)
    assert result.p_value == pytest.approx(2 / 2**10)  # ten wins, no loss: exact sign test
    expected = binom.ppf([0.025, 0.975], 200, 0.05) / 2
    assert result.ci95 == pytest.approx(expected, abs=0.51)


def test_no_discordant_pair_is_no_evidence():
    same = items([1, 0, 1])
    assert statistics.difference(same, same, False, "pope").p_value == 1
    assert statistics.difference(same, same, True, "mmstar").p_value == 1


def test_mcnemar_counts_discordant_pairs_only():
    first = [1, 1, 1, 1, 0, 0] + [1] * 50
    second = [0, 0, 0, 1, 1, 0] + [1] * 50
    assert statistics.mcnemar(first, second) == pytest.approx(2 * binom.cdf(1, 4, 0.5))


def test_pairs_must_be_the_same_items():
    other = items([1, 0])
    other.id = ["0", "7"]
    with pytest.raises(ValueError, match="same items"):
        statistics.difference(items([1, 0]), other, False, "pope")


def test_holm_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert statistics.holm([0.6, 0.7]) == [1.0, 1.0]


def test_interval_covers_the_truth_as_often_as_it_says(monkeypatch):
    """Paired differences of two arms, simulated; 300 intervals of which about 95 % hold the true difference, 10."""
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)
    random = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        shared = random.random(200)
        first, second = (shared < 0.5).astype(float), (np.roll(shared, 0) < 0.6).astype(float)
        low, high = statistics.difference(items(first), items(second), False, f"trial {trial}").ci95
        hits += low <= 10 <= high
    assert 0.91 <= hits / 300 <= 0.99


def test_mean_joins_the_draws():
    parts = [statistics.score(items([1] * k + [0] * (100 - k)), False, f"task {k}") for k in (40, 60, 80)]
    mean = statistics.mean(parts)
    spread = np.sqrt(sum(k * (100 - k) for k in (40, 60, 80)) / 100) / 3  # standard error in points
    assert mean.value == 60
    assert (mean.ci95[1] - mean.ci95[0]) / 2 == pytest.approx(1.96 * spread, rel=0.06)


def test_results_are_the_same_every_time():
    made = items([1] * 13 + [0] * 7)
    assert statistics.score(made, False, "pope").ci95 == statistics.score(made, False, "pope").ci95
