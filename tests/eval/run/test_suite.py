"""The real harnesses on a stand-in mirror: whole runs, kills, an oracle. Slow: each worker imports its harness."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from lmms_eval.api.model import lmms

from eval.data import mirror
from eval.data.benchmarks import BENCHMARKS, BY_KEY
from eval.plan.job import Task
from eval.run.harnesses import LmmsEval
from eval.run.schedule import only_writer
from eval.run.worker import enter_workspace
from eval.score import items as samples
from modeling_aligned_llava.loading.files import read_json, write_json
from tests import REPOSITORY, sockets
from tests.eval.run.test_schedule import job


pytestmark = pytest.mark.slow
NINE = [benchmark.key for benchmark in BENCHMARKS]
MULTIMODAL = [benchmark.key for benchmark in BENCHMARKS if benchmark.harness == "lmms-eval"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A folder that, on PYTHONPATH, lets no process connect to another machine; attempts are written down in it."""
    site = tmp_path_factory.mktemp("site")
    sockets.guard(site, loopback=True)
    return site


def suite(run, root, models, *options, site="", environment=()):
    command = [sys.executable, "-m", "eval.suite", "--run", run, "--data", root, "--max-new-tokens", "4"]
    command += [*options, "--models", *(f"{name}={path}" for name, path in models.items())]
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{REPOSITORY}"} | dict(environment)
    return subprocess.Popen(  # noqa: S603
        [str(part) for part in command], env=environment, stderr=subprocess.PIPE, text=True
    )


def finish(process, status=0):
    """What the suite said on stderr."""
    _, errors = process.communicate()
    assert process.returncode == status, errors
    return errors


def measured(run):
    """(method, benchmark) -> row of the run's own scores."""
    rows = read_json(run / "scores.json")
    return {(row["method"], row["benchmark"]): row for row in rows if row["source"] == "measured"}


def answers(run):
    """File name -> the lines of each log of answers."""
    return {log.name: log.read_text().splitlines() for log in (run / "answers").glob("*.jsonl")}


def asked_again(lines):
    """How many questions of a log had been asked before."""
    asked = [json.dumps({key: value for key, value in json.loads(line).items() if key != "answer"}) for line in lines]
    return len(asked) - len(set(asked))


@pytest.fixture(scope="module")
def whole_run(tiny_llava, tiny_language_model, mirror_root, tmp_path_factory, guarded):
    run = tmp_path_factory.mktemp("run")
    models = {"baseline": tiny_llava, "norm": tiny_llava, "language-model": tiny_language_model}
    finish(suite(run, mirror_root, models, site=guarded))
    return run, models


def test_all_columns_come_out_and_equal_arms_do_not_differ(whole_run, mirror_root):
    run, _ = whole_run
    cells = measured(run)
    assert {key for key, row in cells.items() if row["status"] == "ok"} == (
        {(method, key) for method in ("baseline", "norm") for key in [*NINE, "avg"]}
        | {("language-model", "hellaswag"), ("language-model", "mmlu")}
    )
    assert [cells["baseline", key]["n"] for key in NINE] == [5, 10, 10, 10, 1000, 10, 10, 10, 228]
    assert all(cells["norm", key]["delta"] == 0 for key in [*NINE, "avg"])
    assert not list(mirror_root.rglob("*submission*"))  # nothing is written into the data


def test_no_connection_was_tried(whole_run, guarded):
    assert not (guarded / "attempts").exists()
    code = "import socket; socket.create_connection(('127.0.0.1', 9))"
    probe = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(guarded)}, check=False)  # noqa: S603
    assert probe.returncode == 1 and (guarded / "attempts").exists()  # the guard does guard


def test_two_evaluations_do_not_write_into_one_folder(whole_run, mirror_root):
    run, models = whole_run
    with only_writer(run):
        errors = finish(suite(run, mirror_root, models), status=1)
    assert errors.startswith("error: another evaluation") and str(run) in errors


@pytest.fixture
def vllm(tmp_path):
    """A program that plays vLLM."""
    lines = [f"#!{sys.executable}", "import sys, runpy", f"sys.path.insert(0, {str(REPOSITORY)!r})"]
    lines.append("runpy.run_module('tests.vllm_stand_in', run_name='__main__')")
    (tmp_path / "vllm").write_text("\n".join(lines))
    (tmp_path / "vllm").chmod(0o700)
    return tmp_path / "vllm"


def test_another_engine_gives_the_same_scores_and_ends_with_the_run(whole_run, mirror_root, vllm, tmp_path):
    expected, models = whole_run
    finish(suite(tmp_path / "run", mirror_root, models, "--engine", vllm))
    assert (tmp_path / "run/scores.json").read_bytes() == (expected / "scores.json").read_bytes()
    record = read_json(tmp_path / "run/run.json")
    assert record["engine"].startswith("vllm 0.1 --dtype float32") and record["settings"]["engine"] == str(vllm)
    assert not servers(vllm)


def servers(vllm):
    words = [
        process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])
    ]  # None of one that just ended
    return [command for command in words if command[1:3] == [str(vllm), "serve"]]


