"""Pickles in a checkpoint and in the state of a resumed run: none of them is run."""

import io
import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.loading.checkpoint import load_strict
from tests.faults.conftest import METHOD
from tests.faults.harness import nothing_runs
from tests.one_line import one_line
from tests.train.stage_results import interrupted_after
from train.stage import run_stage


BESIDE = ("pytorch_model.bin", "training_args.bin", "model.pt", "weights.pth", "a.ckpt")


class Evil:
    """Unpickled, it calls a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def pickles(path: Path) -> list[bytes]:
    """Files that create `path` when they are unpickled: bare, and as torch writes them now and wrote them once."""
    evil = Evil(os.system, (f"touch '{path}'",))
    files = [pickle.dumps(evil, protocol) for protocol in (0, 4)]
    for new in (True, False):
        file = io.BytesIO()
        torch.save({"weight": torch.zeros(2), "state": evil}, file, _use_new_zipfile_serialization=new)
        files.append(file.getvalue())
    pickle.loads(files[0])  # noqa: S301  our own
    path.unlink()  # the trap works
    return files


def test_weights(checkpoint, tmp_path):
    """A pickle beside safetensors is not read; one in their place is refused."""
    model = shutil.copytree(checkpoint, tmp_path / "model")
    whole = model / "model.safetensors"
    for number, content in enumerate(pickles(tmp_path / "ran")):
        beside = model / BESIDE[number % len(BESIDE)]
        beside.write_bytes(content)
        with nothing_runs(tmp_path / "ran"):
            load_strict(AlignedLlavaForConditionalGeneration, model)
            whole.rename(tmp_path / "kept")
            with one_line("a pickle, .*convert them"):
                load_strict(AlignedLlavaForConditionalGeneration, model)
            with suppress(Exception):  # plain transformers reads some of them, without running them
                AutoModelForImageTextToText.from_pretrained(model)
            (tmp_path / "kept").rename(whole)
        beside.unlink()


@pytest.fixture
def interrupted(stage2, tmp_path):
    """Command line of a stage that was interrupted, and its last checkpoint."""
    with interrupted_after(5):
        run_stage(stage2(tmp_path))
    return stage2(tmp_path), tmp_path / METHOD / "stage2" / "checkpoint-4"


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_the_state_of_a_resumed_run(name, interrupted, tmp_path):
    command, last = interrupted
    for evil in pickles(tmp_path / "ran"):
        (last / name).write_bytes(evil)
        with nothing_runs(tmp_path / "ran"), one_line(f"{last.name}.*would run code"):
            run_stage(command)


@pytest.mark.slow
@pytest.mark.campaign
def test_arguments_of_a_resumed_run_are_not_read(interrupted, tmp_path):
    command, last = interrupted
    (last / "training_args.bin").write_bytes(pickles(tmp_path / "ran")[0])
    with nothing_runs(tmp_path / "ran"):
        run_stage(command)
