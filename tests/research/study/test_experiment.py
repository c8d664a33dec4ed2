"""The changes of a study in stages that are really trained, and in the commands of its cells."""

import shlex
import sys

import pytest
import torch

from research.study import experiment
from research.study.cells import StudyRun
from research.study.grid import read_study
from tests.research.study.stand_in import write_study
from tests.train.conftest import stage_commands, write_data
from tests.train.stage_results import lines, weights


@pytest.fixture
def train(tiny_backbones, tmp_path, call):
    """`train(name, *options, **settings)` -> the folder of a stage 1 of three steps; as `train/run.sh` starts it."""
    (tmp_path / "data").mkdir()
    command = stage_commands(tiny_backbones, write_data(tmp_path / "data"))

    def run(name, *options, method="norm", **settings):
        call(
            experiment.main, *options, "-m", "train.sft", *command(1, method, tmp_path / name, max_steps=3, **settings)
        )
        return tmp_path / name / method / "stage1"

    return run


def test_visual_tokens_skip_layers_in_training(train):
    plain = train("plain")
    bypassed = train("bypassed", "--bypassed_layers", "0")
    assert [line["loss"] for line in lines(plain)] != [line["loss"] for line in lines(bypassed)]
    visual, skipping = (lines(folder, "probe.jsonl")[0]["visual"] for folder in (plain, bypassed))
    assert skipping["cosine"][0] == pytest.approx(1.0, abs=1e-12) and visual["cosine"][0] < 1 - 1e-6
    assert skipping["norm"][0] == skipping["norm"][1]


def test_a_norm_stored_in_bfloat16_is_rounded_after_every_step(train):
    def stored(name, **settings):
        folder = train(name, "--norm_storage", "bfloat16", method="norm-default-init", **settings)
        return weights(folder)["model.multi_modal_projector.norm.weight"]

    gain = stored("large")
    assert gain.dtype == torch.float32 and torch.equal(gain, gain.bfloat16().float())
    small = stored("small", learning_rates='{"multi_modal_projector": 1e-3}')
    assert torch.equal(small, torch.ones(32))  # steps of 1e-3 are below half of 1/256


def test_visual_tokens_are_a_constant_times_the_projectors_until_it_holds_the_constant(train):
    plain, scaled = (train(*words, method="baseline") for words in (["plain"], ["scaled", "--visual_factor", "4"]))
    start, grown = (lines(folder, "probe.jsonl")[0]["visual"]["norm"][0] for folder in (plain, scaled))
    assert grown == pytest.approx(4 * start)
    layer = "model.multi_modal_projector.linear_2.weight"
    ends = [weights(folder)[layer].norm().item() for folder in (plain, scaled)]
    assert ends[1] == pytest.approx(4 * ends[0], rel=0.2)


def test_the_command_of_a_cell_makes_its_changes(tmp_path):
    changes = {"bypassed_layers": [0, 1], "norm_storage": "bfloat16"}
    study = read_study(write_study(tmp_path, settings={"steps": 0.5, **changes}))
    run = StudyRun(study, tmp_path / "records", tmp_path / "work", "cpu")
    env, launch, *command = run.training(study.cells[0], "stage1").command
    name, _, words = launch.partition("=")
    options = ["--bypassed_layers", "0", "1", "--norm_storage", "bfloat16"]
    assert (env, name) == ("env", "LAUNCH")
    assert shlex.split(words) == [sys.executable, "-m", "research.study.experiment", *options]
    assert command[:2] == ["bash", "train/run.sh"] and not set(command) & {f"--{each}" for each in changes}
