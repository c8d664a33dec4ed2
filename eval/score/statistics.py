"""Intervals and paired tests for the scores of one checkpoint, resampled the way each score is computed.

Every score is `sum over strata of weight * (right / items)`: a single stratum for plain accuracies, one per category
for macro means, one per subject for MMLU. Within a stratum, clusters (questions about one image) are drawn with
replacement, one fewer than there are: with all of them the variance of a mean would be too small by (n - 1) / n, which
counts in strata of a few clusters (the rescaled bootstrap of Rao and Wu, 1988). Clusters with the same outcome are
interchangeable, so a resample is one multinomial draw over distinct outcomes: exact, and as cheap for 14,000 items as
for 200.

Several seeds of a method: `seeds.py`.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, norm

from eval.score.items import Items


RESAMPLES = 10_000
TAIL = 0.025  # probability on either side of an interval
NO_SPREAD = 1e-9  # points; below it, differences are rounding errors
POWER = 0.80


def detectable(standard_error: float) -> float:
    """The smallest true difference that a two-sided test at 5 % detects in 80 % of repetitions."""
    return float(norm.ppf(1 - TAIL) + norm.ppf(POWER)) * standard_error


@dataclass
class Comparison:
    """A score or a difference in points 0-100. `draws` are its resamples, which `mean` averages over benchmarks."""

    value: float
    ci95: tuple[float, float]
    draws: np.ndarray
    p_value: float | None = None


@dataclass(frozen=True)
class Design:
    """How the items of a benchmark are drawn.

    Attributes:
        cluster: index of each item's cluster, (items,).
        size: items of each cluster, (clusters,).
        stratum: index of each cluster's stratum, (clusters,).
        weight: share of each stratum in the score, (strata,).
    """

    cluster: np.ndarray
    size: np.ndarray
    stratum: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, items: Items, macro: bool) -> "Design":
        names = list(zip(items.stratum, items.cluster, strict=True))
        clusters = {name: index for index, name in enumerate(dict.fromkeys(names))}
        strata = {name: index for index, name in enumerate(sorted(set(items.stratum)))}
        cluster = np.array([clusters[name] for name in names])
        stratum = np.array([strata[name] for name, _ in clusters])
        size = np.bincount(cluster).astype(float)
        count = np.bincount(stratum, size)
        return cls(cluster, size, stratum, np.full(len(strata), 1 / len(strata)) if macro else count / count.sum())

    def totals(self, outcome: np.ndarray) -> np.ndarray:
        """Sums over the items of each cluster, (items, columns) -> (clusters, columns)."""
        return np.array([np.bincount(self.cluster, column) for column in outcome.T]).T

    def resample(self, outcome: np.ndarray, label: str) -> np.ndarray:
        """Resampled scores of models that answered the same items, drawn jointly.

        Args:
            outcome: 1 or 0 by item and model, (items, models).
            label: names the stream of random numbers.

        Returns:
            Points, (RESAMPLES, models).
        """
        random = np.random.default_rng(zlib.crc32(label.encode()))  # the same stream in every run
        counted = np.column_stack([self.size, self.totals(outcome)])
        scores = np.zeros((RESAMPLES, outcome.shape[1]))
        for index, weight in enumerate(self.weight):
            kinds, counts = np.unique(counted[self.stratum == index], axis=0, return_counts=True)
            drawn = max(counts.sum() - 1, 1)  # a stratum of one cluster has no spread
            totals = random.multinomial(drawn, counts / counts.sum(), size=RESAMPLES) @ kinds
            scores += weight * totals[:, 1:] / totals[:, :1]
        return 100 * scores

    def variance(self, outcome: np.ndarray) -> np.ndarray:
        """The variance that `resample` estimates, in closed form (linearized), for any outcomes by item.

        Args:
            outcome: (items, columns).

        Returns:
            Points squared, (columns,).
        """
        totals = self.totals(outcome)
        items = np.bincount(self.stratum, self.size)
        clusters = np.bincount(self.stratum)
        right = np.array([np.bincount(self.stratum, column) for column in totals.T]).T
        residuals = (totals - (right / items[:, None])[self.stratum] * self.size[:, None]) / items[self.stratum, None]
        squares = np.array([np.bincount(self.stratum, column) for column in (residuals**2).T]).T
        rescaled = squares * (clusters / np.maximum(clusters - 1, 1))[:, None]
        return 1e4 * self.weight**2 @ rescaled

    def exact_end(self) -> float:
        """Points by which an interval still extends where nothing varies: all right, all wrong, or no difference.

        Clopper and Pearson's upper end for 0 of n clusters; with several strata n is `1 / sum(weight^2 / clusters)`.
        """
        effective = 1 / np.sum(self.weight**2 / np.bincount(self.stratum))
        return float(100 * (1 - TAIL ** (1 / effective)))


def outcomes(models: list[Items]) -> np.ndarray:
    """Right or wrong, (items, models).

    Raises:
        ValueError: the models were scored on different items.
    """
    if any(model.id != models[0].id for model in models[1:]):
        raise ValueError("the models were not scored on the same items")
    return np.array([model.correct for model in models]).T


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(draws, [100 * TAIL, 100 * (1 - TAIL)])
    return float(low), float(high)


def _interval_or_exact(value: float, draws: np.ndarray, design: Design, lowest: float) -> tuple[float, float]:
    """The bootstrap's interval; where the draws do not vary, the exact one, from `lowest` to 100 at most."""
    if np.ptp(draws) > NO_SPREAD:
        return _interval(draws)
    return max(lowest, value - design.exact_end()), min(100.0, value + design.exact_end())


