"""The parts of the report page on known numbers."""

import dataclasses
import re

import pytest

from eval.data.benchmarks import BY_KEY
from eval.data.image_sample import in_benchmarks
from eval.report import measurements
from eval.report.drawings import INK, SERIES, inline_svg, layer_curves, series, training_curves
from eval.report.finished_run import ANSWER, FinishedRun, probability, without_paths
from eval.report.page import measured_scores, published_scores, report, settings
from eval.report.sentences import answer, caveats, differences, limitations
from modeling_aligned_llava.diagnostics.profile import profile
from tests.eval.report.stand_in import write_run
from tests.eval.score_rows import three_seeds
from tests.modeling_aligned_llava.diagnostics.profiles import small_profile


POPE = BY_KEY["pope"]


@pytest.fixture
def nine(rows, tmp_path):
    return FinishedRun(tmp_path, rows, {})


@pytest.fixture
def alone(tmp_path, tiny_llava):
    """A run of the baseline alone."""
    return FinishedRun.read(write_run(tmp_path, tiny_llava, names=("baseline",)))


def test_the_answer_is_one_line_a_model(nine):
    inert_profile = small_profile(scale=100)
    inert, helps = answer(nine, {"norm": {"profile": inert_profile}, "lm": {"error": "text-only"}})
    assert inert == ("Are the visual tokens inert?", [f"norm is {inert_profile['verdict']['summary']}."])
    assert helps[0] == "Does the norm help?" and "360 questions" in helps[1][0]
    assert helps[1][1].startswith("norm: needs more seeds; higher by 40.0 points [")
    assert helps[1][1].endswith("] over the questions of one training.")
    assert caveats(nine, {"norm": {"profile": inert_profile}})[:2] == inert_profile["verdict"]["lines"][-2:]


def test_a_fine_tuning_run_has_answered_itself(nine):
    (nine.folder / ANSWER).write_text("one\ntwo\n")
    assert answer(nine, {}) == [("", ["one", "two"])]


def test_differences_are_sorted_by_direction_and_certainty(nine):
    run = dataclasses.replace(nine, rows=three_seeds())
    average, higher = dict(differences(run))["norm, 3 seeds against baseline"]
    assert "higher (+25.0 points" in average and "Significantly higher than baseline" in higher
    assert "MMBench (+25.0)" in higher
    changed = {"p_holm": 0.2, "delta": 5.0, "delta_ci95": [-1.0, 11.0]}
    run = dataclasses.replace(nine, rows=[row | (changed if row["delta"] else {}) for row in run.rows])
    _, unclear = dict(differences(run))["norm, 3 seeds against baseline"]
    words = r"not distinguishable .* HellaSwag \(\+5\.0; detectable from (.*)\) and MMLU \(\+5\.0; "
    assert float(re.search(words, unclear)[1]) == pytest.approx(2.8 * 12 / 3.92, rel=0.01)


def test_differences_of_one_training_are_not_tested(nine):
    parts = dict(differences(nine))
    average, by_benchmark = parts["norm against baseline"]
    assert average.startswith("Mean of the nine: +40.0 points, 95 % interval +") and average.endswith(
        "over questions."
    )
    assert by_benchmark.startswith("By benchmark, not tested: MMBench (+40.0), ") and "ignificant" not in str(parts)
    (same,) = parts["norm-gwc against baseline"]
    assert "MMBench (+0.0)" in same and "OCRBench" not in same


def test_gaps_and_limitations_are_named(nine):
    limits = limitations(nine)
    assert any(limit.startswith("norm-gwc: OCRBench failed (ValueError: a | b_c & 100%)") for limit in limits)
    assert any(limit.startswith("lm: not run on MMBench, ") and "sees no images" in limit for limit in limits)
    assert any(limit.startswith("baseline: ") and "POPE 10.0%" in limit for limit in limits)
    assert any("One training per method" in limit for limit in limits)


def test_scores_are_marked_as_toy_and_as_not_official(nine):
    sizes = {key: benchmark.num_questions for key, benchmark in BY_KEY.items()} | {"avg": 9}
    toy = dataclasses.replace(nine, rows=[row | {"backbone": "tinyworld"} for row in nine.rows])
    official = dataclasses.replace(nine, rows=[row | {"n": row["n"] and sizes[row["benchmark"]]} for row in nine.rows])
    assert "toy result" in caveats(toy, {})[0]
    assert "official" in caveats(nine, {})[0] and "toy" not in caveats(nine, {})[0] and caveats(official, {}) == []


