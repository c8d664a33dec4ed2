"""Gain and bias of the alignment norm, in numbers (paper Table 5).

`effective_parameters` and `statistics` compute them; `norm_parameters.json` of a training run and the diagnostics'
`parameters` command choose which they show.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from modeling_aligned_llava.aligned_family import NORM
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm


def alignment_norm(model: nn.Module) -> GlobalWeightCompensatedLayerNorm | None:
    """Return the norm on the connector of a model of ours or of another family; None without one."""
    return next((each for each in model.modules() if isinstance(each, GlobalWeightCompensatedLayerNorm)), None)


@torch.no_grad()
def effective_parameters(norm: GlobalWeightCompensatedLayerNorm) -> tuple[Tensor, Tensor | None]:
    """Return gain [D] and bias [D] (None: the norm has none) as they act, times the constant scale, in float64.

    Shards of FSDP2 are gathered; under ZeRO-3 the caller gathers the parameters first.
    """
    gain = _whole(norm.weight) * norm.scale
    return gain, None if norm.bias is None else _whole(norm.bias) * norm.scale


def collapsed(gain: Tensor, norm: GlobalWeightCompensatedLayerNorm) -> bool:
    """Whether the mean magnitude of the effective gain [D] has fallen below `compensation_eps`.

    Visual tokens are almost zeros then, and the compensation no longer grows with 1 / mean|gain| (Eq. 12).
    """
    return gain.abs().mean().item() < norm.compensation_eps


def statistics(values: Tensor) -> dict[str, float]:
    """Return norm, spread and extremes of gain or bias [D]; `var_abs` and `std_abs` are those of the magnitudes."""
    size = values.abs()
    return {
        "l2": values.norm().item(),
        "mean_abs": size.mean().item(),
        "var_abs": size.var().item(),
        "std_abs": size.std().item(),
        "standard_error": size.std().item() / math.sqrt(len(values)),
        "std": values.std().item(),
        "min": values.min().item(),
        "negative": float((values < 0).sum()),
        "rms": values.square().mean().sqrt().item(),
    }


def norm_parameters(model: PreTrainedModel) -> dict[str, Any]:
    """Return the content of a training run's `norm_parameters.json`; gain and bias are None where there is none."""
    norm, settings = alignment_norm(model), getattr(model.config, NORM, None)  # other families keep them in a dict
    fields = settings if isinstance(settings, dict) else model.config.to_dict()
    gain, bias = (None, None) if norm is None else effective_parameters(norm)
    return {
        **{name: fields.get(name) for name in ("method", "text_norm", "target_scale")},
        "gain": None if gain is None else _recorded(gain),
        "gain_collapsed": norm is not None and collapsed(effective_parameters(norm)[0], norm),
        "bias": None if bias is None else _recorded(bias),
    }


def _recorded(values: Tensor) -> dict[str, float]:
    found = statistics(values)
    return {
        "l2": found["l2"],
        "mean_abs": found["mean_abs"],
        "mean_abs_std": found["std_abs"],
        "std": found["std"],
    }


def _whole(parameter: Tensor) -> Tensor:
    tensor = parameter.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).double().cpu()
