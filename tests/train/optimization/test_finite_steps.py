"""A step whose loss or gradient is not finite: the error names step and tensor, or the step is skipped."""

import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from modeling_aligned_llava.errors import UserError
from tests.faults.broken_numbers import broken_step
from tests.one_line import one_line
from tests.train.stage_results import lines
from train.stage import run_stage


TENSOR = "model.multi_modal_projector.linear_1.weight"


@pytest.fixture
def stage(stage_arguments, tiny_checkpoint, tmp_path):
    """`stage(**settings)` -> command line of a stage 2 of six steps, and its folder."""

    def make(**settings):
        given = {"model_name_or_path": tiny_checkpoint("norm-gwc"), **settings}
        return stage_arguments(2, "norm-gwc", tmp_path, **given), tmp_path / "norm-gwc" / "stage2"

    return make


@pytest.mark.parametrize(
    ("kind", "name", "value", "what"),
    [("loss", "", math.nan, "the loss"), ("gradient", TENSOR, math.inf, f"the gradient of {TENSOR}")],
)
def test_the_run_stops_and_resumes_from_its_last_good_checkpoint(stage, kind, name, value, what):
    command, folder = stage()
    with broken_step(kind, {4}, name, value):
        with one_line(rf"^step 4: not finite: {what}; .*max_skipped_steps"):
            run_stage(command)
        assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2"]
        before = load_file(folder / "checkpoint-2" / "model.safetensors")
        assert all(tensor.isfinite().all() for tensor in before.values())
        run_stage([*command, "--max_skipped_steps", "1"])
    (skipped,) = lines(folder, "skipped_steps.jsonl")
    assert skipped["step"] == 4 and name in skipped["cause"]
    log = lines(folder)
    assert [line["step"] for line in log] == [1, 2, 3, 5, 6]
    assert all(math.isfinite(value) for line in log for value in line.values() if isinstance(value, float))


def test_a_skipped_step_changes_neither_weights_nor_moments(stage):
    command, folder = stage(save_steps=1, save_total_limit=6)
    seen = {}
    nan_in = broken_step("gradient", {3, 5}, "model.multi_modal_projector.linear_2.weight", math.nan)
    message = "^step 5: not finite after 1 skipped steps: the gradient of model.multi_modal_proj"
    with nan_in, pytest.raises(UserError, match=message):
        run_stage([*command, "--max_skipped_steps", "1"])
    for step in (2, 3, 4):
        checkpoint = folder / f"checkpoint-{step}"
        moments = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
        seen[step] = load_file(checkpoint / "model.safetensors"), moments
    same = [all(torch.equal(seen[3][0][name], tensor) for name, tensor in seen[step][0].items()) for step in (2, 4)]
    assert same == [True, False]
    assert all(torch.equal(seen[3][1][i]["exp_avg"], state["exp_avg"]) for i, state in seen[2][1].items())
    shutil.rmtree(folder / "checkpoint-4")  # the count goes on from the checkpoint, not from the file's end
    shutil.rmtree(folder / "checkpoint-3")
    with broken_step("loss", {5}, "", math.nan):
        run_stage([*command, "--max_skipped_steps", "1"])
    assert [line["step"] for line in lines(folder, "skipped_steps.jsonl")] == [5]
