"""Both adapters under their harness's own command line, on several processes. Slow: each imports its harness."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.benchmark_stand_in import hellaswag, scienceqa, write_dataset


pytestmark = pytest.mark.slow


def launch(tmp_path, module, *options, processes):
    """A harness's own command line, under torchrun (as `accelerate launch` starts them) if there are several."""
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--nproc_per_node", str(processes), "-m"]
    out = tmp_path / f"{module}{processes}"
    command += [module, *options, "--batch_size", "4", "--output_path", out, "--log_samples"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HOME": str(tmp_path / "cache")}
    environment |= {"ACCELERATE_USE_CPU": "true"}
    command = [str(word) for word in command]
    finished = subprocess.run(command, env=environment, cwd=tmp_path / "data", capture_output=True, text=True)  # noqa: S603
    assert finished.returncode == 0, finished.stderr[-3000:]
    (samples_file,) = out.rglob("*samples_*.jsonl")
    rows = [json.loads(line) for line in samples_file.read_text().splitlines()]
    return sorted((row["doc_id"], str(row["filtered_resps"])) for row in rows)  # lmms-eval: process after process


@pytest.mark.parametrize(
    ("module", "task"), [("lmms_eval", "scienceqa"), ("modeling_aligned_llava.harness.lm_eval_model", "hellaswag")]
)
def test_processes_share_the_documents(tiny_llava, tmp_path, module, task):
    """No document twice, none missing, each with its own answer; five rows on two processes."""
    write_dataset(tmp_path / "data/lmms-lab-encoder/ScienceQA", {"ScienceQA-FULL": {"test": scienceqa(5)}})
    stories = {split: hellaswag(5) for split in ("train", "validation")}
    write_dataset(tmp_path / "data/Rowan/hellaswag", {"default": stories})
    options = ["run"] if module.endswith("lm_eval_model") else []
    options += ["--model", "aligned_llava", "--tasks", task, "--model_args"]
    model, log = f"pretrained={tiny_llava},dtype=float32", tmp_path / "answers.jsonl"
    alone = launch(tmp_path, module, *options, model, processes=1)
    spread = launch(tmp_path, module, *options, f"{model},answer_log={log}", processes=2)
    assert spread == alone and [document for document, _ in spread] == list(range(5))
    assert log.exists() and Path(f"{log}.1").exists()
