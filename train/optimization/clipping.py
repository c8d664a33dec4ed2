"""Clip the gradient of each part of the model on its own, so that no part decides how much of another is used.

Clipping as a whole (the default) multiplies every gradient by one factor. With a norm, the gradient of its gain can be
most of the total: the projector's is then cut for the gain's sake, and by other amounts in other methods.
"""

from collections import defaultdict

from torch import nn
from transformers import TrainerCallback

from modeling_aligned_llava.inspection.parameter_parts import Parts


class ClipByPart(TrainerCallback):
    """Scales the gradient of each part (norm, projector, vision, ...) down to the L2 norm `max_norm`, in place.

    Gradients that FSDP2 has sharded are clipped by the norm over all shards.
    """

    def __init__(self, max_norm: float, part_of: Parts):
        self.max_norm, self.part_of = max_norm, part_of

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        parts: dict[str, list[nn.Parameter]] = defaultdict(list)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:  # none is left where the step is skipped
                parts[self.part_of(name)].append(parameter)
        for parameters in parts.values():
            nn.utils.clip_grad_norm_(parameters, self.max_norm)