def test_a_model_whose_evaluation_did_not_finish_is_named(nine):
    keys = {"baseline": ("toy", "baseline", 42), "norm-relative": ("toy", "norm-relative", 42)}
    models = {name: dict(zip(("backbone", "method", "seed"), key, strict=True)) for name, key in keys.items()}
    unfinished = dataclasses.replace(nine, record={"models": models})
    assert unfinished.unscored == ["norm-relative"]
    assert "norm-relative" in limitations(unfinished)[0]


def test_several_seeds_are_one_line_and_each_can_be_unfolded(nine):
    run = dataclasses.replace(nine, rows=three_seeds())
    assert [line.name for line in run.lines] == ["baseline, 3 seeds", "norm, 3 seeds", "norm-gwc-seed1"]
    singles = [f"{method}-seed{seed}" for method in ("baseline", "norm") for seed in (1, 2, 3)]
    assert [line.name for line in run.single_seeds] == singles and run.baselines == {"toy": "baseline"}
    assert [limit for limit in limitations(run) if "One training" in limit] == [
        "One training of norm-gwc-seed1: the intervals cover the choice of questions. Another training may differ by "
        "more."
    ]
    alone = dataclasses.replace(run, rows=[row for row in run.rows if row["method"] != "norm-gwc"])
    assert not any("One training" in limit for limit in limitations(alone))
    shown, hidden = (dict(measured_scores(run, lines)) for lines in (run.lines, run.single_seeds))
    assert "mean over seeds 1, 2, 3" in shown["norm, 3 seeds"][0].details
    assert "p = " not in hidden["norm-seed1"][0].details
    html = report(run, {model.name: {"error": "gone"} for model in run.models})
    assert "<summary>Each seed alone" in html and html.count('scope="row">norm, 3 seeds<') == 1 + 10


def test_a_mean_that_cannot_be_compared_says_why(nine):
    rows = [row for row in three_seeds() if row["method"] != "norm-gwc"]
    for row in rows:
        if row["method"] == "norm" and row.get("seeds"):
            row |= {"delta": None, "delta_ci95": None, "p_value": None, "p_holm": None}
    limits = limitations(dataclasses.replace(nine, rows=rows))
    assert any(limit.startswith("norm, 3 seeds: no difference, because baseline") for limit in limits)


def test_cells_have_a_sort_key_and_details(nine):
    table = dict(measured_scores(nine, nine.lines))
    norm = dict(zip(nine.table.columns, table["norm"], strict=True))["pope"]
    assert (norm.score, norm.value, norm.difference, norm.direction) == ("90.0", 90.0, "+40.0", 0)
    assert "n = 40" in norm.details and "significant" not in norm.details and "p = " not in norm.details
    run = dataclasses.replace(nine, rows=three_seeds())
    several = dict(measured_scores(run, run.lines))["norm, 3 seeds"][2]
    assert (several.difference, several.direction) == ("+25.0*", 1)
    assert "after Holm's correction; significant" in several.details
    baseline = table["baseline"][0]
    assert baseline.difference == "" and "difference" not in baseline.details
    failed = dict(zip(nine.table.columns, table["norm-gwc"], strict=True))["ocrbench"]
    assert failed.value is None and failed.score == "failed: ValueError: a | b_c & 100%"
    assert len(published_scores(nine)) == 6 and published_scores(nine)[0][1][0].details == "n = 1,164"


def test_training_logs_are_read_by_stage_and_damaged_ones_are_named(tmp_path, tiny_llava):
    run = FinishedRun.read(write_run(tmp_path, tiny_llava))
    stage_folder = tmp_path / "checkpoints" / "norm" / "stage2"
    (stage_folder / "log.jsonl").write_text('{"step": 10, "loss"')
    (stage_folder / "probe.jsonl").write_text("")
    stages, notes = training_curves(run, {"baseline": 0, "norm": 1})
    loss = stages["Stage 2"][0]
    assert loss.rows == [["baseline", 10, 4.0], ["baseline", 20, 2.0], ["baseline", 30, 1.0]]
    damaged, empty = notes
    assert damaged.startswith("norm: stage2/log.jsonl") and empty.startswith("norm: stage2/probe.jsonl")


