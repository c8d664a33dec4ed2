"""The preflight: what it says of a set-up that can run, and that it catches those that cannot."""

import io
import re
import shutil

import pytest
import torch
from rich.console import Console

from modeling_aligned_llava.loading.files import write_json
from tests.train.conftest import CONFIGURATION
from train.preflight import TIMED, main, preflight


@pytest.fixture
def check(stage_arguments, tiny_checkpoint, tmp_path):
    """`check(stage, *options, **settings)` -> whether the stage can run, and the printed text."""

    def run(stage, *options, **settings):
        if stage == 2:
            settings = {"model_name_or_path": tiny_checkpoint("norm-gwc"), **settings}
        console = Console(width=500, record=True, file=io.StringIO())
        ok = preflight([*stage_arguments(stage, "norm-gwc", tmp_path / "run", **settings), *options], console)
        return ok, console.export_text()

    return run


@pytest.mark.parametrize("stage", [1, 2])
def test_a_sound_set_up_passes_with_its_figures(check, stage, tmp_path):
    ok, text = check(stage)
    assert ok and "cannot run" not in text
    for name in ("rows", "template", "step", "memory per device", "disk"):
        assert name in text
    assert torch.cuda.is_available() or "hours on this CPU" in text
    assert not (tmp_path / "run").exists(), "it only looks"


@pytest.mark.parametrize("begun", [False, True])
def test_stage_2_is_checked_before_stage_1_has_ended(check, tiny_backbones, tmp_path, begun):
    if begun:
        (tmp_path / "later" / "checkpoint-50").mkdir(parents=True)
    towers = ["--vision_tower", str(tiny_backbones.vision), "--language_model", str(tiny_backbones.qwen2)]
    ok, text = check(2, "--stage1", str(CONFIGURATION / "stage1.yaml"), *towers, model_name_or_path=tmp_path / "later")
    assert ok, text


@pytest.mark.slow
def test_two_steps_are_timed_where_asked(check, tmp_path):
    ok, text = check(2, "--measure")
    assert ok and re.search(r"measured .* [\d.]+ s a step, 0\.0 hours for 6 steps", text), text
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_timed_run_saves_nothing(stage_arguments, tiny_checkpoint, tmp_path, monkeypatch, call):
    settings = {"model_name_or_path": tiny_checkpoint("norm-gwc"), "max_steps": 3, "save_strategy": "no"}
    arguments = stage_arguments(2, "norm-gwc", tmp_path, **settings, eval_rows=4, eval_strategy="epoch")
    with pytest.raises(SystemExit) as ended:
        call(main, TIMED, *arguments)
    assert ended.value.code is None
    left = {path.name for path in (tmp_path / "norm-gwc" / "stage2").iterdir()}
    assert left >= {"log.jsonl", "settings.json"} and not any("model" in name or "final" in name for name in left)


BROKEN = {
    "no data": ({"data_path": "nowhere.json"}, [], "there is no file"),
    "no checkpoint": ({"model_name_or_path": "nowhere"}, [], "no checkpoint in nowhere"),
    "too few rows": ({"global_batch_size": 64}, [], "24 rows are fewer than one global batch of 64"),
    "no images": ({"image_folder": "."}, [], "there is no image file"),
    "indivisible batch": ({}, ["--processes", "3"], "not a multiple"),
    "rows too long": ({"max_length": 5}, [], "none of the first 24 rows can be used"),
    "too little memory": ({}, ["--device-gb", "0.001"], "do not fit into"),
    "too many at a time": ({}, ["--device-gb", "8", "--side-by-side", "8"], "do not fit into"),
    "a rate that matches nothing": ({"learning_rates": '{"nothing": 1e-3}'}, [], "must match one of"),
    "two rates for one weight": ({"learning_rates": '{"": 1e-3, "lm_head": 1e-3}'}, [], "must match one of"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_up_is_caught(check, name):
    settings, options, reason = BROKEN[name]
    ok, text = check(2, *options, **settings)
    assert not ok and reason in text.partition("cannot run: ")[2]


def test_several_faults_are_reported_at_once(check, tmp_path, monkeypatch):
    """A folder that was started with other settings, a full disk, and no data."""
    write_json(tmp_path / "run" / "norm-gwc" / "stage2" / "settings.json", {"max_steps": "5"})
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(1000, 900, 100))
    ok, text = check(2, data_path="nowhere.json")
    assert not ok and text.count("cannot run: ") == 3
    assert "was started with other settings" in text and "there is no file" in text
    assert "free in" in text and "or choose another disk" in text
