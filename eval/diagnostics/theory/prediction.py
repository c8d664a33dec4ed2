"""Eq. 9 against a measured profile: the rotation ratio that the norms alone predict."""

import math
from typing import Any

from eval.diagnostics.measure.profile_file import attribution_of
from eval.diagnostics.theory.closed_form import log_tangent_fit


def predicted_rotation(profile: dict[str, Any]) -> dict[str, Any]:
    """Eq. 9 against a profile: per layer tan(omega_v) / tan(omega_t), predicted by the norms alone and measured.

    Geometric means over tokens, so that the attribution's terms multiply to the measured ratio exactly.

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
