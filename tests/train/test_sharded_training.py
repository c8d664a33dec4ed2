"""Only the global batch determines a step: micro-batches of one process, then two and four processes under DDP, FSDP2
and ZeRO, which run `train.sft` itself and resume.

With one row per micro-batch and a third of the rows without an image, processes often differ in whether they have one.
`global_batch.json` holds loss and gradient norm of six steps of stage 2. After a change that is meant to change
training, write it again with `WRITE_REFERENCE=1 python -m pytest -k accumulation tests/train/test_sharded_training.py`
"""

import json
import os
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers.integrations import is_deepspeed_available

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests import REPOSITORY
from tests.together import kill_all
from tests.train.optimization.test_lora import lora_arguments
from tests.train.optimization.test_precision import NORM
from tests.train.sharded_on_cpu import accelerate_environment
from tests.train.stage_results import lines, weights
from train.stage import run_stage


REFERENCE = Path(__file__).with_name("global_batch.json")
TOLERANCE = 2e-4  # relative: float32 sums in another order, over six steps of Adam, on any machine
ENGINES = ["ddp", "fsdp2", "zero2", "zero3"]


def started(engine, processes, arguments):
    """The command line and environment of a run."""
    if engine.startswith("zero") and not is_deepspeed_available():
        pytest.skip("needs deepspeed")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    env = {**os.environ, **accelerate_environment(engine), "PYTHONPATH": str(REPOSITORY)}
    return {"args": [*launcher, "-m", "tests.train.sharded_on_cpu", *arguments], "env": env}


def train(engine, processes, arguments):
    done = subprocess.run(**started(engine, processes, arguments), timeout=900, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-14000:]
    return done.stdout


