"""Whether a decoder predicts a token without seeing it; one that reads its prompt in both directions does not."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def sees_targets(model: Any, inputs: Mapping[str, Tensor], count: int) -> bool:
    """Whether the prediction of the first of the last `count` tokens changes where these are read backwards.

    Args:
        inputs: those of `model`, among them `input_ids`, (rows, tokens).
    """
    ids = inputs["input_ids"]
    backwards = torch.cat([ids[:, :-count], ids[:, -count:].flip(1)], 1)
    first, second = (
        model(**{**inputs, "input_ids": read}, use_cache=False).logits[:, -count - 1].float()
        for read in (ids, backwards)
    )
    return bool((first - second).abs().max() > 0.1 * first.abs().max())  # far more than rounding


__all__ = ["sees_targets"]
