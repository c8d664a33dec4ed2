"""`vocabulary`: visual vocabularies such as Ovis's (paper Table 3), norms of rows and of tokens mixed from them."""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from modeling_aligned_llava.diagnostics.instruments.decoder_states import states_of, watch_decoder_input
from modeling_aligned_llava.diagnostics.instruments.image_questions import named_images
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of, load, tokenizer_of
from modeling_aligned_llava.diagnostics.instruments.tables import number, paper_row, show_table, spread
from modeling_aligned_llava.diagnostics.instruments.token_statistics import Moments, embedding_statistics
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.content_text import special_ids
from modeling_aligned_llava.inspection.forward_pass import check_finite
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts
from modeling_aligned_llava.loading.files import write_json
from modeling_aligned_llava.norm_alignment import embedding_norms


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code, arguments.dtype)
    parts = model_parts(model, arguments.connector)
    check_vocabulary(parts, arguments.model)
    special = special_ids(tokenizer_of(processor), model.config)
    inputs = (inputs_of(processor, image, model.device, model.dtype) for image in track(named_images(arguments)))
    statistics = vocabulary(model, parts, inputs, special)
    show_vocabulary(arguments.model, statistics, arguments.out and arguments.out / "vocabulary.md")
    if arguments.out is not None:
        write_json(arguments.out / "vocabulary.json", statistics)


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

    with (
        table.register_forward_pre_hook(before_lookup, with_kwargs=True),
        watch_decoder_input(model, parts, at_decoder_input, special),
    ):
        for inputs in batches:
            model(**inputs, use_cache=False)
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
    width = norms.std().item() / (deviation / 2**0.5)
    return abs(mean - 1) < 0.01 and abs(width - 1) < 0.05


def show_vocabulary(model: str, statistics: dict[str, Any], out: Path | None = None) -> None:
    """Table 3; warns of a table that looks untrained."""
    paper = paper_row("vocabulary", model)
    beside = {"rows": paper.get("visual"), "text rows": paper.get("text")}
    rows = []
    for name in ("rows", "tokens at layer 0", "N_eff", "text rows"):
        norms, theirs = statistics[name], beside.get(name)
        cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), str(norms["count"])]
        rows.append([name, *cells, spread(theirs["mean"], theirs["std"], 2) if theirs else "-"])
    show_table(f"{model}: visual vocabulary (Table 3)", ["", "mean ± std", "median", "count", "paper"], rows, out)
    if statistics["looks_untrained"]:
        print("warning: the table looks untrained: its rows have the norms of a random initialization")  # noqa: T201
