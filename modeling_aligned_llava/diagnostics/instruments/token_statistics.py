"""Statistics of the paper's tables and figures: moments over tokens or rows, and intervals over images.

Moments and log histograms of many series at once are streamed in float64 and constant memory, by Chan's merge of means
and squared deviations. The histograms have 16 bins per octave, so a quantile is off by at most 2.2 %. Intervals are
bootstrap intervals that resample images, because the tokens of one image are not independent.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


LOWEST, HIGHEST, BINS_PER_OCTAVE = -40, 24, 16  # from 2^-40 to 2^24
BINS = (HIGHEST - LOWEST) * BINS_PER_OCTAVE
UNTRAINED = 1e-3  # a row below this share of the median is reserved and was never trained
RESAMPLES = 1000


class Moments:
    """Count, mean, deviation, extremes and histogram of |x| for an array of series of shape S.

    Values that are not finite are counted in `skipped` and otherwise ignored. No tensor is changed in place, so that a
    measurement can begin in inference mode and go on outside it.
    """

    def __init__(self, *shape: int):
        self.count = torch.zeros(shape, dtype=torch.int64)
        self.skipped = torch.zeros(shape, dtype=torch.int64)
        self.mean = torch.zeros(shape, dtype=torch.float64)
        self.squares = torch.zeros(shape, dtype=torch.float64)  # sum of squared deviations from the mean
        self.low = torch.full(shape, torch.inf, dtype=torch.float64)
        self.high = torch.full(shape, -torch.inf, dtype=torch.float64)
        self.histogram = torch.zeros(*shape, BINS, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        """Add values [*S, N]."""
        values = values.detach().to("cpu", torch.float64)
        finite = values.isfinite()
        count = finite.sum(-1)
        known = values.where(finite, 0.0)
        mean = known.sum(-1) / count.clamp_min(1)
        squares = (known - mean[..., None]).where(finite, 0.0).square().sum(-1)
        total = (self.count + count).clamp_min(1)
        step = mean - self.mean
        self.squares = self.squares + squares + step.square() * self.count * count / total
        self.mean = self.mean + step * count / total
        self.count = self.count + count
        self.skipped = self.skipped + (~finite).sum(-1)
        if values.shape[-1]:
            self.low = torch.minimum(self.low, values.where(finite, torch.inf).amin(-1))
            self.high = torch.maximum(self.high, values.where(finite, -torch.inf).amax(-1))
        self.histogram = self.histogram.scatter_add(-1, _bins(known.abs()), finite.long())

    @property
    def std(self) -> Tensor:
        """Population standard deviation, [*S]."""
        return (self.squares / self.count.clamp_min(1)).sqrt()

    def quantile(self, share: float) -> Tensor:
        """Quantile of |x|, [*S]: the middle of its bin on the log scale; NaN without values."""
        rank = (share * self.count).ceil().long().clamp_min(1)
        bins = (self.histogram.cumsum(-1) < rank[..., None]).sum(-1).clamp_max(BINS - 1)
        values = 2.0 ** (LOWEST + (bins.double() + 0.5) / BINS_PER_OCTAVE)
        # the middle of a bin may lie outside the range of the values
        smallest, largest = self.low.clamp_min(0), torch.maximum(self.low.abs(), self.high.abs())
        return values.clamp(smallest, largest).where(self.count > 0, torch.nan)

    def share_above(self, limit: Tensor) -> Tensor:
        """Share of values with |x| above `limit` [*S], [*S], to the width of a bin."""
        above = torch.arange(BINS) > _bins(limit.nan_to_num(0))[..., None]
        return (self.histogram * above).sum(-1) / self.count.clamp_min(1)

    def summary(self) -> dict[str, Any]:
        """The statistics of a single series of positive values, as tables show them; empty without values."""
        if not int(self.count):
            return {}
        names = {"q01": 0.01, "q05": 0.05, "median": 0.5, "q95": 0.95, "q99": 0.99}
        return {
            "mean": self.mean.item(),
            "std": self.std.item(),
            **{name: self.quantile(share).item() for name, share in names.items()},
            "min": self.low.item(),
            "max": self.high.item(),
            "outlier_share": self.share_above(5 * self.quantile(0.5)).item(),
            "count": int(self.count),
            "skipped": int(self.skipped),
        }


def _bins(sizes: Tensor) -> Tensor:
    """The bin of each |x|; values outside the range fall into the first and the last bin."""
    return ((sizes.clamp_min(2.0**LOWEST).log2() - LOWEST) * BINS_PER_OCTAVE).long().clamp(0, BINS - 1)


def embedding_statistics(norms: Tensor) -> dict[str, Any]:
    """Statistics over the non-zero rows (Eq. 11), and the numbers of zero and of untrained rows."""
    moments = Moments()
    alive = norms[norms > 0].double()
    moments.add(alive)
    median = alive.median().item() if len(alive) else 0.0
    return {
        **moments.summary(),
        "median": median,
        "rms": alive.square().mean().sqrt().item(),
        "zero_rows": int((norms == 0).sum()),
        "untrained_rows": int(((norms > 0) & (norms < UNTRAINED * median)).sum()),
    }


def draws(images: int) -> Tensor:
    """How often each resample contains each image, [RESAMPLES, images]."""
    if not images:
        return torch.zeros(RESAMPLES, 0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
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
