"""Norms of text embeddings: module output, stored rows, the largest rows (paper Eq. 11, Tables 6-8)."""

import math
from typing import Any

from torch import Tensor

from modeling_aligned_llava.diagnostics.statistics.moments import Moments
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.finite import check_finite
from modeling_aligned_llava.inspection.text_stream import special_ids
from modeling_aligned_llava.norm_alignment import embedding_norms


UNTRAINED = 1e-3  # a row below this share of the median is reserved and was never trained
SPREADS = 4  # norms of random rows of width D vary by 1 / sqrt(2 D), one standard deviation


def embedding_statistics(norms: Tensor) -> dict[str, Any]:
    """Statistics over the non-zero rows (Eq. 11), and the numbers of zero and of untrained rows."""
    moments = Moments()
    alive = norms[norms > 0].double()
    moments.add(alive)
    median = alive.median().item() if len(alive) else 0.0
    return {
        **moments.summary(),
        "median": median,
        "rms": alive.square().mean().sqrt().item(),
        "zero_rows": int((norms == 0).sum()),
        "untrained_rows": int(((norms > 0) & (norms < UNTRAINED * median)).sum()),
    }


def embedding_tables(model: Any, norms: Tensor, tokenizer: Any, top: int = 10) -> dict[str, Any]:
    """Statistics of module output and stored rows, and the `top` largest rows; `norms` are those of the output.

    `initial_rows`: stored rows with the norm of a random initialisation, an upper limit of those never trained. They
    are not left out anywhere, because trained rows can have that norm too.

    Raises:
        UserError: a row is not finite.
    """
    check_finite(norms, model, "the norms of text embeddings")
    stored = embedding_norms(model.get_input_embeddings(), stored=True)
    width = model.get_input_embeddings().weight.shape[1]
    std = getattr(model.config.get_text_config(), "initializer_range", None)
    statistics = embedding_statistics(stored)
    if std is not None:
        off = (stored / (std * math.sqrt(width)) - 1).abs()
        statistics["initial_rows"] = int((off < SPREADS / math.sqrt(2 * width)).sum())
    return {
        "module output": embedding_statistics(norms),
        "stored rows": statistics,
        "largest": largest_rows(norms, tokenizer, top),
    }


def largest_rows(norms: Tensor, tokenizer: Any, top: int = 10) -> list[dict[str, Any]]:
    """The `top` rows of largest norm with their tokens; ties are ordered by id."""
    order = sorted(range(len(norms)), key=lambda i: (-norms[i].item(), i))[:top]
    return [{"id": i, "token": repr(tokenizer.decode([i]))[1:-1], "norm": norms[i].item()} for i in order]


def base_against_vl(base: Tensor, base_tokenizer: Any, vl: Tensor, vl_tokenizer: Any) -> dict[str, float]:
    """How training on images changed the norms of the tokens that both vocabularies share.

    Raises:
        UserError: they share none.
    """
    ids = vl_tokenizer.get_vocab()
    pairs = [(i, ids[token]) for token, i in base_tokenizer.get_vocab().items() if token in ids]
    pairs = [(i, j) for i, j in pairs if i < len(base) and j < len(vl)]
    if not pairs:
        raise UserError("--base: the two vocabularies have no token in common")
    first, second = ([pair[k] for pair in pairs] for k in (0, 1))
    change = vl[second].double() - base[first].double()
    special = special_ids(vl_tokenizer)
    of_special = sum(change[k].item() for k, j in enumerate(second) if j in special)
    return {
        "common tokens": float(len(pairs)),
        "ratio of means": (vl[second].double().mean() / base[first].double().mean()).item(),
        "mean change": change.mean().item(),
        "share of the change in special tokens": of_special / change.sum().item() if change.any() else 0.0,
    }
