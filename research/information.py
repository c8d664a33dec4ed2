"""Which cheap measure of visual information follows the truth? A trial in tinyworld, whose contents are known.

    python -m research.information results/tinyworld/checkpoints/*/stage1 --out trial.json

The truth is a linear probe: the accuracy with which the visual tokens of a cell, at the entrance of a decoder layer,
tell its colour, shape or letter. The measures compare these tokens with the features of the vision tower, and know no
contents: the overlap of nearest neighbours (as in "Lost in Embeddings", 2509.11986), its kernel version CKNNA (as in
VIRAL, 2509.07979) and linear centred kernel alignment. The null pairs the tokens of one image with the features of the
next. A measure is of use if it is near its least value there and orders layers and checkpoints as the probes do.
"""

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from scipy.stats import spearmanr
from torch import Tensor
from transformers import AutoProcessor

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.inspection.forward_pass import hooked
from modeling_aligned_llava.loading.checkpoint import load_part, load_strict
from modeling_aligned_llava.loading.files import write_json
from tinyworld.scenes import COLOURS, DIGITS, LETTERS, SHAPES, SIZES, Item, Scene, render


SIDE = 3  # cells of a scene in a row
BATCH = 50  # scenes in a forward pass
TRAINED = 0.7  # of the scenes, with which a probe is fitted
RIDGE = 0.03  # of a probe, per example, on standardised tokens
NEIGHBOURS = 10
TOKENS = 1000  # that a measure compares at most
CONTENTS = ("colour", "shape", "letter")


def make_scenes(count: int, seed: int = 0) -> list[Scene]:
    """Random scenes of shapes, letters, digits and empty cells, all in random colours."""
    numbers = random.Random(seed)

    def item() -> Item | None:
        colour = numbers.choice(list(COLOURS))
        kinds = [
            None,
            Item("shape", numbers.choice(SHAPES), colour, numbers.choice(SIZES)),
            Item("letter", numbers.choice(LETTERS), colour),
            Item("digit", numbers.choice(DIGITS), colour),
        ]
        return numbers.choices(kinds, [1, 4, 2, 1])[0]

    return [render(tuple(item() for _ in range(SIDE**2)), numbers, "test") for _ in range(count)]


@torch.no_grad()
def states_of(folder: Path, scenes: list[Scene]) -> tuple[Tensor, list[Tensor]]:
    """Features of the tower [scenes, tokens, E], and visual tokens entering each layer [scenes, tokens, D]."""
    model: Any = load_strict(AlignedLlavaForConditionalGeneration, folder).eval()
    processor: Any = load_part(AutoProcessor, folder)
    features: list[Tensor] = []
    entering: list[list[Tensor]] = [[] for _ in model.model.language_model.layers]

    def keep(_: Any, args: tuple) -> None:
        features.append(args[0])

    for first in range(0, len(scenes), BATCH):
        images = [scene.image for scene in scenes[first : first + BATCH]]
        batch = processor(images=images, text=[processor.image_token] * len(images), return_tensors="pt")
        with hooked([model.model.multi_modal_projector.register_forward_pre_hook(keep)]):
            states = model.model(**batch, output_hidden_states=True, use_cache=False).hidden_states
        visual = batch["input_ids"] == model.config.image_token_id
        for kept, state in zip(entering, states, strict=False):  # the last state leaves the decoder
            kept.append(state[visual].reshape(len(images), -1, state.shape[-1]))
    return torch.cat(features).double(), [torch.cat(kept).double() for kept in entering]


def cells_of(tokens: Tensor) -> Tensor:
    """Tokens [scenes, tokens, D] as the cells they lie in [scenes, 9, tokens of a cell * D]."""
    count, length, width = tokens.shape
    part = round(length**0.5) // SIDE
    grid = tokens.reshape(count, SIDE, part, SIDE, part, width)
    return grid.transpose(2, 3).reshape(count, SIDE**2, part * part * width)


def probe(tokens: Tensor, scenes: list[Scene], content: str) -> float:
    """Accuracy of a ridge classifier of `content`, on scenes that it was not fitted on."""
    names = [[_content(item, content) for item in scene.items] for scene in scenes]
    known = sorted({name for row in names for name in row if name is not None})
    labels = torch.tensor([[-1 if name is None else known.index(name) for name in row] for row in names])
    cells, cut = cells_of(tokens), round(TRAINED * len(scenes))
    seen, unseen = labels[:cut] >= 0, labels[cut:] >= 0
    inputs, tests = cells[:cut][seen], cells[cut:][unseen]
    mean, deviation = inputs.mean(0), inputs.std(0).clamp(min=1e-9)
    inputs, tests = ((x - mean) / deviation for x in (inputs, tests))
    inputs, tests = (torch.cat([x, torch.ones(len(x), 1)], 1) for x in (inputs, tests))
    targets = torch.nn.functional.one_hot(labels[:cut][seen], len(known)).double()
    ridge = RIDGE * len(inputs) * torch.eye(inputs.shape[1], dtype=torch.double)
    weights = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ targets)
    return ((tests @ weights).argmax(1) == labels[cut:][unseen]).double().mean().item()


