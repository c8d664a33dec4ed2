"""From records to means, paired differences, scores, tables and figures."""

import json
import math

import numpy as np
import pytest
from scipy.stats import t

from eval.data.benchmarks import BENCHMARKS
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import write_json
from research.study.__main__ import write_analysis
from research.study.analysis import analyse
from research.study.grid import read_study
from research.study.information_tables import information_tables
from research.study.records import Records, final_loss, record_cell
from research.study.table import interval
from tests.research.study.stand_in import remove_record, result, write_stage, write_study


FULL = [{"methods": ["baseline", "norm"], "measure": "full"}]


def record_all(study, folder, tmp_path, losses, scores=None):
    """Record every cell; `losses(arm, seed)` is its held-out loss, `scores(arm, seed)` its benchmarks."""
    records = Records(folder, study.name)
    for number, cell in enumerate(study.cells):
        stages = {stage: tmp_path / "stages" / study.name / str(number) / stage for stage in cell.arm.stages}
        for path in stages.values():
            write_stage(path, losses(cell.arm.label, cell.seed))
        found = scores(cell.arm.label, cell.seed) if scores else {}
        attention = {"images": 2, "plain": {layer: {"mass": {"mean": 0.25}} for layer in "01"}} if scores else None
        record = record_cell(study, cell, {s: {} for s in stages}, stages, found, attention, 1.0)
        records.add(record, found)
    return records


def test_an_interval_over_seeds_is_students():
    values = [1.0, 1.5, 1.1]
    found, half = interval(values), t.ppf(0.975, 2) * np.std(values, ddof=1) / math.sqrt(3)
    assert found["mean"] == pytest.approx(1.2) and found["ci95"] == pytest.approx([1.2 - half, 1.2 + half])
    assert interval([1.0]) == {"mean": 1.0, "ci95": None, "sd": None, "n": 1}
    assert interval([1.0, math.inf]) == {"mean": None, "ci95": None, "sd": None, "n": 2}


def test_an_arm_is_compared_with_the_reference_seed_by_seed(tmp_path):
    study = read_study(write_study(tmp_path))
    noise = {42: 0.0, 43: 0.3, 44: 0.5}  # the same in every arm: only pairing removes it
    records = record_all(study, tmp_path, tmp_path, lambda arm, seed: noise[seed] + (1.25 if "norm" in arm else 1.0))
    arms = analyse(study, records)["arms"]
    assert arms["baseline"]["difference"] is None
    for label in ("norm, rate 0.3", "norm, rate 3"):
        assert arms[label]["difference"]["mean"] == pytest.approx(0.25)
        assert arms[label]["difference"]["ci95"] == pytest.approx([0.25, 0.25], abs=1e-3)
    assert arms["baseline"]["losses"]["stage1"]["sd"] == pytest.approx(np.std(list(noise.values()), ddof=1), rel=1e-3)
    stability = arms["baseline"]["stability"]["stage1"]
    assert stability["clipped"]["mean"] == 0.5 and stability["gradient p99 / median"]["mean"] == 1.0
    assert arms["baseline"]["visual_to_stream"]["mean"] == 1.0


def test_the_reference_at_the_same_levels_comes_first(tmp_path):
    arms = [{"methods": ["baseline", "norm"], "stages": ["stage1"], "vary": {"steps": [1.0, 4.0]}}]
    study = read_study(write_study(tmp_path, arms=arms))
    losses = {"baseline, steps 1": 1.0, "norm, steps 1": 1.5, "baseline, steps 4": 0.5, "norm, steps 4": 0.4}
    found = analyse(study, record_all(study, tmp_path, tmp_path, lambda arm, seed: losses[arm]))["arms"]
    differences = {label: arm["difference"] and round(arm["difference"]["mean"], 6) for label, arm in found.items()}
    assert differences == {
        "baseline, steps 1": None,
        "baseline, steps 4": None,
        "norm, steps 1": 0.5,
        "norm, steps 4": -0.1,
    }


def test_the_reference_with_the_most_common_levels_comes_first(tmp_path):
    arms = [
        {"methods": ["baseline"], "stages": ["stage1"], "vary": {"steps": [1.0, 4.0]}},
        {"methods": ["norm"], "stages": ["stage1"], "vary": {"steps": [4.0], "rate": [0.3]}},
    ]
    study = read_study(write_study(tmp_path, arms=arms))
    losses = {"baseline, steps 1": 1.0, "baseline, steps 4": 0.5, "norm, steps 4, rate 0.3": 0.4}
    found = analyse(study, record_all(study, tmp_path, tmp_path, lambda arm, seed: losses[arm]))["arms"]
    assert found["norm, steps 4, rate 0.3"]["difference"]["mean"] == pytest.approx(-0.1)


