"""Norms of text embeddings: module output, stored rows, the largest rows (paper Eq. 11, Tables 6-8)."""

from typing import Any

import torch
from torch import Tensor, nn

from eval.diagnostics.statistics.moments import Moments
from modeling_aligned_llava.errors import UserError


CHUNK = 8192  # rows at a time: 128k x 3072 in float32 would be 1.6 GB
UNTRAINED = 1e-3  # a row below this share of the median is reserved and was never trained


@torch.no_grad()
def embedding_norms(embedding: nn.Module, raw: bool = False) -> Tensor:
    """Norms of all rows [V] in float32: of the module's output, or with `raw` of its stored weight.

    They differ in modules that scale (Gemma multiplies by sqrt(D)); layer 0 sees the output.
    """
    weight: Any = embedding.weight
    ids = torch.arange(weight.shape[0], device=weight.device)
    rows = (weight[chunk] if raw else embedding(chunk) for chunk in ids.split(CHUNK))
    return torch.cat([each.float().norm(dim=-1).cpu() for each in rows])


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


def embedding_tables(embedding: nn.Module, norms: Tensor, tokenizer: Any, top: int = 10) -> dict[str, Any]:
    """Statistics of module output and stored rows, and the `top` largest rows; `norms` are those of the output."""
    return {
        "module output": embedding_statistics(norms),
        "stored rows": embedding_statistics(embedding_norms(embedding, raw=True)),
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
    special = set(vl_tokenizer.all_special_ids)
    of_special = sum(change[k].item() for k, j in enumerate(second) if j in special)
    return {
        "common tokens": float(len(pairs)),
        "ratio of means": (vl[second].double().mean() / base[first].double().mean()).item(),
        "mean change": change.mean().item(),
        "share of the change in special tokens": of_special / change.sum().item() if change.any() else 0.0,
    }