def test_a_killed_run_leaves_no_server(tiny_llava, mirror_root, vllm, tmp_path):
    process = suite(tmp_path / "run", mirror_root, {"a": tiny_llava}, "--engine", vllm)
    for expected in (True, False):
        deadline = time.monotonic() + 120
        while bool(servers(vllm)) != expected:
            assert time.monotonic() < deadline and (process.poll() is None or not expected)
            time.sleep(0.1)
        process.kill()
    process.communicate()


def workers(run):
    listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout  # noqa: S607
    return [line for line in listed.splitlines() if "eval.run.worker" in line and str(run) in line]


def test_killed_twice_it_ends_with_the_same_scores(whole_run, tiny_llava, mirror_root, tmp_path):
    """Killed the hard way, the program alone: its workers must not live on; at most the batch in flight is lost."""
    run, _ = whole_run
    tasks = ("ocrbench", "pope", "hellaswag", "mmlu")
    options = ("--tasks", *tasks, "--batch-size", "16")

    def logged():
        return sum(map(len, answers(tmp_path).values()))

    clock = random.Random(0)
    kills = 0
    for _ in range(2):
        process = suite(tmp_path, mirror_root, {"baseline": tiny_llava}, *options)
        aim = logged() + clock.randrange(1, 400)  # answers that this start may add
        deadline = time.monotonic() + 60
        while process.poll() is None and logged() < aim and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        deadline = time.monotonic() + 20
        while alive := workers(tmp_path):
            assert time.monotonic() < deadline, alive
            time.sleep(0.1)
    assert kills
    finish(suite(tmp_path, mirror_root, {"baseline": tiny_llava}, *options))
    for key in tasks:
        ours, theirs = (read_json(root / f"harness/baseline/{key}/result.json") for root in (tmp_path, run))
        assert ours["items"] == theirs["items"] and ours["score"] == theirs["score"]
    # an answer that is logged twice belongs to a batch that was torn
    assert sum(map(asked_again, answers(tmp_path).values())) <= 16 * kills


DIES = """
import os, signal, sys
if 'eval.run.worker' in ' '.join(sys.orig_argv):
    import threading, time
    def watch():
        while not os.path.isdir(os.environ['VICTIM']):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=watch, daemon=True).start()
"""


def test_a_worker_that_dies_costs_one_task(tiny_llava, mirror_root, tmp_path):
    """The worker is killed whenever it is at POPE: POPE fails with a reason, the rest is done, exit status 1."""
    (tmp_path / "sitecustomize.py").write_text(DIES)
    run = tmp_path / "run"
    victim = {"VICTIM": str(run / "harness/baseline/pope")}
    options = ("--tasks", "mmstar", "pope")
    process = suite(run, mirror_root, {"baseline": tiny_llava}, *options, site=tmp_path, environment=victim)
    errors = finish(process, status=1)
    rows = measured(run)
    assert rows["baseline", "mmstar"]["status"] == "ok", errors
    pope = rows["baseline", "pope"]
    assert pope["status"] == "failed" and "died twice (killed by signal 9)" in pope["reason"]
    assert rows["baseline", "avg"]["status"] == "failed"


def test_further_benchmarks_and_a_trial(tiny_llava, mirror_root, tmp_path):
    tasks = ("pope", "ocrbench", "hellaswag", "hellaswag_acc", "mmlu", "mmlu_5shot")
    errors = finish(suite(tmp_path, mirror_root, {"only": tiny_llava}, "--limit", "2", "--tasks", *tasks))
    run = tmp_path / "limit-2"
    assert "--limit 2: a trial" in errors
    rows = {benchmark: row for (_, benchmark), row in measured(run).items()}
    assert {key: rows[key]["n"] for key in tasks} == dict(zip(tasks, (2, 2, 2, 2, 114, 114), strict=True))
    assert rows["ocrbench"]["score"] in (0, 50, 100)
    assert all(row["limit"] == 2 for row in rows.values())
    assert len(rows["mmlu_5shot"]["subtasks"]) == 57 and rows["pope"]["subtasks"]["adversarial"]["n"] == 2
    (results,) = (run / "harness/only/hellaswag_acc").rglob("results_*.json")
    reported = read_json(results)["results"]["hellaswag"]
    assert rows["hellaswag_acc"]["score"] == 100 * reported["acc,none"]
    assert rows["hellaswag"]["score"] == 100 * reported["acc_norm,none"]
    lengths = {name: len(lines) for name, lines in answers(run).items()}
    assert lengths["only.hellaswag.jsonl"] == 2 * 4  # asked once
    assert lengths["only.mmlu.jsonl"] == 2 * 114 * 4  # the shots are other prompts


