"""Per-token quantities of one decoder layer: norm, update, rotation, and their exact attribution (paper Eq. 4-9).

With h and h' before and after a layer, D = h' - h, p the part of D along h and r the part across it, exactly

    log tan(theta) = log |D| + log sin(phi) - log |h| - log(1 + p / |h|)

so the difference between two modalities in the mean of the left side splits into four bars: update size, angle, norm
(the paper's mechanism) and the parallel term, which is absent from Eq. 8 as our text of the paper has it.
"""

import torch
from torch import Tensor


QUANTITIES = (
    "norm",  # |h|
    "cosine",  # cos(h, h')
    "distance",  # 1 - cos(h, h'), from the angle: no cancellation
    "angle",  # theta, radians
    "update",  # |D|
    "log_tangent",  # of |r| / (|h| + p)
    "log_norm",
    "log_update",
    "log_sine",
    "log_parallel",
)
TERMS = {
    "norm": ("log_norm", -1),
    "update": ("log_update", 1),
    "angle": ("log_sine", 1),
    "parallel": ("log_parallel", -1),
}


def layer_quantities(before: Tensor, after: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """`QUANTITIES` of one layer, [K, rows, tokens], and the mean directions of rotation, [rows, M, D]; float64.

    A quantity that a token does not have (a log of zero) is NaN.

    Args:
        before, after: input and output of the layer, [rows, tokens, D] in float64.
        masks: [rows, M, tokens]: M groups of tokens, each to get its mean direction r / |r|.
    """
    # 1) Scalars of every token, [rows, tokens]: D along and across h
    change = after - before
    norm, update = before.norm(dim=-1), change.norm(dim=-1)
    parallel = torch.einsum("btd,btd->bt", change, before) / norm  # without storing the product of whole tensors
    length = (update.square() - parallel.square()).clamp_min(0).sqrt()
    angle = torch.atan2(length, norm + parallel)
    moved = (length > 0) & (norm + parallel != 0)
    # 2) The quantities; a log is NaN for tokens that do not rotate
    log = lambda x: x.abs().log().where(moved, torch.nan)  # noqa: E731
    values = {
        "norm": norm,
        "cosine": angle.cos(),
        "distance": 2 * (angle / 2).sin().square(),
        "angle": angle,
        "update": update,
        "log_tangent": log(length / (norm + parallel)),
        "log_norm": log(norm),
        "log_update": log(update),
        "log_sine": log(length / update),
        "log_parallel": log(1 + parallel / norm),
    }
    # 3) Mean r / |r| of each group. r = D - (p / |h|) h is never stored: its mean over tokens is two matrix products
    share = (masks / masks.sum(-1, keepdim=True)) * (1 / length).where(moved, 0.0)[:, None]  # [rows, M, tokens]
    directions = share @ change - (share * (parallel / norm)[:, None]) @ before
    return torch.stack([values[name] for name in QUANTITIES]), directions
