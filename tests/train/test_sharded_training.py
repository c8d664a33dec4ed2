"""`train.sft` itself on two and four processes under FSDP2: the trajectory of one process, and resuming.

With one row per micro-batch and a third of the rows without an image, processes often differ in whether they have one.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from safetensors.torch import load_file

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests import REPOSITORY
from tests.invariant.test_global_batch import assert_recorded_trajectory, trajectory
from train.stage import run_stage


TOLERANCE = 2e-4  # relative, as in tests/invariant


def fsdp2_environment():
    """What `accelerate launch` exports for configuration/accelerate/fsdp2.yaml."""
    config = yaml.safe_load((REPOSITORY / "configuration" / "accelerate" / "fsdp2.yaml").read_text())
    return {"ACCELERATE_USE_FSDP": "true", **{key.upper(): str(v) for key, v in config["fsdp_config"].items()}}


def command(processes, arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return [*launcher, "-m", "tests.train.sharded_on_cpu", *arguments]


def environment():
    return {**os.environ, **fsdp2_environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}


def train(processes, arguments):
    done = subprocess.run(command(processes, arguments), env=environment(), timeout=600, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr[-4000:]


def kill_after_checkpoint(processes, arguments, folder):
    """Start training and kill every process once a checkpoint is complete."""
    process = subprocess.Popen(command(processes, arguments), env=environment(), start_new_session=True)  # noqa: S603
    deadline = time.monotonic() + 300
    while not list(folder.glob("checkpoint-*/checkpoint_complete.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "training_complete.json").exists()


@pytest.fixture
def arguments(stage_arguments, tiny_checkpoint):
    def make(stage, root, decoder="qwen2", **settings):
        given = {"global_batch_size": 16, "per_device_train_batch_size": 1, "save_steps": 6, **settings}
        if stage == 2:
            given = {"model_name_or_path": tiny_checkpoint("norm-gwc", decoder), **given}
        return stage_arguments(stage, "norm-gwc", root, **given, dataloader_drop_last="true")

    return make


def stage_trajectory(root, stage):
    lines = [json.loads(line) for line in (root / "norm-gwc" / f"stage{stage}" / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line], [line["grad_norm"] for line in lines if "loss" in line]


def weights(root, stage=2):
    return load_file(root / "norm-gwc" / f"stage{stage}" / "model.safetensors")


def assert_same_weights(one, other):
    """Within what six steps of Adam make of float32 sums in another order."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-2, atol=5e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.campaign)])
def test_stage_2_follows_the_recorded_trajectory(arguments, tmp_path, processes):
    train(processes, arguments(2, tmp_path))
    assert_recorded_trajectory(trajectory(tmp_path))
    folder = tmp_path / "norm-gwc" / "stage2"
    loaded = AlignedLlavaForConditionalGeneration.from_pretrained(folder)
    assert loaded.dtype == torch.float32
    auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
    assert auto_map["AutoModelForImageTextToText"] == f"modeling_aligned_llava.{type(loaded).__name__}"
    assert not list(folder.glob("_fsdp*")), "code of the wrapper was saved beside the model"


@pytest.mark.slow
@pytest.mark.campaign
def test_a_tied_head_follows_one_process(arguments, tmp_path):
    run_stage(arguments(2, tmp_path / "one", "llama"))
    train(2, arguments(2, tmp_path / "sharded", "llama"))
    for one, sharded in zip(stage_trajectory(tmp_path / "one", 2), stage_trajectory(tmp_path / "sharded", 2), strict=True):
        assert sharded == pytest.approx(one, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.campaign)])
def test_stage_1_follows_one_process(arguments, tmp_path, processes):
    run_stage(arguments(1, tmp_path / "one"))
    train(processes, arguments(1, tmp_path / "sharded"))
    for one, sharded in zip(stage_trajectory(tmp_path / "one", 1), stage_trajectory(tmp_path / "sharded", 1), strict=True):
        assert sharded == pytest.approx(one, rel=TOLERANCE)
    assert_same_weights(weights(tmp_path / "one", 1), weights(tmp_path / "sharded", 1))


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("stage", [1, 2])
def test_checkpointing_without_clipping_follows_one_process(arguments, tmp_path, stage):
    settings = {"max_grad_norm": 0, "gradient_checkpointing": "true"}
    run_stage(arguments(stage, tmp_path / "one", **settings))
    train(2, arguments(stage, tmp_path / "sharded", **settings))
    for one, sharded in zip(
        stage_trajectory(tmp_path / "one", stage), stage_trajectory(tmp_path / "sharded", stage), strict=True
    ):
        assert sharded == pytest.approx(one, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 4), pytest.param(4, 2, marks=pytest.mark.campaign)])
def test_a_killed_run_resumes_on_another_number_of_processes(arguments, tmp_path, before, after):
    run_stage(arguments(2, tmp_path / "one", save_steps=2))
    given = arguments(2, tmp_path / "killed", save_steps=2)
    kill_after_checkpoint(before, given, tmp_path / "killed" / "norm-gwc" / "stage2")
    train(after, given)
    assert_recorded_trajectory(trajectory(tmp_path / "killed"))
    assert_same_weights(weights(tmp_path / "one"), weights(tmp_path / "killed"))
