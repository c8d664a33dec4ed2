"""The same seed on the same machine: a second run gives the same weights and scores."""

import json
import subprocess

import pytest

from tests.clone import clone_repository
from tests.faults.small_run import PHASES, SmallRun, environment


RUN = "results/tinyworld"

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(7200)]


def test_every_phase_under_another_path_with_another_home(straight_run, tmp_path):
    run = SmallRun(tmp_path / "a second run")
    clone_repository(run.clone)
    for phase in PHASES:
        run.finish(phase)
        assert not run.differences(phase, straight_run.run)


def test_the_default_job_twice_side_by_side(tmp_path):
    processes, clones = [], [tmp_path / name / "clone" for name in ("first", "second")]
    for clone in clones:
        clone_repository(clone)
        command = ["bash", "eval/run_all.sh"]
        with clone.with_name("output.txt").open("w", encoding="utf-8") as output:
            variables = environment(clone.with_name("home"))
            processes.append(subprocess.Popen(command, cwd=clone, env=variables, stdout=output, stderr=output))  # noqa: S603
    assert [process.wait() for process in processes] == [0, 0]
    first, second = (json.loads((clone / RUN / "run.json").read_text("utf-8")) for clone in clones)
    digests = [{name: model["sha256"] for name, model in run["models"].items()} for run in (first, second)]
    assert digests[0] == digests[1], "other weights"
    scores = [(clone / RUN / "scores.json").read_bytes() for clone in clones]
    assert scores[0] == scores[1], "other scores"
