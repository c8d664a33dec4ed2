"""`theory`: Eq. 9 against a measured profile: how much of the difference in rotation do the norms alone predict?"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from modeling_aligned_llava.diagnostics.instruments.tables import number, show_table
from modeling_aligned_llava.diagnostics.norm_profile.profile_file import attribution_of, read_profile
from modeling_aligned_llava.loading.files import write_json


def run(arguments: argparse.Namespace) -> None:
    profiles = [read_profile(path) for path in arguments.profiles]
    for profile in profiles:
        show_prediction(profile)
    if arguments.json is not None:
        write_json(arguments.json, {profile["model"]: predicted_rotation(profile) for profile in profiles})


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
    expected, data = np.asarray(predicted), np.asarray(measured)
    return {
        "share": float(expected.sum() / data.sum()),
        "r_squared": float(1 - np.square(data - expected).sum() / np.square(data).sum()),
    }


def show_prediction(profile: dict[str, Any]) -> None:
    """Eq. 9 by layer against the profile."""
    rotation = predicted_rotation(profile)
    columns = [rotation[name] for name in ("predicted_ratio", "measured_ratio", "coherence")]
    rows = [[str(i), *(number(value) for value in cells)] for i, cells in enumerate(zip(*columns, strict=True))]
    title = (
        f"{profile['model']}: rotation of visual over text tokens; the norms explain {rotation['share']:.2f} of the "
        f"log ratio, R² about zero {rotation['r_squared']:.2f}"
    )
    show_table(title, ["layer", "N_t / N_v (Eq. 9)", "measured", "coherence c"], rows)
