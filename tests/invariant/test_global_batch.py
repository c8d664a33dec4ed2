"""Only the global batch determines a step: 16 rows as 16x1, 4x4, 1x16, or on two processes.

`global_batch.json` holds loss and gradient norm of six steps of stage 2 (rows with and without image, of unequal
length, so that a mean of means would be noticed). After a change that is meant to change training, write it again with
`WRITE_REFERENCE=1 python -m pytest tests/invariant`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from train.stage import run_stage


REFERENCE = Path(__file__).with_name("global_batch.json")
TOLERANCE = 2e-4  # relative: float32 sums in another order, over six steps of Adam, on any machine


def trajectory(folder):
    lines = [json.loads(line) for line in (folder / "norm-gwc" / "stage2" / "log.jsonl").read_text().splitlines()]
    return {name: [line[name] for line in lines if "loss" in line] for name in ("loss", "grad_norm")}


def assert_recorded_trajectory(found):
    recorded = json.loads(REFERENCE.read_text())
    assert len(found["loss"]) == 6
    for name in ("loss", "grad_norm"):
        assert found[name] == pytest.approx(recorded[name], rel=TOLERANCE), name


@pytest.fixture
def arguments(stage_arguments, tiny_checkpoint):
    def make(root, rows):
        source = tiny_checkpoint("norm-gwc")
        settings = {"global_batch_size": 16, "per_device_train_batch_size": rows, "model_name_or_path": source}
        return stage_arguments(2, "norm-gwc", root, **settings, save_steps=6, dataloader_drop_last="true")

    return make


@pytest.mark.parametrize("rows", [16, 4, 1])
def test_accumulation_does_not_change_the_trajectory(arguments, tmp_path, rows):
    run_stage(arguments(tmp_path, rows))
    if rows == 16 and "WRITE_REFERENCE" in os.environ:
        REFERENCE.write_text(json.dumps(trajectory(tmp_path), indent=2) + "\n")
    assert_recorded_trajectory(trajectory(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(8, marks=pytest.mark.campaign)])
def test_two_processes_do_not_change_the_trajectory(arguments, tmp_path, rows):
    """With one row per micro-batch, one process often has only text while the other has an image."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run([*launcher, "-m", "train.sft", *arguments(tmp_path, rows)], check=True)  # noqa: S603
    assert_recorded_trajectory(trajectory(tmp_path))
