"""Eq. 9 against a measured profile: how much of the difference in rotation do the norms alone predict?"""

import math
from typing import Any

from modeling_aligned_llava.diagnostics.measure.profile_file import attribution_of
from modeling_aligned_llava.diagnostics.theory.closed_form import log_tangent_fit


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
