"""`gpu.sh` on a CPU at toy size: every part but the tests of a GPU."""

import os
import subprocess

import pytest

from tests import REPOSITORY


def gpu(home, *words):
    command = ["bash", "benchmarks/gpu.sh", "--device", "cpu", "--shape", "toy", *map(str, words)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)  # noqa: S603


@pytest.mark.slow
@pytest.mark.campaign
def test_all_parts_run_in_an_empty_home_and_the_table_comes_last(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    done = gpu(home, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr[-2000:]
    parts = {"train_stage1", "train_stage2", "eval_throughput", "recipe_run"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == {f"{part}.json" for part in parts}
    table = done.stdout.rpartition("\n\n")[2]
    assert all(f"| **{part}**: passed" in table for part in parts)
    assert {line.count("|") for line in table.splitlines()} == {5}


@pytest.mark.slow
@pytest.mark.campaign
def test_a_failed_part_does_not_stop_the_next(tmp_path):
    (tmp_path / "eval_throughput.json").mkdir()  # where its result belongs
    done = gpu(tmp_path, "--out", tmp_path, "--parts", "eval_throughput recipe_run")
    assert done.returncode == 1
    assert "| **eval_throughput**: failed with 1" in done.stdout and "| **recipe_run**: passed" in done.stdout


@pytest.mark.parametrize("words", [("--shape", "40m"), ("--parts", "tests speed"), ("--out",)])
def test_a_wrong_option_is_answered_with_the_right_ones(tmp_path, words):
    done = gpu(tmp_path, *words)
    assert done.returncode == 2 and "bash benchmarks/gpu.sh [--device cuda|cpu]" in done.stderr
