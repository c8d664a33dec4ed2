"""Per-token quantities of one decoder layer: norm, update, rotation, and their exact attribution (paper Eq. 4-9).

With h and h' before and after a layer, D = h' - h, p the part of D along h and r the part across it, exactly

    log tan(theta) = log |D| + log sin(phi) - log |h| - log(1 + p / |h|)

so the difference between two modalities in the mean of the left side splits into four bars: update size, angle, norm
(the paper's mechanism) and the parallel term that Eq. 8 drops.
"""

from typing import Any

import torch
from torch import Tensor


QUANTITIES = (
    "norm",  # |h|
    "cosine",  # cos(h, h')
    "distance",  # 1 - cos(h, h'), from the angle: no cancellation
    "angle",  # theta, radians
    "update",  # |D|
    "tangent",  # |r| / (|h| + p): exact
    "paper_tangent",  # |r| / |h|: Eq. 8
    "log_tangent",
    "log_norm",
    "log_update",
    "log_sine",
    "log_parallel",
    "net_cosine",  # cos(h_0, h')
    "injected",  # |h - what the layer before put out| / |that|: features added between layers (DeepStack)
)
TERMS = {
    "norm": ("log_norm", -1),
    "update": ("log_update", 1),
    "angle": ("log_sine", 1),
    "parallel": ("log_parallel", -1),
}
SINK_SIZE, SINK_RATIO = 100.0, 1000.0  # a massive activation (Sun et al., 2024)


def across(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """The part of the update across h [..., D] and the length of the part along it [...]; float64."""
    update = after - before
    norm = before.norm(dim=-1)
    parallel = (update * before).sum(-1) / norm
    return update - (parallel / norm)[..., None] * before, parallel


def layer_quantities(before: Tensor, after: Tensor, first: Tensor, previous: Tensor | None) -> tuple[Tensor, Tensor]:
    """`QUANTITIES` of one layer, (K, rows, tokens), and the unit vectors of rotation [rows, tokens, D]; float64.

    A quantity that a token does not have (a log of zero, the injection into layer 0) is NaN.

    Args:
        before, after: what enters and leaves the layer, [rows, tokens, D] in float64.
        first: what entered layer 0.
        previous: what left the layer before; None at layer 0.
    """
    rotation, parallel = across(before, after)
    norm, update = before.norm(dim=-1), (after - before).norm(dim=-1)
    length = rotation.norm(dim=-1)
    angle = torch.atan2(length, norm + parallel)
    moved = (length > 0) & (norm + parallel != 0)
    log = lambda x: x.abs().log().where(moved, torch.nan)  # noqa: E731
    nothing = torch.full_like(norm, torch.nan)
    values = {
        "norm": norm,
        "cosine": angle.cos(),
        "distance": 2 * (angle / 2).sin().square(),
        "angle": angle,
        "update": update,
        "tangent": length / (norm + parallel),
        "paper_tangent": length / norm,
        "log_tangent": log(length / (norm + parallel)),
        "log_norm": log(norm),
        "log_update": log(update),
        "log_sine": log(length / update),
        "log_parallel": log(1 + parallel / norm),
        "net_cosine": torch.cosine_similarity(first, after, dim=-1),
        "injected": nothing if previous is None else (before - previous).norm(dim=-1) / previous.norm(dim=-1),
    }
    return torch.stack([values[name] for name in QUANTITIES]), (rotation / length[..., None]).nan_to_num(0)


def sinks(states: Tensor) -> Tensor:
    """(rows, tokens): tokens with a massive activation, above 100 and above 1000 times the median of |x|."""
    largest = states.abs().amax(-1)
    if not bool((largest > SINK_SIZE).any()):
        return torch.zeros_like(largest, dtype=torch.bool)
    return (largest > SINK_SIZE) & (largest > SINK_RATIO * states.abs().median())


def attribution(means: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """Per layer: mean log tan(theta) of visual minus text tokens, `total`, and its four exact terms.

    Args:
        means: `{"visual" | "text": {quantity: [L] means}}`.
    """

    def gap(quantity: str) -> Tensor:
        visual, text = (torch.tensor(means[name][quantity], dtype=torch.float64) for name in ("visual", "text"))
        return visual - text

    terms = {name: (sign * gap(quantity)).tolist() for name, (quantity, sign) in TERMS.items()}
    return {"total": gap("log_tangent").tolist(), **terms}
