"""NaN and Inf in losses, gradients and outputs of modules, at random steps of a stage, on one and on two processes."""

import functools
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from modeling_aligned_llava.errors import UserError, run_main
from tests import REPOSITORY
from tests.faults.broken_numbers import KINDS, broken_step
from tests.faults.campaign import Campaign, Case
from tests.faults.tiny import METHOD, tiny
from tests.together import kill_all
from tests.train.sharded_on_cpu import accelerate_environment, shard_on_cpu
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
TWO_PROCESSES = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "tests.faults.numbers")


def cases(seed: int) -> Iterator[Case]:
    """24 stages in this process, and one for each kind on two processes."""
    for number in range(24):
        yield Case(f"one process, {number}", functools.partial(one_process, f"{seed} {number}"))
    for kind in KINDS:
        for engine in ("ddp", "fsdp2"):
            yield Case(f"{engine}, {kind}", functools.partial(two_processes, f"{seed} {kind} {engine}", kind, engine))


def one_process(key: str, folder: Path) -> dict[str, Any]:
    """A broken step stops the run, which ends like an undisturbed one when it is started again; or it is skipped."""
    chance = random.Random(key)
    kind, step, value = chance.choice(KINDS), chance.randrange(1, STEPS + 1), chance.choice(VALUES)
    name = {"loss": "", "gradient": chance.choice(PARAMETERS), "output": chance.choice(MODULES)}[kind]
    what = f"{kind} {name} = {value} at step {step}"
    stopped, skipping = (tiny().stage2(folder / limit, max_skipped_steps=limit) for limit in "01")
    ended = folder / "0" / METHOD / "stage2"
    with broken_step(kind, {step}, name, value):
        try:
            run_stage(stopped)
        except UserError as error:
            text = str(error)
        else:
            raise AssertionError(f"{what} went unnoticed")
        pattern = rf"step {step}: not finite: the {kind}\b" + (rf".* {re.escape(name)} \(group " if name else "")
        assert re.match(pattern, text) and "\n" not in text, f"{what}: {text}"
        kept = [int(path.name.partition("-")[2]) for path in ended.glob("checkpoint-*")]
        assert max(kept, default=0) == (step - 1) // 2 * 2, f"{what}: checkpoints {kept}"
    run_stage(stopped)
    assert same_weights(straight(), ended), f"{what}: the run did not end like an undisturbed one"
    with broken_step(kind, {step}, name, value):
        run_stage(skipping)
    check_skipped(folder / "1" / METHOD / "stage2", step, name, what)
    return {"stopped": 1, "skipped": 1}


def two_processes(key: str, kind: str, engine: str, folder: Path) -> dict[str, Any]:
    """Two processes of which one sees the fault agree: both stop, or both skip the step and end alike."""
    chance = random.Random(key)
    step, process = chance.randrange(1, STEPS + 1), chance.randrange(2)
    name = {"loss": "", "gradient": chance.choice(PARAMETERS[:4]), "output": chance.choice(MODULES)}[kind]
    fault = json.dumps([kind, [step], name, math.nan, process])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    environment |= accelerate_environment(engine)
    for limit in (0, 1):
        stage = tiny().stage2(folder / str(limit), max_skipped_steps=limit)
        command = [sys.executable, *TWO_PROCESSES, fault, *stage]
        status, errors = _ended(command, environment)
        what = f"{fault} on two processes, limit {limit}: {errors[-2000:]}"
        assert (status == 0) == bool(limit), what
        if limit:
            check_skipped(folder / "1" / METHOD / "stage2", step, name, what)
        else:
            assert f"error: step {step}: not finite: the {kind}" in errors and name in errors, what
    return {"processes stopped": 2, "processes skipped": 2}


def _ended(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and standard error of a program, which is ended with all its processes if it hangs."""
    process = subprocess.Popen(  # noqa: S603
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, errors = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        kill_all(process)
        raise AssertionError(f"{command} hangs") from None
    return process.returncode, errors


@functools.cache
def straight() -> Path:
    """The folder of an undisturbed stage."""
    root = tiny().root / "straight"
    run_stage(tiny().stage2(root))
    return root / METHOD / "stage2"


def check_skipped(folder: Path, step: int, name: str, what: str) -> None:
    (line,) = map(json.loads, (folder / "skipped_steps.jsonl").read_text().splitlines())
    assert line["step"] == step and name in line["cause"], f"{what}: {line}"
    weights = load_file(folder / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values()), f"{what}: the weights are not finite"


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


CAMPAIGN = Campaign("numbers", cases)


def main() -> None:
    """`FAULT ARGUMENT ...`: a stage with a broken step, started by `two_processes`."""
    kind, steps, name, value, process = json.loads(sys.argv[1])
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpu()
    with broken_step(kind, set(steps), name, value, process):
        run_stage(sys.argv[2:])


if __name__ == "__main__":
    run_main(main)
