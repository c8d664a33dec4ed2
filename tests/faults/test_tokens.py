"""No file and no line of a training, an evaluation and a report has a token of the environment in it."""

import os
import subprocess
import sys

import pytest

from eval.data.benchmarks import BY_KEY
from tests import REPOSITORY
from tests.benchmark_stand_in import pope, write_dataset


SECRETS = {"HF_TOKEN": "hf_" + "s3cr3t" * 6, "OPENAI_API_KEY": "sk-" + "0p3n" * 6, "WANDB_API_KEY": "w4ndb" * 8}

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


def test_tokens_are_neither_written_nor_printed(stage2, tiny_llava, tmp_path):
    mirror = tmp_path / "mirror"
    write_dataset(mirror / BY_KEY["pope"].folder, {"default": {"test": pope(4)}})
    environment = os.environ | SECRETS | {"PYTHONPATH": str(REPOSITORY), "HF_HOME": str(tmp_path / "home")}
    evaluation = ["--run", "small", "--models", f"one={tiny_llava}", "--data", mirror, "--tasks", "pope"]
    said = ""
    for words in (["train.sft", *stage2(tmp_path)], ["eval.run_all", *evaluation, "--jobs", "1"]):
        command = [sys.executable, "-m", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr[-1500:]
        said += done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"training_complete.json", "run.json", "report.html"} <= {path.name for path in files}
    for secret in SECRETS.values():
        assert secret not in said
        assert not [path for path in files if secret.encode() in path.read_bytes()]
