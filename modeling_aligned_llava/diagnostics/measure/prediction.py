"""Eq. 9 against a measured profile: how much of the difference in rotation do the norms alone predict?"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from modeling_aligned_llava.diagnostics.measure.profile_file import attribution_of


def predicted_rotation(profile: dict[str, Any]) -> dict[str, Any]:
    """tan(omega_v) / tan(omega_t) by layer, predicted from the norms alone and measured, with their fit.

    Ratios are of geometric means over tokens, so that the terms of the attribution multiply to the measured ratio.

    Raises:
        UserError: the profile has no angles of one modality.
    """
    terms = attribution_of(profile)
    predicted, measured = terms["norm"]["value"], terms["total"]["value"]
    return {
        "predicted_ratio": [math.exp(value) for value in predicted],
        "measured_ratio": [math.exp(value) for value in measured],
        "coherence": profile["coherence"]["value"],
        **log_tangent_fit(predicted, measured),
    }


def log_tangent_fit(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """How much of the measured log tangent ratios, by layer, Eq. 9 explains: share of their sum, and R^2 about zero.

    Nothing is fitted: an R^2 below zero means that the prediction is worse than predicting no asymmetry.
    """
    theory, data = np.asarray(predicted), np.asarray(measured)
    return {
        "share": float(theory.sum() / data.sum()),
        "r_squared": float(1 - np.square(data - theory).sum() / np.square(data).sum()),
    }
