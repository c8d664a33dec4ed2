"""The order of the rows: rows of similar length share a step; the longest come first, the other steps at random.

With `sequential`, the steps keep the order of the data (`curriculum`, one step per megabatch); only the rows of a step
are sorted, so that its micro-batches have less padding.

transformers' own sampler visits each megabatch from long to short and draws from the global random state, so a second
epoch has another order after a resume than without one. This one depends only on seed and epoch.
"""

from collections.abc import Iterator, Sequence

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
        steps_per_megabatch: number of steps in the groups of rows within which rows are sorted by length.
        curriculum: groups are consecutive rows and keep their order, for data that goes from easy to hard; otherwise
            they are random, and so is the order of all steps but the first.

    Raises:
        UserError: there are fewer rows than one step needs, and incomplete steps are dropped.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        step_size: int,
        seed: int,
        drop_last: bool = False,
        steps_per_megabatch: int = STEPS_PER_MEGABATCH,
        curriculum: bool = False,
    ):
        if drop_last and len(lengths) < step_size:
            raise UserError(f"{len(lengths)} rows are fewer than one step of {step_size} (dataloader_drop_last)")
        self.lengths = torch.tensor(lengths)
        self.step_size = step_size
        self.megabatch = step_size * steps_per_megabatch
        self.seed = seed
        self.drop_last = drop_last
        self.curriculum = curriculum
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the trainer calls this before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        rows = len(self.lengths)
        return rows - rows % self.step_size if self.drop_last else rows

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        count = len(self.lengths)
        order = torch.arange(count) if self.curriculum else torch.randperm(count, generator=generator)
        groups = [self._grouped_by_length(rows) for rows in order.split(self.megabatch)]
        if not self.curriculum:
            groups = [[step for steps in groups for step in steps]]
        whole: list[torch.Tensor] = []
        rest: list[torch.Tensor] = []  # an incomplete step, last, or it would shift the steps after it
        for steps in groups:
            complete = [step for step in steps if len(step) == self.step_size]
            rest += [step for step in steps if len(step) < self.step_size]
            whole += [complete[i] for i in torch.randperm(len(complete), generator=generator)]
        if whole and not self.curriculum:  # the longest rows first, so that too little memory shows at once
            longest = int(torch.stack([self.lengths[step].max() for step in whole]).argmax())
            whole.insert(0, whole.pop(longest))
        return (int(i) for step in [*whole, *([] if self.drop_last else rest)] for i in step)

    def _grouped_by_length(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The rows in steps, shortest first."""
        return list(rows[torch.argsort(self.lengths[rows], stable=True)].split(self.step_size))
