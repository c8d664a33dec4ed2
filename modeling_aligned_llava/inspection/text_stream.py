"""The norm of text inside the decoder: that of the hidden states that enter one of its layers.

The first layers of a Pre-Norm decoder lift text from the norm of its embeddings to many times that
(docs/reference.md).
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.content_text import content_text, is_special, sinks, special_ids
from modeling_aligned_llava.inspection.forward_pass import check_finite, input_of
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts


TEXTS, TOKENS = 64, 512  # how many texts are measured, and how much of each


@torch.no_grad()
def mean_stream_norm(model: Any, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], layer: int = 1) -> float:
    """Return the mean L2 norm of the hidden states of content text that enter decoder layer `layer`.

    It is given at the scale of the decoder's input: a decoder that multiplies its input by a constant (Granite's
    `embedding_multiplier`) does so with visual tokens too, after the connector and its norm.

    Args:
        model: any vision-language model of `model_parts`; text alone goes through its decoder.
        tokenizer: that of the model.
        texts: the first 64 are measured, up to 512 tokens of each.
        layer: from 1; 0 would be the embeddings.

    Raises:
        UserError: the decoder has no such layer, there is no text, or states are not finite.
    """
    parts = model_parts(model)
    if not 1 <= layer < len(parts.layers):
        raise UserError(f"stream_layer {layer}: text enters the layers 1 to {len(parts.layers) - 1} of this decoder")
    total, count, scale, special = 0.0, 0, 1.0, special_ids(tokenizer, model.config)
    for text in islice(texts, TEXTS):
        ids = tokenizer(text, truncation=True, max_length=TOKENS, return_tensors="pt")["input_ids"]
        if not ids.numel():
            continue
        on_device = ids.to(parts.embedding.weight.device)
        if not count:
            embedded = parts.embedding(on_device)
            scale = common_factor(embedded, _entering(parts, 0, inputs_embeds=embedded)) or 1.0
        states = _entering(parts, layer, input_ids=on_device).float()  # [1, tokens, D]
        check_finite(states, model, f"the states of text that enter decoder layer {layer}")
        content = content_text(torch.ones_like(ids).bool(), is_special(ids, special), sinks(states)[None].cpu())
        norms = states.norm(dim=-1).cpu()[content]
        total, count = total + norms.double().sum().item(), count + norms.numel()
    if not count:
        raise UserError(f"the norm of text at layer {layer} is measured on training text: there is none (--texts)")
    return total / count / scale


def common_factor(before: Tensor, after: Tensor) -> float | None:
    """The one factor between the norms of rows [..., D]; None if rows differ in it by 1 % or more."""
    norms = before.float().norm(dim=-1).flatten(), after.float().norm(dim=-1).flatten()
    ratios = (norms[1] / norms[0])[norms[0] > 0]
    if not ratios.numel():
        return None
    low, middle, high = ratios.min().item(), ratios.median().item(), ratios.max().item()
    if high - low >= 0.01 * middle:
        return None
    return 1.0 if abs(middle - 1) < 0.01 else middle


def _entering(parts: ModelParts, layer: int, **inputs: Tensor) -> Tensor:
    """The states that enter a layer of the decoder."""
    entering = input_of(parts.layers[layer], lambda: parts.decoder(**inputs, use_cache=False))
    assert entering is not None
    args, kwargs = entering
    return args[0] if args else kwargs["hidden_states"]
