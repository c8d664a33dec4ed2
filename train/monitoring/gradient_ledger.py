"""Who owns the gradient: norms by part of the model before clipping, and how far each part then moves.

Under Adam the compensation acts mainly through clipping, so this is what tells the arms apart. Written at every logged
step to `gradients.jsonl`; sums over one accumulated step and, under FSDP2, over all shards.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from train.monitoring.log import append_line, drop_lines_behind


_PARTS = {"vision_tower": "vision", "projector.norm": "norm", "projector": "projector"}  # the rest is language


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to: norm, projector, vision or language."""
    return next((part for text, part in _PARTS.items() if text in name), "language")


class GradientLedger(TrainerCallback):
    """One line a logged step: the factor of clipping, and for each part the norm of its gradient before clipping, its
    share of the squared total, and the length of its Adam step (without weight decay) over that of its weights."""

    def __init__(self, path: Path):
        self.path = path
        self.line: dict[str, Any] | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            drop_lines_behind(self.path, state.global_step)

    def before_clipping(self, trainer: Any) -> None:
        """Read the gradients of `trainer` if its next step will be logged."""
        step = trainer.state.global_step + 1
        self.line = None
        if step % max(1, int(trainer.args.logging_steps)) and step != trainer.state.max_steps:
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        self.names = {id(p): name for name, p in model.named_parameters()}
        squares = _by_part(
            (part_of(name), p.grad) for name, p in model.named_parameters() if p.requires_grad and p.grad is not None
        )
        total = math.sqrt(sum(squares.values()))
        limit = trainer.args.max_grad_norm
        self.line = {
            "step": step,
            "grad_norm": total,
            "clip_factor": min(1.0, limit / (total + 1e-6)) if limit else 1.0,
            "parts": {
                part: {"grad_norm": math.sqrt(square), "share": square / total**2 if total else 0.0}
                for part, square in squares.items()
            },
        }

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        if self.line is None:
            return
        steps = _by_part(
            (part_of(self.names[id(p)]), step)
            for group in optimizer.param_groups
            for p in group["params"]
            if (step := _adam_step(optimizer.state.get(p, {}), group)) is not None
        )
        weights = _by_part(
            (part_of(self.names[id(p)]), p) for group in optimizer.param_groups for p in group["params"]
        )
        for part, record in self.line["parts"].items():
            known = part in steps and weights[part] > 0
            record["update_ratio"] = math.sqrt(steps[part] / weights[part]) if known else None
        if state.is_world_process_zero:
            append_line(self.path, self.line)


def _by_part(tensors: Any) -> dict[str, float]:
    """Sum of squares by part; one wait for the device in all."""
    sums: dict[str, Tensor] = {}
    for part, tensor in tensors:
        norm = torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32)
        square = (norm.full_tensor() if isinstance(norm, DTensor) else norm).double() ** 2
        sums[part] = sums[part] + square if part in sums else square
    return {part: square.item() for part, square in sums.items()}


def _adam_step(state: dict[str, Any], group: dict[str, Any]) -> Tensor | None:
    """The step that Adam has just made, from its moments; None for another optimizer."""
    if "exp_avg" not in state or "exp_avg_sq" not in state:
        return None
    beta1, beta2 = group["betas"]
    count = float(state["step"])
    first = state["exp_avg"] / (1 - beta1**count)
    second = state["exp_avg_sq"] / (1 - beta2**count)
    return group["lr"] * first / (second.sqrt() + group["eps"])