def _content(item: Item | None, content: str) -> str | None:
    if item is None:
        return None
    return item.colour if content == "colour" else item.name if item.kind == content else None


def neighbour_overlap(tokens: Tensor, features: Tensor) -> float:
    """Share of the nearest neighbours of each token [N, D] that are neighbours by its features [N, E] too."""
    return (_neighbours(_cosines(tokens)) * _neighbours(_cosines(features))).sum().item() / (NEIGHBOURS * len(tokens))


def cknna(tokens: Tensor, features: Tensor) -> float:
    """Kernel alignment over mutual nearest neighbours (Huh et al., 2405.07987)."""
    one, other = _cosines(tokens), _cosines(features)
    near, far = _neighbours(one), _neighbours(other)

    def aligned(first: Tensor, second: Tensor, mask: Tensor) -> Tensor:
        return _hsic(first * mask, second * mask)

    return (aligned(one, other, near * far) / (aligned(one, one, near) * aligned(other, other, far)).sqrt()).item()


def alignment(tokens: Tensor, features: Tensor) -> float:
    """Linear centred kernel alignment with an unbiased estimate of HSIC (Song et al., 2012)."""
    one, other = tokens @ tokens.T, features @ features.T
    return (_hsic(one, other) / (_hsic(one, one) * _hsic(other, other)).sqrt()).item()


MEASURES = {"neighbours": neighbour_overlap, "cknna": cknna, "cka": alignment}


def _cosines(tokens: Tensor) -> Tensor:
    directions = torch.nn.functional.normalize(tokens - tokens.mean(0), dim=-1)
    return directions @ directions.T


def _neighbours(similarity: Tensor) -> Tensor:
    """1 at the nearest neighbours of each row, not itself."""
    others = similarity - 9 * torch.eye(len(similarity))
    return torch.zeros_like(others).scatter_(-1, others.topk(NEIGHBOURS, -1).indices, 1.0)


def _hsic(one: Tensor, other: Tensor) -> Tensor:
    count = len(one)
    one, other = one - torch.diag(one.diag()), other - torch.diag(other.diag())
    both = one.sum() * other.sum() / ((count - 1) * (count - 2))
    cross = 2 * (one.sum(0) * other.sum(0)).sum() / (count - 2)
    return ((one * other).sum() + both - cross) / (count * (count - 3))


def measured(name: str, features: Tensor, layers: list[Tensor], scenes: list[Scene]) -> list[dict[str, Any]]:
    """Probes, measures and their nulls for each layer of a checkpoint."""
    chosen = torch.randperm(features.shape[0] * features.shape[1], generator=torch.Generator().manual_seed(0))[:TOKENS]
    truth = features.flatten(0, 1)[chosen]
    rows = []
    for number, tokens in enumerate(layers):
        paired, moved = (x.flatten(0, 1)[chosen] for x in (tokens, tokens.roll(1, 0)))
        row: dict[str, Any] = {"checkpoint": name, "layer": number}
        row |= {content: probe(tokens, scenes, content) for content in CONTENTS}
        row |= {measure: function(paired, truth) for measure, function in MEASURES.items()}
        row |= {f"{measure}, null": function(moved, truth) for measure, function in MEASURES.items()}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.information", description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoints", nargs="+", type=Path, help="folders of LLaVAs trained in tinyworld")
    parser.add_argument("--scenes", type=int, default=200, help="number of scenes")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    scenes, console = make_scenes(arguments.scenes), Console()
    rows = []
    for folder in arguments.checkpoints:
        features, layers = states_of(folder, scenes)
        rows += measured(folder.name, features, layers, scenes)
    names = [name for name in rows[0] if name not in ("checkpoint", "layer")]
    for row in rows:
        values = ", ".join(f"{name} {row[name]:.3f}" for name in names)
        console.print(f"{row['checkpoint']}, layer {row['layer']}: {values}", soft_wrap=True, highlight=False)
    followed = {
        measure: {
            content: float(spearmanr([row[measure] for row in rows], [row[content] for row in rows])[0])
            for content in CONTENTS
        }
        for measure in MEASURES
    }
    for measure, correlations in followed.items():
        text = ", ".join(f"{content} {value:.2f}" for content, value in correlations.items())
        console.print(f"{measure}: rank correlation with the probes over {len(rows)} layers: {text}")
    if arguments.out is not None:
        write_json(arguments.out, {"scenes": len(scenes), "rows": rows, "rank_correlations": followed}, indent=2)


if __name__ == "__main__":
    run_main(main)
