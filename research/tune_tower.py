"""Tunes a tower of `research.pretrain_tower`: patches match names as a decoder embeds them.

`python -m research.tune_tower TOWER DECODER OUT` takes 13 minutes on two cores. The texts
of pretraining are learned from nothing, so things that are alike in language need not look alike to the tower. Real
towers and language models, both trained on the web's text, share that, and a projector profits. Here the texts
are locked (as LiT, arXiv 2111.07991, locks images): a linear map of the layer that LLaVA reads is matched, patch by
patch, with the decoder's token embeddings of names and positions, by SigLIP's sigmoid loss (arXiv 2303.15343).
"""

import argparse
import math
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, SiglipImageProcessor, SiglipVisionModel, set_seed

from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.loading.checkpoint import load_part, load_strict
from research.pretrain_tower import TOWER
from research.pretrain_vision import Tower, draw_ahead, matches_of, sigmoid_loss


LLAVA_LAYER = -2
ARTICLES = ("a ", "an ", "the ")
SCALE, BIAS = 30.0, -10.0  # of cosines, at the start; SigLIP's 10 hardly tells such texts apart


def locked_texts(tower: Tower, decoder: Path) -> torch.Tensor:
    """Unit vectors [T, D] of the tower's texts: the mean embedding of a text's tokens less that of all such texts."""
    tokenizer = load_part(AutoTokenizer, decoder)
    embeddings_VD = load_strict(AutoModelForCausalLM, decoder, dtype=torch.float32).get_input_embeddings().weight
    texts = [text[len(next(filter(text.startswith, ARTICLES), "")) :] for text in tower.texts]
    with torch.no_grad():
        means_TD = torch.stack(
            [embeddings_VD[tokenizer(f" {text}", add_special_tokens=False).input_ids].mean(0) for text in texts]
        )
        names_ND, positions_PD = means_TD.split(
            [len(tower.world.part_names), len(texts) - len(tower.world.part_names)]
        )
        centred_TD = torch.cat([names_ND - names_ND.mean(0), positions_PD - positions_PD.mean(0)])
    return torch.nn.functional.normalize(centred_TD, dim=-1)


def tune(
    tower: Tower,
    vision: SiglipVisionModel,
    texts_TD: torch.Tensor,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> float:
    """Train `vision` in place and return the share of patches of the last tenth of steps that are named right."""
    rng = random.Random(f"{tower.world.name} tuned vision {seed}")
    set_seed(seed)
    names = len(tower.world.part_names)
    compiled = torch.compile(vision.train(), dynamic=False)
    readout = torch.nn.Linear(tower.size["hidden_size"], texts_TD.shape[1])
    temperature = torch.nn.Parameter(torch.tensor([math.log(SCALE), BIAS]))
    parameters = [*vision.parameters(), *readout.parameters(), temperature]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 0.51 + 0.5 * math.cos(math.pi * step / steps))
    )
    shares = []
    for step, (pixels, cells, _) in enumerate(draw_ahead(tower.world, rng, batch_size, steps), 1):
        matches, filled = matches_of(cells, names, each_patch=True)
        # empty parts teach little after the first steps and would dominate the others
        kept = filled | (torch.rand(len(filled)) < 0.1)
        patches_ND = compiled(pixel_values=pixels, output_hidden_states=True).hidden_states[LLAVA_LAYER].flatten(0, 1)
        read_ND = readout(patches_ND[kept])
        loss = sigmoid_loss(read_ND, texts_TD, matches[kept], *temperature)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        named = (read_ND.detach()[filled[kept]] @ texts_TD[:names].T).argmax(-1)
        shares.append((named == matches[filled, :names].argmax(-1)).float().mean().item())
        if step % 100 == 0:
            print(
                f"step {step}: loss {loss.item():.3f}, patches named right {sum(shares[-100:]) / 100:.3f}", flush=True
            )
    last = shares[-max(1, steps // 10) :]
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tower", type=Path, help="folder of the tower to start from")
    parser.add_argument("decoder", type=Path, help="folder of the decoder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    vision = load_strict(SiglipVisionModel, arguments.tower, dtype=torch.float32, attn_implementation="eager")
    texts = locked_texts(TOWER, arguments.decoder)
    tune(TOWER, vision, texts, arguments.steps, arguments.batch_size, arguments.learning_rate, arguments.seed)
    vision.to(TOWER.dtype).save_pretrained(arguments.out)
    load_part(SiglipImageProcessor, arguments.tower).save_pretrained(arguments.out)


if __name__ == "__main__":
    run_main(main)
