"""The order of rows: complete, grouped by length, random between steps, determined by seed and epoch."""

import pytest
import torch

from modeling_aligned_llava.errors import UserError
from train.optimization.sampler import LengthGroupedSampler


def test_steps_hold_rows_of_similar_length_in_random_order():
    lengths = torch.randint(10, 500, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
    order = list(LengthGroupedSampler(lengths, step_size=8, seed=1))
    assert sorted(order) == list(range(1000))
    steps = [[lengths[i] for i in order[k : k + 8]] for k in range(0, 1000, 8)]
    padding = 1 - sum(lengths) / sum(8 * max(step) for step in steps)
    assert padding < 0.05
    means = torch.tensor([sum(step) / 8 for step in steps])
    position = torch.arange(len(means), dtype=torch.float)
    assert abs(torch.corrcoef(torch.stack([position, means]))[0, 1]) < 0.2  # the order of the steps is random
    assert max(lengths) in steps[0]  # but too little memory shows at once


def test_sequential_keeps_the_order_of_the_steps():
    lengths = [5, 1, 3, 2, 9, 7, 8, 6, 4]
    sampler = LengthGroupedSampler(lengths, step_size=4, seed=1, in_order=True)
    assert list(sampler) == [1, 3, 2, 0, 7, 5, 6, 4, 8]
    sampler.set_epoch(1)
    assert list(sampler) == [1, 3, 2, 0, 7, 5, 6, 4, 8]


def test_order_depends_only_on_seed_and_epoch():
    def order(seed, epoch):
        sampler = LengthGroupedSampler(list(range(50)), step_size=4, seed=seed)
        sampler.set_epoch(epoch)
        torch.rand(1)  # the global random state plays no part
        return list(sampler)

    assert order(1, 0) == order(1, 0) and order(1, 2) == order(1, 2)
    assert order(1, 0) != order(1, 1) and order(1, 0) != order(2, 0)


def test_an_incomplete_last_step_is_left_out_if_asked():
    rows = list(range(50))
    kept, dropped = (LengthGroupedSampler(rows, step_size=8, seed=1, drop_last=drop) for drop in (False, True))
    assert list(dropped) == list(kept)[:48] and (len(kept), len(dropped)) == (50, 48)
    with pytest.raises(UserError, match="7 rows are fewer than one step of 8"):
        LengthGroupedSampler(list(range(7)), step_size=8, seed=1, drop_last=True)
