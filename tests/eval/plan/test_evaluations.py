"""What is done, done again, and left alone, without running anything: results are written as a worker writes them."""

import json
from dataclasses import replace

import pytest

from eval.data.benchmarks import BENCHMARKS
from eval.options import Options, parse_suite
from eval.plan.evaluations import plan_evaluations
from eval.plan.models import read_models
from eval.score.items import Items
from eval.score.results import collect, describe_run, write_results
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.device import resolve_dtype
from modeling_aligned_llava.loading.files import read_json, write_json


@pytest.fixture
def planned(tmp_path, tiny_llava, mirror_root):
    """`planned(*words)` -> the options, models and jobs of a run in `tmp_path`."""

    def plan(*words):
        command = ["--run", tmp_path, "--data", mirror_root, "--models", f"baseline={tiny_llava}", *words]
        args = parse_suite([str(word) for word in command])
        options, models = Options.of(args), read_models(args.models, args.backbone, args.seed)
        return options, models, plan_evaluations(options, models)

    return plan


MACHINE = {"versions": {"trl": "1.0"}, "code": "abc", "hardware": {"cpu": "a CPU", "gpus": []}}


def finish(jobs, made_by=MACHINE):
    for job in jobs:
        for task in job.tasks:
            items = Items()
            items.add("0", 1.0)
            items.add("1", 0.0)
            result = {"score": 50.0, "rows": task.rows, "unparseable": 0.0, "items": vars(items)}
            result |= {"answer_tokens": 128 if task.key == "pope" else None, "made_by": made_by}
            write_json(job.result(task.key), {"inputs": job.inputs(task), "status": "ok", "reason": None} | result)


def described(options, models, jobs):
    return describe_run(options, models, jobs, collect(models, jobs))


def test_scores_of_a_part_keep_the_others(planned, tmp_path):
    options, models, jobs = planned()
    finish(jobs)
    write_results(options, models, jobs, "baseline")
    before = read_json(tmp_path / "scores.json")
    settings = described(options, models, jobs)
    assert any("llava_hf" in sentence for sentence in settings["models"]["baseline"]["deviations"])

    options, models, jobs = planned("--tasks", "pope")
    write_results(options, models, jobs, "baseline")
    assert read_json(tmp_path / "scores.json") == before
    scored = {row["benchmark"] for row in before if row["status"] == "ok" and row["source"] == "measured"}
    assert scored == {benchmark.key for benchmark in BENCHMARKS} | {"avg"}
    assert described(options, models, jobs) == settings


def test_an_outdated_result_is_not_one_that_nobody_asked_for(planned, tmp_path):
    _, _, jobs = planned("--tasks", "pope", "ai2d", "hellaswag_acc")
    finish([replace(job, batch_size=1) for job in jobs])
    options, models, jobs = planned("--tasks", "pope")
    finish(jobs)
    write_results(options, models, jobs, "baseline")
    rows = {row["benchmark"]: row for row in read_json(tmp_path / "scores.json") if row["source"] == "measured"}
    outdated = "its result is outdated (batch_size 1 -> 64); evaluate it again"
    assert rows["pope"]["status"] == "ok"
    assert [rows[key]["reason"] for key in ("ai2d", "hellaswag_acc", "mmlu")] == [outdated, outdated, "not asked for"]


def test_the_record_names_what_made_the_results(planned, tmp_path):
    _, _, jobs = planned("--tasks", "pope", "ai2d")
    finish(jobs)
    record = described(*planned())
    assert {name: record[name] for name in MACHINE} == MACHINE
    finish(planned("--tasks", "ai2d")[2], MACHINE | {"code": "def", "versions": {"trl": "1.1"}})
    record = described(*planned())
    assert record["code"] == "abc and def" and record["versions"] == {"trl": "1.0 and 1.1"}
    assert record["hardware"] == MACHINE["hardware"]


def test_the_record_says_how_long_answers_may_be(planned):
    """POPE asks for 128 tokens; where a task leaves it open, a LLaVA of lmms-eval gets 1,024."""
    for options, lengths in (((), (128, 1024)), (("--max-new-tokens", "200"), (128, 200))):
        finish(planned("--tasks", "pope", "mmstar", "mmlu", *options)[2])
        model = described(*planned(*options))["models"]["baseline"]
        assert model["answer_tokens"] == dict(zip(("pope", "mmstar"), lengths, strict=True))


def test_a_trial_touches_nothing_of_the_run(planned, tmp_path):
    _, _, jobs = planned()
    finish(jobs)
    args, models, trial = planned("--limit", "1")
    finish(trial)
    write_results(args, models, trial, "baseline")
    assert all(job.is_finished(task) for job in jobs for task in job.tasks)
    assert not (tmp_path / "scores.json").exists()
    assert {row.get("limit") for row in read_json(tmp_path / "limit-1/scores.json")} == {1, None}


def test_what_has_changed_is_named(planned):
    _, _, (job, _) = planned("--tasks", "pope")
    (task,) = job.tasks
    earlier = json.loads(json.dumps(job.inputs(task)))
    assert job.changes(task, earlier) == []
    earlier["scoring code"] = "0"
    earlier["producer"]["transformers"] = "5.0"
    earlier["producer"]["code"] = earlier["weights"] = "0"
    earlier["dtype"] = "bfloat16"
    version = f"transformers 5.0 -> {job.producer['transformers']}"
    others = {"other code", "other scoring code", "other weights"}
    assert set(job.changes(task, earlier)) == others | {"dtype bfloat16 -> float32", version}
    finish([job])
    assert job.is_finished(task) and not replace(job, dtype="bfloat16").is_finished(task)


@pytest.fixture
def vllm(tmp_path):
    """The same program in two folders."""
    programs = [tmp_path / "one/vllm", tmp_path / "two/vllm"]
    for program in programs:
        program.parent.mkdir()
        program.touch(0o700)
    return programs


def test_results_of_one_engine_are_not_those_of_another(planned, vllm):
    _, _, (plain, _) = planned("--tasks", "pope")
    (job, _), (moved, _), (other, _) = (
        planned("--tasks", "pope", "--engine", engine)[2] for engine in (*vllm, f"{vllm[0]} --seed 1")
    )
    (task,) = job.tasks
    assert job.inputs(task) == moved.inputs(task)
    assert job.changes(task, plain.inputs(task)) == ["engine transformers -> vllm"]
    assert other.changes(task, job.inputs(task)) == ["engine vllm -> vllm --seed 1"]


def test_an_engine_that_is_not_there_is_one_line(planned):
    with pytest.raises(UserError, match="--engine nowhere: no program nowhere"):
        planned("--engine", "nowhere")


def test_vllm_runs_the_code_of_a_folder_when_told_alone(planned, vllm, tiny_checkpoint):
    ours = f"norm={tiny_checkpoint('norm')}"
    planned("--models", ours)
    with pytest.raises(UserError, match="then add --trust-remote-code"):
        planned("--models", ours, "--engine", vllm[0])
    planned("--models", ours, "--engine", vllm[0], "--trust-remote-code")


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
