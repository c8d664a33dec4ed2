"""NaN in losses and gradients, at one step of a stage on two processes.

`tests/train/optimization/test_finite_steps.py` has the details.
"""

import json
import math
import os
import subprocess
import sys

import pytest

from tests import REPOSITORY
from tests.faults.conftest import METHOD
from tests.together import kill_all
from tests.train.sharded_on_cpu import accelerate_environment
from tests.train.stage_results import lines, weights


CASES = [  # kind, name, step, process that sees it, engine
    ("loss", "", 3, 1, "ddp"),
    ("gradient", "model.multi_modal_projector.norm.weight", 5, 0, "ddp"),
    ("gradient", "model.language_model.layers.0.self_attn.q_proj.weight", 2, 1, "fsdp2"),
    ("loss", "", 4, 1, "fsdp2"),
]
TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m")


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "name", "step", "process", "engine"), CASES)
def test_two_processes_of_which_one_sees_the_fault_agree(kind, name, step, process, engine, stage2, tmp_path):
    """Both stop, or both skip the step and end alike."""
    fault = json.dumps([kind, step, name, math.nan, process])
    cause = f"the gradient of {name}" if kind == "gradient" else "the loss"
    status, errors = ended(fault, engine, stage2(tmp_path / "stopped"))
    assert status and f"error: step {step}: not finite: {cause}" in errors, errors
    status, errors = ended(fault, engine, stage2(tmp_path / "skipped", max_skipped_steps=1))
    assert status == 0, errors
    stage = tmp_path / "skipped" / METHOD / "stage2"
    (line,) = lines(stage, "skipped_steps.jsonl")
    assert line["step"] == step and line["cause"].startswith(cause)
    assert all(tensor.isfinite().all() for tensor in weights(stage).values())


def ended(fault: str, engine: str, arguments: list[str]) -> tuple[int, str]:
    """Exit status and standard error of a stage on two processes, which is ended with all of them if it hangs."""
    command = [sys.executable, *TWO_PROCESSES, "tests.faults.broken_numbers", fault, *arguments]
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
