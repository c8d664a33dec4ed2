"""`vocabulary MODEL --images DIR | --data ROOT`: visual vocabularies such as Ovis's (Table 3), rows and real tokens.

What the decoder sees is a mixture of rows with probabilities p, of norm about |row| / sqrt(N_eff), where N_eff is
1 / sum p^2: the norm of the rows alone, which the paper reports, says little.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from eval.diagnostics.entry import at_entry, states_of
from eval.diagnostics.loading import inputs_of, load, special_ids
from eval.diagnostics.profile_command import add_model, add_pictures, paper_row, readable_pictures
from eval.diagnostics.tables import number, show, spread
from eval.diagnostics.text_norms import embedding_norms, embedding_statistics
from eval.suite.files import write_json
from modeling_aligned_llava.anatomy import Anatomy, anatomy
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.moments import Moments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_pictures(parser)
    parser.add_argument("--out", type=Path, help="folder for vocabulary.json and the table")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code)
    parts = anatomy(model, arguments.connector)
    check_vocabulary(parts, arguments.model)
    special = special_ids(processor)
    with readable_pictures(arguments) as sample:
        inputs = (inputs_of(processor, picture, model.device) for picture in track(sample))
        found = vocabulary(model, parts, inputs, special)
        show_vocabulary(arguments.model, found, arguments.out and arguments.out / "vocabulary.md")
        if arguments.out is not None:
            write_json(arguments.out / "vocabulary.json", found)


def check_vocabulary(parts: Anatomy, model: str) -> None:
    """Raises UserError if the connector is no table of visual words."""
    if not isinstance(parts.connector, nn.Embedding):
        kind = type(parts.connector).__name__
        raise UserError(f"{model} has no visual vocabulary: its connector is a {kind}, no table; use `profile`")


@torch.inference_mode()
def vocabulary(model: Any, parts: Anatomy, batches: Any, special: frozenset[int] = frozenset()) -> dict[str, Any]:
    """Statistics of rows, of real tokens at layer 0, of N_eff and of text rows; whether the table looks untrained."""
    table: Any = parts.connector
    tokens, effective = Moments(), Moments()

    def before_table(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        shares = states_of([*args, *kwargs.values()])
        if shares is not None:
            shares = shares.double().reshape(-1, shares.shape[-1])
            effective.add(1 / shares.square().sum(-1))

    def entry(states: Tensor, masks: dict[str, Tensor]) -> None:
        tokens.add(states[masks["visual"]].float().norm(dim=-1))

    handle = table.register_forward_pre_hook(before_table, with_kwargs=True)
    try:
        with at_entry(model, parts, entry, special):
            for inputs in batches:
                model(**inputs, use_cache=False)
    finally:
        handle.remove()
    weight = table.weight.float()
    norms = weight.norm(dim=-1).cpu()
    return {
        "rows": embedding_statistics(norms),
        "tokens at layer 0": tokens.summary(),
        "N_eff": effective.summary(),
        "text rows": embedding_statistics(embedding_norms(parts.embedding)),
        "looks_untrained": looks_untrained(weight),
    }


def looks_untrained(weight: Tensor) -> bool:
    """Whether row norms of [V, D] are those of a normal start: mean sd sqrt(D) to 1 %, deviation sd / sqrt(2) to 5 %.

    `nn.Embedding` starts so, with sd = 1: at D = 4096 rows of 64.00 ± 0.71, the numbers of Table 3.
    """
    deviation = weight.std().item()
    norms = weight.norm(dim=-1)
    mean = norms.mean().item() / (deviation * weight.shape[1] ** 0.5)
    spread_ = norms.std().item() / (deviation / 2**0.5)
    return abs(mean - 1) < 0.01 and abs(spread_ - 1) < 0.05


def show_vocabulary(model: str, found: dict[str, Any], out: Path | None = None) -> None:
    paper = paper_row("vocabulary", model)
    beside = {"rows": paper.get("visual"), "text rows": paper.get("text")}
    rows = []
    for name in ("rows", "tokens at layer 0", "N_eff", "text rows"):
        norms, theirs = found[name], beside.get(name)
        cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), str(norms["count"])]
        rows.append([name, *cells, spread(theirs["mean"], theirs["std"], 2) if theirs else "-"])
    show(f"{model}: visual vocabulary (Table 3)", ["", "mean ± std", "median", "count", "paper"], rows, out)
    if found["looks_untrained"]:
        print("warning: the table looks untrained: its rows have the norms of a random start")  # noqa: T201
