"""A dummy image for micro-batches without one, as in LLaVA: its features are multiplied by zero.

Otherwise tower and projector would run on some processes only, and sharded weights would wait forever for the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from modeling_aligned_llava import AlignedLlavaModel


@contextmanager
def dummy_image(model: AlignedLlavaModel) -> Iterator[None]:
    """Let the next forward pass of `model`, given `input_ids` alone, run its tower and projector on a black image.

    Loss and gradients are those without it, except that the gradients of tower and projector are zeros.
    """
    config = model.config.vision_config
    shape = (1, config.num_channels, config.image_size, config.image_size)

    def add(module: AlignedLlavaModel, args: tuple, inputs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        embeddings = module.get_input_embeddings()(inputs.pop("input_ids"))  # [rows, length, D]
        pixels = torch.zeros(shape, dtype=embeddings.dtype, device=embeddings.device)
        features = module.get_image_features(pixels).pooler_output[0]  # [tokens, D]
        return args, {**inputs, "inputs_embeds": embeddings + 0 * features.sum()}

    hook = model.register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
