"""What a vision-language model feeds its decoder: text and images as one sequence of embeddings, with their positions.

The model's own code makes it, whatever the family: tiles, newlines between rows of patches and M-RoPE included. The
pass ends where the decoder would begin.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modeling_aligned_llava.inspection.forward_pass import input_of


class NoSharedPrefix(Exception):
    """The model cannot read shared prefixes; the message is the reason."""


@dataclass(frozen=True)
class DecoderInput:
    """One row of T tokens: embeddings (T, D), and positions (P, T); P is 3 with M-RoPE, else 1."""

    embeddings: Tensor
    positions: Tensor

    def __getitem__(self, tokens: slice) -> "DecoderInput":
        return DecoderInput(self.embeddings[tokens], self.positions[:, tokens])


def decoder_inputs(model: Any, inputs: Mapping[str, Tensor]) -> list[DecoderInput]:
    """Return what the decoder of `model` gets for each row of `inputs`, without the padding.

    Args:
        inputs: those of `model`, among them `attention_mask`, (rows, tokens).

    Raises:
        NoSharedPrefix: the decoder gets more than a causal sequence: a mask of the model's own (images that see
            tokens after them) or features for its layers (DeepStack, cross-attention).
    """
    call = input_of(model.get_decoder(), lambda: model(**inputs, use_cache=False))
    if call is None:
        raise NoSharedPrefix("its images do not pass through the decoder that it names")
    _, arguments = call
    mask = arguments.pop("attention_mask", None)
    embeddings, positions = arguments.pop("inputs_embeds", None), arguments.pop("position_ids", None)
    further = [name for name, value in arguments.items() if _holds_tensors(value)]
    if embeddings is None or further:
        raise NoSharedPrefix(f"its decoder also reads {', '.join(further) or 'token ids'}")
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
        raise NoSharedPrefix("it attends to tokens within an image in both directions")
    kept = inputs["attention_mask"].bool()
    return [
        DecoderInput(row[attended], _positions(positions, index, attended))
        for index, (row, attended) in enumerate(zip(embeddings, kept, strict=True))
    ]


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensors, value)))


def _positions(positions: Tensor | None, row: int, kept: Tensor) -> Tensor:
    """The positions of one row, (P, T). Some models put those of the text before the three of M-RoPE."""
    if positions is None or positions.dim() == 2:
        return torch.arange(int(kept.sum()), device=kept.device)[None]
    return positions[-3:, row, kept]
