"""Visual minus text tokens of several models, and the paired differences between the models."""

from typing import Any

import torch
from torch import Tensor

from modeling_aligned_llava.diagnostics.statistics.bootstrap import mean_interval


def asymmetry(profiles: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """`{model: {quantity: {"mean", "ci95", "change", "change_ci95"}}}`, intervals of 95 % over images.

    `change` is the paired difference from the first model; a model measured on other images does not have it.
    """
    reference = next(iter(profiles.values()))
    found: dict[str, dict[str, Any]] = {}
    for model, profile in profiles.items():
        paired = profile is not reference and profile["image_ids"] == reference["image_ids"]
        found[model] = {}
        for name, column in profile["by_image"].items():
            values = _tensor(column)
            found[model][name] = {"mean": values.mean().item(), "ci95": mean_interval(values)}
            if paired:
                change = values - _tensor(reference["by_image"][name])
                found[model][name] |= {"change": change.mean().item(), "change_ci95": mean_interval(change)}
    return found


def _tensor(column: list[float]) -> Tensor:
    return torch.tensor(column, dtype=torch.float64)
