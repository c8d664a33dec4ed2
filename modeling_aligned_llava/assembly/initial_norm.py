"""Starts the norm of a new checkpoint; measures N, the mean token norm of the untouched projector, for arms with it.

Arms with the target sqrt(s * N), and the control whose projector is scaled by s / N (docs/methods.md).
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import torch
from transformers import BaseImageProcessor

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import open_image
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaForConditionalGeneration, set_initial_gain


IMAGES = 64  # N is measured on the first 64 training images


@torch.no_grad()
def start_norm(
    model: AlignedLlavaForConditionalGeneration,
    image_processor: BaseImageProcessor,
    images: Iterable[str | Path | bytes] | None,
) -> None:
    """Give the norm, or the projector that is scaled in place of one, its start; `config.text_norm` is known.

    Args:
        model: its projector is untouched and its norm, if any, not aligned yet.
        image_processor: of the vision tower.
        images: files of training images in their order; read only if the arm needs N.

    Raises:
        UserError: the arm needs images and there is none, or one cannot be read.
    """
    config, projector = model.config, model.model.multi_modal_projector
    if config.needs_visual_norm and config.visual_norm is None:
        config.visual_norm = _mean_token_norm(model, image_processor, images)
    if projector.norm is not None:
        set_initial_gain(projector.norm, config)
    if config.projector_init == "rescaled":
        assert config.target is not None and config.visual_norm is not None
        for parameter in projector.linear_2.parameters():
            parameter.mul_(config.target / config.visual_norm)


def _mean_token_norm(
    model: AlignedLlavaForConditionalGeneration,
    image_processor: BaseImageProcessor,
    images: Iterable[str | Path | bytes] | None,
) -> float:
    files = list(islice(images or (), IMAGES))
    if not files:
        raise UserError(f"method {model.config.method} is measured on training images: there is none (--images)")
    projector = model.model.multi_modal_projector
    norm, projector.norm = projector.norm, None
    total, tokens = 0.0, 0
    for file in files:
        pixels = image_processor(images=[open_image(file)], return_tensors="pt")["pixel_values"]
        (features,) = model.get_image_features(pixels.to(model.dtype)).pooler_output  # [tokens, D]
        total, tokens = total + features.double().norm(dim=-1).sum().item(), tokens + len(features)
    projector.norm = norm
    return total / tokens