def kill_after_checkpoint(engine, processes, arguments, folder):
    """Start training and kill every process once a checkpoint is complete."""
    process = subprocess.Popen(**started(engine, processes, arguments), start_new_session=True)
    deadline = time.monotonic() + 600
    while not list(folder.glob("checkpoint-*/checkpoint_complete.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    kill_all(process)
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
    log = [line for line in lines(root / "norm-gwc" / f"stage{stage}") if "loss" in line]
    return [[line[name] for line in log] for name in ("loss", "grad_norm")]


def reference(arguments, root, stage):
    """Losses and gradient norms of one process in float32: a run of stage 1, the recorded ones of stage 2."""
    if stage == 1:
        run_stage(arguments(1, root))
        return stage_trajectory(root, 1)
    recorded = json.loads(REFERENCE.read_text())
    return recorded["loss"], recorded["grad_norm"]


def assert_same_trajectory(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=TOLERANCE)


def clip_factors(root):
    """Those of the four parts, step after step."""
    steps = [line["parts"] for line in lines(root / "norm-gwc" / "stage2", "gradients.jsonl")]
    assert len(steps) == 6
    return [parts[part]["clip_factor"] for parts in steps for part in ("norm", "projector", "vision", "language")]


def weights_of(root, stage=2):
    return weights(root / "norm-gwc" / f"stage{stage}")


def assert_close_weights(one, other):
    """Up to float32 sums in another order, after which Adam may move a weight without a gradient either way."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if name.endswith("k_proj.bias"):
            continue  # softmax ignores it: its gradient is rounding noise, and Adam follows it
        distance = torch.linalg.vector_norm(other[name] - tensor)
        assert distance <= 1e-2 * torch.linalg.vector_norm(tensor), name


def campaign(*values):
    return pytest.param(*values, marks=pytest.mark.campaign)


@pytest.mark.parametrize("rows", [16, 4, 1])
def test_accumulation_does_not_change_the_trajectory(arguments, tmp_path, rows):
    run_stage(arguments(2, tmp_path, per_device_train_batch_size=rows))
    found = stage_trajectory(tmp_path, 2)
    if rows == 16 and "WRITE_REFERENCE" in os.environ:
        REFERENCE.write_text(json.dumps(dict(zip(("loss", "grad_norm"), found, strict=True)), indent=2) + "\n")
    assert_same_trajectory(found, reference(arguments, tmp_path, 2))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_processes_that_cut_a_step_by_tokens_train_like_one(arguments, tmp_path, engine):
    given = {"train_sampling_strategy": "sequential", "per_device_train_batch_size": 0, "micro_batch_tokens": 200}
    run_stage(arguments(2, tmp_path / "one", **given))
    said = train(engine, 2, arguments(2, tmp_path / "two", **given))
    assert re.search(r"in 2 processes x [1-9] micro-batches of at most 200 tokens", said)
    assert_same_trajectory(stage_trajectory(tmp_path / "two", 2), stage_trajectory(tmp_path / "one", 2))
    assert_close_weights(weights_of(tmp_path / "two"), weights_of(tmp_path / "one"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "processes", "rows"),
    [
        ("ddp", 2, 1),
        ("fsdp2", 2, 1),
        campaign("ddp", 2, 8),
        *(campaign(*case, 1) for case in product(ENGINES, (2, 4)) if case not in (("ddp", 2), ("fsdp2", 2))),
    ],
)
def test_stage_2_follows_the_recorded_trajectory(arguments, tmp_path, engine, processes, rows):
    train(engine, processes, arguments(2, tmp_path, per_device_train_batch_size=rows))
    assert_same_trajectory(stage_trajectory(tmp_path, 2), reference(arguments, tmp_path, 2))
    folder = tmp_path / "norm-gwc" / "stage2"
    loaded = AlignedLlavaForConditionalGeneration.from_pretrained(folder)
    assert loaded.dtype == torch.float32
    auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
    assert auto_map["AutoModelForImageTextToText"] == f"modeling_aligned_llava.{type(loaded).__name__}"
    assert not list(folder.glob("_fsdp*")), "code of the wrapper was saved beside the model"


WITHOUT_IMAGES = {"prompt_format": "chat"}  # in some rows
UNCLIPPED = {"max_grad_norm": 0, "gradient_checkpointing": "true"}
BY_PART = {"clip_by_part": "true", "max_grad_norm": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "processes", "stage", "decoder", "settings"),
    [
        ("fsdp2", 2, 1, "qwen2", WITHOUT_IMAGES),
        ("fsdp2", 2, 2, "qwen2", BY_PART),
        *(campaign(engine, processes, 1, "qwen2", {}) for engine in ENGINES for processes in (2, 4)),
        *(campaign(engine, 2, 1, "qwen2", WITHOUT_IMAGES) for engine in ("ddp", "zero2", "zero3")),
        *(campaign(engine, 2, 2, "llama", {}) for engine in ENGINES),  # a tied head
        *(campaign(engine, 2, stage, "qwen2", UNCLIPPED) for engine in ENGINES for stage in (1, 2)),
        campaign("ddp", 2, 2, "qwen2", BY_PART),
    ],
)
def test_several_processes_follow_one(arguments, tiny_data, tmp_path, engine, processes, stage, decoder, settings):
    if settings is WITHOUT_IMAGES:
        settings = {**settings, "data_path": tiny_data / "stage2.json"}
    run_stage(arguments(stage, tmp_path / "one", decoder, **settings))
    train(engine, processes, arguments(stage, tmp_path / "sharded", decoder, **settings))
    assert_same_trajectory(*(stage_trajectory(tmp_path / name, stage) for name in ("sharded", "one")))
    assert_close_weights(weights_of(tmp_path / "one", stage), weights_of(tmp_path / "sharded", stage))
    if settings is BY_PART:
        one, sharded = clip_factors(tmp_path / "one"), clip_factors(tmp_path / "sharded")
        assert sharded == pytest.approx(one, rel=TOLERANCE)
        assert len({factor for factor in one if factor < 1}) > 6, "several parts of a step are clipped"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "bf16"),
    [("fsdp2", "false"), campaign("fsdp2", "true"), *(campaign(e, "false") for e in ("ddp", "zero2"))],
)
def test_merged_adapters_are_those_of_one_process(stage_arguments, tiny_checkpoint, tmp_path, engine, bf16):
    start = tiny_checkpoint("norm-gwc")
    settings = {"max_steps": 2, "save_dtype": "float32", "dataloader_drop_last": "true"}

    def arguments(name):
        return lora_arguments(stage_arguments, tmp_path / name, start, **settings, bf16=bf16)

    run_stage(arguments("one"))
    train(engine, 2, arguments("sharded"))
    before, one, sharded = weights(start), weights_of(tmp_path / "one"), weights_of(tmp_path / "sharded")
    adapted = [name for name in before if re.search(r"language_model.*\.[qv]_proj\.weight", name)]
    assert len(adapted) == 4
    for name in adapted:
        base = before[name] if bf16 == "false" else before[name].bfloat16().float()
        change = torch.linalg.vector_norm(one[name] - base)
        assert torch.linalg.vector_norm(sharded[name] - one[name]) <= 0.05 * change, name
    assert_close_weights(one, sharded)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "engine", "before", "after"),
    [
        (2, "fsdp2", 2, 4),
        campaign(2, "fsdp2", 4, 2),
        *(campaign(2, e, 2, n) for e in ("ddp", "zero2", "zero3") for n in (2, 4)),
        campaign(1, "fsdp2", 2, 4),
        *(campaign(1, "ddp", 2, n) for n in (2, 4)),
    ],
)
def test_a_killed_run_resumes_on_another_number_of_processes(arguments, tmp_path, stage, engine, before, after):
    given = arguments(stage, tmp_path / "sharded", save_steps=2)
    folder = tmp_path / "sharded" / "norm-gwc" / f"stage{stage}"
    kill_after_checkpoint(engine, before, given, folder)
    if engine.startswith("zero") and before != after:
        done = subprocess.run(**started(engine, after, given), timeout=900, capture_output=True, text=True)
        assert done.returncode != 0 and "was written by 2 processes, and DeepSpeed resumes on the same" in done.stderr
        after = before
    said = train(engine, after, given)
    assert f"resuming from {folder}/checkpoint-" in said and "step 1/6" not in said
    found = stage_trajectory(tmp_path / "sharded", stage)
    assert_same_trajectory(found, reference(arguments, tmp_path / "one", stage))


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stage", [1, 2])
def test_bfloat16_stays_close_to_float32(arguments, tmp_path, engine, stage):
    train(engine, 2, [*arguments(stage, tmp_path / "sharded"), "--bf16", "true"])
    losses, norms = reference(arguments, tmp_path / "one", stage)
    found, found_norms = stage_trajectory(tmp_path / "sharded", stage)
    assert found == pytest.approx(losses, rel=2e-3) and found != losses
    assert found_norms == pytest.approx(norms, rel=2e-2)
    saved = weights_of(tmp_path / "sharded", stage).items()
    assert {name for name, tensor in saved if tensor.dtype == torch.float32} == NORM
