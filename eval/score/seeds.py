"""A method trained with several seeds: the mean over seeds, with an interval that covers seeds and items.

Every seed answers the same items, so answers are a table of seeds by items, both of them samples. The variance of the
mean over the table has three parts (points squared; k seeds):

    seeds        S^2 / k, S the standard deviation of the seeds' scores
    items        of the mean over seeds, item by item, drawn by image and stratum as in `statistics.py`
    interaction  what both contain: seeds that differ at random from item to item

The estimate is seeds + items - interaction, and items at least. The interval is Student's t with f / share degrees of
freedom, rounded down: to first order Cochran's approximation, where f belongs to S^2 and share is the seeds' share of
the variance, two thirds of the interaction left out.

Two or three seeds tell little of S. So columns and methods share it, as genes do in limma (Smyth 2004,
doi:10.2202/1544-6115.1027). Assumed: their variances come from one scaled inverse chi-squared distribution, with d0
degrees of freedom and scale s0^2. Then (d0 s0^2 + d S^2) / (d0 + d), d = k - 1, takes the place of S^2, and f is
d0 + d. Where a column is alone, or beside few, d0 is 0 and this is Student's t. Unlike limma's, d0 and s0^2 have the
largest likelihood, because equal scores of two seeds have no log S^2; and d0 is five at most, and a quarter of the
others' degrees of freedom: with more, columns whose variance is well above s0^2 are covered too rarely. The mean over
columns has an S^2 of its own, because a seed may move all of them together, and one degree of freedom with the
variance of columns that move independently.

The alternatives, simulated in research/interval_coverage.py: columns alone have intervals of very unlike width.
Satterthwaite's f / share^2 with all of the interaction covers too little when three seeds differ more than the items
allow. A hierarchical bootstrap is worse, because three seeds drawn with replacement have two thirds of their variance
and no heavy tails. The two thirds are between none (intervals too wide where seeds hardly differ) and all (too narrow
where they do).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln
from scipy.stats import t

from eval.score.items import Items
from eval.score.statistics import NO_SPREAD, TAIL, Design, outcomes


SHARED = 2 / 3  # of the interaction, not counted to the seeds' share
LARGEST_PRIOR = 5  # degrees of freedom that other columns and methods may add
WORTH = 4  # degrees of freedom of the others that may add one, because s0^2 is estimated from them
TIED = 1e-4  # of the mean S^2: seeds whose scores are equal to the last item are not known to be closer


@dataclass(frozen=True)
class Prior:
    """What is known of a variance between trainings beside the seeds themselves.

    Attributes:
        freedom: its weight, in degrees of freedom (d0).
        variance: points squared, of single trainings (s0^2).
    """

    freedom: float
    variance: float


NO_PRIOR = Prior(0, 0.0)


@dataclass(frozen=True)
class SeedMean:
    """A score or a paired difference, mean over seeds, in points; or a number without items, such as a loss.

    Attributes:
        values: of each seed, (seeds,).
        items, interaction: parts of the variance, see above.
        exact_end: half an interval where neither seeds nor items vary.
        paired: whether this is a difference, which has a p-value.
        prior: of the variance between trainings.
    """

    values: np.ndarray
    items: float
    interaction: float
    exact_end: float
    paired: bool
    prior: Prior = NO_PRIOR

    @property
    def value(self) -> float:
        return float(self.values.mean())

    @cached_property
    def sample_variance(self) -> float:
        """Of the seeds alone (S^2)."""
        return float(self.values.var(ddof=1))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance between trainings."""
        return self.prior.freedom + len(self.values) - 1

    @cached_property
    def between_trainings(self) -> float:
        """The variance of single trainings, from seeds and prior."""
        weighted = self.prior.freedom * self.prior.variance + (len(self.values) - 1) * self.sample_variance
        return weighted / self.freedom

    @property
    def of_seeds(self) -> float:
        """The seeds' part of the variance."""
        return self.between_trainings / len(self.values)

    @property
    def variance(self) -> float:
        return max(self.items, self.of_seeds + self.items - self.interaction)

    @property
    def standard_error(self) -> float:
        return self.variance**0.5

    @property
    def degrees_of_freedom(self) -> float:
        of_seeds = self.of_seeds - SHARED * min(self.of_seeds, self.interaction)
        return np.floor(self.freedom * (self.variance / of_seeds)) if of_seeds else np.inf

    @property
    def half_width(self) -> float | None:
        """Half the 95 % interval; None where these seeds tell too little of the variance between trainings."""
        if not self.degrees_of_freedom:
            return None
        if self.standard_error < NO_SPREAD:
            return self.exact_end
        return float(t.ppf(1 - TAIL, self.degrees_of_freedom)) * self.standard_error

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Within the scale of scores or differences; None as `half_width`."""
        half = self.half_width
        if half is None:
            return None
        return max(-100.0 if self.paired else 0.0, self.value - half), min(100.0, self.value + half)

    @property
    def p_value(self) -> float | None:
        """Two-sided, from the same t; where nothing varies, that of a sign test over the seeds."""
        if not self.paired or not self.degrees_of_freedom:
            return None
        if self.standard_error < NO_SPREAD:
            return 1.0 if abs(self.value) < NO_SPREAD else 2.0 ** (1 - len(self.values))
        return float(2 * t.sf(abs(self.value) / self.standard_error, self.degrees_of_freedom))


def prior(cells: list[SeedMean]) -> Prior:
    """What columns and methods tell of a variance between trainings; none where they are too few.

    The likelihood is that of S^2 / s0^2 with Fisher's F distribution of d and d0 degrees of freedom. The cells have no
    prior themselves.
    """
    d = np.array([len(cell.values) - 1.0 for cell in cells])
    squares = d * np.array([cell.sample_variance for cell in cells])
    largest = min(LARGEST_PRIOR, int(d.sum() - d.max()) // WORTH) if cells else 0
    if not largest or not squares.any():
        return NO_PRIOR
    squares = np.maximum(squares, TIED * squares.mean())

    def gradient(log_sum: float, d0: int) -> float:
        return float(np.sum((d0 + d) * squares / (np.exp(log_sum) + squares) - d))

    def best_sum(d0: int) -> float:
        """d0 s0^2: between those at which either the smallest or the largest S^2 is s0^2."""
        ends = np.log(squares * d0 / d)
        return float(np.exp(brentq(gradient, ends.min() - 1, ends.max() + 1, args=(d0,))))

    def likelihood(d0: int) -> float:
        prior_sum = best_sum(d0)
        terms = gammaln((d0 + d) / 2) - gammaln(d0 / 2) - (d0 + d) / 2 * np.log1p(squares / prior_sum)
        return float(np.sum(terms - d / 2 * np.log(prior_sum)))

    freedom = max(range(1, largest + 1), key=likelihood)
    return Prior(freedom, best_sum(freedom) / freedom)


def shared(cells: list[SeedMean]) -> list[SeedMean]:
    """The same numbers with the prior that they have in common."""
    in_common = prior(cells)
    return [replace(cell, prior=in_common) for cell in cells]


def of_numbers(values: list[float]) -> SeedMean:
    """The mean over trainings of a number that is not sampled from items, such as a loss or a difference of losses."""
    return SeedMean(np.array(values), 0.0, 0.0, 0.0, paired=True)


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
        Prior(1, sum(part.between_trainings for part in parts) / count**2),
    )