def mcnemar(first: list[float], second: list[float]) -> float:
    """Exact two-sided McNemar p-value of two lists of right/wrong answers to the same items."""
    wins = sum(b > a for a, b in zip(first, second, strict=True))
    losses = sum(a > b for a, b in zip(first, second, strict=True))
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def bootstrap_p(draws: np.ndarray) -> float:
    """Two-sided p-value of a difference from its paired resamples; never zero, because they are finitely many."""
    tail = min((draws <= 0).sum(), (draws >= 0).sum())
    return float(min(1.0, 2 * (tail + 1) / (len(draws) + 1)))


def score(items: Items, macro: bool, label: str) -> Comparison:
    """A score with its bootstrap interval."""
    design, value = Design.of(items, macro), items.score(macro)
    draws = design.resample(outcomes([items]), label)[:, 0]
    return Comparison(value, _interval_or_exact(value, draws, design, 0.0), draws)


def difference(baseline: Items, model: Items, macro: bool, label: str) -> Comparison:
    """Model minus baseline on the same items: paired interval and p-value.

    The p-value is McNemar's exact one if items are independent and have equal weight. For macro means, and for
    questions that share an image, it is the bootstrap's.

    Raises:
        ValueError: the two were scored on different items.
    """
    design, value = Design.of(baseline, macro), model.score(macro) - baseline.score(macro)
    draws = design.resample(outcomes([baseline, model]), label)
    delta = draws[:, 1] - draws[:, 0]
    clustered = len(design.size) < len(design.cluster)
    p = bootstrap_p(delta) if macro or clustered else mcnemar(baseline.correct, model.correct)
    return Comparison(value, _interval_or_exact(value, delta, design, -100.0), delta, p)


def mean(parts: list[Comparison]) -> Comparison:
    """Plain mean over benchmarks, with its interval by joint bootstrap (benchmarks share no items).

    If no benchmark varies, the ends are the mean of theirs.
    """
    draws = np.mean([part.draws for part in parts], axis=0)
    low, high = np.mean([part.ci95 for part in parts], axis=0)
    interval = _interval(draws) if np.ptp(draws) > NO_SPREAD else (float(low), float(high))
    paired = parts[0].p_value is not None
    value = float(np.mean([part.value for part in parts]))
    return Comparison(value, interval, draws, bootstrap_p(draws) if paired else None)


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down adjustment: p-values valid for the whole family of tests."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, running)
    return [float(p) for p in adjusted]
