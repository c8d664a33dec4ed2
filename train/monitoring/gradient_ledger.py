"""Gradient norms by part of the model before clipping, and the size of the step that each part then takes.

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

    For each part of the model it holds the norm of its gradient before clipping, its share of the squared total, its
    clipping factor, and the norm of its Adam step (without weight decay) divided by that of its weights; for the whole
    model, the norm and the smallest factor.

    Args:
        path: the file.
        clip_by_part: the trainer clips each part on its own; otherwise all have the same factor.
        parts: tells the part of a parameter.
    """

    line: dict[str, Any] | None = None

    def __init__(self, path: Path, clip_by_part: bool = False, parts: Parts | None = None):
        super().__init__(path)
        self.clip_by_part = clip_by_part
        self.parts = parts or Parts()

    def measure(self, model: nn.Module, max_norm: float, args: TrainingArguments, state: TrainerState) -> None:
        """Read the gradients of `model`, not yet clipped to `max_norm` (0: never), if the step will be logged."""
        step = state.global_step + 1
        self.line = None
        if step % max(1, int(args.logging_steps)) and step != state.max_steps:
            return
        self.names = {id(p): name for name, p in model.named_parameters()}
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
        self.line = {
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

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        if self.line is None:
            return
        steps = _by_part(
            (self.parts(self.names[id(p)]), step)
            for group in optimizer.param_groups
            for p in group["params"]
            if (step := _adam_step(optimizer.state.get(p, {}), group)) is not None
        )
        weights = _by_part(
            (self.parts(self.names[id(p)]), p) for group in optimizer.param_groups for p in group["params"]
        )
        for part, record in self.line["parts"].items():
            known = part in steps and weights[part] > 0
            record["update_ratio"] = math.sqrt(steps[part] / weights[part]) if known else None
        self.append(state, self.line)


def _by_part(tensors: Any) -> dict[str, float]:
    """Sum of squares by part; waits for the device only at the end."""
    sums: dict[str, Tensor] = {}
    for part, tensor in tensors:
        norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32)
        square = (norm.full_tensor() if isinstance(norm, DTensor) else norm).double() ** 2
        sums[part] = sums[part] + square if part in sums else square
    return {part: square.item() for part, square in sums.items()}


def _adam_step(state: dict[str, Any], group: dict[str, Any]) -> Tensor | None:
    """The step that Adam has just taken, computed from its moments; None for other optimizers."""
    if "exp_avg" not in state or "exp_avg_sq" not in state:
        return None
    beta1, beta2 = group["betas"]
    count = float(state["step"])
    first = state["exp_avg"] / (1 - beta1**count)
    second = state["exp_avg_sq"] / (1 - beta2**count)
    return group["lr"] * first / (second.sqrt() + group["eps"])
