"""The arithmetic of docs/cost.md, done again from the shapes of the backbones and from the recipes."""

from dataclasses import replace
from functools import cache

import pytest
import yaml
from transformers import LlamaConfig, Qwen2Config, SiglipVisionConfig

from benchmarks.real_shapes import LLAMA, SIGLIP
from modeling_aligned_llava import AlignedLlavaConfig
from tests import REPOSITORY
from train.cost import Batch, count, flops, memory, meta_model


# google/siglip-so400m-patch14-384 as assembly keeps it: without last layer and pooling head
TOWER = SiglipVisionConfig.from_dict(
    {**SIGLIP.vision_config.to_dict(), "num_hidden_layers": 26, "vision_use_head": False}
)
DECODERS = {
    # 128,256 and the image token, padded to a multiple of 64
    "llama-3.2-3b": LlamaConfig.from_dict({**LLAMA.to_dict(), "vocab_size": 128_320}),
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
GPUS = 8


@cache
def config(backbone: str) -> AlignedLlavaConfig:
    text = DECODERS[backbone]
    return AlignedLlavaConfig(
        vision_config=TOWER, text_config=text, tie_word_embeddings=text.tie_word_embeddings, text_norm=1.0
    )


def row(backbone: str, stage: str) -> list[str]:
    recipe = yaml.safe_load((REPOSITORY / f"configuration/train/{backbone}/{stage}.yaml").read_text())
    rates = {pattern: float(rate) for pattern, rate in recipe["learning_rates"].items()}
    model = meta_model(config(backbone), rates, recipe["frozen"], bf16=True, lora=recipe.get("lora"))
    checkpointing = recipe["gradient_checkpointing"]
    rows = recipe["per_device_train_batch_size"]
    batch = Batch(rows=rows, length=TOKENS, images=rows)
    trained = count(model)
    one = memory(model, batch, checkpointing=checkpointing)
    alone = one.weights + one.gradients + one.optimizer
    sharded = memory(model, batch, engine="fsdp2", processes=GPUS, checkpointing=checkpointing).total
    hours = ROWS[stage] * flops(model, replace(batch, rows=1, images=1), checkpointing) / PEAK / 3600
    return [f"{trained / 1e6:,.0f} M", f"{alone / 1e9:.1f} GB", f"{sharded / 1e9:.1f} GB", f"{hours:.1f}"]


@pytest.mark.parametrize("backbone", DECODERS)
@pytest.mark.parametrize("stage", ROWS)
def test_the_table_is_its_arithmetic(backbone, stage):
    text = (REPOSITORY / "docs/cost.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith(f"| `{backbone}/{stage}` |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")][1:]
    assert cells == [*row(backbone, stage), "not measured", "not measured"]
