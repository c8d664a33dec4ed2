"""Which tokens are content text: what "text" means in the training probe, in profiles and their verdict, in the target
of `norm-stream`, and so in the study's law, which reads the probe.

Marks of chat formats and images, and tokens with massive activations, have norms of their own that say nothing about
text.
"""

import re
from typing import Any

import torch
from torch import Tensor


_MARK = re.compile(r"(image|video|vision)\w*_token_(id|index)")
SINK_SIZE, SINK_RATIO = 100.0, 1000.0  # massive activations (Sun et al., 2024)
SINK_AMONG_TOKENS = 4.0  # Gemma 3 has channels that are massive in every token, which makes none of them a sink


def content_text(text: Tensor, special: Tensor, sunk: Tensor) -> Tensor:
    """Where tokens are content, [rows, tokens].

    Args:
        text: tokens that are neither an image's nor padding, [rows, tokens].
        special: those with an id of `special_ids` (`is_special`), and trained marks that a connector adds.
        sunk: those that are `sinks` in each layer that was looked at, [layers, rows, tokens].
    """
    return text & ~special & ~sunk.any(0)


def special_ids(tokenizer: Any, config: Any = None) -> frozenset[int]:
    """Ids that are no content: special tokens, what the tokenizer's files call special, and marks of a model's images.

    Marks of chat formats, such as Llama 3's `<|start_header_id|>`, are in none of the tokenizer's own lists.

    Args:
        config: of the model; None: of text alone.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    flagged = [number for number, token in added.items() if token.special]
    marks = [value for name, value in (config.to_dict() if config else {}).items() if _MARK.fullmatch(name)]
    return frozenset([*tokenizer.all_special_ids, *flagged, *(mark for mark in marks if isinstance(mark, int))])


def is_special(ids: Tensor, special: frozenset[int]) -> Tensor:
    """Where `ids` are among the ids of `special_ids`, in the shape of `ids`."""
    return torch.isin(ids, torch.tensor(sorted(special), dtype=ids.dtype, device=ids.device))


def sinks(states: Tensor) -> Tensor:
    """[rows, tokens]: tokens with a massive activation that the others have not.

    It is above 100, above 1000 times the median of |x|, and above 4 times the largest one of the median token.
    """
    largest = states.abs().amax(-1)
    if not bool((largest > SINK_SIZE).any()):
        return torch.zeros_like(largest, dtype=torch.bool)
    massive = (largest > SINK_SIZE) & (largest > SINK_RATIO * states.abs().median())
    return massive & (largest > SINK_AMONG_TOKENS * largest.median())
