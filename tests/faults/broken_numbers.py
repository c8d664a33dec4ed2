"""Puts NaN or Inf into one step of a stage: into its loss, a gradient or the output of a module.

`python -m tests.faults.broken_numbers FAULT ARGUMENT ...` is such a stage, one of several processes.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from modeling_aligned_llava.errors import run_main
from tests.train.sharded_on_cpu import shard_on_cpu
from train.optimization.trainer import AlignedSFTTrainer
from train.stage import run_stage


@contextmanager
def broken_step(kind: str, steps: set[int], name: str, value: float, process: int = 0) -> Iterator[None]:
    """Let some steps of a stage that runs inside the block go wrong, in one process of it.

    Args:
        kind: `loss`, `gradient` or `output`.
        name: of the parameter ("gradient") or module ("output").
        value: what the last number of every row is replaced by.
    """

    def is_broken(trainer: AlignedSFTTrainer) -> bool:
        return trainer.state.global_step + 1 in steps and trainer.args.process_index == process

    compute, check = AlignedSFTTrainer.compute_loss, AlignedSFTTrainer._check_step

    def broken_forward(self, model, *args, **kwargs):
        if kind == "gradient" or not is_broken(self):
            return compute(self, model, *args, **kwargs)
        if kind == "loss":
            return compute(self, model, *args, **kwargs) + value
        module: nn.Module = self.accelerator.unwrap_model(model).get_submodule(name)
        hook = module.register_forward_hook(lambda module, args, output: _broken(output.clone(), value), prepend=True)
        try:
            return compute(self, model, *args, **kwargs)
        finally:
            hook.remove()

    def broken_check(self, model):
        if kind == "gradient" and is_broken(self):
            gradient = self.accelerator.unwrap_model(model).get_parameter(name).grad
            _broken(gradient.to_local() if isinstance(gradient, DTensor) else gradient, value)
        check(self, model)

    with (
        patch.object(AlignedSFTTrainer, "compute_loss", broken_forward),
        patch.object(AlignedSFTTrainer, "_check_step", broken_check),
    ):
        yield


def _broken(tensor: Tensor, value: float) -> Tensor:
    tensor[..., -1] = value
    return tensor


def main() -> None:
    kind, step, name, value, process = json.loads(sys.argv[1])
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpu()
    with broken_step(kind, {step}, name, value, process):
        run_stage(sys.argv[2:])


if __name__ == "__main__":
    run_main(main)
