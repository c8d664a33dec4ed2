"""The smallest difference that a score can detect, and what detecting a smaller one would take."""

import math

import numpy as np
from scipy.stats import norm


LEVEL, POWER = 0.05, 0.80
Z = float(norm.ppf(1 - LEVEL / 2) + norm.ppf(POWER))  # 2.80 standard errors


def detectable(standard_error: float) -> float:
    """The smallest true difference that a two-sided test at 5 % detects in 80 % of repetitions."""
    return Z * standard_error


def times_the_items(standard_error: float, claimed: float) -> float:
    """Factor by which the items must grow to make `claimed` detectable (the error falls with their square root)."""
    return (detectable(standard_error) / abs(claimed)) ** 2 if claimed else math.inf


def seeds_needed(differences: list[float], claimed: float) -> int | None:
    """Seeds per method needed to detect `claimed`; None below two seeds, which have no spread."""
    if len(differences) < 2 or not claimed:
        return None
    return max(2, math.ceil((Z * float(np.std(differences, ddof=1)) / abs(claimed)) ** 2))
