import json

import pytest

from eval.report.tables import table4 as tables
from eval.scoring.scores import EvaluatedModel, score_rows
from tests.eval.score_rows import cell, nine, result


def test_scores_json_has_the_form_of_the_design(rows):
    fields = (
        "backbone method seed benchmark score n ci95 delta delta_ci95 p_value p_holm unparseable status reason source"
    )
    assert all(set(row) - {"subtasks"} == set(fields.split()) for row in rows)
    json.dumps(rows, allow_nan=False)
    assert len(rows) == 4 * 10 + 6 * 10


def test_the_baseline_has_no_delta_and_the_others_do(rows):
    assert cell(rows, "baseline", "pope")["delta"] is None
    norm = cell(rows, "norm", "pope")
    assert norm["delta"] == pytest.approx(40)
    assert norm["p_value"] == pytest.approx(2 / 2**16)
    assert norm["p_holm"] == pytest.approx(min(1, norm["p_value"] * 9), rel=1)
    assert norm["p_holm"] > norm["p_value"]
    assert norm["n"] == 40 and norm["unparseable"] == 0.1


def test_the_average_needs_all_nine(rows):
    average = cell(rows, "norm", "avg")
    assert (average["score"], average["n"]) == (pytest.approx(90), 9)
    assert average["p_holm"] is None and average["delta"] == pytest.approx(40)
    broken = cell(rows, "norm-gwc", "avg")
    assert (broken["status"], broken["score"]) == ("failed", None) and "ocrbench" in broken["reason"]
    assert cell(rows, "lm", "avg")["status"] == "not run"


def test_seeds_are_compared_with_the_baseline_of_the_same_seed():
    models = [EvaluatedModel(f"{m}-{s}", "toy", m, s) for m in ("baseline", "norm") for s in (1, 2)]
    results = {"baseline-1": nine(10), "baseline-2": nine(20), "norm-1": nine(20), "norm-2": nine(20)}
    rows = score_rows(models, results, "baseline")
    deltas = {
        r["seed"]: r["delta"]
        for r in rows
        if r["method"] == "norm" and r["benchmark"] == "pope" and r["delta"] is not None
    }
    assert deltas == {1: pytest.approx(25), 2: pytest.approx(0)}


def test_the_papers_rows_are_its_own(rows):
    assert cell(rows, "norm-gwc", "avg", "paper")["score"] in (61.27, 69.41)
    paper = [r for r in rows if r["source"] == "paper"]
    for start in range(0, len(paper), 10):
        line = [r["score"] for r in paper[start : start + 10]]
        assert sum(line[:9]) / 9 == pytest.approx(line[9], abs=0.011)  # as printed, to the rounding


def test_further_benchmarks_stand_behind_the_average():
    models = [EvaluatedModel("baseline", "toy", "baseline", 42), EvaluatedModel("norm", "toy", "norm", 42)]
    results = {"baseline": nine(20, mmlu_5shot=result(1)), "norm": nine(36, mmlu_5shot=result(39))}
    rows, without = (
        score_rows(models, results, "baseline"),
        score_rows(models, {"baseline": nine(20), "norm": nine(36)}, "baseline"),
    )
    further = cell(rows, "norm", "mmlu_5shot")
    assert further["p_value"] < 1e-6 and further["p_holm"] is None and tables.is_significant(further)
    assert [row for row in rows if row["benchmark"] != "mmlu_5shot"] == without
    assert list(tables.columns(rows))[-2:] == ["avg", "mmlu_5shot"] and list(tables.columns(without))[-1] == "avg"
    table = json.loads(tables.as_json(rows))
    assert table[1]["cells"]["MMLU 5-shot"]["score"] == 97.5 and table[2]["cells"]["MMLU 5-shot"] == "not run"
