"""From a study's YAML to its cells and their settings; every mistake is one line."""

import pytest

from research.study.experiment import SETTINGS
from research.study.grid import read_study, stage_settings, words
from tests import REPOSITORY
from tests.one_line import one_line
from tests.research.study.stand_in import write_study
from train.parse import parse_settings
from train.settings import read_settings


STUDIES = sorted((REPOSITORY / "research/studies").rglob("*.yaml"))
ENDED = ("lifted", "e_smollm2")  # only records are left, of methods that are gone too
TO_RUN = [path for path in STUDIES if not {path.parent.name, path.stem} & {*ENDED}]


def test_cells_are_arms_by_seeds(tmp_path):
    study = read_study(write_study(tmp_path))
    assert [arm.label for arm in study.arms] == ["baseline", "norm, rate 0.3", "norm, rate 1", "norm, rate 3"]
    assert [cell.name for cell in study.cells[:5]] == [
        "baseline-seed42",
        "norm_rate_0.3-seed42",
        "norm_rate_1-seed42",
        "norm_rate_3-seed42",
        "baseline-seed43",
    ]
    assert len(study.cells) == 12 and not study.evaluated
    assert study.arms[1].settings == {"steps": 0.5, "rate": 0.3} and study.arms[1].stages == ("stage1",)


def test_rate_and_steps_are_factors_on_the_recipe():
    settings = stage_settings("tinyworld", "stage2", {"rate": 3.0, "steps": 0.5, "max_grad_norm": 0.0})
    rates = settings["learning_rates"]
    assert {pattern: rate for pattern, rate in rates.items() if "projector" in pattern} == pytest.approx(
        dict.fromkeys((p for p in rates if "projector" in p), 9e-4)
    )
    assert rates[r"^model\.vision_tower\."] == 1.5e-4
    assert (settings["max_steps"], settings["save_steps"], settings["eval_steps"]) == (300, 75, 75)
    assert settings["max_grad_norm"] == 0.0 and "rate" not in settings and "steps" not in settings


def test_levels_may_be_names_and_norm_fields_are_joined(tmp_path):
    varied = {
        "k": {"four": {"norm_fields": {"target_scale": 4.0}}},
        "layer": {"two": {"norm_fields": {"stream_layer": 2}}},
    }
    study = read_study(write_study(tmp_path, arms=[{"methods": ["norm"], "vary": varied}], reference="norm"))
    assert study.arms[0].label == "norm, k four, layer two"
    assert study.arms[0].settings["norm_fields"] == {"target_scale": 4.0, "stream_layer": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": []}, r"seeds must be a list of whole numbers, not \[\]"),
        ({"colour": 1}, "unknown key colour; keys: analysis, arms"),
        ({"backbone": "llama-3.2-3b"}, "has no world.yaml, from which data is made, of llama-3.2-3b"),
        ({"reference": "norm-gwc"}, "reference 'norm-gwc' is none of the methods baseline, norm"),
        ({"arms": [{"methods": ["nrom"]}]}, "unknown method 'nrom'"),
        ({"arms": [{"method": "norm"}]}, "an entry of arms has methods and some of measure, methods"),
        (
            {"arms": [{"methods": ["baseline"], "measure": "loss"}]},
            "measure must be one of held_out_loss, information",
        ),
        ({"arms": [{"methods": ["baseline"], "measure": "full", "stages": ["stage1"]}]}, "and both for measure full"),
        ({"arms": [{"methods": ["baseline"], "vary": {"rate": 1}}]}, "vary rate must be a list of values, or a map"),
        ({"contrasts": {"a": {"plus": ["norm"]}}}, "contrast 'a' must have plus and minus"),
        (
            {"contrasts": {"a": {"plus": ["norm"], "minus": ["baseline"]}}},
            "no arm .norm.; there are: baseline; n",
        ),
        ({"arms": [{"methods": ["baseline", "baseline"]}]}, "there are two arms 'baseline'"),
        (
            {"arms": [{"methods": ["baseline"], "measure": "full", "settings": {"bypassed_layers": [0]}}]},
            "bypassed_layers are not saved in a model",
        ),
        (
            {"arms": [{"methods": ["baseline"], "settings": {"norm_fields": {"norm_init": 1}}}]},
            "norm_fields of baseline: norm_init must be one of",
        ),
    ],
)
def test_a_mistake_is_one_line(tmp_path, changes, message):
    with one_line(message):
        read_study(write_study(tmp_path, **changes))


def test_a_file_that_is_no_study_is_one_line(tmp_path):
    (tmp_path / "a.yaml").write_text("- 1")
    for name, message in (("a.yaml", "no study; keys: "), ("b.yaml", "cannot be read as YAML")):
        with one_line(message):
            read_study(tmp_path / name)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_settings_of_every_shipped_study_are_known_to_training(path):
    study = read_study(path, path in TO_RUN)
    seeds = {"a_methods": 5, "b_clipping": 5, "c_initialisation": 5, "d_rates": 1, "d_smollm2": 2, "h_rates": 1}
    seeds |= {"d_real_pair": 1, "s_real_pair": 2}
    assert len(study.seeds) >= seeds.get(path.stem, 3)
    for arm in study.arms if path in TO_RUN else ():
        for stage in arm.stages:
            chosen = stage_settings(study.backbone, stage, arm.settings)
            recipe = REPOSITORY / "configuration/train" / study.backbone / f"{stage}.yaml"
            base = ["--config", str(recipe), "--method", arm.method, "--bf16", "false"]
            of_stage = {name: value for name, value in chosen.items() if name not in SETTINGS}
            settings = parse_settings(read_settings([*base, *words(of_stage)]))
            assert (settings.training.max_steps, settings.monitoring.eval_rows) == (chosen["max_steps"], 256)
            assert settings.model.norm_fields == arm.settings.get("norm_fields")


def test_the_studies_on_tinyworld_take_at_most_twenty_core_hours():
    """At 1.2 minutes for a stage 1 of tinyworld, 3 for a stage 2, 0.4 to start one, and 2 for an evaluation."""
    minutes = 0.0
    for study in map(read_study, TO_RUN):
        for cell in study.cells if study.backbone == "tinyworld" else ():
            steps = {s: stage_settings("tinyworld", s, cell.arm.settings)["max_steps"] for s in cell.arm.stages}
            minutes += 0.4 * len(steps)
            minutes += 1.2 * steps["stage1"] / 800 + 3 * steps.get("stage2", 0) / 600 + 2 * cell.arm.evaluated
    assert minutes <= 20 * 60
