"""The order of the rows: rows of similar length share a step, steps come in random order.

transformers' own sampler visits each megabatch from long to short and draws from the global random state, so that a
resumed second epoch sees other rows than a straight run; this one depends on seed and epoch alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Sampler

from modeling_aligned_llava.errors import UserError


class LengthGroupedSampler(Sampler[int]):
    """Indices of one epoch.

    Args:
        lengths: tokens of each row.
        step_size: rows of one optimizer step over all processes.
        seed: seed of the run; with the epoch it fixes the order.
        drop_last: leave out the last, incomplete step of an epoch; else several processes repeat rows to fill it, and
            the steps depend on their number.
        steps_per_megabatch: rows are sorted within random groups of so many steps.

    Raises:
        UserError: there are fewer rows than one step takes, and incomplete steps are left out.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        step_size: int,
        seed: int,
        drop_last: bool = False,
        steps_per_megabatch: int = 50,
    ):
        if drop_last and len(lengths) < step_size:
            raise UserError(f"{len(lengths)} rows are less than one step of {step_size} (dataloader_drop_last)")
        self.lengths = torch.tensor(lengths)
        self.step_size = step_size
        self.megabatch = step_size * steps_per_megabatch
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        rows = len(self.lengths)
        return rows - rows % self.step_size if self.drop_last else rows

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        steps = []
        for rows in order.split(self.megabatch):
            by_length = rows[torch.argsort(self.lengths[rows], stable=True)]
            steps.extend(by_length.split(self.step_size))
        whole = [step for step in steps if len(step) == self.step_size]
        rest = [step for step in steps if len(step) < self.step_size]  # last, or it would shift the groups behind it
        shuffled = [whole[i] for i in torch.randperm(len(whole), generator=generator)]
        return (int(i) for step in [*shuffled, *([] if self.drop_last else rest)] for i in step)
