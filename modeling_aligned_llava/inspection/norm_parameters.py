"""`norm_parameters.json`: the gain and bias of the trained norm, the numbers of the paper's Table 5."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from trl.trainer.utils import maybe_gather_lm_head_ctx

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration


def norm_parameters(model: AlignedLlavaForConditionalGeneration) -> dict[str, Any]:
    """Statistics of the effective gain and bias (for `norm-relative` times the constant scale); None: there is none.

    `std` of the gain is over its elements, `mean_abs_std` that of their absolute values (Table 5's brackets).
    """
    config = model.config
    norm = model.model.multi_modal_projector.norm
    record = {"method": config.method, "text_norm": config.text_norm, "target_scale": config.target_scale}
    if norm is None:
        return {**record, "gain": None, "bias": None}
    with maybe_gather_lm_head_ctx(*norm.parameters()):  # any parameters: TRL has it for ZeRO-3
        gain = torch.tensor(norm.gain_init).double() if norm.weight is None else _whole(norm.weight)
        bias = None if norm.bias is None else _statistics(_whole(norm.bias) * norm.scale)
    return {**record, "gain": _statistics(gain.expand(norm.dim) * norm.scale), "bias": bias}


def _whole(parameter: Tensor) -> Tensor:
    """The full parameter [D] in float64, also where FSDP2 shards it."""
    tensor = parameter.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).double().cpu()


def _statistics(values: Tensor) -> dict[str, float]:
    return {
        "l2": values.norm().item(),
        "mean_abs": values.abs().mean().item(),
        "mean_abs_std": values.abs().std().item(),
        "std": values.std().item(),
    }
