"""What each stage trains, and at which learning rate: one step of every recipe, and every method by name."""

import re

import pytest
import torch
import yaml

from tests import REPOSITORY
from tests.train.stage_results import weights
from train.optimization.trainer import AlignedSFTTrainer


RECIPES = sorted((REPOSITORY / "configuration" / "train").glob("*/stage[12].yaml"))
PROJECTOR = "model.multi_modal_projector."


def has_no_gradient(name):
    """A key bias shifts all attention logits of a query alike: its gradient is zero up to rounding."""
    return name.endswith("k_proj.bias")


def expected_rate(recipe, name):
    """The recipe's learning rate of a parameter, None if it is frozen."""
    if any(re.search(pattern, name) for pattern in recipe["frozen"]):
        return None
    (rate,) = [rate for pattern, rate in recipe["learning_rates"].items() if re.search(pattern, name)]
    return rate


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_step_moves_what_the_recipe_trains_at_its_rates(train_stage, tiny_checkpoint, tmp_path, monkeypatch, path):
    stage, recipe = int(path.stem[-1]), yaml.safe_load(path.read_text())
    trainers = []
    create_optimizer = AlignedSFTTrainer.create_optimizer

    def recorded(self, *args):
        trainers.append(self)
        return create_optimizer(self, *args)

    monkeypatch.setattr(AlignedSFTTrainer, "create_optimizer", recorded)
    settings = {"config": path, "max_steps": 1, "save_steps": 1, "warmup_steps": 0, "bf16": "false"}
    settings |= {"global_batch_size": 24, "dataloader_num_workers": 0, "max_length": 512}
    settings |= {"lr_scheduler_type": "constant", **({"chat_template": "tinyworld"} if stage == 1 else {})}
    settings |= {"per_device_train_batch_size": 0} if "micro_batch_tokens" in recipe else {}
    folder = train_stage(tmp_path, stage, **settings)

    before = weights(folder / "assembled" if stage == 1 else tiny_checkpoint("norm-gwc"))
    after = weights(folder)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    trained = {name for name in after if expected_rate(recipe, name) is not None}
    assert moved <= trained and all(has_no_gradient(name) for name in trained - moved)

    (trainer,) = trainers
    rates = {id(p): group["lr"] for group in trainer.optimizer.param_groups for p in group["params"]}
    for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
        expected = expected_rate(recipe, name)
        assert rates.get(id(parameter)) == (None if expected is None else pytest.approx(expected, rel=0)), name
