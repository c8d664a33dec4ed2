"""The mean L2 norm N of the tokens that a model's connector makes of images, for targets that depend on it."""

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedModel

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.forward_pass import check_finite, output_of
from modeling_aligned_llava.inspection.model_parts import model_parts


IMAGES = 64  # N is measured on the first 64 training images


@torch.no_grad()
def mean_connector_norm(model: PreTrainedModel, processor: Any, images: Iterable[Image.Image]) -> float:
    """Return the mean L2 norm of the connector's output [..., D] over the first 64 images.

    Args:
        model: of any family; a norm that it has already is part of its connector.
        processor: of the model.
        images: in RGB.

    Raises:
        UserError: there is no image, or its tokens are not finite.
    """
    connector = model_parts(model).connector
    total, count = 0.0, 0
    for image in islice(images, IMAGES):
        inputs = processor(text=[processor.image_token], images=[[image]], return_tensors="pt")
        run = partial(model, **inputs.to(model.device, model.dtype), use_cache=False)
        norms = output_of(connector, run).double().norm(dim=-1)
        check_finite(norms, model, "the connector's tokens")
        total, count = total + norms.sum().item(), count + norms.numel()
    if not count:
        raise UserError("the method's target is measured on training images: there are none (--images)")
    return total / count


__all__ = ["mean_connector_norm"]
