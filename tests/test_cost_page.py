"""The arithmetic of docs/cost.md, done again from the shapes of the backbones and from the recipes."""

import re
from functools import cache

import pytest
import torch
import yaml
from transformers import LlamaConfig, Qwen2Config, SiglipVisionConfig

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from tests import REPOSITORY


TOWER = (
    SiglipVisionConfig(  # google/siglip-so400m-patch14-384 as assembly keeps it: without last layer and pooling head
        hidden_size=1152,
        intermediate_size=4304,
        num_hidden_layers=26,
        num_attention_heads=16,
        image_size=384,
        patch_size=14,
        vision_use_head=False,
    )
)
DECODERS = {
    "llama-3.2-3b": LlamaConfig(
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=28,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128_320,  # 128,256 and the image token, padded to a multiple of 64
        tie_word_embeddings=True,
    ),
    "qwen2.5-7b": Qwen2Config(
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152_064,
        tie_word_embeddings=False,
    ),
}
ROWS = {"stage1": 558_000, "stage2": 779_000, "stage2_lora": 779_000}
TOKENS, PEAK = 729, 989e12


@cache
def sizes(backbone: str) -> dict[str, int]:
    text = DECODERS[backbone]
    config = AlignedLlavaConfig(
        vision_config=TOWER, text_config=text, tie_word_embeddings=text.tie_word_embeddings, text_norm=1.0
    )
    with torch.device("meta"):
        model = AlignedLlavaForConditionalGeneration(config)
    found = {"tower": 0, "projector": 0, "layers": 0, "embeddings": 0, "adapters": 0}
    lora = yaml.safe_load((REPOSITORY / f"configuration/train/{backbone}/stage2_lora.yaml").read_text())["lora"]
    for name, parameter in model.named_parameters():
        part = "tower" if "vision_tower" in name else "projector" if "projector" in name else "embeddings"
        found["layers" if "language_model.layers" in name else part] += parameter.numel()
        if re.fullmatch(lora["target_modules"], name.removesuffix(".weight")):
            found["adapters"] += lora["r"] * sum(parameter.shape)
    return found


def row(backbone: str, stage: str) -> list[str]:
    n = sizes(backbone)
    whole = n["tower"] + n["projector"] + n["layers"] + n["embeddings"]
    if stage == "stage1":
        trained, frozen_bytes, work = n["projector"], 4, 2 * n["tower"] + 4 * n["layers"]
    elif stage == "stage2":
        trained, frozen_bytes, work = whole, 4, 8 * (n["tower"] + n["layers"])
    else:
        trained, frozen_bytes, work = n["projector"] + n["adapters"], 2, 2 * n["tower"] + 6 * n["layers"]
    frozen = whole + (n["adapters"] if stage == "stage2_lora" else 0) - trained
    memory = 16 * trained + frozen_bytes * frozen
    hours = ROWS[stage] * TOKENS * work / PEAK / 3600
    return [f"{trained / 1e6:,.0f} M", f"{memory / 1e9:.1f} GB", f"{hours:.1f}"]


@pytest.mark.parametrize("backbone", DECODERS)
@pytest.mark.parametrize("stage", ROWS)
def test_the_table_is_its_arithmetic(backbone, stage):
    text = (REPOSITORY / "docs/cost.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith(f"| `{backbone}/{stage}` |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    assert cells == [*row(backbone, stage), "not measured", "not measured"]
