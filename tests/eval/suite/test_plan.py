"""What is done, done again, and left alone, without running anything: results are written as a worker writes them."""

import json

import pytest

from eval.data.benchmarks import BENCHMARKS
from eval.run.device import resolve_dtype
from eval.run.files import read_json, write_json
from eval.scoring.items import Items
from eval.suite import plan as suite
from eval.suite.runner import is_finished


@pytest.fixture
def planned(tmp_path, tiny_llava, mirror_root):
    """`planned(*options)` -> the arguments, models and jobs of a run in `tmp_path`."""

    def plan(*options):
        command = ["--run", tmp_path, "--data", mirror_root, "--models", f"baseline={tiny_llava}", *options]
        args = suite.parser().parse_args([str(word) for word in command])
        return args, *suite.plan(args, suite.folder_of(args))

    return plan


def finish(jobs):
    for job in jobs:
        for task in job.tasks:
            items = Items()
            items.add("0", 1.0)
            items.add("1", 0.0)
            result = {"score": 50.0, "rows": task.rows, "unparseable": 0.0, "items": vars(items)}
            write_json(job.result(task.key), {"inputs": job.inputs(task), "status": "ok", "reason": None} | result)


def test_scores_of_a_part_keep_the_others(planned, tmp_path):
    args, models, jobs = planned()
    finish(jobs)
    suite.write_scores(args, models, jobs, "baseline")
    before = read_json(tmp_path / "scores.json")
    settings = suite.describe_run(args, models, jobs)
    assert any("llava_hf" in sentence for sentence in settings["models"]["baseline"]["deviations"])

    args, models, jobs = planned("--tasks", "pope")
    suite.write_scores(args, models, jobs, "baseline")
    assert read_json(tmp_path / "scores.json") == before
    assert {row["benchmark"] for row in before if row["status"] == "ok" and row["source"] == "measured"} == (
        {benchmark.key for benchmark in BENCHMARKS} | {"avg"}
    )
    assert suite.describe_run(args, models, jobs) == settings


def test_a_trial_touches_nothing_of_the_run(planned, tmp_path):
    _, _, jobs = planned()
    finish(jobs)
    args, models, trial = planned("--limit", "1")
    finish(trial)
    suite.write_scores(args, models, trial, "baseline")
    assert all(is_finished(job, task) for job in jobs for task in job.tasks)
    assert not (tmp_path / "scores.json").exists()
    assert {row.get("limit") for row in read_json(tmp_path / "limit-1/scores.json")} == {1, None}


def test_what_has_changed_is_named(planned, monkeypatch):
    _, _, (job, _) = planned("--tasks", "pope")
    (task,) = job.tasks
    earlier = json.loads(json.dumps(job.inputs(task)))
    assert job.changes(task, earlier) == []
    earlier["producer"]["transformers"] = "5.0"
    earlier["producer"]["code"] = earlier["weights"] = "0"
    earlier["dtype"] = "bfloat16"
    version = job.producer["transformers"]
    assert job.changes(task, earlier) == [
        "other code",
        "dtype bfloat16 -> float32",
        f"transformers 5.0 -> {version}",
        "other weights",
    ]


def test_all_models_of_a_run_have_one_precision(planned, monkeypatch):
    assert {job.dtype for job in planned()[2]} == {"float32"}
    assert {job.dtype for job in planned("--dtype", "bfloat16")[2]} == {"bfloat16"}
    assert resolve_dtype("auto", "cuda:1") == "bfloat16" and resolve_dtype("float32", "cuda") == "float32"


def test_weights_are_read_once(planned, monkeypatch, tmp_path):
    from modeling_aligned_llava.loading import fingerprint

    monkeypatch.setattr(fingerprint, "HF_HOME", tmp_path / "home")
    monkeypatch.setattr(fingerprint, "SETTLED", -1)
    calls = []
    monkeypatch.setattr(fingerprint, "hash_files", lambda *args: calls.append(None) or "digest")
    assert [job.weights for _ in range(2) for job in planned()[2]] == ["digest"] * 4 and len(calls) == 1
