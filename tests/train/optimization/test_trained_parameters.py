"""One step of each stage and arm: every trained parameter moves, no frozen one, at the recipe's learning rates."""

import re

import pytest
import torch
import yaml
from safetensors.torch import load_file

from modeling_aligned_llava.methods import method_names
from tests import REPOSITORY
from train.optimization.trainer import AlignedSFTTrainer
from train.stage import run_stage


RECIPES = sorted((REPOSITORY / "configuration" / "train").glob("*/stage[12].yaml"))
CASES = [("tinyworld", method) for method in method_names()] + [
    (name, "norm-gwc") for name in sorted({path.parent.name for path in RECIPES} - {"tinyworld"})
]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("backbone", "method"), CASES)
def test_what_moves(stage_arguments, tiny_checkpoint, tmp_path, monkeypatch, stage, backbone, method):
    config = next(path for path in RECIPES if path.parent.name == backbone and path.stem == f"stage{stage}")
    recipe = yaml.safe_load(config.read_text())
    trainers = []
    original = AlignedSFTTrainer.create_optimizer

    def create_optimizer(self, *args):
        trainers.append(self)
        return original(self, *args)

    monkeypatch.setattr(AlignedSFTTrainer, "create_optimizer", create_optimizer)
    settings = {
        "config": config,
        "max_steps": 1,
        "save_steps": 1,
        "warmup_steps": 0,
        "bf16": "false",
        "global_batch_size": 24,
    }
    settings |= {"dataloader_num_workers": 0, "max_length": 512, "lr_scheduler_type": "constant"}
    settings |= {"chat_template": "tinyworld"} if stage == 1 else {"model_name_or_path": tiny_checkpoint(method)}
    run_stage(stage_arguments(stage, method, tmp_path, **settings))
    folder = tmp_path / method / f"stage{stage}"

    before = load_file((folder / "assembled" if stage == 1 else tiny_checkpoint(method)) / "model.safetensors")
    after = load_file(folder / "model.safetensors")
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    frozen = {name for name in after if any(re.search(pattern, name) for pattern in recipe["frozen"])}
    # a key bias shifts every attention logit of a query alike: its gradient is zero up to rounding
    free = {name for name in after if name.endswith("k_proj.bias")}
    assert moved - free == set(after) - frozen - free
    assert not moved & frozen

    (trainer,) = trainers
    rates = {id(p): group["lr"] for group in trainer.optimizer.param_groups for p in group["params"]}
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        (expected,) = [rate for pattern, rate in recipe["learning_rates"].items() if re.search(pattern, name)] or [
            None
        ]
        assert rates.get(id(parameter)) == (None if name in frozen else pytest.approx(expected, rel=0)), name
