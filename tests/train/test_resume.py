"""Resuming: an interrupted run ends with the same weights as an uninterrupted one; a finished stage is left alone."""

import errno
import json
import os
import shutil
import threading
import time
from unittest.mock import patch

import pytest
import torch

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import lock_for
from tests.train.stage_results import assert_same_weights, interrupted_after, lines
from train import sft
from train.data.quarantine import read_entries
from train.monitoring.log import LossLog
from train.optimization import trainer
from train.optimization.trainer import AlignedSFTTrainer
from train.stage import run_stage


class Killed(BaseException):
    """Simulates a SIGKILL: nothing catches it."""


@pytest.mark.parametrize(("stage", "step", "torn"), [(1, 5, False), (2, 3, False), (2, 6, True)])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    straight, stage_arguments, tmp_path, monkeypatch, stage, step, torn
):
    start = {} if stage == 1 else {"model_name_or_path": straight / "stage1"}
    arguments = stage_arguments(stage, "norm-gwc", tmp_path, **start)
    folder = tmp_path / "norm-gwc" / f"stage{stage}"

    # torn: killed while the checkpoint is being written
    owner, name = (AlignedSFTTrainer, "_save_rng_state") if torn else (LossLog, "on_step_end")
    original = getattr(owner, name)

    def kill_at_step(self, *given, **named):
        state = self.state if torn else given[1]
        if state.global_step == step:
            raise Killed
        return original(self, *given, **named)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, kill_at_step)
        run_stage(arguments)
    assert (folder / f"checkpoint-{step}").exists() == torn
    run_stage(arguments)
    assert_same_weights(folder, straight / f"stage{stage}")
    assert lines(folder) == lines(straight / f"stage{stage}")


def test_a_run_killed_before_the_final_save_only_saves(stage_arguments, tmp_path):
    settings = {"max_steps": 5, "lr_scheduler_type": "constant"}  # ends within an epoch
    straight, folder = (tmp_path / name / "norm-gwc" / "stage1" for name in ("straight", "killed"))
    run_stage(stage_arguments(1, "norm-gwc", tmp_path / "straight", **settings))
    arguments = stage_arguments(1, "norm-gwc", tmp_path / "killed", **settings)
    with patch("train.stage._save", side_effect=Killed), pytest.raises(Killed):
        run_stage(arguments)
    assert (folder / "checkpoint-5").exists()
    run_stage(arguments)
    assert_same_weights(folder, straight)
    assert lines(folder) == lines(straight)
    assert json.loads((folder / "training_complete.json").read_text())["steps"] == 5


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_finished_stage_is_skipped_and_other_settings_are_refused(
    straight, stage_arguments, call, monkeypatch, capsys
):
    before = times(straight / "stage2")
    arguments = stage_arguments(2, "norm-gwc", straight.parent)
    monkeypatch.setattr("train.stage.run_stage", lambda argv: pytest.fail("started"))
    call(sft.main, *arguments)
    assert "stage2: already done" in capsys.readouterr().out
    assert times(straight / "stage2") == before
    with pytest.raises(UserError, match=r"was started with other settings .max_steps was 6, is 7.: remove it"):
        run_stage([*arguments, "--max_steps", "7"])


def test_a_second_run_waits_for_the_first_and_finds_the_stage_finished(straight, stage_arguments, capsys):
    folder = straight / "stage2"
    before = times(folder)
    held = threading.Event()

    def other_run():
        with lock_for(folder):
            held.set()
            time.sleep(0.5)

    threading.Thread(target=other_run).start()
    held.wait()
    run_stage(stage_arguments(2, "norm-gwc", straight.parent))
    said = capsys.readouterr().out.splitlines()
    assert said == [f"another run trains in {folder}; waiting for it", f"{folder}: already done"]
    assert times(folder) == before


def test_a_run_out_of_memory_goes_on_with_smaller_micro_batches(straight, stage_arguments, tmp_path, monkeypatch):
    arguments = stage_arguments(2, "norm-gwc", tmp_path, model_name_or_path=straight / "stage1")
    step = AlignedSFTTrainer.training_step

    def out_of_memory(self, *args):
        if self.state.global_step == 3:
            raise torch.OutOfMemoryError
        return step(self, *args)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="step 4 ran out of memory"):
        patch.setattr(AlignedSFTTrainer, "training_step", out_of_memory)
        run_stage(arguments)
    smaller = ["--per_device_train_batch_size", "1", "--gradient_checkpointing", "true", "--logging_steps", "2"]
    run_stage([*arguments, *smaller, "--dataloader_num_workers", "1", "--ddp_timeout", "3600"])
    one, two, *rest = (line["loss"] for line in lines(straight / "stage2"))
    expected = [one, two, (rest[0] + rest[1]) / 2, (rest[2] + rest[3]) / 2]  # it resumes after step 2
    found = [line["loss"] for line in lines(tmp_path / "norm-gwc" / "stage2")]
    assert found == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("moment", ["weights", "marker"])
