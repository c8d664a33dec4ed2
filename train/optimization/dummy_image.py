"""A blank image for micro-batches without one, as in LLaVA: its features are multiplied by zero.

Otherwise tower and projector would run on some processes only, and sharded weights would wait forever for the others.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedModel, ProcessorMixin


_SIZE = (64, 64)


def blank_image(model: PreTrainedModel, processor: ProcessorMixin) -> dict[str, Tensor]:
    """What `get_image_features` of a model reads for one blank image."""
    made: Any = processor(
        text=[processor.image_token],  # type: ignore[attr-defined]
        images=[[Image.new("RGB", _SIZE)]],  # type: ignore[list-item]
        return_tensors="pt",
    )
    read: Any = model.base_model.get_image_features
    known = inspect.signature(read).parameters
    return {name: value for name, value in made.items() if name in known and isinstance(value, Tensor)}


@contextmanager
def dummy_image(model: nn.Module, image: dict[str, Tensor]) -> Iterator[None]:
    """Let the next forward pass of `model` also run its tower and projector on a blank image.

    Loss and gradients are those without it, except that the gradients of tower and projector are zeros.

    Args:
        model: without its head.
        image: from `blank_image`.
    """

    def add(embedding: nn.Module, args: tuple, embedded: Tensor) -> Tensor:
        # after the text is embedded, as with an image: sharded weights are gathered in the order of use
        inputs = {
            name: value.to(embedded.device, embedded.dtype if value.is_floating_point() else None)
            for name, value in image.items()
        }
        features = cast(Any, model).get_image_features(**inputs)
        parts = [features.pooler_output, *(features.get("deepstack_features") or ())]
        flat = [tensor for part in parts for tensor in (part if isinstance(part, tuple | list) else [part])]
        return embedded + sum(0 * tensor.sum() for tensor in flat)

    hook = cast(Any, model).get_input_embeddings().register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()
