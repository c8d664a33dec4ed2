"""NaN and Inf in losses, gradients and outputs of modules, at random steps of a stage, on one and on two processes.

`tests/train/optimization/test_finite_steps.py` has the details.
"""

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests import REPOSITORY
from tests.faults.broken_numbers import KINDS, broken_step
from tests.faults.conftest import METHOD
from tests.faults.refusals import refused
from tests.faults.tiers import in_campaign
from tests.together import kill_all
from tests.train.sharded_on_cpu import accelerate_environment
from train.stage import run_stage


STEPS = 6
VALUES = (math.nan, math.inf, -math.inf)
PARAMETERS = (
    "model.multi_modal_projector.norm.weight",
    "model.multi_modal_projector.linear_2.bias",
    "model.vision_tower.encoder.layers.1.mlp.fc1.weight",
    "model.language_model.layers.0.self_attn.q_proj.weight",
    "model.language_model.embed_tokens.weight",
    "lm_head.weight",
)
MODULES = (
    "model.multi_modal_projector.norm",
    "model.multi_modal_projector.linear_1",
    "model.vision_tower.encoder.layers.0.mlp.fc2",
    "model.vision_tower.embeddings.patch_embedding",
    "model.language_model.layers.1.mlp.down_proj",
    "model.language_model.norm",
)
NAMES = {"loss": ("",), "gradient": PARAMETERS, "output": MODULES}
TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m")

CASES = [(kind, seed) for kind in KINDS for seed in range(1, 9)]


@pytest.mark.parametrize(("kind", "seed"), [("output", 0), *in_campaign(CASES)])
def test_the_run_stops_and_continues_or_skips_the_step(kind, seed, stage2, assert_undisturbed, tmp_path):
    rng = random.Random(f"{kind} {seed}")
    step, name, value = rng.randrange(1, STEPS + 1), rng.choice(NAMES[kind]), rng.choice(VALUES)
    stopped, skipped = tmp_path / "stopped", tmp_path / "skipped"
    stage = stopped / METHOD / "stage2"
    with broken_step(kind, {step}, name, value), refused(f"step {step}: not finite: {cause(kind, name)}"):
        run_stage(stage2(stopped))
    kept = [int(path.name.partition("-")[2]) for path in stage.glob("checkpoint-*")]
    assert max(kept, default=0) == (step - 1) // 2 * 2
    run_stage(stage2(stopped))
    assert_undisturbed(stage)
    with broken_step(kind, {step}, name, value):
        run_stage(stage2(skipped, max_skipped_steps=1))
    assert_skipped(skipped / METHOD / "stage2", step, cause(kind, name))


def cause(kind: str, name: str) -> str:
    """What the error says; an output that is not finite shows in the loss."""
    return f"the gradient of {name}" if kind == "gradient" else "the loss"


def assert_skipped(stage: Path, step: int, cause: str) -> None:
    (line,) = map(json.loads, (stage / "skipped_steps.jsonl").read_text().splitlines())
    assert line["step"] == step and line["cause"].startswith(cause)
    weights = load_file(stage / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_of_which_one_sees_the_fault_agree(kind, engine, stage2, tmp_path):
    """Both stop, or both skip the step and end alike."""
    rng = random.Random(f"{kind} {engine}")
    step, process = rng.randrange(1, STEPS + 1), rng.randrange(2)
    name = rng.choice({"loss": ("",), "gradient": PARAMETERS[:4], "output": MODULES}[kind])
    fault = json.dumps([kind, step, name, math.nan, process])
    stopped, skipped = tmp_path / "stopped", tmp_path / "skipped"
    status, errors = ended(fault, engine, stage2(stopped))
    assert status and f"error: step {step}: not finite: {cause(kind, name)}" in errors, errors
    status, errors = ended(fault, engine, stage2(skipped, max_skipped_steps=1))
    assert status == 0, errors
    assert_skipped(skipped / METHOD / "stage2", step, cause(kind, name))


def ended(fault: str, engine: str, arguments: list[str]) -> tuple[int, str]:
    """Exit status and standard error of a stage on two processes, which is ended with all of them if it hangs."""
    command = [sys.executable, *TWO_PROCESSES, "tests.faults.broken_stage", fault, *arguments]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | accelerate_environment(engine)
    process = subprocess.Popen(  # noqa: S603
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, errors = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        kill_all(process)
        raise
    return process.returncode, errors
