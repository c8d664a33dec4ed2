"""Clip the gradient of each part of the model on its own, so that no part decides how much of another is used.

Clipping as a whole (the default) multiplies every gradient by one factor. With a norm, the gradient of its gain can be
most of the total: the projector's is then cut for the gain's sake, and by other amounts in other methods.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from modeling_aligned_llava.inspection.parameter_parts import Parts


def clip_by_part(model: nn.Module, max_norm: float, part_of: Parts) -> Tensor:
    """Scale the gradient of each part (norm, projector, vision, ...) down to the L2 norm `max_norm`, in place.

    Gradients that FSDP2 has sharded are clipped by the norm over all shards.

    Returns:
        The 0-dim norm of the whole gradient before clipping.
    """
    parts: dict[str, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parts[part_of(name)].append(parameter)
    if not parts:  # the step is skipped
        return torch.zeros(())
    norms = [nn.utils.clip_grad_norm_(parameters, max_norm) for parameters in parts.values()]
    return torch.linalg.vector_norm(
        torch.stack([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms])
    )