def test_a_full_disk_costs_no_complete_checkpoint(straight, stage_arguments, tmp_path, monkeypatch, moment):
    start = {"model_name_or_path": straight / "stage1", "save_total_limit": 1}
    arguments, folder = stage_arguments(2, "norm-gwc", tmp_path, **start), tmp_path / "norm-gwc" / "stage2"
    name, owner = {"weights": ("_save", AlignedSFTTrainer), "marker": ("write_json", trainer)}[moment]
    write = getattr(owner, name)

    def full(*given, **named):
        if "checkpoint-4" in str(given):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*given, **named)

    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"checkpoint-4: no space left on its disk"):
        patch.setattr(owner, name, full)
        run_stage(arguments)
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    run_stage(arguments)
    assert_same_weights(folder, straight / "stage2")


def test_failing_images_are_replaced_by_the_same_rows_after_a_restart(straight, stage_arguments, tiny_data, tmp_path):
    """Two epochs, in which the same rows fail and are replaced."""
    images = tmp_path / "images"
    shutil.copytree(tiny_data / "images", images)
    for damaged in ("1.png", "4.png", "14.png", "20.png"):
        (images / damaged).write_bytes(b"damaged")

    def arguments(name, **settings):
        start = {"model_name_or_path": straight / "stage1", "image_folder": images, **settings}
        return stage_arguments(2, "norm-gwc", tmp_path / name, bad_rows_limit=0.5, **start)

    run_stage(arguments("straight"))
    with interrupted_after(4):
        run_stage(arguments("stopped"))
    run_stage(arguments("stopped", dataloader_num_workers=2))
    one, other = (tmp_path / name / "norm-gwc" / "stage2" for name in ("straight", "stopped"))
    assert_same_weights(other, one)
    for folder in (one, other):
        entries = read_entries(folder / "quarantine.jsonl")
        assert sorted(entry.row for entry in entries) == [1, 4, 14, 20] and {e.when for e in entries} == {"training"}


def test_other_rows_are_not_continued_on(stage_arguments, tiny_data, tmp_path):
    """Edited text, another weight; the same rows in another place, or in a file that was written again, go on."""
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data, ignore=shutil.ignore_patterns("cache"))
    (data / "mix.yaml").write_text(f"- path: {data}/stage1.json\n")
    settings = {"data_path": data / "mix.yaml", "image_folder": data / "images", "max_steps": 3, "save_steps": 1}
    settings |= {"eval_rows": 4, "eval_strategy": "epoch"}

    def start(cache):
        run_stage(stage_arguments(1, "norm", tmp_path, **settings, data_cache=tmp_path / cache))

    with interrupted_after(2):
        start("cache")
    text = (data / "stage1.json").read_text()
    for file, content in (
        ("stage1.json", text.replace("shade 3", "shade 4")),
        ("mix.yaml", f"- {{path: {data}/stage1.json, weight: 2}}"),
    ):
        before = (data / file).read_text()
        (data / file).write_text(content)
        with pytest.raises(UserError, match=r"mix\.yaml gives other rows than when .* was started"):
            start("cache")
        (data / file).write_text(before)
    start("elsewhere")
    assert (tmp_path / "norm" / "stage1" / "training_complete.json").exists()


@pytest.mark.parametrize(
    ("name", "share"), [("model.safetensors", 0.5), ("optimizer.pt", 0.5), ("scheduler.pt", 0.5), ("rng_state.pth", 0)]
)
def test_a_checkpoint_cut_short_is_one_line(straight, stage_arguments, tmp_path, name, share):
    arguments = stage_arguments(2, "norm-gwc", tmp_path, model_name_or_path=straight / "stage1")
    with interrupted_after(3):
        run_stage(arguments)
    cut = tmp_path / "norm-gwc" / "stage2" / "checkpoint-2" / name
    os.truncate(cut, int(cut.stat().st_size * share))
    with pytest.raises(UserError, match=r"checkpoint-2: its training state is damaged .*; remove this folder"):
        run_stage(arguments)
