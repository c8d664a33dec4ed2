"""Where workers run and what they are given; the live table. No worker is started."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from eval.data.benchmarks import BY_KEY
from eval.suite import runner
from eval.suite.job import Job, Task
from eval.suite.status import Status
from eval.suite.worker import enter_workspace


def job(name, **rows):
    return Job(
        name=name,
        multimodal=True,
        checkpoint="",
        weights="",
        harness="lmms-eval",
        tasks=[Task(key, count, "") for key, count in rows.items()],
        root="",
        output="",
        answers="answers",
        cache="",
        batch_size=1,
        max_new_tokens=None,
        dtype="auto",
        device="auto",
        blank_images=False,
        trust_remote_code=False,
    )


def test_every_gpu_has_a_worker(monkeypatch):
    monkeypatch.setattr(runner.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(runner.torch.cuda, "device_count", lambda: 3)
    assert runner.places(None, "auto") == ["0", "1", "2"]
    assert runner.places(4, "cuda") == ["0", "1", "2", "0"]
    assert runner.places(None, "cpu") == [None, None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-8f2e, MIG-1a")
    assert runner.places(4, "auto") == ["4", "GPU-8f2e", "MIG-1a", "4"]
    monkeypatch.setattr(runner.torch.cuda, "is_available", lambda: False)
    assert runner.places(1, "auto") == [None]


def test_tasks_are_spread_over_idle_gpus_longest_first():
    jobs = [job("a", pope=10, ai2d=30), job("b", pope=20)]
    assert runner.spread(jobs, ["0", "1"]) == jobs
    assert runner.spread(jobs, [None] * 8) == jobs
    spread = runner.spread(jobs, ["0", "1", "2"])
    assert [(each.name, [task.key for task in each.tasks]) for each in spread] == [
        ("a", ["ai2d"]),
        ("b", ["pope"]),
        ("a", ["pope"]),
    ]
    logs = {each.answer_log(each.tasks[0].key) for each in spread}
    assert logs == {str(Path("answers") / name) for name in ("a.ai2d.jsonl", "b.pope.jsonl", "a.pope.jsonl")}


def test_benchmarks_of_one_stock_task_stay_with_one_writer():
    spread = runner.spread([job("a", mmlu=10, hellaswag=5, mmlu_5shot=10)], ["0", "1", "2"])
    assert [[task.key for task in each.tasks] for each in spread] == [["mmlu", "mmlu_5shot"], ["hellaswag"]]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_table_says_how_each_task_stands(terminal):
    jobs = [job("a", pope=10, ai2d=30), job("b", pope=20)]
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120)
    with Status(jobs, {("b", "pope")}, console) as status:
        status.begin(jobs[0], jobs[0].tasks[0])
        status.advance(jobs[0], jobs[0].tasks[0], 4)
        console.print(status)
        assert "40%" in output.getvalue() and "waiting" in output.getvalue() and "done" in output.getvalue()
        status.end(jobs[0], jobs[0].tasks[0], None)
        status.end(jobs[0], jobs[0].tasks[1], "no such column")
    text = output.getvalue()
    assert "a ai2d failed: no such column" in text.replace("\x1b[31m", "").replace("\x1b[0m", "") and "60/60" in text
    assert terminal or "a pope: done" in text


def test_a_worker_finds_the_datasets_of_further_benchmarks_too(tmp_path, monkeypatch):
    monkeypatch.setitem(BY_KEY, "added", replace(BY_KEY["pope"], key="added", folder="someone/new"))
    (tmp_path / "root/someone/new").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # and back, when the test ends
    enter_workspace(str(tmp_path / "root"), tmp_path / "workspace")
    assert Path("someone/new").is_dir()
