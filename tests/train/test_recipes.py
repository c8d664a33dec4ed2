"""The recipes have the values of the paper (docs/reference.md)."""

import re

import pytest
import yaml

from tests import REPOSITORY
from train.parse import parse_settings
from train.settings import read_settings


RECIPES = REPOSITORY / "configuration" / "train"
BACKBONES = {
    "llama-3.2-3b": ("meta-llama/Llama-3.2-3B-Instruct", "llama3"),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B-Instruct", "qwen2_5"),
}
LANGUAGE, VISION = (
    "model.language_model.layers.0.mlp.up_proj.weight",
    "model.vision_tower.encoder.layers.0.mlp.fc1.bias",
)
LINEAR, NORM = "model.multi_modal_projector.linear_1.weight", "model.multi_modal_projector.norm.weight"
ADAPTER = "model.language_model.layers.0.mlp.up_proj.lora_A.default.weight"
FROZEN = 0.0


def rate(run, name):
    if any(re.search(pattern, name) for pattern in run.optimization.frozen):
        return FROZEN
    (found,) = [rate for pattern, rate in run.optimization.rates.items() if re.search(pattern, name)]
    return found


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(
    ("recipe", "batch", "rates"),
    [
        ("stage1", 256, {LANGUAGE: FROZEN, VISION: FROZEN, LINEAR: 1e-3, NORM: 1e-3, "lm_head.weight": FROZEN}),
        ("stage2", 128, {LANGUAGE: 1e-5, VISION: 2e-6, LINEAR: 1e-5, NORM: 1e-5, "lm_head.weight": 1e-5}),
        (
            "stage2_lora",
            128,
            {ADAPTER: 2e-4, LANGUAGE: FROZEN, VISION: FROZEN, LINEAR: 2e-5, NORM: 2e-5, "lm_head.weight": FROZEN},
        ),
    ],
)
def test_the_values_are_those_of_the_paper(backbone, recipe, batch, rates):
    file = RECIPES / backbone / f"{recipe}.yaml"
    run = parse_settings(read_settings(["--config", str(file), "--method", "norm", "--bf16", "false"]))
    training = run.training
    assert {name: rate(run, name) for name in rates} == rates
    assert (run.optimization.global_batch_size, training.num_train_epochs, training.max_steps) == (batch, 1, -1)
    assert (training.lr_scheduler_type, training.warmup_steps, training.weight_decay) == ("cosine", 0.03, 0)
    assert (training.seed, training.max_grad_norm, run.data.bad_rows_limit) == (42, 1.0, 0.001)
    data = "data/llava/stage1.json" if recipe == "stage1" else "data/llava/stage2"  # as docs/train.md downloads it
    assert (run.data.data_path, run.data.image_folder) == (data, "data/llava/images")
    assert (training.ddp_timeout, training.save_total_limit) == (7200, 1)
    assert run.data.prompt_format == ("plain" if recipe == "stage1" else "chat")
    if recipe == "stage1":
        assert (run.model.language_model, run.model.chat_template) == BACKBONES[backbone]
        assert run.model.vision_tower == "google/siglip-so400m-patch14-384"
    else:
        assert run.model.model_name_or_path == f"results/{backbone}/checkpoints/norm/stage1"
    assert yaml.safe_load(file.read_text())["bf16"] is True
