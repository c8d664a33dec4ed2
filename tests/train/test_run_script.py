"""`train/run.sh`: both stages of one method, and its error messages."""

import os
import subprocess
import sys

import pytest

from tests import REPOSITORY


@pytest.mark.slow
def test_run_script_trains_both_stages(tiny_backbones, tiny_data, tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    (root / "data").symlink_to(tiny_data)
    script = REPOSITORY / "train" / "run.sh"
    command = ["bash", str(script), "--backbone", "tinyworld", "--method", "norm", "--seed", "7"]
    command += ["--vision-tower", str(tiny_backbones.vision), "--language-model", str(tiny_backbones.qwen2)]
    command += ["--output-root", str(root), "--", "--max_steps", "2", "--global_batch_size", "4"]
    command += ["--per_device_train_batch_size", "4"]
    env = {**os.environ, "LAUNCH": sys.executable}
    subprocess.run(command, check=True, env=env)  # noqa: S603
    assert (root / "checkpoints" / "norm-seed7" / "stage2" / "training_complete.json").exists()
    wrong = subprocess.run(["bash", str(script), "--method", "norm"], capture_output=True, text=True)  # noqa: S603, S607
    assert wrong.returncode == 1 and wrong.stderr.startswith("error: --backbone and --method are needed")
