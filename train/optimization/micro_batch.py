"""What a micro-batch needs besides TRL's loss: no mask, logits at labelled positions, an image in every micro-batch.

A GPU gets no attention mask: to build one, transformers waits for the GPU, and with one, attention misses its flash
kernel. A CPU keeps it, so that its results stay those of earlier versions to the bit.

On CUDA, TRL's fused head selects the labelled positions itself. On other devices it scores every position, because
compiling accelerators would compile again for each number of labels. A CPU does not compile, and there the head takes
half of a small model's step.

A micro-batch without an image runs tower and projector on a blank one, as in LLaVA, whose features are multiplied by
zero: else they would run on some processes only, and sharded weights would wait forever for the others.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedModel, ProcessorMixin
from transformers.modeling_outputs import BaseModelOutputWithPast

from train.data.row_tokens import IGNORE_INDEX


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

    with cast(Any, model).get_input_embeddings().register_forward_hook(add):
        yield


@contextmanager
def without_padding_mask(decoder: nn.Module) -> Iterator[None]:
    """Let `decoder` see no attention mask: attention then needs no mask but its own and reaches its fastest kernel.

    Only for causal attention and rows padded on the right: no token attends to one after it, so padding is seen by
    padding alone, whose outputs no loss reads.
    """

    def drop(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, {**kwargs, "attention_mask": None}

    with decoder.register_forward_pre_hook(drop, with_kwargs=True):
        yield


@contextmanager
def labelled_positions_only(decoder: nn.Module, labels: Tensor) -> Iterator[Tensor]:
    """Make `decoder` return the hidden states [1, n, width] of the n positions whose next token is labelled.

    Args:
        decoder: the model without its head.
        labels: [rows, length].

    Yields:
        The labels [1, n] of these positions: the `shift_labels` of TRL's fused head, which it does not shift again.
    """
    labelled = labels[:, 1:] != IGNORE_INDEX

    def select(module: nn.Module, args: tuple, output: BaseModelOutputWithPast) -> BaseModelOutputWithPast:
        states = cast(Tensor, output.last_hidden_state)
        output.last_hidden_state = states[:, :-1][labelled][None]
        return output

    with decoder.register_forward_hook(select):
        yield labels[:, 1:][labelled][None]
