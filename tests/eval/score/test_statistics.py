import numpy as np
import pytest
from scipy.stats import beta, binom

from eval.score import statistics
from eval.score.items import Items


def items(correct, stratum=None, cluster=None):
    made = Items()
    for index, value in enumerate(correct):
        made.add(str(index), value, stratum[index] if stratum else "", cluster[index] if cluster else "")
    return made


def test_interval_of_an_accuracy_is_the_binomial_one():
    """A bootstrap of independent right/wrong items draws from Binomial(n - 1, accuracy)."""
    result = statistics.score(items([1] * 130 + [0] * 70), False, "pope")
    assert result.value == 65
    expected = binom.ppf([0.025, 0.975], 199, 0.65) / 1.99
    assert result.ci95 == pytest.approx(expected, abs=0.51)


def test_questions_about_one_image_count_as_one_draw():
    """With all 10 answers of an image alike, 100 answers carry no more than 10 do; 9 of the 10 images are drawn."""
    outcome = np.repeat([1, 1, 1, 0, 1, 0, 1, 1, 0, 0], 10)
    clustered = statistics.score(items(outcome, cluster=[str(i // 10) for i in range(100)]), False, "pope")
    independent = statistics.score(items(outcome), False, "pope")
    expected = binom.ppf([0.025, 0.975], 9, 0.6) * 100 / 9
    assert clustered.ci95 == pytest.approx(expected)
    assert independent.ci95[1] - independent.ci95[0] < 0.5 * (clustered.ci95[1] - clustered.ci95[0])


def test_macro_score_weighs_categories_not_items():
    made = items([1] * 90 + [0] * 10, stratum=["a"] * 90 + ["b"] * 10)
    assert statistics.score(made, True, "mmstar").value == 50
    assert statistics.score(made, False, "mmlu").value == 90
    # Drawn within categories that are all right or all wrong, nothing varies; 90 and 10 items count as 36.
    half = 100 * (1 - 0.025 ** (1 / 36))
    assert statistics.score(made, True, "mmstar").ci95 == pytest.approx((50 - half, 50 + half))


def test_variance_in_small_strata_is_that_of_the_score():
    """57 subjects with 4 items, as in tinyworld's MMLU: a bootstrap of all 4 has 3/4 of the variance."""
    random = np.random.default_rng(0)
    strata = [str(i // 4) for i in range(228)]
    design = statistics.Design.of(items([0] * 228, strata), False)
    ease = np.repeat(random.uniform(0.3, 0.9, 57), 4)
    answers = (random.random((4000, 228)) < ease).astype(float).T  # (items, repetitions)
    truth = (100 * answers.mean(axis=0)).var()
    assert design.variance(answers).mean() == pytest.approx(truth, rel=0.05)
    drawn = [design.resample(answers[:, [i]], str(i)).var() for i in range(20)]
    assert drawn == pytest.approx(design.variance(answers[:, :20]), rel=0.08)


@pytest.mark.parametrize("macro", [True, False])
def test_a_group_of_one_adds_no_spread(macro):
    several = items([1, 0, 1, 1, 0] * 4, stratum=["a"] * 20)
    with_one = items([1, 0, 1, 1, 0] * 4 + [1], stratum=["a"] * 20 + ["b"])
    share = 1 / 2 if macro else 20 / 21
    alone, beside = (statistics.Design.of(made, macro) for made in (several, with_one))
    (variance,) = alone.variance(np.array([several.correct]).T)
    assert beside.variance(np.array([with_one.correct]).T) == pytest.approx(share**2 * variance)
    deviation = statistics.score(several, macro, "a").draws.std()
    assert statistics.score(with_one, macro, "b").draws.std() == pytest.approx(share * deviation, rel=0.05)


def test_variance_of_clusters_is_that_of_the_score():
    random = np.random.default_rng(0)
    sizes = random.integers(1, 6, 80)
    images = np.repeat(np.arange(80), sizes)
    design = statistics.Design.of(items([0] * len(images), cluster=[str(i) for i in images]), False)
    levels = random.standard_normal((len(images), 3)) + 1.5 * random.standard_normal((80, 3))[images]
    answers = (levels > 0).astype(float)
    drawn = [design.resample(answers[:, [i]], str(i)).var() for i in range(3)]
    assert drawn == pytest.approx(design.variance(answers), rel=0.08)


@pytest.mark.parametrize("macro", [True, False])
def test_where_nothing_varies_the_ends_are_exact(macro):
    """Clopper and Pearson's for 0 or all of 50 images, whatever the number of questions about each."""
    images = [str(i // 2) for i in range(100)]
    right, wrong = items([1] * 100, cluster=images), items([0] * 100, cluster=images)
    low = float(beta.ppf(0.025, 50, 1))
    assert statistics.score(right, macro, "pope").ci95 == pytest.approx((100 * low, 100))
    assert statistics.score(wrong, macro, "pope").ci95 == pytest.approx((0, 100 * (1 - low)))
    same = statistics.difference(right, right, macro, "pope")
    assert same.ci95 == pytest.approx((-100 * (1 - low), 100 * (1 - low))) and same.p_value == 1
    assert statistics.mean([same, same]).ci95 == pytest.approx(same.ci95)


def test_a_paired_difference_is_sharper_than_two_scores():
    baseline = items([1] * 100 + [0] * 100)
    better = items([1] * 110 + [0] * 90)
    result = statistics.difference(baseline, better, False, "pope")
    assert result.value == pytest.approx(5)
    assert result.p_value == pytest.approx(2 / 2**10)  # ten wins, no loss: exact sign test
    expected = binom.ppf([0.025, 0.975], 199, 0.05) / 1.99
    assert result.ci95 == pytest.approx(expected, abs=0.51)


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


# name -> (strata, images, questions an image, spread of an image's difficulty)
DESIGNS = {"independent": (1, 200, 1, 0.0), "questions on images": (1, 60, 6, 1.5), "macro": (6, 40, 1, 0.0)}


def two_models(random, design, gain):
    """Answers of two models, the second right more often by `gain` (in logits), on images of their own difficulty."""
    strata, images, questions, spread = DESIGNS[design]
    models, names, groups = ([], []), [], []
    for stratum in range(strata):
        for image in range(images):
            level = spread * random.standard_normal()
            for _ in range(questions):
                ease = level + random.standard_normal()
                for model, better in zip(models, (0.0, gain), strict=True):
                    model.append(float(random.random() < 1 / (1 + np.exp(-ease - better))))
                names.append(f"{stratum}/{image}")
                groups.append(str(stratum))
    ids = [f"{name}/{index}" for index, name in enumerate(names)]
    return [Items(ids, model, groups, names) for model in models]


@pytest.mark.slow
@pytest.mark.parametrize("design", list(DESIGNS))
def test_intervals_cover_the_truth_and_p_values_keep_their_level(monkeypatch, design):
    """1,000 simulated pairs with a true gain, 1,000 without: 93 to 97 % covered, at most 7 % false alarms."""
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)
    random = np.random.default_rng(0)
    macro = design == "macro"
    level = DESIGNS[design][3]
    ease = np.hypot(1, level) * random.standard_normal(1_000_000)
    truth = 100 * (1 / (1 + np.exp(-ease - 0.8)) - 1 / (1 + np.exp(-ease))).mean()
    covered = alarms = 0
    for trial in range(1000):
        low, high = statistics.difference(*two_models(random, design, 0.8), macro, f"gain {trial}").ci95
        covered += low <= truth <= high
        alarms += statistics.difference(*two_models(random, design, 0.0), macro, f"none {trial}").p_value < 0.05
    assert 0.93 <= covered / 1000 <= 0.97
    assert 0.02 <= alarms / 1000 <= 0.07


def test_mean_joins_the_draws():
    parts = [statistics.score(items([1] * k + [0] * (100 - k)), False, f"task {k}") for k in (40, 60, 80)]
    mean = statistics.mean(parts)
    spread = np.sqrt(sum(k * (100 - k) for k in (40, 60, 80)) / 100) / 3  # standard error in points
    assert mean.value == 60
    assert (mean.ci95[1] - mean.ci95[0]) / 2 == pytest.approx(1.96 * spread, rel=0.06)
