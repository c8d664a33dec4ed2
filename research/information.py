"""How much of what the cells of a scene hold do visual tokens tell, and does the measure of `profile` follow?

    python -m research.information KEPT/a_methods.norm-seed42.stage1 ... --out checkpoints.json

The truth is a linear probe: the accuracy with which the visual tokens of a cell, entering a decoder layer, tell its
colour, shape or letter. The measure of `profile`, the overlap of nearest neighbours, compares tokens with features of
the encoder and knows no contents. Folders are named STUDY.CELL.STAGE: `research.study` then finds their scores.
"""

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from transformers import AutoProcessor

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.diagnostics.norm_profile.layer_measurement import measuring
from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.checkpoint import load_part, load_strict
from modeling_aligned_llava.loading.files import write_json
from tinyworld.scenes import COLOURS, DIGITS, LETTERS, SHAPES, SIZES, Item, Scene, render


SIDE = 3  # cells of a scene in a row
SCENES = 200
TRAINED = 0.7  # of the scenes, with which a probe is fitted
RIDGE = 0.03  # of a probe, per example, on standardised tokens
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
def measured(folder: Path) -> list[dict[str, Any]]:
    """Of a LLaVA of tinyworld, what visual tokens tell entering each layer: probes, the overlap, and its null."""
    torch.set_num_threads(1)  # in models this small, threads mostly wait for one another
    scenes = make_scenes(SCENES)
    model: Any = load_strict(AlignedLlavaForConditionalGeneration, folder).eval()
    processor: Any = load_part(AutoProcessor, folder)
    entering: list[list[Tensor]] = [[] for _ in model.model.language_model.layers]  # each [1, tokens, D]
    with measuring(model, model_parts(model), images=SCENES) as measurement:
        for scene in scenes:
            batch = processor(images=[scene.image], text=[processor.image_token], return_tensors="pt")
            states = model(**batch, output_hidden_states=True, use_cache=False).hidden_states
            visual = batch["input_ids"] == model.config.image_token_id
            for kept, state in zip(entering, states, strict=False):  # the last state leaves the decoder
                kept.append(state[visual][None])
    information = measurement.sample.summary()
    return [
        {
            **{content: round(probe(torch.cat(kept).double(), scenes, content), 4) for content in CONTENTS},
            **{name: round(information[name][layer], 4) for name in ("mean", "shuffled")},
        }
        for layer, kept in enumerate(entering)
    ]


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.information", description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoints", nargs="+", type=Path, help="folders of LLaVAs trained in tinyworld")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    rows = {}
    for folder in track(arguments.checkpoints, description="checkpoints"):
        rows[folder.name] = measured(folder)
        if arguments.out is not None:
            write_json(arguments.out, rows, indent=None)
    for name, layers in rows.items():
        for layer, numbers in enumerate(layers):
            values = ", ".join(f"{key} {value:.3f}" for key, value in numbers.items())
            print(f"{name}, layer {layer}: {values}")  # noqa: T201


if __name__ == "__main__":
    run_main(main)
