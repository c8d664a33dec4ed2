"""The order of the rows, and how those of a step are cut into micro-batches.

Rows of similar length share a step; the longest come first, the other steps at random.

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
from transformers.trainer_pt_utils import BatchRebalanceSampler

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
        mixed: a step has rows of all lengths, as steps must that are cut into equally many micro-batches.

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
        mixed: bool = False,
    ):
        if drop_last and len(lengths) < step_size:
            raise UserError(f"{len(lengths)} rows are fewer than one step of {step_size} (dataloader_drop_last)")
        self.lengths = torch.tensor(lengths)
        self.step_size = step_size
        self.seed = seed
        self.drop_last = drop_last
        self.in_order = in_order
        self.megabatch = step_size if in_order or mixed else step_size * STEPS_PER_MEGABATCH
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the trainer calls this before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        rows = len(self.lengths)
        return rows - rows % self.step_size if self.drop_last else rows

    def __iter__(self) -> Iterator[int]:
        if self.in_order:
            steps = self._steps(torch.arange(len(self.lengths)))
        else:
            generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
            order = torch.randperm(len(self.lengths), generator=generator)
            steps = self._steps(order)
            rest = [step for step in steps if len(step) < self.step_size]  # last, or it would shift those after it
            steps = [step for step in steps if len(step) == self.step_size]
            steps = [steps[i] for i in torch.randperm(len(steps), generator=generator)]
            if steps:  # the longest rows first, so that too little memory shows at once
                longest = int(torch.stack([self.lengths[step].max() for step in steps]).argmax())
                steps.insert(0, steps.pop(longest))
            steps += rest
        return islice((int(i) for step in steps for i in step), len(self))

    def _steps(self, order: torch.Tensor) -> list[torch.Tensor]:
        """The rows in steps; those of a megabatch are sorted by length."""
        groups = order.split(self.megabatch)
        return [step for g in groups for step in g[torch.argsort(self.lengths[g], stable=True)].split(self.step_size)]


class MicroBatchSampler(BatchRebalanceSampler):  # of which the trainer takes batches, and does not shard them again
    """The micro-batches of one process in one epoch: the rows of a step from long to short, cut by a budget of tokens.

    All steps of a run have equally many micro-batches, because the trainer's `gradient_accumulation_steps` is one
    number: as many as the largest step needs. The loss of a step is averaged over its tokens, so its gradient does not
    depend on the cuts.

    Args:
        rows: the order of the rows; mixed or in order.
        budget: tokens of a micro-batch at most, padding included.
        epochs: of the run.
        processes: each has equally many micro-batches, whose costs are alike.
        rank: the process.

    Raises:
        UserError: the budget is below the longest row, or a step has too few rows.
    """

    def __init__(self, rows: LengthGroupedSampler, budget: int, epochs: int, processes: int = 1, rank: int = 0):
        longest = int(rows.lengths.max())
        if budget < longest:
            raise UserError(
                f"micro_batch_tokens: {budget} is below the longest row, of {longest} tokens: raise it, or lower "
                "max_length"
            )
        self.rows, self.budget, self.processes, self.rank = rows, budget, processes, rank
        self.per_step = 1
        for epoch in range(epochs):
            rows.set_epoch(epoch)
            needed = max(len(_cut(lengths, budget)) for _, lengths in self._steps())
            self.per_step = max(self.per_step, -(-needed // processes))
        rows.set_epoch(0)
        if self.per_step * processes > rows.step_size:
            raise UserError(
                f"micro_batch_tokens: {budget} needs {self.per_step} micro-batches on each of {processes} processes, "
                f"more than a step has rows ({rows.step_size}): raise it"
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.rows.set_epoch(epoch)

    def __len__(self) -> int:
        full, rest = divmod(len(self.rows), self.rows.step_size)
        return full * self.per_step + self._number(rest)

    def __iter__(self) -> Iterator[list[int]]:
        for step, lengths in self._steps():
            number = self._number(len(step)) * self.processes
            while len(step) < number:  # the last step has fewer rows than processes
                step, lengths = step + step[: number - len(step)], lengths + lengths[: number - len(lengths)]
            yield from micro_batches(step, lengths, number)[self.rank :: self.processes]

    def padding(self) -> float:
        """The share of padding among all tokens of the epoch, in this process."""
        lengths = self.rows.lengths
        sizes = [(len(rows) * int(lengths[rows].max()), int(lengths[rows].sum())) for rows in self]
        return 1 - sum(read for _, read in sizes) / sum(padded for padded, _ in sizes)

    def _number(self, rows: int) -> int:
        """Micro-batches of each process in a step of so many rows."""
        return min(self.per_step, -(-rows // self.processes))

    def _steps(self) -> Iterator[tuple[list[int], list[int]]]:
        """Indices and lengths of the rows of each step, from long to short."""
        order = iter(self.rows)
        while step := list(islice(order, self.rows.step_size)):
            step.reverse()
            lengths = self.rows.lengths[step]
            yield step, lengths.tolist()


def micro_batches(step: list[int], lengths: list[int], number: int) -> list[list[int]]:
    """Cut a step into so many micro-batches, the largest of them as small as it can be, from large to small.

    Args:
        step: rows from long to short, at least `number`.
        lengths: their tokens.
    """
    low, high = lengths[0], lengths[0] * len(lengths)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_cut(lengths, middle)) <= number else (middle + 1, high)

    def cost(rows: range) -> tuple[bool, int]:
        return len(rows) > 1, len(rows) * lengths[rows[0]]

    cuts = sorted(_cut(lengths, low), key=cost, reverse=True)
    while len(cuts) < number:  # fewer would do: halve the largest
        rows = cuts.pop(0)
        middle = len(rows) // 2
        cuts = sorted([*cuts, rows[:middle], rows[middle:]], key=cost, reverse=True)
    return [[step[row] for row in rows] for rows in sorted(cuts, key=lambda rows: cost(rows)[1], reverse=True)]


def _cut(lengths: list[int], budget: int) -> list[range]:
    """The fewest micro-batches of at most `budget` tokens, as positions of their rows, which go from long to short."""
    groups: list[range] = []
    first = 0
    while first < len(lengths):
        last = min(first + budget // lengths[first], len(lengths))
        groups.append(range(first, last))
        first = last
    return groups
