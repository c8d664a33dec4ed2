"""The mean L2 norm N of the tokens that a model's connector makes of images, for targets that depend on it."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, NoReturn

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import model_parts


IMAGES = 64  # N is measured on the first 64 training images


class _Made(Exception):
    """Carries the connector's tokens out of a forward pass, whose rest is not needed."""

    def __init__(self, tokens: Tensor):
        super().__init__()
        self.tokens = tokens


@torch.no_grad()
def mean_connector_norm(model: PreTrainedModel, processor: Any, images: Iterable[Image.Image]) -> float:
    """Return the mean L2 norm of the connector's output [..., D] over the first 64 images.

    Args:
        model: of any family; a norm that it has already is part of its connector.
        processor: of the model.
        images: in RGB.

    Raises:
        UserError: there is no image.
    """
    parts = model_parts(model)
    total, count = 0.0, 0
    handle = parts.connector.register_forward_hook(_leave)
    try:
        for image in islice(images, IMAGES):
            inputs = processor(text=[processor.image_token], images=[[image]], return_tensors="pt")
            try:
                model(**inputs.to(model.device, model.dtype), use_cache=False)
            except _Made as made:
                norms = made.tokens.double().norm(dim=-1)
                total, count = total + norms.sum().item(), count + norms.numel()
    finally:
        handle.remove()
    if not count:
        raise UserError("the method's target is measured on training images: there are none (--images)")
    return total / count


def _leave(connector: Any, args: tuple, output: Tensor) -> NoReturn:
    raise _Made(output)


__all__ = ["mean_connector_norm"]