def lifts(tmp_path):
    """Decoders of three lifts, in which the effect of a norm is the logarithm of the lift."""
    decoders = {str(lift): {"language_model": f"decoder-{lift}"} for lift in (2, 10, 80)}
    scale = {str(each): {"norm_fields": {"target_scale": each}} for each in (1.0, 4.0)}
    arms = [
        {"methods": ["baseline"], "stages": ["stage1"], "vary": {"lift": decoders}},
        {"methods": ["norm"], "stages": ["stage1"], "vary": {"lift": decoders, "scale": scale}},
    ]
    study = read_study(write_study(tmp_path, arms=arms))
    records = Records(tmp_path, study.name)
    for number, cell in enumerate(study.cells):
        lift, folder = float(cell.arm.levels["lift"]), tmp_path / "stages" / str(number)
        write_stage(folder, 1.0 + (math.log(lift / 10) if cell.arm.method == "norm" else 0.0), lift=lift)
        records.add(record_cell(study, cell, {"stage1": {}}, {"stage1": folder}, {}, None, 1.0), {})
    return study, records


def test_the_law_names_what_predicts_the_effect_in_decoders_left_out(tmp_path):
    study, records = lifts(tmp_path)
    write_analysis(study, tmp_path)
    found = analyse(study, records)["law"]
    assert len(found["arms"]) == 6 and found["arms"]["norm, lift 80, scale 1.0"]["effect"] == pytest.approx(
        math.log(8), rel=1e-3
    )
    errors = found["errors"]
    assert errors["lift"]["rank"] == pytest.approx(1.0) and errors["lift"]["left_out"] < errors["constant"]["left_out"]
    assert errors["baseline's visual cosine"]["rank"] == 0.0  # the same in all
    assert (
        b"<svg" in (records.folder / "law.svg").read_bytes()
        and "left-out" in (records.folder / "tables.md").read_text()
    )


def test_a_changed_reference_is_compared_with_the_plain_one(tmp_path):
    arms = [{"methods": ["baseline"]}, {"methods": ["baseline"], "vary": {"rate": [3.0]}}]
    study = read_study(write_study(tmp_path, arms=arms))
    found = analyse(study, record_all(study, tmp_path, tmp_path, lambda arm, seed: 1.25 if "rate" in arm else 1.0))
    assert found["arms"]["baseline, rate 3"]["difference"]["mean"] == pytest.approx(0.25)
    assert found["arms"]["baseline"]["difference"] is None


def test_a_contrast_is_paired_by_seed(tmp_path):
    arms = [{"methods": ["baseline", "norm"], "stages": ["stage1"], "vary": {"steps": [1.0, 4.0]}}]
    plus, minus = ["norm, steps 4", "baseline, steps 1"], ["baseline, steps 4", "norm, steps 1"]
    study = read_study(write_study(tmp_path, arms=arms, contrasts={"crossing": {"plus": plus, "minus": minus}}))
    noise = {42: 0.0, 43: 0.3, 44: 0.5}
    losses = {"baseline, steps 1": 1.0, "norm, steps 1": 1.5, "baseline, steps 4": 0.5, "norm, steps 4": 0.4}
    records = record_all(study, tmp_path, tmp_path, lambda arm, seed: losses[arm] + noise[seed])
    found = analyse(study, records)["contrasts"]["crossing"]
    assert found["mean"] == pytest.approx(-0.6) and found["ci95"] == pytest.approx([-0.6, -0.6], abs=1e-3)
    remove_record(records, study.cells[-1])  # a seed that one of the arms lacks
    assert analyse(study, records)["contrasts"]["crossing"]["n"] == 2
    assert "crossing" in (records.folder / "tables.md").read_text()


def test_scores_have_intervals_over_seeds_and_items(tmp_path):
    study = read_study(write_study(tmp_path, arms=FULL))
    rng = np.random.default_rng(0)

    def scores(arm, seed):
        share = 0.9 if arm == "norm" else 0.4
        return {b.key: result([int(each) for each in rng.random(60) < share]) for b in BENCHMARKS}

    records = record_all(study, tmp_path, tmp_path, lambda arm, seed: 1.0, scores)
    records.add_decoder({"mmlu": result([1, 0])})
    analysis = analyse(study, records)
    rows = {(row["method"], row["benchmark"]): row for row in analysis["scores"] if row.get("seeds")}
    mean = rows["norm", "avg"]
    assert mean["seeds"] == [42, 43, 44] and mean["delta_ci95"][0] > 30 and mean["p_value"] < 0.01
    assert rows["baseline", "avg"]["delta"] is None and "minus baseline" in (records.folder / "tables.md").read_text()
    text = analysis["arms"]["norm"]["text"]["mmlu"]
    assert text["minus_decoder"]["mean"] == pytest.approx(text["score"]["mean"] - 50) and text["score"]["n"] == 3
    assert analysis["arms"]["norm"]["attention"]["mass"]["mean"] == 0.25
    assert "MMLU" in (records.folder / "tables.md").read_text()
    assert "mass" in (records.folder / "tables.md").read_text()
    other = {"pope": result([1] * 7)}
    with pytest.raises(UserError, match=r"items\.json: other items of pope than those of this run"):
        records.add({}, other)


