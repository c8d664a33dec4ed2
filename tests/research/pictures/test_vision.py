"""The shipped vision tower for pictures: small, safe to load, and it sees what is where."""

import random

import numpy as np
import torch
from transformers import SiglipVisionModel

from research.pictures.nouns import NOUNS
from research.pictures.scenes import render
from tests import REPOSITORY
from tinyworld.scenes import Item


TOWER = REPOSITORY / "research/pictures/vision"


def test_weights_are_safetensors_and_under_12_megabytes():
    files = list(TOWER.iterdir())
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    assert sum(path.stat().st_size for path in files) < 12e6


@torch.inference_mode()
def cells_of(tower: SiglipVisionModel, seed: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The four patches of each cell [315, 4 D] at the layer that LLaVA reads, in full scenes; their nouns [315]."""
    rng = random.Random(seed)
    order = rng.sample(NOUNS, len(NOUNS))
    scenes = [tuple(Item("picture", noun) for noun in order[i : i + 9]) for i in range(0, len(order), 9)]
    images = np.stack([np.asarray(render(items, rng, "test").image) for items in scenes])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2) / 127.5 - 1
    patches = tower(pixels, output_hidden_states=True).hidden_states[-2]
    cells = patches.view(len(scenes), 3, 2, 3, 2, -1).transpose(2, 3).reshape(len(order), -1)
    return cells, torch.tensor([NOUNS.index(noun) for noun in order])


def test_a_linear_probe_names_what_is_in_a_cell():
    tower = SiglipVisionModel.from_pretrained(TOWER, dtype=torch.float32).eval()
    seen, nouns = (torch.cat(each) for each in zip(*(cells_of(tower, f"seen {i}") for i in range(12)), strict=True))
    new, expected = cells_of(tower, "new")
    mean, named = seen.mean(0), torch.nn.functional.one_hot(nouns).float()
    seen, new = seen - mean, new - mean
    probe = torch.linalg.solve(seen.T @ seen + 10 * torch.eye(seen.shape[1]), seen.T @ named)  # ridge regression
    assert ((new @ probe).argmax(-1) == expected).float().mean() > 0.75
