"""Pretrains the vision tower: a small SigLIP that matches images with captions, and cells with the names of items.

`python -m research.pretrain_vision OUT` takes half an hour on two cores. The loss is SigLIP's sigmoid loss
(arXiv 2303.15343), of images against captions and of their parts against all names; only the vision tower is kept.
"""

import argparse
import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from transformers import (
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
    SiglipVisionModel,
    set_seed,
)

from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.loading.checkpoint import load_strict
from research.pretraining_text import GRID
from research.tinyworld_tokenizer import train_tokenizer
from tinyworld.scenes import POSITIONS
from tinyworld.world import WORLD, World


Batch = tuple[torch.Tensor, torch.Tensor, list[str]]
CAPTION_TOKENS = 96


@dataclass(frozen=True)
class Phase:
    """Steps that name cells, or each patch: LLaVA feeds patches to the decoder, one per token."""

    steps: int
    each_patch: bool


@dataclass(frozen=True)
class Tower:
    """A world, the size of the vision tower for it, and how that is trained."""

    world: World
    size: dict[str, int]
    phases: tuple[Phase, ...]
    dtype: torch.dtype  # of the saved weights

    @property
    def texts(self) -> tuple[str, ...]:
        """What can be true of a part of an image: its name, its position."""
        return (*self.world.part_names, *POSITIONS)


