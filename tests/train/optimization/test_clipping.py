"""Clipping by part: the gradient of norm, projector, vision and language, each scaled down on its own."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from modeling_aligned_llava.inspection import parameter_parts as parts
from tests.train.stage_results import lines
from train.monitoring.gradient_ledger import GradientLedger
from train.optimization.trainer import ClipByPart


LIMIT = 1.0
# name -> gradient and what is left of it; the parts have norms 5 (norm), 13 (projector), 0.5 (vision) and 2 (language)
GRADIENTS = {
    "multi_modal_projector.norm.weight": ([3.0, 0.0], [3 / 5, 0.0]),
    "multi_modal_projector.norm.bias": ([0.0, 4.0], [0.0, 4 / 5]),
    "multi_modal_projector.linear_1.weight": ([5.0, 12.0], [5 / 13, 12 / 13]),
    "vision_tower.weight": ([0.3, 0.4], [0.3, 0.4]),
    "lm_head.weight": ([0.0, 2.0], [0.0, 1.0]),
}


def test_each_part_is_clipped_by_its_own_norm():
    parameters = {name: nn.Parameter(torch.zeros(2, dtype=torch.float64)) for name in GRADIENTS}
    for name, parameter in parameters.items():
        parameter.grad = torch.tensor(GRADIENTS[name][0], dtype=torch.float64)
    model = SimpleNamespace(named_parameters=parameters.items)
    ClipByPart(LIMIT, parts.Parts()).on_pre_optimizer_step(None, None, None, model=model)
    for name, parameter in parameters.items():
        expected = torch.tensor(GRADIENTS[name][1], dtype=torch.float64)
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-6, atol=0, msg=name)  # torch adds 1e-6 to a norm


@pytest.mark.parametrize("by_part", [True, False])
def test_a_stage_clips_as_its_ledger_says(train_stage, tmp_path, monkeypatch, by_part):
    moments = {}

    def first_moments(self, args, state, control, model=None, optimizer=None, **kwargs):
        for name, p in model.named_parameters():
            if p in optimizer.state:
                squares = moments.setdefault(parts.Parts()(name), [])
                squares.append(optimizer.state[p]["exp_avg"].double().square().sum().item())

    monkeypatch.setattr(GradientLedger, "on_optimizer_step", first_moments)
    settings = {"max_steps": 1, "max_grad_norm": 1e-2, "clip_by_part": by_part, "global_batch_size": 24}
    folder = train_stage(tmp_path, 2, **settings)
    (line,), (logged, *_) = lines(folder, "gradients.jsonl"), lines(folder)
    assert logged["grad_norm"] == pytest.approx(line["grad_norm"], rel=1e-5)  # that of the whole, before clipping
    for part, record in line["parts"].items():
        used = sum(moments[part]) ** 0.5 / 0.1  # Adam's first moment is (1 - beta1) of the clipped gradient
        assert used == pytest.approx(record["clip_factor"] * record["grad_norm"], rel=1e-4)
        assert used == pytest.approx(1e-2, rel=1e-3) or not by_part
    factors = {record["clip_factor"] for record in line["parts"].values()}
    assert len(factors) == (4 if by_part else 1) and line["clip_factor"] == min(factors)
