"""Which positions of the decoder input are visual and which are text, by image token id and by matching values.

Values settle what ids cannot: remote code without an image token id, a placeholder that the model expands itself, and
trained newline tokens, which take image positions but come from no image, some of them inside the connector.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.content_text import is_special


# "visual", "newline", "text", "special": [rows, tokens], disjoint; padding is in none of them. Of "text", the layers
# later tell which tokens are sinks and so no content (`LayerPass`).
Masks = dict[str, Tensor]
SAME_DIRECTION = 0.9999  # cosine: rounding to bfloat16 leaves more
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def row_hashes(states: Tensor) -> Tensor:
    """Hash the bits of each row of [..., D] to an int64 [...]: equal rows have equal hashes, on any device."""
    bits = states.detach().contiguous().view(_INTEGERS[states.element_size()]).long()
    # odd multipliers of a fixed generator; the sum wraps around, so its order does not matter
    generator = torch.Generator().manual_seed(0)
    odd = torch.randint(2**62, (states.shape[-1],), generator=generator) * 2 + 1
    return (bits * odd.to(bits.device)).sum(-1)


def visual_by_value(states: Tensor, connector_rows: Sequence[Tensor]) -> Tensor:
    """[rows, tokens]: where layer 0's input [rows, tokens, D] is bit-equal to a row of the connector's output.

    A row of zeros never matches: it could come from anywhere.
    """
    outputs = [output.to(states.dtype) for output in _of_width(states, connector_rows)]
    hashes = [row_hashes(output[output.any(-1)]) for output in outputs]
    known = torch.cat(hashes or [torch.zeros(0, dtype=torch.int64)])
    return torch.isin(row_hashes(states), known.to(states.device))


def visual_by_direction(states: Tensor, connector_rows: list[Tensor]) -> Tensor:
    """[rows, tokens]: where layer 0's input is a multiple of a row of the connector's output, as Granite's is."""
    rows = _of_width(states, connector_rows)
    if not rows:
        return torch.zeros(states.shape[:2], dtype=torch.bool, device=states.device)
    known = normalize(torch.cat(rows).to(states.device).float(), dim=-1)
    return ((normalize(states.float(), dim=-1) @ known.T) > SAME_DIRECTION).any(-1)


def _of_width(states: Tensor, connector_rows: Sequence[Tensor]) -> list[Tensor]:
    """Those of the connector's outputs that have the width of the decoder, each as rows [n, D]."""
    width = states.shape[-1]
    return [output.reshape(-1, width) for output in connector_rows if output.shape[-1] == width]


def find_tokens(
    states: Tensor,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    connector_rows: list[Tensor],
    image_token_id: int | None,
    special_ids: frozenset[int] = frozenset(),
    marks: Sequence[Tensor] = (),
) -> Masks:
    """The masks of one batch.

    Args:
        states: input of decoder layer 0, [rows, tokens, D].
        input_ids: the model's input; shorter than `states` if the model expands a placeholder.
        connector_rows: all outputs of the connector in this pass, each [..., D].
        special_ids: ids of text tokens that are not content.
        marks: trained rows [..., D] among the connector's outputs.

    Raises:
        UserError: no position is visual.
    """
    same_length = input_ids.shape == states.shape[:2]
    by_value = visual_by_value(states, connector_rows)
    by_id = input_ids == image_token_id if same_length and image_token_id is not None else torch.zeros_like(by_value)
    by_id = by_id.to(by_value.device)
    real = torch.ones_like(by_value)
    if attention_mask is not None and attention_mask.shape == real.shape:
        real = attention_mask.bool().to(real.device)
    newline = visual_by_value(states, marks)
    if not (by_value & by_id if by_id.any() else by_value).any():
        by_value = visual_by_direction(states, connector_rows)
    if not by_id.any():
        visual = by_value & ~newline
    elif not (by_id & by_value).any():
        visual = by_id & ~newline  # features were resampled or added to after the connector
    else:
        newline |= _repeated(states, by_id & ~by_value)
        visual = by_id & ~newline
    visual, newline = visual & real, newline & real
    if not visual.any():
        raise UserError(
            "no visual token reaches the decoder's first layer: images enter otherwise (such as by cross-attention), "
            "or the prompt contains no image"
        )
    rest = real & ~visual & ~newline
    special = rest & (_special(input_ids, rest, image_token_id, special_ids) | by_value)
    return {"visual": visual, "newline": newline, "text": rest & ~special, "special": special}


def _repeated(states: Tensor, where: Tensor) -> Tensor:
    """The positions in `where` with the most frequent row: a trained newline is the same row everywhere."""
    if not where.any():
        return where
    hashes = row_hashes(states)
    values, counts = hashes[where].unique(return_counts=True)
    often = values[counts == counts.max()] if counts.max() > 1 or len(values) == 1 else values[:0]
    return where & torch.isin(hashes, often)


def _special(input_ids: Tensor, rest: Tensor, image_token_id: int | None, special_ids: frozenset[int]) -> Tensor:
    """Special tokens among the text; if the model expanded its input, the ids are matched to `rest` in order."""
    special = is_special(input_ids, special_ids).to(rest.device)
    if special.shape == rest.shape:
        return special
    matched = torch.zeros_like(rest)
    for row, ids in enumerate(input_ids):
        kept = special[row][((ids >= 0) & (ids != image_token_id)).to(rest.device)]
        if len(kept) == int(rest[row].sum()):
            matched[row, rest[row]] = kept
    return matched
