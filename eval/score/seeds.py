"""A method trained with several seeds: the mean over seeds, with an interval that covers seeds and items.

Every seed answers the same items, so answers are a table of seeds by items, both of them samples. The variance of the
mean over the table has three parts (points squared; k seeds):

    seeds        S^2 / k, S the standard deviation of the seeds' scores
    items        of the mean over seeds, item by item, drawn by image and stratum as in `statistics.py`
    interaction  what both contain: seeds that differ at random from item to item

The estimate is seeds + items - interaction, and items at least. The interval is Student's t with (k - 1) / share
degrees of freedom, rounded down: to first order Cochran's approximation, where share is the seeds' share of the
variance, two thirds of the interaction left out.

The alternatives, simulated in research/interval_coverage.py: Satterthwaite's (k - 1) / share^2 with all of the
interaction covers too little when three seeds differ more than the items allow. A hierarchical bootstrap is worse,
because three seeds drawn with replacement have two thirds of their variance and no heavy tails. A mixed model from
`statsmodels` has the same three parts, but normal intervals. The two thirds are between none (intervals too wide where
seeds hardly differ) and all (too narrow where they do). Two seeds are too few for any of these.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import t

from eval.score.items import Items
from eval.score.statistics import NO_SPREAD, TAIL, Design, outcomes


SHARED = 2 / 3  # of the interaction, not counted to the seeds' share


@dataclass(frozen=True)
class SeedMean:
    """A score or a paired difference, mean over seeds, in points.

    Attributes:
        values: of each seed, (seeds,).
        items, interaction: parts of the variance, see above.
        exact_end: half an interval where neither seeds nor items vary.
        paired: whether this is a difference, which has a p-value.
    """

    values: np.ndarray
    items: float
    interaction: float
    exact_end: float
    paired: bool

    @property
    def value(self) -> float:
        return float(self.values.mean())

    @cached_property
    def of_seeds(self) -> float:
        """The seeds' part of the variance."""
        return float(self.values.var(ddof=1)) / len(self.values)

    @property
    def standard_error(self) -> float:
        return max(self.items, self.of_seeds + self.items - self.interaction) ** 0.5

    @property
    def degrees_of_freedom(self) -> float:
        of_seeds = self.of_seeds - SHARED * min(self.of_seeds, self.interaction)
        return np.floor((len(self.values) - 1) * self.standard_error**2 / of_seeds) if of_seeds else np.inf

    @property
    def ci95(self) -> tuple[float, float] | None:
        """None where these seeds tell too little of the variance between trainings."""
        if not self.degrees_of_freedom:
            return None
        half = float(t.ppf(1 - TAIL, self.degrees_of_freedom)) * self.standard_error
        if self.standard_error < NO_SPREAD:
            half = self.exact_end
        return max(-100.0 if self.paired else 0.0, self.value - half), min(100.0, self.value + half)

    @property
    def p_value(self) -> float | None:
        """Two-sided, from the same t; where nothing varies, that of a sign test over the seeds."""
        if not self.paired or not self.degrees_of_freedom:
            return None
        if self.standard_error < NO_SPREAD:
            return 1.0 if abs(self.value) < NO_SPREAD else 2.0 ** (1 - len(self.values))
        return float(2 * t.sf(abs(self.value) / self.standard_error, self.degrees_of_freedom))


def of_outcomes(design: Design, outcome: np.ndarray, values: np.ndarray, paired: bool) -> SeedMean:
    """The mean over seeds of outcomes by item.

    Args:
        outcome: right or wrong, or the difference of two, (items, seeds).
        values: the score or difference of each seed in points, (seeds,).
    """
    average = outcome.mean(axis=1, keepdims=True)
    (items,) = design.variance(average)
    count = outcome.shape[1]
    interaction = design.variance(outcome - average).sum() / (count * (count - 1))
    return SeedMean(values, float(items), float(interaction), design.exact_end(), paired)


def score(models: list[Items], macro: bool) -> SeedMean:
    """The score of a method; one `Items` per seed.

    Raises:
        ValueError: the seeds were scored on different items.
    """
    values = np.array([model.score(macro) for model in models])
    return of_outcomes(Design.of(models[0], macro), outcomes(models), values, paired=False)


def difference(baselines: list[Items], models: list[Items], macro: bool) -> SeedMean:
    """Method minus baseline, seed by seed on the same items.

    Raises:
        ValueError: they were scored on different items.
    """
    outcome = outcomes([*baselines, *models])
    pairs = zip(baselines, models, strict=True)
    values = np.array([model.score(macro) - baseline.score(macro) for baseline, model in pairs])
    gain = outcome[:, len(baselines) :] - outcome[:, : len(baselines)]
    return of_outcomes(Design.of(models[0], macro), gain, values, paired=True)


def mean(parts: list[SeedMean]) -> SeedMean:
    """Plain mean over benchmarks. They share seeds, whose effects may go together, but no items."""
    count = len(parts)
    return SeedMean(
        np.mean([part.values for part in parts], axis=0),
        sum(part.items for part in parts) / count**2,
        sum(part.interaction for part in parts) / count**2,
        sum(part.exact_end for part in parts) / count,
        parts[0].paired,
    )
