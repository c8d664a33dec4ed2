import json

import pytest

from eval.score.scores import Model, baselines, pairing, score_rows
from eval.tables.table4 import Table4, direction
from tests.eval.score_rows import cell, nine, result


def test_scores_json_has_the_form_of_the_design(rows):
    fields = "backbone method seed benchmark score n ci95 delta delta_ci95 p_value p_holm unparseable status reason"
    assert all(set(row) - {"subtasks"} == {*fields.split(), "source"} for row in rows)
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


def two_seeds(**norms):
    """Baseline and norm with seeds 1 and 2: 10 and 20 of 40 items right in each benchmark, and norm's results."""
    models = [Model(f"{m}-{s}", "toy", m, s) for m in ("baseline", "norm") for s in (1, 2)]
    return models, {"baseline-1": nine(10), "baseline-2": nine(20), "norm-1": nine(20), "norm-2": nine(26)} | norms


def of_seeds(rows, method, benchmark):
    """Seed -> row; the mean over seeds is that of None."""
    measured = [r for r in rows if (r["source"], r["method"], r["benchmark"]) == ("measured", method, benchmark)]
    assert len({r["seed"] for r in measured}) == len(measured)
    return {r["seed"]: r for r in measured}


def test_the_line_of_several_seeds_is_their_mean_and_has_the_only_tests():
    rows = score_rows(*two_seeds(), "baseline")
    assert list(of_seeds(rows, "norm", "pope")) == [None, 1, 2]
    for key in ("pope", "avg"):
        mean, first, second = of_seeds(rows, "norm", key).values()
        assert mean["seeds"] == [1, 2] and "seeds" not in first
        assert mean["score"] == pytest.approx((first["score"] + second["score"]) / 2)
        assert (first["delta"], second["delta"]) == (pytest.approx(25), pytest.approx(15))  # of the same seed
        assert mean["delta"] == pytest.approx(20) and mean["delta_ci95"][0] < 15 < 25 < mean["delta_ci95"][1]
        assert mean["p_value"] is not None and first["p_value"] is None and second["p_holm"] is None
        assert first["delta_ci95"][0] < first["delta"] < first["delta_ci95"][1]
    with_holm = [row for row in rows if row["p_holm"] is not None]
    assert len(with_holm) == 9 and {row["method"] for row in with_holm} == {"norm"}
    mean = of_seeds(rows, "norm", "pope")[None]
    assert mean["n"] == 40 and mean["p_holm"] == pytest.approx(min(1, 9 * mean["p_value"]))
    assert mean["subtasks"]["upper"] == {"score": pytest.approx(15), "n": 20}


def half_width(row, name="delta_ci95"):
    return (row[name][1] - row[name][0]) / 2


def test_columns_and_methods_share_the_variance_between_trainings():
    """Two seeds that are equal in eight columns and far apart in POPE: alone, half its interval would be 95 points."""
    models, results = two_seeds(**{"norm-2": nine(30, pope=result(24))})
    shared = of_seeds(score_rows(models, results, "baseline"), "norm", "pope")[None]
    alone = {name: {"pope": of_model["pope"]} for name, of_model in results.items()}
    column = of_seeds(score_rows(models, alone, "baseline"), "norm", "pope")[None]
    assert (shared["score"], shared["delta"]) == (column["score"], column["delta"])
    assert half_width(shared) < half_width(column) / 3


def test_neither_further_benchmarks_nor_other_backbones_change_an_interval():
    models, results = two_seeds()
    rows = [row for row in score_rows(models, results, "baseline") if row["source"] == "measured"]
    wild = {name: nine(right) for name, right in {"other-1": 0, "other-2": 40}.items()}
    others = [Model(name, "other", "plain", seed) for seed, name in enumerate(wild, 1)]
    further = {name: of_model | {"mmlu_5shot": result(20)} for name, of_model in results.items()}
    beside = score_rows([*models, *others], further | wild, "baseline")
    assert [row for row in beside if row["backbone"] == "toy" and row["benchmark"] != "mmlu_5shot"] == rows


def test_a_seed_without_a_score_leaves_none_to_the_mean():
    failed = {"status": "failed", "reason": "ValueError: no answer"}
    rows = score_rows(*two_seeds(**{"norm-2": nine(26, pope=failed)}), "baseline")
    mean = of_seeds(rows, "norm", "pope")[None]
    assert (mean["status"], mean["score"], mean["reason"]) == ("failed", None, "seed 2: ValueError: no answer")
    assert of_seeds(rows, "norm", "avg")[None]["status"] == "failed"
    assert of_seeds(rows, "norm", "ai2d")[None]["delta"] == pytest.approx(20)


def test_seeds_that_the_baseline_lacks_are_not_compared_and_named():
    models, results = two_seeds()
    models = [model for model in models if model.name != "baseline-2"]
    rows = of_seeds(score_rows(models, results, "baseline"), "norm", "pope")
    assert rows[None]["score"] == pytest.approx(57.5) and rows[None]["delta"] is None
    assert rows[1]["delta"] == pytest.approx(25) and rows[2]["delta"] is None
    assert pairing(models, "baseline") == ["norm is not compared: baseline lacks seed 2"]


def test_a_model_is_compared_with_the_baseline_of_its_backbone():
    models = [Model(f"{b}-{m}", b, f"{b}-{m}", 42) for b in ("llama", "qwen") for m in ("plain", "norm")]
    right = {"llama-plain": 10, "llama-norm": 20, "qwen-plain": 20, "qwen-norm": 30}
    results = {name: nine(number) for name, number in right.items()}
    rows = [row for row in score_rows(models, results, "llama-plain") if row["source"] == "measured"]
    deltas = {row["method"]: row["delta"] for row in rows if row["benchmark"] == "pope"}
    gain = pytest.approx(25)
    assert deltas == {"llama-plain": None, "llama-norm": gain, "qwen-plain": None, "qwen-norm": gain}
    assert len(pairing(models, "llama-plain")) == 2 and pairing(models[:2], "llama-plain") == []
    assert baselines(models, "qwen-norm") == {"llama": "llama-plain", "qwen": "qwen-norm"}


def test_further_benchmarks_stand_behind_the_average():
    models = [Model("baseline", "toy", "baseline", 42), Model("norm", "toy", "norm", 42)]
    results = {"baseline": nine(20, mmlu_5shot=result(1)), "norm": nine(36, mmlu_5shot=result(39))}
    rows = score_rows(models, results, "baseline")
    without = score_rows(models, {"baseline": nine(20), "norm": nine(36)}, "baseline")
    further = cell(rows, "norm", "mmlu_5shot")
    assert further["p_value"] < 1e-6 and further["p_holm"] is None
    assert not direction(further) and direction(further | {"seeds": [1, 2]}) == 1
    assert [row for row in rows if row["benchmark"] != "mmlu_5shot"] == without
    table = Table4.of(rows)
    assert list(table.columns)[-2:] == ["avg", "mmlu_5shot"] and list(Table4.of(without).columns)[-1] == "avg"
    written = table.texts["MMLU 5-shot"]
    assert written[1].startswith("97.50") and written[2] == "not run"
