"""Initialise the norm of a new checkpoint (Eq. 11), or the factor of the projector that is rescaled instead.

Some targets need N, the mean token norm of the initial projector, measured here on training images, or the norm of
text inside the decoder, measured on training text (docs/reference.md).
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import ProcessorMixin

from modeling_aligned_llava.inspection.connector_norm import mean_connector_norm
from modeling_aligned_llava.inspection.text_stream import mean_stream_norm
from modeling_aligned_llava.loading.images import open_image
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaForConditionalGeneration, set_initial_gain


@torch.no_grad()
def initialise_norm(
    model: AlignedLlavaForConditionalGeneration,
    processor: ProcessorMixin,
    images: Iterable[str | Path | bytes] | None,
    texts: Iterable[str] | None,
) -> None:
    """Initialise the norm, or rescale the projector, of a model whose `config.text_norm` is known.

    Args:
        model: its projector has no factor yet, and its norm, if any, is not initialised.
        processor: its image processor and its tokenizer.
        images: files of training images in order; read only if the method needs N.
        texts: training texts in order; read only if the method needs the norm of text inside the decoder.

    Raises:
        UserError: the method needs images or texts and there is none, or an image cannot be read.
    """
    config, projector = model.config, model.model.multi_modal_projector
    if config.needs_visual_norm and config.visual_norm is None:
        config.visual_norm = _mean_token_norm(model, processor, images)
    if config.needs_stream_norm and config.stream_norm is None:
        config.stream_norm = mean_stream_norm(model, processor.tokenizer, texts or (), config.stream_layer)
    if projector.norm is not None:
        set_initial_gain(projector.norm, config)
    if config.projector_init == "rescaled":
        assert config.target is not None and config.visual_norm is not None
        projector.scale = config.projector_scale = config.target / config.visual_norm


def _mean_token_norm(
    model: AlignedLlavaForConditionalGeneration, processor: ProcessorMixin, images: Iterable[str | Path | bytes] | None
) -> float:
    projector = model.model.multi_modal_projector
    norm, projector.norm = projector.norm, None
    try:
        return mean_connector_norm(model, processor, (open_image(file) for file in images or ()))
    finally:
        projector.norm = norm
