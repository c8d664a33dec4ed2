"""How tasks are spread over GPUs, what workers are given, and the live table. No worker is started."""

import io
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, call

import pytest
from rich.console import Console

from eval.data.benchmarks import BY_KEY
from eval.plan.job import Job, Task
from eval.plan.models import Training
from eval.run.processes import run_logged
from eval.run.schedule import find_devices, plan_steps, side_by_side, spread
from eval.run.status import Status
from eval.run.training import train
from eval.run.worker import enter_workspace


def job(name, **rows):
    return Job(
        name=name,
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


def spread_over(resource, count, *jobs):
    """(job, its tasks) for each job that remains."""
    devices = {"GPU": list(map(str, range(count))), "--device cpu": find_devices(count, "cpu"), "none": [None] * count}
    return [(single.name, [task.key for task in single.tasks]) for single in spread(list(jobs), devices[resource])]


def test_trainings_on_one_device_share_it():
    cases = ([None] * 2, 1), ([None] * 2, 4), (["0", "1"], 4), (["0"] * 3, 9)
    assert [side_by_side(*case) for case in cases] == ["1", "2", "1", "3"]


def test_tasks_are_spread_over_idle_gpus_longest_first():
    jobs = job("a", pope=10, ai2d=30), job("b", pope=20)
    whole = [("a", ["pope", "ai2d"]), ("b", ["pope"])]
    assert spread_over("GPU", 2, *jobs) == whole
    assert spread_over("--device cpu", 8, *jobs) == spread_over("none", 8, *jobs) == whole
    assert spread_over("GPU", 3, *jobs) == [("a", ["ai2d"]), ("b", ["pope"]), ("a", ["pope"])]
    assert jobs[0].answer_log("ai2d") == str(Path("answers/a.ai2d.jsonl"))


def test_benchmarks_of_one_stock_task_stay_with_one_writer():
    jobs = spread_over("GPU", 3, job("a", mmlu=10, hellaswag=5, mmlu_5shot=10))
    assert jobs == [("a", ["mmlu", "mmlu_5shot"]), ("a", ["hellaswag"])]


def test_a_checkpoint_is_evaluated_after_its_second_stage(tmp_path):
    trainings = [Training("a", stage, (), tmp_path) for stage in ("stage1", "stage2")]
    steps = plan_steps([job("a", pope=10, ai2d=30), job("b", pope=20)], trainings, tmp_path, None)
    assert [(step.name, step.after, step.cost) for step in steps] == [
        ("a stage1", (), pytest.approx(36)),
        ("a stage2", ("a stage1",), pytest.approx(84)),
        ("a lmms-eval 0", ("a stage2",), 40),
        ("b lmms-eval 1", (), 20),
    ]


def test_a_training_moves_the_table_by_what_it_prints_for_programs(tmp_path):
    """A line without the time that is left, one with it, and lines for people."""
    logs = ({"step": 3, "steps": 60, "loss": 0.9}, {"step": 30, "steps": 60, "loss": 0.7, "seconds_left": 20})
    lines = ["hello", *map(json.dumps, logs), "{no log}"]
    command = ("bash", "-c", f"[ $PROGRESS_JSON = 1 ] && printf '%s\\n' {' '.join(map(shlex.quote, lines))}")
    status = Mock()
    train(Training("norm", "stage2", command, tmp_path / "log"), status)
    assert [said for said in status.mock_calls if said != call.tick()] == [
        call.train("norm", "stage2", 0.05, None),
        call.train("norm", "stage2", 0.5, 20),
        call.trained("norm", "stage2"),
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_table_says_how_each_task_stands(terminal):
    jobs = [job("a", pope=10, ai2d=30), job("b", pope=20)]
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=120)
    with Status(jobs, {("b", "pope")}, console) as status:
        status.begin("a", "pope")
        status.advance("a", "pope", 4)
        console.print(status)
        assert "40%" in output.getvalue() and "waiting" in output.getvalue() and "done" in output.getvalue()
        status.end("a", "pope")
        status.end("a", "ai2d", "no such column")
    assert status.failures == ["a ai2d"]
    text = output.getvalue()
    assert "a ai2d failed: no such column" in text.replace("\x1b[31m", "").replace("\x1b[0m", "") and "60/60" in text
    assert terminal or "a pope: done" in text


def test_a_log_gets_a_line_every_half_minute_with_the_time_left_at_the_pace_since_the_start(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("eval.run.status.time.monotonic", lambda: clock[0])
    output = io.StringIO()
    jobs = [job("a", pope=10), job("b", pope=10), job("c", pope=10)]
    with Status(jobs, set(), Console(file=output, width=60), ["a", "c"]) as status:
        status.trained("c", "stage1")  # by an earlier run
        status.fail("c stage2", "killed")
        status.train("a", "stage1", 0.0, None)
        status.begin("b", "pope")
        for share in (0.1, 0.2, 0.3, 0.4):
            clock[0] += 20
            status.train("a", "stage1", share / 0.3, 131)
    lines = [line for line in output.getvalue().splitlines() if "left: " in line]
    running = "a stage1 131 s left, b pope"
    assert lines == [f"17%, about 8 min left: {running}", f"23%, about 8 min left: {running}"]


def test_a_step_that_says_nothing_for_long_is_named_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr("eval.run.status.SILENCE", 0.3)
    output = io.StringIO()
    with Status([job("a", pope=10)], set(), Console(file=output, width=40), ["a"]) as status:
        status.train("a", "stage1", 0.0, None)
        train(Training("a", "stage1", ("sleep", "0.8"), tmp_path / "log"), status)
    assert "0%: a stage1" in output.getvalue().splitlines()[:2]


def test_a_silent_command_outside_the_table_is_named_too(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("eval.run.processes.SILENCE", 0.3)
    run_logged(("sleep", "0.8"), tmp_path / "profile.log")
    assert re.match(rf"profile: \d s so far, see {tmp_path}/profile\.log\n", capsys.readouterr().out)


def test_a_worker_finds_the_datasets_of_further_benchmarks_too(tmp_path, monkeypatch):
    monkeypatch.setitem(BY_KEY, "added", replace(BY_KEY["pope"], key="added", folder="someone/new"))
    (tmp_path / "root/someone/new").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)  # and back, when the test ends
    enter_workspace(str(tmp_path / "root"), tmp_path / "workspace")
    assert Path("someone/new").is_dir()
