"""Steps whose loss or gradient is not finite: the run stops before its weights change, or skips a limited number.

One process alone may see NaN or Inf, in its rows or in its shard of a gradient, so all processes decide together.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from modeling_aligned_llava.errors import UserError
from train.monitoring.log import JsonLinesFile, lines_up_to
from train.stage_folder import say


class FiniteSteps(JsonLinesFile):
    """`skipped_steps.jsonl`: the steps that were skipped, and why.

    A skipped step counts as a step: the schedule goes on and its rows are not read again, but neither the weights nor
    the optimizer's moments change.

    Args:
        path: the file; it exists only if a step was skipped.
        limit: number of steps of the run that may be skipped; 0 stops at the first.
    """

    def __init__(self, path: Path, limit: int):
        super().__init__(path)
        self.limit = limit
        self.skipped = 0

    def on_train_begin(self, args, state, control, **kwargs):
        """Count the steps skipped up to the checkpoint that the run resumes from."""
        if self.path.exists():
            self.skipped = len(lines_up_to(self.path, state.global_step))
            super().on_train_begin(args, state, control, **kwargs)

    def are_finite(self, accelerator: Accelerator, model: nn.Module, losses: list[Tensor]) -> bool:
        """Whether the losses of a step (one per micro-batch) and its gradient are finite in all processes."""
        if _uses_deepspeed(accelerator):
            norm = torch.as_tensor(accelerator.deepspeed_engine_wrapped.get_global_grad_norm() or 0.0)
        else:
            norm = torch.nn.utils.get_total_norm([gradient for _, gradient in _gradients(model)])
        values = torch.stack([*losses, norm.to(losses[0])])
        broken = (~values.isfinite()).any().float()
        return not accelerator.reduce(broken, "sum").item()

    def cause(self, accelerator: Accelerator, model: nn.Module, losses: list[Tensor]) -> str:
        """What is not finite, the loss before the last gradient, where backward starts; called by every process."""
        causes = [(2, "the loss or the gradient")]  # DeepSpeed keeps gradients to itself
        if not torch.stack(losses).isfinite().all():
            causes.append((0, "the loss"))
        if not _uses_deepspeed(accelerator):
            broken = [name for name, gradient in _gradients(model) if not gradient.isfinite().all()]
            causes += [(1, f"the gradient of {name}") for name in broken[-1:]]
        return min(gather_object([min(causes)]))[1]

    def skip(self, state: Any, cause: str) -> None:
        """Record that the coming step is skipped.

        Raises:
            UserError: the limit is reached.
        """
        step = state.global_step + 1
        if self.skipped == self.limit:
            after = f" after {self.limit} skipped steps" if self.limit else ""
            raise UserError(
                f"step {step}: not finite{after}: {cause}; the step was not taken and the last checkpoint is kept: "
                f"start again with --max_skipped_steps {2 * self.limit or 10} to skip such steps, or train at a lower "
                "learning rate"
            )
        self.skipped += 1
        self.append(state, {"step": step, "cause": cause})
        if state.is_world_process_zero:
            say(f"step {step} is skipped ({self.skipped} of {self.limit}), not finite: {cause}")


def _uses_deepspeed(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.DEEPSPEED


def _gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The gradients of this process; of FSDP2, its shards."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield name, parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
