"""Bootstrap intervals that resample images, because the tokens of one image are not independent."""

from collections.abc import Callable

import torch
from torch import Tensor


RESAMPLES = 1000


def draws(images: int, seed: int = 0) -> Tensor:
    """How often each resample contains each image, [RESAMPLES, images]."""
    if not images:
        return torch.zeros(RESAMPLES, 0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(images, (RESAMPLES, images), generator=generator)
    return torch.zeros(RESAMPLES, images, dtype=torch.float64).scatter_add_(
        1, chosen, torch.ones(RESAMPLES, images, dtype=torch.float64)
    )


def resampled_means(sums: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """Means over the tokens of resampled images, [RESAMPLES, *S], from sums and counts by image, [images, *S]."""
    totals = torch.tensordot(weights, sums.double(), 1)
    return totals / torch.tensordot(weights, counts.double(), 1)


def interval(values: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the 95 % interval over dimension 0."""
    low, high = torch.nanquantile(values, torch.tensor([0.025, 0.975], dtype=values.dtype), dim=0)
    return low, high


def mean_interval(values: Tensor, of: Callable[[Tensor], Tensor] = lambda mean: mean) -> list[float]:
    """95 % interval of `of(mean over images)` for values [images]."""
    weights = draws(len(values))
    low, high = interval(of(weights @ values.double() / len(values)))
    return [low.item(), high.item()]
