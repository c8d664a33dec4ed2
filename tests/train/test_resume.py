"""Forty steps at a stretch = twenty, SIGKILL, and the same command again: to the bit, however the rows are loaded."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file


pytestmark = pytest.mark.slow
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def start(launch, arguments):
    # the order of a sum, and so its last bit, depends on the number of threads
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, "-m", "train.sft", *arguments]
    return subprocess.Popen(command, env=env, start_new_session=True)  # noqa: S603


def finish(launch, arguments):
    assert start(launch, arguments).wait(timeout=600) == 0


def kill_behind(folder, step, launch, arguments):
    """SIGKILL to the run and all its processes once it has logged `step` steps."""
    process = start(launch, arguments)
    log = folder / "log.jsonl"
    while process.poll() is None and (not log.exists() or log.read_text().count("\n") < step):
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("launch", [[], TORCHRUN], ids=["one process", "torchrun x2"])
def test_killed_after_twenty_steps_and_started_again(stage_arguments, tiny_checkpoint, tmp_path, launch):
    settings = {"max_steps": 40, "save_steps": 20, "model_name_or_path": tiny_checkpoint("norm-gwc")}

    def arguments(name, workers):
        return stage_arguments(2, "norm-gwc", tmp_path / name, **settings, dataloader_num_workers=workers)

    finish(launch, arguments("straight", 0))
    straight = load_file(tmp_path / "straight" / "norm-gwc" / "stage2" / "model.safetensors")
    for workers in (0, 2):
        folder = tmp_path / str(workers) / "norm-gwc" / "stage2"
        kill_behind(folder, 23, launch, arguments(str(workers), workers))
        assert (folder / "checkpoint-20" / "checkpoint_complete.json").exists()
        assert not (folder / "training_complete.json").exists()
        finish(launch, arguments(str(workers), workers))
        resumed = load_file(folder / "model.safetensors")
        assert resumed.keys() == straight.keys()
        assert all(torch.equal(tensor, straight[name]) for name, tensor in resumed.items())
