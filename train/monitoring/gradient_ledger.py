"""Gradient norms by part of the model, before clipping.

Under Adam, gradient compensation acts mainly through clipping, so these norms are what distinguishes the
methods. The values are sums over one accumulated step and, under FSDP2, over all shards.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerState, TrainingArguments

from modeling_aligned_llava.inspection.parameter_parts import Parts
from train.monitoring.log import JsonLinesFile


class GradientLedger(JsonLinesFile):
    """`gradients.jsonl`: one line per logged step.

    For each part of the model it holds the norm of its gradient before clipping, its share of the squared total, and
    its clipping factor; for the whole model, the norm and the smallest factor.

    Args:
        path: the file.
        clip_by_part: the trainer clips each part on its own; otherwise all have the same factor.
        parts: tells the part of a parameter.
    """

    def __init__(self, path: Path, clip_by_part: bool, parts: Parts):
        super().__init__(path)
        self.clip_by_part = clip_by_part
        self.parts = parts

    def measure(self, model: nn.Module, max_norm: float, args: TrainingArguments, state: TrainerState) -> None:
        """Write the norms of the gradients, not yet clipped to `max_norm` (0: never), if the step will be logged."""
        step = state.global_step + 1
        if step % max(1, int(args.logging_steps)) and step != state.max_steps:
            return
        squares = _by_part(
            (self.parts(name), p.grad)
            for name, p in model.named_parameters()
            if p.requires_grad and p.grad is not None
        )
        if not squares:  # the step is skipped
            return
        norms = {part: math.sqrt(square) for part, square in squares.items()}
        total = math.sqrt(sum(squares.values()))
        limit = max_norm or math.inf
        factors = {
            part: min(1.0, limit / ((norm if self.clip_by_part else total) + 1e-6)) for part, norm in norms.items()
        }
        line = {
            "step": step,
            "grad_norm": total,
            "clip_factor": min(factors.values()),
            "parts": {
                part: {
                    "grad_norm": norm,
                    "share": squares[part] / total**2 if total else 0.0,
                    "clip_factor": factors[part],
                }
                for part, norm in norms.items()
            },
        }
        self.append(state, line)


def _by_part(tensors: Any) -> dict[str, float]:
    """Sum of squares by part; waits for the device only at the end."""
    sums: dict[str, Tensor] = {}
    for part, tensor in tensors:
        norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32)
        square = (norm.full_tensor() if isinstance(norm, DTensor) else norm).double() ** 2
        sums[part] = sums[part] + square if part in sums else square
    return {part: square.item() for part, square in sums.items()}
