"""What storing the norm in bfloat16 does to it: steps below half the spacing of its numbers (1/256 near 1) are lost.

The norm is float32 in this repository. Rounding it after every step is training in bfloat16 weights, for the question
of whether a gain that does not move (paper Table 5, default initialisation) is one that cannot.
"""

import torch
from transformers import TrainerCallback

from modeling_aligned_llava.inspection.norm_parameters import alignment_norm


class RoundedNorm(TrainerCallback):
    """Rounds gain and bias of the norm to bfloat16 at the start and after every step."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self._round(model)

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        self._round(model)

    @torch.no_grad()
    def _round(self, model) -> None:
        norm = alignment_norm(model)
        for parameter in [] if norm is None else norm.parameters():
            parameter.copy_(parameter.bfloat16())