def test_tables_and_figures_are_made_again_to_the_byte(tmp_path):
    study = read_study(write_study(tmp_path))
    records = record_all(study, tmp_path, tmp_path, lambda arm, seed: None if "rate 3" in arm else 1 + seed / 100)
    write_analysis(study, tmp_path)
    names = ["tables.md", "loss.svg"]
    before = {name: (records.folder / name).read_bytes() for name in names}
    for name in names:
        (records.folder / name).unlink()
    write_analysis(study, tmp_path)
    assert {name: (records.folder / name).read_bytes() for name in names} == before
    assert b"norm, rate 3" in before["tables.md"] and b"<svg" in before["loss.svg"]


def test_a_study_that_varies_no_number_shows_norms_by_layer(tmp_path):
    study = read_study(write_study(tmp_path, arms=[{"methods": ["baseline", "norm"], "stages": ["stage1"]}]))
    records = record_all(study, tmp_path, tmp_path, lambda arm, seed: 1.0)
    write_analysis(study, tmp_path)
    assert b"<svg" in (records.folder / "profile.svg").read_bytes() and not (records.folder / "loss.svg").exists()


def test_a_study_without_a_result_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no cell has finished: run the study first"):
        write_analysis(read_study(write_study(tmp_path)), tmp_path)


def test_information_is_compared_with_probes_paired_by_seed_and_joined_with_kept_checkpoints(tmp_path):
    layer = {"colour": 0.9, "shape": 0.8, "letter": 0.7, "ci95": [0.4, 0.6], "shuffled": 0.05}

    def layers(loss):
        return [
            layer | {"mean": 0.5},
            layer | {"mean": 0.45},
            layer | {"mean": 0.5 - loss / 10, "colour": 0.9 - loss / 10},
        ]

    lifted = [{"methods": ["baseline", "norm"], "stages": ["stage1"], "vary": {"lift": {80: {}}}}]
    study = read_study(write_study(tmp_path, arms=lifted))
    loss = lambda arm, seed: 1.0 + (seed - 42) / 10 + ("norm" in arm)  # noqa: E731
    records = record_all(study, tmp_path, tmp_path, loss)
    lines = [
        json.loads(line) | {"information": {"stage1": layers(final_loss(json.loads(line)))}}
        for line in records.file.read_text().splitlines()
    ]
    records.file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    other = read_study(write_study(tmp_path, "other", arms=FULL))
    scores = {benchmark.key: result([1, 0]) for benchmark in BENCHMARKS}
    record_all(other, tmp_path, tmp_path, loss, lambda arm, seed: scores)
    kept = {
        f"other.{cell.name}.{stage}": layers(loss(cell.arm.label, cell.seed))
        for cell in other.cells
        for stage in cell.arm.stages
    }
    write_json(records.folder / "checkpoints.json", kept)
    levels, changes, followed, explained = information_tables(records, "baseline")
    assert [row[:4] for row in levels.rows][-2:] == [["80", "stage1", method, "3"] for method in ("baseline", "norm")]
    assert len(levels.rows) == 6 and levels.rows[-1][4] == "0.500 [0.500, 0.500]" and levels.rows[-1][-1] == "0.050"
    assert changes.rows[-1] == [
        "80",
        "stage1",
        "norm",
        "-0.210 [-0.235, -0.185]",
        "-0.100 [-0.100, -0.100]",
        "-0.070 [-0.078, -0.062]",
        "-0.033 [-0.033, -0.033]",
    ]
    assert followed.rows[-1] == ["80", "stage1", "last layer", "6", "+1.00", "+1.00", "+nan", "+nan"]
    results = {tuple(row[:3]): row[3:] for row in explained.rows}
    assert results["80", "stage1", "held-out loss"][:2] == ["6", "-1.00"]
    assert results["1.7", "stage2", "mean score"][0] == "6" and ("1.7", "stage1", "mean score") not in results