class Oracle(lmms):
    """Gives the right answer in a form, e.g. "({})", or, to every third document, a wrong one."""

    def __init__(self, mistakes=False, form="{}"):
        super().__init__()
        self.mistakes = mistakes
        self.form = form
        self.images = {}

    def generate_until(self, requests):
        return [self.answer(*request.args[3:]) for request in requests]

    def answer(self, document, task, split):
        if self.mistakes and document % 3 == 0:
            return "Z"
        right = self.task_dict[task][split][document]["answer"]
        if task in ("scienceqa", "ai2d"):
            right = "ABCDEF"[int(right)]
        right = right[0] if isinstance(right, list) else right
        return right.lower() if self.form == "lower case" else self.form.format(right)

    def loglikelihood(self, requests):
        raise NotImplementedError

    def generate_until_multi_round(self, requests):
        raise NotImplementedError


@pytest.fixture(scope="module")
def scored(tiny_llava, mirror_root, tmp_path_factory):
    """`scored(key, oracle, images)` -> the result of a benchmark that the oracle has answered."""
    folder = tmp_path_factory.mktemp("oracle")
    os.environ["HF_HOME"] = str(folder / "cache")
    tasks = {key: Task(key, mirror.count_rows(mirror_root, BY_KEY[key]), "") for key in MULTIMODAL}
    places = {"checkpoint": tiny_llava, "root": mirror_root, "output": folder, "answers": folder / "answers"}
    paths = {name: str(place) for name, place in places.items()} | {"cache": str(folder / "cache")}
    settings = {"tasks": [*tasks.values()], "batch_size": 4, "max_new_tokens": 4, "dtype": "float32", "device": "cpu"}
    before = Path.cwd()
    enter_workspace(str(mirror_root), folder / "workspace")
    harness = LmmsEval(replace(job("oracle"), **paths, **settings))

    def score(key, oracle, images):
        harness.adapter = lambda task, progress: oracle
        benchmark, rows, logs = BY_KEY[key], tasks[key].rows, Path(tempfile.mkdtemp(dir=folder))
        harness.evaluate(benchmark, logs, lambda rows: None)
        with pytest.raises(ValueError, match=f"{rows + 1} rows in the data"):
            samples.read_result(benchmark, logs, rows + 1, {}, mirror_root)
        return samples.read_result(benchmark, logs, rows, images, mirror_root)

    yield score
    os.chdir(before)


@pytest.mark.parametrize("key", MULTIMODAL)
def test_an_oracle_scores_100_and_its_mistakes_are_found(scored, key):
    images = {0: "same", 1: "same"}
    result = scored(key, Oracle(), images)
    rows = result.rows
    assert (result.score, result.unparseable) == (100, 0)
    if key == "ocrbench":
        return  # its scorer keeps its counts in a global: one call a process, as the workers do
    result = scored(key, Oracle(mistakes=True), images)
    wrong = (rows + 2) // 3
    assert result.score < 100 and result.unparseable == wrong / rows
    if key == "mmbench":  # rows 0, 3, 6 and 9 are rotations of questions 0, 1, 3 and 4; rows 0 and 1 of question 0
        assert result.items.correct == [0, 0, 1, 0, 0] and result.items.cluster == ["same", "1", "2", "3", "4"]
    else:
        assert sum(result.items.correct) == rows - wrong
        assert result.items.cluster[0] == result.items.cluster[1] == "same" != result.items.cluster[2]


# What the stock scorers make of a right answer in other forms; OCRBench accepts any that contains it.
STOCK_ACCEPTS = {
    "{}.": {"mmbench", "mmstar", "seedbench_2_plus", "scienceqa", "ai2d"},
    "({})": {"mmbench", "mmstar", "ai2d"},
    "The answer is {}": {"mmbench", "mmstar"},
    "lower case": {"pope", "seedbench_2_plus", "scienceqa", "ai2d"},
    "": set(),
}


@pytest.mark.parametrize("key", [key for key in MULTIMODAL if key != "ocrbench"])
def test_forms_of_a_right_answer_get_what_the_stock_scorer_gives(scored, key):
    """A difference between two checkpoints can be pure form: the unparseable rate says so."""
    for form, accepting in STOCK_ACCEPTS.items():
        result = scored(key, Oracle(form=form), {})
        assert (result.score, result.unparseable) == ((100, 0) if key in accepting else (0, 1)), form


def test_after_a_change_of_the_scoring_code_finished_answers_are_scored(whole_run, mirror_root, tmp_path):
    """The same answers, without asking for one again; of the results, only those asked for."""
    run, models = whole_run
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("cache"))
    log = (tmp_path / "run/answers/baseline.pope.jsonl").read_bytes()
    path = tmp_path / "run/harness/baseline/pope/result.json"
    before = read_json(path)
    write_json(path, before | {"inputs": before["inputs"] | {"scoring code": "0"}})
    errors = finish(suite(tmp_path / "run", mirror_root, models, "--tasks", "pope"))
    assert "baseline: pope again (other scoring code)" in errors
    after = read_json(path)
    assert (tmp_path / "run/answers/baseline.pope.jsonl").read_bytes() == log
    assert after["inputs"] == before["inputs"] and after["items"] == before["items"]
    assert read_json(tmp_path / "run/scores.json") == read_json(run / "scores.json")
