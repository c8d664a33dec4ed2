"""The order of the rows: rows of similar length share a step; the longest come first, the other steps at random.

With `sequential`, the steps keep the order of the data; only the rows of a step are sorted, so that its micro-batches
have less padding.

transformers' own sampler visits each megabatch from long to short and draws from the global random state, so a second
epoch has another order after a resume than without one. This one depends only on seed and epoch.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch.utils.data import Sampler

from modeling_aligned_llava.errors import UserError


STEPS_PER_MEGABATCH = 50


class LengthGroupedSampler(Sampler[int]):
    """Indices of one epoch.

    Args:
        lengths: tokens of each row.
        step_size: rows of one optimizer step over all processes.
        seed: of the run; seed and epoch determine the order.
        drop_last: drop the last step of an epoch if it is incomplete. Otherwise several processes repeat rows to fill
            it, so it depends on their number.
        in_order: steps are consecutive rows and keep their order; otherwise they are random, all but the first.

    Raises:
        UserError: there are fewer rows than one step needs, and incomplete steps are dropped.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        step_size: int,
        seed: int,
        drop_last: bool = False,
        in_order: bool = False,
    ):
        if drop_last and len(lengths) < step_size:
            raise UserError(f"{len(lengths)} rows are fewer than one step of {step_size} (dataloader_drop_last)")
        self.lengths = torch.tensor(lengths)
        self.step_size = step_size
        self.seed = seed
        self.drop_last = drop_last
        self.in_order = in_order
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the trainer calls this before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        rows = len(self.lengths)
        return rows - rows % self.step_size if self.drop_last else rows

    def __iter__(self) -> Iterator[int]:
        if self.in_order:
            steps = self._steps(torch.arange(len(self.lengths)), megabatch=self.step_size)
        else:
            generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
            order = torch.randperm(len(self.lengths), generator=generator)
            steps = self._steps(order, megabatch=self.step_size * STEPS_PER_MEGABATCH)
            rest = [step for step in steps if len(step) < self.step_size]  # last, or it would shift those after it
            steps = [step for step in steps if len(step) == self.step_size]
            steps = [steps[i] for i in torch.randperm(len(steps), generator=generator)]
            if steps:  # the longest rows first, so that too little memory shows at once
                longest = int(torch.stack([self.lengths[step].max() for step in steps]).argmax())
                steps.insert(0, steps.pop(longest))
            steps += rest
        return islice((int(i) for step in steps for i in step), len(self))

    def _steps(self, order: torch.Tensor, megabatch: int) -> list[torch.Tensor]:
        """The rows in steps; those of a megabatch are sorted by length."""
        groups = order.split(megabatch)
        return [step for g in groups for step in g[torch.argsort(self.lengths[g], stable=True)].split(self.step_size)]