def test_drawings_use_the_pages_colours_and_their_own_ids():
    def draw(axes):
        axes.plot([1, 2], color=series(9), label="a <b>")
        axes.legend()

    first, second = (inline_svg(name, 'a "title" <b>', draw) for name in ("one", "two"))
    assert inline_svg("one", 'a "title" <b>', draw) == first
    assert 'aria-label="a &#34;title&#34; &lt;b&gt;"' in first and "a &lt;b&gt;" in first and "<b>" not in first
    assert "var(--series-1)" in first and "currentColor" in first and "<style" not in first
    assert not any(colour in first for colour in (INK, *SERIES))
    assert 'id="one-' in first and "#one-" in first and 'id="one-' not in second


def test_paths_are_shortened_to_their_last_part():
    error = "OSError: /data/a/b.json: cannot open '~/x/y.txt'"
    assert without_paths(error) == "OSError: …/b.json: cannot open '…/y.txt'"
    kept = "1/2 of org/name at https://example.org/a/b, and/or 3 / 4"
    assert without_paths(kept) == kept
    assert [probability(p) for p in (0.0004, 0.0123)] == ["p < 0.001", "p = 0.012"]


def test_settings_have_versions_and_weights_but_no_folder(tmp_path):
    parts = settings(FinishedRun.read(write_run(tmp_path, None)))
    assert ["torch", "2"] in parts["Versions"] and ["code", "not recorded"] in parts["Versions"]
    assert ["gpus", "none"] in parts["Hardware"] and ["tasks", "pope, mmlu"] in parts["Evaluation"]
    assert ["norm", "0" * 64] in parts["Checkpoints (sha256)"] and "/home" not in str(parts)


def test_measurements_are_those_of_the_diagnostics(alone, tiny_llava):
    measured = measurements.measure(alone)
    sample = in_benchmarks(alone.folder / "data" / "mirrors", 48, keys=("pope",))
    assert measured["baseline"]["profile"]["ratio"] == pytest.approx(profile(str(tiny_llava), sample)["ratio"])
    attention = measured["baseline"]["attention"]
    assert measured["baseline"]["inputs"]["dtype"] == measured["baseline"]["profile"]["dtype"] == "float32"
    assert 0 < attention["mass"]["mean"] < 1 and attention["mass"]["pictures"] == 12
    assert 0.1 < attention["area"]["mean"] < 0.3 and 0 < attention["inside"]["mean"] < 1


def test_visual_information_is_drawn_beside_its_null_where_it_was_measured():
    information = {"mean": [0.5, 0.4], "ci95": [[0.4, 0.6], [0.3, 0.5]], "shuffled": [0.02, 0.03]}
    new = small_profile() | {"visual_information": {**information, "reference": "features"}}
    old = {name: value for name, value in new.items() if name != "visual_information"}
    norms, cosines, drawn = layer_curves({"new": new, "old": old}, {"new": 0, "old": 1})
    assert drawn.title == "Visual information entering each layer: neighbours shared with features"
    assert drawn.rows == [
        ["new", "visual", 0, 0.5, "0.4 to 0.6"],
        ["new", "visual", 1, 0.4, "0.3 to 0.5"],
        ["new", "shuffled images", 0, 0.02, ""],
        ["new", "shuffled images", 1, 0.03, ""],
    ]
    assert {row[0] for row in norms.rows} == {row[0] for row in cosines.rows} == {"new", "old"}
    assert len(layer_curves({"old": old, "few": small_profile()}, {"old": 0, "few": 1})) == 2


def test_a_failed_measurement_leaves_the_other_models(tmp_path, tiny_llava, capsys):
    run = FinishedRun.read(write_run(tmp_path, tiny_llava))
    config = tmp_path / "checkpoints" / "norm" / "stage2" / "config.json"
    content = config.read_text()
    config.unlink()
    config.write_text(content + "\n")
    measured = measurements.measure(run)
    assert "checkpoint" in measured["norm"]["error"] and "profile" in measured["baseline"]
    assert "norm: " in capsys.readouterr().err


def test_without_boxes_no_share_is_claimed(alone):
    (alone.folder / "data/mirrors/boxes.json").unlink()
    assert set(measurements.measure(alone)["baseline"]["attention"]) == {"mass"}
