"""What a run writes besides its log: gradient ledger, layer probe and held-out loss."""

import json
import math
import sqlite3
from types import SimpleNamespace

import pytest
from transformers import TrainerState

from tests.train.stage_results import lines
from train.monitoring.log import JsonLinesFile, ProgressBar
from train.monitoring.probes import first_rows


@pytest.fixture(scope="module")
def run(train_stage, tmp_path_factory):
    """Folder of four steps of stage 2 with all measurements."""
    settings = {"eval_rows": 4, "eval_strategy": "steps", "eval_steps": 2, "warmup_steps": 0}
    return train_stage(tmp_path_factory.mktemp("run"), 2, max_steps=4, lr_scheduler_type="constant", **settings)


def test_the_ledger_splits_the_logged_gradient_norm(run):
    log = {line["step"]: line for line in lines(run, "log.jsonl") if "loss" in line}
    ledger = lines(run, "gradients.jsonl")
    assert [line["step"] for line in ledger] == [1, 2, 3, 4]
    for line in ledger:
        parts = line["parts"]
        assert parts.keys() == {"norm", "projector", "vision", "language"}
        assert line["grad_norm"] == pytest.approx(log[line["step"]]["grad_norm"], rel=1e-5)
        assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
        assert math.hypot(*(part["grad_norm"] for part in parts.values())) == pytest.approx(line["grad_norm"])
        assert line["clip_factor"] == pytest.approx(min(1, 1 / line["grad_norm"]), rel=1e-5)


def test_without_clipping_the_factor_is_one(train_stage, tmp_path):
    settings = {"max_steps": 1, "warmup_steps": 0, "lr_scheduler_type": "constant", "global_batch_size": 24}
    folder = train_stage(tmp_path, 2, max_grad_norm=0, **settings)
    (line,), (logged, *_) = lines(folder, "gradients.jsonl"), lines(folder, "log.jsonl")
    assert line["clip_factor"] == 1 and line["grad_norm"] == pytest.approx(logged["grad_norm"], rel=1e-5)


def test_probed_rows_have_images_even_where_the_data_begin_without():
    text = [{"id": number, "images": []} for number in range(500)]
    pictures = [{"id": number, "images": [b"png"]} for number in range(500, 503)]
    assert [row["id"] for row in first_rows([*text, *pictures], 2)] == [500, 501]
    assert [row["id"] for row in first_rows([*text, *pictures], 5)] == [500, 501, 502, 0, 1]


def test_probe_starts_at_the_aligned_norm_and_is_written_at_each_evaluation(run):
    probe = lines(run, "probe.jsonl")
    assert [line["step"] for line in probe] == [0, 2, 4]
    s = json.loads((run / "config.json").read_text())["text_norm"]
    for line in probe:
        assert {len(line[name]["norm"]) for name in ("text", "visual")} == {3}
        assert {len(line[name]["cosine"]) for name in ("text", "visual")} == {2}
    assert probe[0]["visual"]["norm"][0] == pytest.approx(s, rel=1e-3)
    assert probe[-1]["visual"]["norm"] != probe[0]["visual"]["norm"]
    assert [line["step"] for line in lines(run, "log.jsonl") if "eval_loss" in line] == [2, 4]


def test_a_run_that_starts_over_writes_its_lines_once(tmp_path):
    """As after a kill before the first checkpoint, when the line of step 0 is there already."""
    written = tmp_path / "probe.jsonl"
    written.write_text('{"step": 0}\n{"step": 2}\n{"st')
    start = TrainerState(is_world_process_zero=True)
    resumed = TrainerState(global_step=2, is_world_process_zero=True)
    JsonLinesFile(written).on_train_begin(None, resumed, None)
    assert written.read_text() == '{"step": 0}\n{"step": 2}\n'
    JsonLinesFile(written).on_train_begin(None, start, None)
    assert written.read_text() == ""


@pytest.mark.parametrize("step_seconds", [5, 200])
def test_a_long_step_says_how_far_it_is_where_there_is_no_terminal(step_seconds, monkeypatch, capsys):
    """Its estimate after the first micro-batch of the run, and a line every half minute."""
    clock = 0.0
    monkeypatch.setattr("train.monitoring.log.time.monotonic", lambda: clock)
    state, arguments = TrainerState(max_steps=2), SimpleNamespace(gradient_accumulation_steps=10)
    bar = ProgressBar("norm stage1")
    bar.on_train_begin(arguments, state, None)
    for micro_batch in range(1, 11):
        clock += step_seconds / 10
        if micro_batch < 10:
            bar.on_substep_end(arguments, state, None)
    state.global_step = 1
    bar.on_step_end(arguments, state, None)
    bar.on_log(arguments, state, None, {"loss": 0.5})
    parts = {5: [], 200: [(0.1, 380), (0.3, 340), (0.5, 300), (0.7, 260), (0.9, 220)]}[step_seconds]
    said = [f"norm stage1: step {step}/2, {left} s left" for step, left in parts]
    assert capsys.readouterr().out.splitlines() == [
        *said,
        f"norm stage1: step 1/2, loss 0.5000, {step_seconds} s left",
    ]


def test_trackio_gets_the_losses_without_a_network(train_stage, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TRACKIO_PROJECT", "aligned")
    train_stage(tmp_path, 2, max_steps=1, report_to="trackio", run_name="norm")
    (base,) = (tmp_path / "trackio").glob("*.db")
    assert "loss" in str(sqlite3.connect(base).execute("select metrics from metrics").fetchall())
