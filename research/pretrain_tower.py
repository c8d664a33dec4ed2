"""Pretrains the vision tower of the world of pictures: `python -m research.pretrain_tower OUT`, an hour."""

from functools import partial

import torch

from modeling_aligned_llava.errors import run_main
from research.pictures.world import WORLD
from research.pretrain_vision import Phase, Tower, main


TOWER = Tower(
    WORLD,
    {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_hidden_layers": 6},
    (Phase(2500, each_patch=False), Phase(800, each_patch=True)),
    torch.bfloat16,
)


if __name__ == "__main__":
    run_main(partial(main, TOWER))