TOWER = Tower(
    WORLD,
    {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_hidden_layers": 5},
    (Phase(4500, each_patch=False), Phase(2000, each_patch=True)),
    torch.float32,
)


def build(tower: Tower, vocabulary: int) -> SiglipModel:
    width = tower.size["hidden_size"]
    canvas = tower.world.canvas
    config = SiglipConfig(  # type: ignore[call-arg]  # its types leave out what its base class takes
        vision_config={**tower.size, "image_size": canvas, "patch_size": canvas // GRID},
        text_config={
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "vocab_size": vocabulary,
            "max_position_embeddings": CAPTION_TOKENS,
            "projection_size": width,
        },
        attn_implementation="eager",  # compiled on a CPU, its backward takes half the time of the fused kernel's
    )
    return SiglipModel(config)


def tokens_of(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """[N, S], padded on the right to the longest; SigLIP reads the last position, so padding is part of the text."""
    return tokenizer(texts, padding=True, truncation=True, max_length=CAPTION_TOKENS, return_tensors="pt").input_ids


def draw_batch(world: World, rng: random.Random, size: int) -> Batch:
    """Pixels [B, 3, canvas, canvas] in [-1, 1], the index of each cell's name [B, 9], captions."""
    numbers = {name: i for i, name in enumerate(world.part_names)}
    pixels, cells, captions = [], [], []
    for _ in range(size):
        items = world.draw(rng)
        pixels.append(np.asarray(world.render(items, rng, "train").image))
        cells.append([numbers[world.part_name(item)] for item in items])
        captions.append(world.caption(items))
    batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return batch, torch.tensor(cells), captions


def draw_ahead(world: World, rng: random.Random, size: int, steps: int) -> Iterator[Batch]:
    """The batches of all steps; each is drawn in a thread while the one before is learned."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(draw_batch, world, rng, size)
        for step in track(range(1, steps + 1), description="vision tower"):
            batch = upcoming.result()
            if step < steps:
                upcoming = thread.submit(draw_batch, world, rng, size)
            yield batch


def sigmoid_loss(
    image_ND: torch.Tensor,
    text_MD: torch.Tensor,
    matches_NM: torch.Tensor,
    logit_scale: torch.Tensor,
    logit_bias: torch.Tensor,
) -> torch.Tensor:
    """SigLIP's loss: every pair is a yes/no question; summed over texts, averaged over images."""
    image_ND, text_MD = (torch.nn.functional.normalize(x.float(), dim=-1) for x in (image_ND, text_MD))
    logits = image_ND @ text_MD.T * logit_scale.exp() + logit_bias
    return -torch.nn.functional.logsigmoid((2.0 * matches_NM - 1.0) * logits).sum(-1).mean()


def cells_of(patches_BPD: torch.Tensor) -> torch.Tensor:
    """Patches [B, 36, D] grouped by cell: [B * 9, 4, D]."""
    batch, _, width = patches_BPD.shape
    return patches_BPD.view(batch, 3, 2, 3, 2, width).transpose(2, 3).reshape(batch * 9, 4, width)


def matches_of(cells: torch.Tensor, names: int, each_patch: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Which texts are true of each part, [N, T], and which parts are not empty, [N].

    `cells` [B, 9] are indices of `names` names, 0 for an empty cell; the texts are the names and the nine positions.

    Parts are the cells with their names or, with `each_patch`, all 36 patches with their cell's name and position.
    """
    batch = len(cells)
    positions = torch.arange(9).expand(batch, 9)
    if each_patch:
        cells, positions = (
            x.reshape(batch, 3, 3).repeat_interleave(2, 1).repeat_interleave(2, 2) for x in (cells, positions)
        )
    matches = torch.nn.functional.one_hot(cells.reshape(-1), names + len(POSITIONS)).float()
    if each_patch:
        matches += torch.nn.functional.one_hot(names + positions.reshape(-1), names + len(POSITIONS))
    return matches, cells.reshape(-1) != 0


def train(
    tower: Tower, start: SiglipVisionModel | None, phase: Phase, batch_size: int, learning_rate: float, seed: str
) -> SiglipModel:
    """Train one phase: the vision tower continues from `start`, the text side starts again."""
    rng = random.Random(seed)
    tokenizer = train_tokenizer("")
    model = build(tower, len(tokenizer))
    names = len(tower.world.part_names)
    if start is not None:
        model.vision_model.load_state_dict(start.state_dict())
    compiled = torch.compile(model.vision_model, dynamic=False)
    # temperature and bias start as in SigLIP's paper
    torch.nn.init.constant_(model.logit_scale, math.log(10.0))
    torch.nn.init.constant_(model.logit_bias, -10.0)
    texts = tokens_of(tokenizer, list(tower.texts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * min(1.0, s / phase.steps)) + 0.01)
    )
    seen = []
    for step, (pixels, cells, captions) in enumerate(draw_ahead(tower.world, rng, batch_size, phase.steps)):
        matches, filled = matches_of(cells, names, phase.each_patch)
        # empty parts teach little after the first steps and would dominate the others
        kept = filled | (torch.rand(len(filled)) < 0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            patches = compiled(pixel_values=pixels).last_hidden_state
            whole = model.vision_model.head(patches)
            parts = patches.flatten(0, 1)[:, None] if phase.each_patch else cells_of(patches)
            parts = model.vision_model.head(parts[kept])
            captions_MD = model.text_model(input_ids=tokens_of(tokenizer, captions)).pooler_output
            texts_MD = model.text_model(input_ids=texts).pooler_output
        loss_parts = sigmoid_loss(parts, texts_MD, matches[kept], model.logit_scale, model.logit_bias)
        loss_whole = sigmoid_loss(whole, captions_MD, torch.eye(batch_size), model.logit_scale, model.logit_bias)
        (loss_parts + 0.2 * loss_whole).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        with torch.no_grad():
            names_MD = torch.nn.functional.normalize(texts_MD[:names].float(), dim=-1)
            named = (parts[filled[kept]].float() @ names_MD.T).argmax(-1)
            right = (named == matches[filled, :names].argmax(-1)).float().mean()
        seen.append((loss_parts.item(), loss_whole.item(), right.item()))
        if (step + 1) % 100 == 0:
            parts_loss, whole_loss, share = (sum(column) / len(column) for column in zip(*seen, strict=True))
            report = f"parts {parts_loss:.3f}, images {whole_loss:.3f}, parts named right {share:.3f}"
            print(f"step {step + 1}: {report}", flush=True)
            seen.clear()
    return model


def pretrain(tower: Tower, out: Path, batch_size: int, learning_rate: float, seed: int) -> None:
    """Train all phases; each saves its tower in `OUT.phases/`, so that a killed run continues after the last one."""
    set_seed(seed)
    trained: SiglipVisionModel | None = None
    for number, phase in enumerate(tower.phases, 1):
        done = out.with_name(f"{out.name}.phases") / str(number)
        if not done.exists():
            name = f"{tower.world.name} vision {seed} {number}"
            model = train(tower, trained, phase, batch_size, learning_rate, name)
            unfinished = done.with_suffix(".unfinished")
            model.vision_model.save_pretrained(unfinished)
            unfinished.rename(done)
        trained = load_strict(SiglipVisionModel, done, attn_implementation="eager")
    assert trained is not None
    trained.to(tower.dtype).save_pretrained(out)  # type: ignore[arg-type]  # transformers' decorator hides `self`
    side = tower.world.canvas
    SiglipImageProcessor(size={"height": side, "width": side}).save_pretrained(out)


def main(tower: Tower = TOWER) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pretrain(tower, arguments.out, arguments.batch_size, arguments.learning_rate, arguments.seed)


if __name__ == "__main__":
    run_main(main)
