"""The smallest difference that a score can detect, and what detecting a smaller one would take."""

import math

import numpy as np
from scipy.stats import t


LEVEL, POWER = 0.05, 0.80


def detectable(standard_error: float, degrees_of_freedom: float = math.inf) -> float:
    """The smallest true difference that a two-sided test at 5 % detects in 80 % of repetitions.

    2.80 standard errors if these are known; more with the few degrees of freedom of a mean over seeds.
    """
    quantiles = t.ppf([1 - LEVEL / 2, POWER], degrees_of_freedom)
    return float(quantiles.sum()) * standard_error


def times_the_items(standard_error: float, claimed: float) -> float:
    """Factor by which the items must grow to make `claimed` detectable (the error falls with their square root)."""
    return (detectable(standard_error) / abs(claimed)) ** 2 if claimed else math.inf


def seeds_needed(differences: list[float], claimed: float) -> int | None:
    """Seeds per method needed to detect `claimed`; None below two seeds, which have no spread."""
    if len(differences) < 2 or not claimed:
        return None
    spread = float(np.std(differences, ddof=1))
    seeds = max(2, math.ceil((detectable(spread) / claimed) ** 2))
    while detectable(spread / math.sqrt(seeds), seeds - 1) > abs(claimed):
        seeds += 1
    return seeds
