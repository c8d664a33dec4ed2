"""Intervals and paired tests for benchmark scores, resampled the way each score is computed.

Every score is `sum over strata of weight * (right / items)`: a single stratum for plain accuracies, one per category
for macro means, one per subject for MMLU. Within a stratum, clusters (questions about one image) are drawn with
replacement. Clusters with the same outcome are interchangeable, so a resample is one multinomial draw over distinct
outcomes: exact, and as cheap for 14,000 items as for 200.
"""

import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from eval.scoring.items import Items


RESAMPLES = 10_000
LEVEL = 95


@dataclass
class Comparison:
    """A score or a difference in points 0-100. `draws` are its resamples, which `mean` averages over benchmarks."""

    value: float
    ci95: tuple[float, float]
    draws: np.ndarray
    p_value: float | None = None


def _generator(label: str) -> np.random.Generator:
    """A separate stream for each benchmark, the same in every run."""
    return np.random.default_rng(zlib.crc32(label.encode()))


def _resample(models: list[Items], macro: bool, label: str) -> np.ndarray:
    """Resampled scores of models that answered the same items, drawn jointly: (RESAMPLES, models)."""
    first = models[0]
    for other in models[1:]:
        if other.id != first.id:
            raise ValueError(f"{label}: the two models were not scored on the same items")
    outcome = np.array([model.correct for model in models]).T  # (items, models)
    members: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (stratum, cluster) in enumerate(zip(first.stratum, first.cluster, strict=True)):
        members[stratum][cluster].append(index)

    random = _generator(label)
    scores = np.zeros((RESAMPLES, len(models)))
    for stratum in sorted(members):
        clusters = members[stratum].values()
        kinds = Counter((len(indices), *outcome[indices].sum(axis=0)) for indices in clusters)
        table = np.array(sorted(kinds))  # (kinds, 1 + models): items, right answers of each model
        counts = np.array([kinds[tuple(kind)] for kind in table])
        draws = random.multinomial(counts.sum(), counts / counts.sum(), size=RESAMPLES)  # (RESAMPLES, kinds)
        totals = draws @ table
        items = sum(len(indices) for indices in clusters)
        weight = 1 / len(members) if macro else items / len(first.id)
        scores += weight * totals[:, 1:] / totals[:, :1]
    return 100 * scores


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(draws, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)


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
    draws = _resample([items], macro, label)[:, 0]
    return Comparison(items.score(macro), _interval(draws), draws)


def difference(baseline: Items, model: Items, macro: bool, label: str) -> Comparison:
    """Model minus baseline on the same items: paired interval and p-value.

    The p-value is McNemar's exact one if items are independent and have equal weight. For macro means, and for
    questions that share an image, it is the bootstrap's.

    Raises:
        ValueError: the two were scored on different items.
    """
    draws = _resample([baseline, model], macro, label)
    delta = draws[:, 1] - draws[:, 0]
    clustered = len(set(baseline.cluster)) < len(baseline.cluster)
    p = bootstrap_p(delta) if macro or clustered else mcnemar(baseline.correct, model.correct)
    return Comparison(model.score(macro) - baseline.score(macro), _interval(delta), delta, p)


def mean(parts: list[Comparison]) -> Comparison:
    """Plain mean over benchmarks, with its interval by joint bootstrap (benchmarks share no items)."""
    draws = np.mean([part.draws for part in parts], axis=0)
    paired = parts[0].p_value is not None
    value = float(np.mean([part.value for part in parts]))
    return Comparison(value, _interval(draws), draws, bootstrap_p(draws) if paired else None)


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down adjustment: p-values valid for the whole family of tests."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, running)
    return [float(p) for p in adjusted]
