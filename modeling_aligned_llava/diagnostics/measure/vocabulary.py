"""Visual vocabularies such as Ovis's (paper Table 3): norms of rows and of the tokens mixed from them."""

from typing import Any

import torch
from torch import Tensor, nn

from modeling_aligned_llava.diagnostics.hooks.decoder_input import states_of, watch_decoder_input
from modeling_aligned_llava.diagnostics.measure.embeddings import embedding_statistics
from modeling_aligned_llava.diagnostics.statistics.moments import Moments
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.finite import check_finite
from modeling_aligned_llava.inspection.model_parts import ModelParts
from modeling_aligned_llava.norm_alignment import embedding_norms


def check_vocabulary(parts: ModelParts, model: str) -> None:
    """Raise UserError if the connector is not a table of visual words."""
    if not isinstance(parts.connector, nn.Embedding):
        kind = type(parts.connector).__name__
        raise UserError(
            f"{model} has no visual vocabulary: its connector is a {kind}, not an embedding table; use `profile`"
        )


@torch.inference_mode()
def vocabulary(model: Any, parts: ModelParts, batches: Any, special: frozenset[int] = frozenset()) -> dict[str, Any]:
    """Statistics of rows, of real tokens at layer 0, of N_eff and of text rows; whether the table looks untrained."""
    table: Any = parts.connector
    tokens, effective = Moments(), Moments()

    def before_lookup(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        shares = states_of([*args, *kwargs.values()])
        if shares is not None:
            shares = shares.double().reshape(-1, shares.shape[-1])
            effective.add(1 / shares.square().sum(-1))

    def at_decoder_input(states: Tensor, masks: dict[str, Tensor]) -> None:
        tokens.add(states[masks["visual"]].float().norm(dim=-1))

    handle = table.register_forward_pre_hook(before_lookup, with_kwargs=True)
    try:
        with watch_decoder_input(model, parts, at_decoder_input, special):
            for inputs in batches:
                model(**inputs, use_cache=False)
    finally:
        handle.remove()
    weight = table.weight.float()
    norms, text = weight.norm(dim=-1).cpu(), embedding_norms(parts.embedding)
    check_finite(torch.cat([norms, text]), model, "the norms of embeddings")
    return {
        "rows": embedding_statistics(norms),
        "tokens at layer 0": tokens.summary(),
        "N_eff": effective.summary(),
        "text rows": embedding_statistics(text),
        "looks_untrained": looks_untrained(weight),
    }


def looks_untrained(weight: Tensor) -> bool:
    """Whether row norms of [V, D] fit normal initialization: mean sd sqrt(D) to 1 %, deviation sd / sqrt(2) to 5 %.

    `nn.Embedding` starts like this with sd = 1. At D = 4096 the rows have norm 64.00 ± 0.71, the numbers of Table 3.
    """
    deviation = weight.std().item()
    norms = weight.norm(dim=-1)
    mean = norms.mean().item() / (deviation * weight.shape[1] ** 0.5)
    spread_ = norms.std().item() / (deviation / 2**0.5)
    return abs(mean - 1) < 0.01 and abs(spread_ - 1) < 0.05
