"""Decoder layers that visual tokens skip: their hidden states pass unchanged, while text attends to them as before.

In the first layers of a Pre-Norm decoder text is lifted to the norm of the residual stream (docs/findings.md).
A bypass spares visual tokens that lift, whatever norm they have.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from modeling_aligned_llava.errors import UserError


def bypass_layers(model: PreTrainedModel, layers: Sequence[int]) -> None:
    """Let visual tokens skip the decoder layers with these indices in every forward pass of `model` from now on.

    Raises:
        UserError: there is no such layer.
    """
    decoder: Any = model.get_decoder().layers
    for index in layers:
        if not 0 <= index < len(decoder):
            raise UserError(f"bypassed_layers: there is no layer {index}; this decoder has 0 to {len(decoder) - 1}")
    bypass = _Bypass(model.config.image_token_id)
    model.base_model.register_forward_pre_hook(bypass.before_model, with_kwargs=True)
    for index in layers:
        decoder[index].register_forward_hook(bypass.after_layer, with_kwargs=True)


class _Bypass:
    """Where the visual tokens [rows, tokens, 1] of the current batch are."""

    def __init__(self, image_token: int):
        self.image_token = image_token
        self.visual: Tensor | None = None

    def before_model(self, model: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs.get("input_ids")
        self.visual = None if ids is None else (ids == self.image_token)[..., None]

    def after_layer(self, layer: Any, args: tuple, kwargs: dict[str, Any], output: Tensor) -> Tensor:
        """The output [rows, tokens, D] of a layer, with its input at visual tokens."""
        if self.visual is None:  # a batch of embeddings: text with a dummy image
            return output
        return torch.where(self.visual, args[0] if args else kwargs["hidden_states"], output)
