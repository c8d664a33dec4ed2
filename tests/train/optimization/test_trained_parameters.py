"""What each stage trains, and at which learning rate: one step of every recipe, and every method by name."""

import re

import pytest
import torch
import yaml

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.methods import method_names
from tests import REPOSITORY
from tests.train.stage_results import weights
from train.optimization.parameter_groups import freeze, group_parameters
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


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("method", method_names())
def test_every_trained_parameter_of_a_method_gets_a_gradient(tiny_checkpoint, method, stage):
    """Stage 1 trains projector and norm; stage 2 everything but the layer norm that LLaVA does not read."""
    recipe = yaml.safe_load((REPOSITORY / f"configuration/train/tinyworld/stage{stage}.yaml").read_text())
    model = AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint(method)).train()
    groups = group_parameters(model, recipe["learning_rates"], recipe["frozen"])
    freeze(model, groups)
    rates = {name: group.learning_rate for group in groups for name in group.names}
    names = [name for name, _ in model.named_parameters()]
    trained = {n for n in names if n.startswith(PROJECTOR) or (stage == 2 and "post_layernorm" not in n)}
    assert {name for name in names if rates[name] is not None} == trained
    assert all(rates[name] == expected_rate(recipe, name) for name in names)

    generator = torch.Generator().manual_seed(0)
    words = torch.randint(5, 200, (2, 12), generator=generator)
    images = torch.full((2, 4), model.config.image_token_id)
    pixels = torch.randn(2, 3, 28, 28, generator=generator)
    model(
        input_ids=torch.cat([images, words], 1), pixel_values=pixels, labels=torch.cat([images * 0 - 100, words], 1)
    ).loss.backward()
    for name, parameter in model.named_parameters():
        if name not in trained:
            assert parameter.grad is None, name
        elif not has_no_gradient(name) and not name.endswith(("embed_tokens.weight", "lm_head.weight")):
            assert parameter.grad.abs().max() > 0, name
