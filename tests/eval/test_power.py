"""Detectable differences against simulation, and the command on results and on an assumption."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from eval import power
from eval.data.benchmarks import BY_KEY
from modeling_aligned_llava.errors import UserError


def test_the_smallest_difference_is_detected_in_80_percent_of_repetitions():
    random = np.random.default_rng(0)
    error = 0.7
    found = power.detectable(error) + error * random.standard_normal(20_000)
    assert np.mean(abs(found) > norm.ppf(0.975) * error) == pytest.approx(0.80, abs=0.01)
    assert power.times_the_items(error, power.detectable(error) / 2) == pytest.approx(4)


def test_seeds_need_a_spread():
    assert power.seeds_needed([1.0], 1.0) is None
    assert power.seeds_needed([0.0, 2.0], 1.0) == 18  # 15.7 = (2.80 * sqrt 2)^2 if their spread were known
    assert power.seeds_needed([1.0, 1.0], 5.0) == 2


def test_the_papers_pope_claim_is_out_of_reach():
    claim = power.paper_claims("Llama-3.2-3B", "norm-gwc")["pope"]
    assert claim == pytest.approx(0.12)
    assert power.times_the_items(power.assumed_error(BY_KEY["pope"], 0.05), claim) > 20
    with pytest.raises(UserError, match="no Vicuna norm"):
        power.paper_claims("Vicuna", "norm")


def test_command_reads_a_run(tmp_path, call, monkeypatch, capsys):
    random = np.random.default_rng(1)
    for name, right in (("baseline", 0.5), ("norm-gwc", 0.6), ("baseline-seed7", 0.5), ("norm-gwc-seed7", 0.7)):
        ids = [str(i) for i in range(400)]
        items = {"id": ids, "correct": list(map(float, random.random(400) < right)), "stratum": [""] * 400}
        folder = tmp_path / "harness" / name / "pope"
        folder.mkdir(parents=True)
        result = {"status": "ok", "items": items | {"cluster": ids}}
        (folder / "result.json").write_text(json.dumps(result))
    found = power.measured(tmp_path, "baseline", "norm-gwc")["pope"]
    assert found.items == 400 and len(found.differences) == 2
    assert found.item_error == pytest.approx(100 * np.sqrt((0.25 + 0.24) / 400 / 2), rel=0.1)
    assert found.error > found.item_error and found.degrees_of_freedom < 10  # the seeds differ by ten points
    shutil.rmtree(tmp_path / "harness/norm-gwc-seed7")
    found = power.measured(tmp_path, "baseline", "norm-gwc")["pope"]
    assert found.error == found.item_error == pytest.approx(100 * np.sqrt((0.25 + 0.24) / 400), rel=0.1)
    monkeypatch.setenv("COLUMNS", "200")
    call(power.main, "--run", tmp_path)
    assert "POPE" in capsys.readouterr().out
    with pytest.raises(UserError, match="has no results"):
        call(power.main, "--run", tmp_path, "--method", "norm")
    with pytest.raises(UserError, match="between 0 and 1"):
        call(power.main, "--assume", 2)


def test_a_benchmark_that_the_paper_lacks_has_no_claim(call, monkeypatch, capsys):
    added = replace(BY_KEY["pope"], key="added", title="Added")
    monkeypatch.setattr(power, "BENCHMARKS", [added])
    monkeypatch.setitem(power.BY_KEY, "added", added)
    call(power.main, "--assume", "0.1")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Added" in line)
    assert [cell.strip() for cell in line.split("│")[5:7]] == ["-", "never"]
