"""Gain and bias of a trained alignment norm in numbers (paper Table 5)."""

import math
from typing import Any

import torch
from torch import Tensor

from modeling_aligned_llava.inspection.norm_parameters import collapsed, effective_parameters, statistics
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm


def norm_statistics(norm: GlobalWeightCompensatedLayerNorm) -> dict[str, Any]:
    """Statistics of the effective gain and bias [D] in float64, drift and collapse of the gain, and the token norm."""
    start = norm.gain_init * norm.scale
    gain, bias = effective_parameters(norm)
    bias = torch.zeros_like(gain) if bias is None else bias
    return {
        "gain": _without_std(gain),
        "bias": _without_std(bias),
        "gain_start": start,
        "gain_collapsed": collapsed(gain, norm),
        "relative_drift": ((gain - start).abs().mean() / abs(start)).item(),
        "token_norm": math.hypot(gain.norm().item(), bias.norm().item()),
    }


def _without_std(values: Tensor) -> dict[str, float]:
    return {key: value for key, value in statistics(values).items() if key != "std"}
