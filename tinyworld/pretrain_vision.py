"""Pretrains the vision tower: a small SigLIP; a picture agrees with its caption, a cell with the name of its item.

`python -m tinyworld.pretrain_vision OUT` takes about half an hour on one core. The loss is SigLIP's sigmoid loss
(arXiv 2303.15343), pictures against captions, cells against all names; only the vision tower is kept.
"""

import argparse
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from transformers import PreTrainedTokenizerFast, SiglipConfig, SiglipImageProcessor, SiglipModel, set_seed

from tinyworld import layouts
from tinyworld.language import caption
from tinyworld.scenes import CANVAS, COLOURS, LETTERS, SHAPES, SIZES, Item, render
from tinyworld.tokenizer import train_tokenizer


PATCH = 16
CAPTION_TOKENS = 96
NOTHING = "nothing"
NAMES = (
    NOTHING,
    *(f"a {size} {colour} {shape}" for size in SIZES for colour in COLOURS for shape in SHAPES),
    *(f"the letter {letter}" for letter in LETTERS),
    *(f"the digit {digit}" for digit in range(10)),
    "the sign +",
    "the sign -",
)
NUMBER = {name: i for i, name in enumerate(NAMES)}


def name_of(item: Item | None) -> str:
    if item is None:
        return NOTHING
    if item.kind == "shape":
        return f"a {item.size} {item.colour} {item.name}"
    return f"the {'sign' if item.kind == 'operator' else item.kind} {item.name}"


def build(vocabulary: int) -> SiglipModel:
    tower = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4}
    config = SiglipConfig(
        vision_config={**tower, "num_hidden_layers": 5, "image_size": CANVAS, "patch_size": PATCH},
        text_config={
            **tower,
            "num_hidden_layers": 2,
            "vocab_size": vocabulary,
            "max_position_embeddings": CAPTION_TOKENS,
            "projection_size": 128,
        },
        attn_implementation="eager",  # on a CPU, compiled, half the time of the fused kernel's backward
    )
    return SiglipModel(config)


def tokens_of(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """[N, S], padded at the right to the longest; SigLIP reads the last position, so padding is part of the text."""
    return tokenizer(texts, padding=True, truncation=True, max_length=CAPTION_TOKENS, return_tensors="pt").input_ids


def draw_batch(rng: random.Random, size: int) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Pixels [B, 3, 96, 96] in [-1, 1], the number of the name in each cell [B, 9], captions."""
    pixels, cells, captions = [], [], []
    for _ in range(size):
        items = layouts.draw(rng)
        pixels.append(np.asarray(render(items, rng, "train").image))
        cells.append([NUMBER[name_of(item)] for item in items])
        captions.append(caption(items))
    batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return batch, torch.tensor(cells), captions


def sigmoid_loss(
    image_ND: torch.Tensor, text_MD: torch.Tensor, matches_NM: torch.Tensor, model: SiglipModel
) -> torch.Tensor:
    """SigLIP's loss: every pair is a yes/no question; summed over texts, averaged over images."""
    image_ND, text_MD = (torch.nn.functional.normalize(x.float(), dim=-1) for x in (image_ND, text_MD))
    logits = image_ND @ text_MD.T * model.logit_scale.exp() + model.logit_bias
    return -torch.nn.functional.logsigmoid((2.0 * matches_NM - 1.0) * logits).sum(-1).mean()


def cells_of(patches_BPD: torch.Tensor) -> torch.Tensor:
    """Patches [B, 36, D] grouped by cell: [B * 9, 4, D]."""
    batch, _, width = patches_BPD.shape
    return patches_BPD.view(batch, 3, 2, 3, 2, width).transpose(2, 3).reshape(batch * 9, 4, width)


def pretrain(out: Path, steps: int, batch_size: int, learning_rate: float, seed: int) -> None:
    set_seed(seed)
    rng = random.Random(f"tinyworld vision {seed}")
    tokenizer = train_tokenizer("")
    model = build(len(tokenizer))
    tower = torch.compile(model.vision_model, dynamic=False)
    # the tower starts as SigLIP's does, the temperature and bias as its paper says
    torch.nn.init.constant_(model.logit_scale, math.log(10.0))
    torch.nn.init.constant_(model.logit_bias, -10.0)
    names = tokens_of(tokenizer, list(NAMES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm = 100
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * min(1.0, s / steps)) + 0.01)
    )
    start, seen = time.monotonic(), []
    for step in track(range(steps), description="vision tower"):
        pixels, cells, captions = draw_batch(rng, batch_size)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            patches = tower(pixel_values=pixels).last_hidden_state
            whole = model.vision_model.head(patches)
            parts = model.vision_model.head(cells_of(patches))
            captions_MD = model.text_model(input_ids=tokens_of(tokenizer, captions)).pooler_output
            names_MD = model.text_model(input_ids=names).pooler_output
        matches = torch.nn.functional.one_hot(cells.view(-1), len(NAMES)).float()
        # empty cells teach little after the first steps and would outweigh the others
        filled = (cells.view(-1) != NUMBER[NOTHING]) | (torch.rand(cells.numel()) < 0.1)
        loss_parts = sigmoid_loss(parts[filled], names_MD, matches[filled], model)
        loss_whole = sigmoid_loss(whole, captions_MD, torch.eye(batch_size), model)
        (loss_parts + 0.2 * loss_whole).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        with torch.no_grad():
            similarity = (
                torch.nn.functional.normalize(parts.float(), dim=-1)
                @ torch.nn.functional.normalize(names_MD.float(), dim=-1).T
            )
            right = (similarity.argmax(-1) == cells.view(-1))[cells.view(-1) != NUMBER[NOTHING]].float().mean()
        seen.append((loss_parts.item(), loss_whole.item(), right.item()))
        if (step + 1) % 100 == 0:
            parts_loss, whole_loss, share = (sum(column) / len(column) for column in zip(*seen, strict=True))
            print(
                f"step {step + 1} cells {parts_loss:.3f} pictures {whole_loss:.3f} cells named right {share:.3f} "
                f"{time.monotonic() - start:.0f} s",
                flush=True,
            )
            seen.clear()
        if (step + 1) % 500 == 0 or step + 1 == steps:
            model.vision_model.save_pretrained(out)
            SiglipImageProcessor(size={"height": CANVAS, "width": CANVAS}).save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pretrain(arguments.out, arguments.steps, arguments.batch_size, arguments.learning_rate, arguments.seed)


if __name__ == "__main__":
    main()
