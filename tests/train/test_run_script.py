"""`train/run.sh`: both stages of one method, where it finds their data, and its error messages."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from tests import REPOSITORY


SCRIPT = ["bash", str(REPOSITORY / "train" / "run.sh"), "--method", "norm"]


def run(*options, launch="echo", backbone="tinyworld"):
    """The ended process; `launch` takes the place of python."""
    command = [*SCRIPT, *(["--backbone", backbone] if backbone else []), *map(str, options)]
    return subprocess.run(command, env={**os.environ, "LAUNCH": launch}, capture_output=True, text=True)  # noqa: S603


def test_empty_variables_do_not_put_caches_into_the_repository(tmp_path, monkeypatch):
    (tmp_path / "show.py").write_text("import os; print(*(os.environ.get(n) for n in ('HF_HOME', 'XDG_CACHE_HOME')))")
    monkeypatch.setenv("HF_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ended = run("--stage", "stage1", launch=f"{sys.executable} {tmp_path}/show.py")
    assert ended.stdout == f"None {tmp_path}\n"


def settings(*options, **kwargs):
    """The settings of each stage that is started."""
    ended = run(*options, **kwargs)
    assert ended.returncode == 0, ended.stderr
    stages = [shlex.split(line)[2:] for line in ended.stdout.splitlines()]
    return [dict(zip(words[::2], words[1::2], strict=True)) for words in stages]


@pytest.fixture
def make(tmp_path):
    def make(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("") if path.suffix else path.mkdir()
        return tmp_path

    return make


def paths(*options, **kwargs):
    """The data of each stage that is started; None: that of the recipe."""
    return [stage.get("--data_path") for stage in settings(*options, **kwargs)]


def test_the_data_of_a_folder(make):
    folder = make(
        "stage1.json", "stage2", "images", "mixed/stage1.parquet", "mixed/stage2.yaml", "run/data/stage1.jsonl"
    )
    first, second = settings("--data", folder, backbone="qwen2.5-7b")
    assert (first["--data_path"], second["--data_path"]) == (f"{folder}/stage1.json", f"{folder}/stage2")
    assert first["--image_folder"] == second["--image_folder"] == f"{folder}/images"
    mixed = folder / "mixed"
    assert paths("--data", mixed) == [f"{mixed}/stage1.parquet", f"{mixed}/stage2.yaml"]
    run = folder / "run"
    assert paths("--output-root", run, "--stage", "stage1") == [f"{run}/data/stage1.jsonl"]


def test_missing_data_is_named_before_the_first_stage_starts(make):
    folder = make("stage1.json")
    ended = run("--data", folder)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith(f"error: {folder} has no stage2: a .json, .jsonl, .parquet or .yaml file or a ")
    wrong = run(backbone=None)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: the following arguments are required: --backbone;")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("status", [0, 3])  # with 3 it says itself that it was stopped
def test_a_signal_reaches_the_training_which_saves_before_it_ends(tmp_path, number, status):
    training = f"trap 'kill $!; echo saved; exit {status}' TERM; sleep 60 & echo started; wait"
    (tmp_path / "training.sh").write_text(training)
    environment = os.environ | {"LAUNCH": f"bash {tmp_path}/training.sh"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*SCRIPT, "--backbone", "tinyworld"], env=environment, **pipes)  # noqa: S603
    assert process.stdout.readline() == "started\n"
    process.send_signal(number)
    printed, errors = process.communicate(timeout=10)
    assert (printed, process.returncode) == ("saved\n", 130)
    line = f"error: stopped by {number.name}; the same command starts again or continues\n"
    assert errors == ("" if status else line)
