"""Puts NaN or Inf into one step of a stage: into its loss or a gradient.

`python -m tests.faults.broken_numbers FAULT ARGUMENT ...` is such a stage, one of several processes.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from torch.distributed.tensor import DTensor

from modeling_aligned_llava.errors import run_main
from tests.train.sharded_on_cpu import shard_on_cpu
from train.optimization.trainer import AlignedSFTTrainer
from train.stage import run_stage


@contextmanager
def broken_step(kind: str, steps: set[int], name: str, value: float, process: int = 0) -> Iterator[None]:
    """Let some steps of a stage that runs inside the block go wrong, in one process of it.

    Args:
        kind: `loss` or `gradient`.
        name: of the parameter whose gradient it is.
        value: what is added to the loss, or replaces the last number of every row of the gradient.
    """

    def is_broken(trainer: AlignedSFTTrainer) -> bool:
        return trainer.state.global_step + 1 in steps and trainer.args.process_index == process

    compute, check = AlignedSFTTrainer.compute_loss, AlignedSFTTrainer._check_step

    def broken_loss(self, *args, **kwargs):
        loss = compute(self, *args, **kwargs)
        return loss + value if kind == "loss" and is_broken(self) else loss

    def broken_check(self, model):
        if kind == "gradient" and is_broken(self):
            gradient = self.accelerator.unwrap_model(model).get_parameter(name).grad
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local[..., -1] = value
        check(self, model)

    with (
        patch.object(AlignedSFTTrainer, "compute_loss", broken_loss),
        patch.object(AlignedSFTTrainer, "_check_step", broken_check),
    ):
        yield


def main() -> None:
    kind, step, name, value, process = json.loads(sys.argv[1])
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpu()
    with broken_step(kind, {step}, name, value, process):
        run_stage(sys.argv[2:])


if __name__ == "__main__":
    run_main(main)
