"""Norms of vision encoder outputs (paper Table 1)."""

from typing import Any

import torch
from rich.progress import track

from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.diagnostics.statistics.moments import Moments


@torch.inference_mode()
def encoder_norms(
    encoder: Any, processor: Any, sample: list[ImageQuestion], feature_layer: int | None = None
) -> dict[str, Any]:
    """`{"dim", "last hidden state" | ...: statistics}`; "patches" leave out a class token.

    With `feature_layer`, also "read by the connector": the patches of that layer.
    """
    moments = {name: Moments() for name in ("last hidden state", "last, patches", "layer -2, patches")}
    if feature_layer is not None:
        moments["read by the connector"] = Moments()
    dim = 0
    for image in track(sample, description="images"):
        pixels = processor(images=[image.open()], return_tensors="pt")["pixel_values"].to(encoder.device)
        output = encoder(pixels, output_hidden_states=True)
        last, before = output.last_hidden_state, output.hidden_states[-2]
        read = output.hidden_states[-1 if feature_layer is None else feature_layer]
        tokens, dim = last.shape[-2:]
        skip = int(round(tokens**0.5) ** 2 != tokens and round((tokens - 1) ** 0.5) ** 2 == tokens - 1)
        columns = (last, *(states[..., skip:, :] for states in (last, before, read)))
        for each, states in zip(moments.values(), columns, strict=False):
            each.add(states.float().norm(dim=-1).flatten())
    return {"dim": dim, **{name: each.summary() for name, each in moments.items()}}
