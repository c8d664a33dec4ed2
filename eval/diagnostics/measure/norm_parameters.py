"""Gain and bias of a trained alignment norm in numbers (paper Table 5)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm


def alignment_norm(model: nn.Module) -> GlobalWeightCompensatedLayerNorm | None:
    """The alignment norm of `model`; None if it has none."""
    return next((each for each in model.modules() if isinstance(each, GlobalWeightCompensatedLayerNorm)), None)


@torch.no_grad()
def norm_parameters(norm: GlobalWeightCompensatedLayerNorm) -> dict[str, Any]:
    """Statistics of the effective gain and bias [D] in float64, the drift of the gain, and the implied token norm."""
    start = norm.gain_init * norm.scale
    gain = torch.full((norm.dim,), start, dtype=torch.float64)
    if norm.weight is not None:
        gain = (norm.weight.double().cpu() * norm.scale).expand(norm.dim)
    bias = torch.zeros(norm.dim, dtype=torch.float64) if norm.bias is None else norm.bias.double().cpu() * norm.scale
    return {
        "gain": _statistics(gain),
        "bias": _statistics(bias),
        "gain_start": start,
        "relative_drift": ((gain - start).abs().mean() / abs(start)).item(),
        "token_norm": math.hypot(gain.norm().item(), bias.norm().item()),
    }


def _statistics(values: Tensor) -> dict[str, float]:
    size = values.abs()
    return {
        "l2": values.norm().item(),
        "mean_abs": size.mean().item(),
        "var_abs": size.var().item(),
        "std_abs": size.std().item(),
        "standard_error": size.std().item() / math.sqrt(len(values)),
        "min": values.min().item(),
        "negative": float((values < 0).sum()),
        "rms": values.square().mean().sqrt().item(),
    }
