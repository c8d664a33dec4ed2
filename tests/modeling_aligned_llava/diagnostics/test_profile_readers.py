"""`compare`, `dynamics` and `theory PROFILE` on profiles of a tiny model."""

import copy
import json
from functools import partial

import pytest
import torch

from modeling_aligned_llava.diagnostics.compare import compare
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion, draw
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of, load
from modeling_aligned_llava.diagnostics.norm_profile.connector_norm import connector_line, connector_norm
from modeling_aligned_llava.diagnostics.profile import profile_loaded
from modeling_aligned_llava.diagnostics.theory import log_tangent_fit, predicted_rotation
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.files import read_json
from tests.modeling_aligned_llava.diagnostics.profiles import small_profile
from tests.one_line import one_line


@pytest.fixture(scope="module")
def profiles():
    return small_profile(), small_profile(1.05)


def test_compare_names_the_first_number_that_differs(profiles, tmp_path, run, capsys):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, profile in zip(paths, profiles, strict=True):
        path.write_text(json.dumps(profile), encoding="utf-8")
    run("compare", paths[0], paths[0])
    with pytest.raises(UserError, match="the first: connector output, mean"):
        run("compare", *paths)
    run("compare", *paths, "--tolerance", "0.06", "--cosine-tolerance", "0.1")
    differences = {difference.where: difference for difference in compare(*profiles, 0.02, 0.01)}
    assert differences["connector output, mean"].off == pytest.approx(0.05, abs=1e-3)
    assert differences["text embeddings, mean"].within and differences["connector input, mean"].within
    moved = read_json(paths[1]) | {"image_ids": ["other"]}
    paths[1].write_text(json.dumps(moved), encoding="utf-8")
    with pytest.raises(UserError, match="different images"):
        run("compare", *paths)


def test_compare_names_a_port_with_its_norm_on_the_wrong_side_of_the_projection(tiny_checkpoint, tmp_path, run):
    """Ports have had the order or the scale of a norm wrong (llama.cpp#23822, vllm#40411, mlx-vlm#906)."""
    model, processor = load(str(tiny_checkpoint("norm")))
    connector, images = model.model.multi_modal_projector, [ImageQuestion("drawn", partial(draw, 0))]
    profile_loaded("original", model, processor, images, tmp_path / "original.json")
    connector.norm = torch.nn.Identity()
    connector.linear_1 = torch.nn.Sequential(torch.nn.LayerNorm(connector.linear_1.in_features), connector.linear_1)
    profile_loaded("port", model, processor, images, tmp_path / "port.json")
    run("compare", tmp_path / "port.json", tmp_path / "port.json")
    after, before = r"Connector: ends in a norm \(norm\), .*", r"Connector: a norm \(linear_1\.0\), then a projection"
    with one_line(rf"normalise in different places\. {after}; {before}"):
        run("compare", tmp_path / "original.json", tmp_path / "port.json")


def test_a_connector_that_cannot_be_called_again_is_said_and_the_profile_stands(tiny_checkpoint):
    model, processor = load(str(tiny_checkpoint("baseline")))

    images = [ImageQuestion("drawn", partial(draw, 0))]
    measured = profile_loaded("usual", model, processor, images)
    assert measured["verdict"]["lines"][1].startswith("Connector: no norm; visual tokens inherit the scale")
    parts, inputs = model_parts(model), inputs_of(processor, images[0], "cpu")
    parts.connector.linear_2.register_forward_pre_hook(lambda *_: setattr(parts.connector, "linear_1", None))
    failed = connector_norm(model, parts, inputs)
    assert list(failed) == ["failure"]
    assert connector_line(failed).startswith("Connector: could not be tested for a norm (TypeError: ")


def test_compare_judges_visual_information_by_its_intervals(profiles, tmp_path, run, capsys):
    def informed(mean, half, reference="features"):
        information = {"mean": [0.9, mean], "ci95": [[0.8, 1.0], [mean - half, mean + half]], "reference": reference}
        return {**profiles[0], "visual_information": information}

    def judged(first, second):
        rows = compare(first, second, 0.02, 0.01)
        return [(row.off, row.within) for row in rows if row.where.endswith("visual information")]

    assert judged(informed(0.5, 0.1), informed(0.55, 0.02)) == [(0, True), (pytest.approx(0.05), True)]
    assert judged(informed(0.5, 0.1), informed(0.7, 0.1)) == [(0, True), (pytest.approx(0.2), False)]
    assert judged(informed(0.5, 0.1), informed(0.7, 0.1, "layer 0")) == [(None, True)] * 2
    old = {name: value for name, value in profiles[0].items() if name != "visual_information"}
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, profile in zip(paths, (old, informed(0.5, 0.1)), strict=True):
        path.write_text(json.dumps(profile), encoding="utf-8")
    run("compare", *paths)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "layer 1, visual information" in line)
    assert [cell.strip() for cell in line.split("│")[2:5]] == ["-", "0.5000", "-"]


def test_files_that_are_not_profiles_are_rejected(tmp_path, run):
    (tmp_path / "old.json").write_text('{"schema": 0}', encoding="utf-8")
    (tmp_path / "text.json").write_text("no json", encoding="utf-8")
    for name, line in (("old.json", "schema version 2"), ("text.json", "is not JSON"), ("none.json", "there is no")):
        with pytest.raises(UserError, match=line):
            run("compare", tmp_path / name, tmp_path / name)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_numbers_of_states_that_were_not_finite_are_refused(profiles, value, tmp_path, run):
    broken, stage = copy.deepcopy(profiles[0]), copy.deepcopy(profiles[0])
    broken["layers"]["text"]["norm"]["mean"][-1] = value
    stage["norms"]["connector output"]["skipped"] = 8
    for profile in (broken, stage):
        (tmp_path / "old.json").write_text(json.dumps(profile), encoding="utf-8")
        for command in (("compare", tmp_path / "old.json"), ("theory",), ("dynamics", "--out", tmp_path)):
            with one_line("old.json: the states of tiny were not finite; measure it again"):
                run(command[0], tmp_path / "old.json", *command[1:])
    record = {"tokens": 4, "norm": [1.0, value], "cosine": [0.5]}
    lines = [json.dumps({"step": 0}), json.dumps({"step": 10, "text": record})]
    (tmp_path / "probe.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with one_line(r"probe\.jsonl, line 2: the states of this model were not finite"):
        run("dynamics", "--training", tmp_path / "probe.jsonl", "--out", tmp_path)


def test_dynamics_draws_and_tabulates(profiles, tmp_path, run):
    for name, profile in zip(("a", "b"), profiles, strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(profile), encoding="utf-8")
    training = tmp_path / "probe.jsonl"
    record = {"tokens": 4, "norm": [1.0, 2.0, 3.0], "cosine": [0.5, 0.9]}
    lines = [json.dumps({"step": step, "text": record, "visual": record}) for step in (0, 10)]
    training.write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = tmp_path / "figures"
    arguments = [tmp_path / "a.json", f"other={tmp_path / 'b.json'}", "--training", training, "--out", out]
    run("dynamics", *arguments)
    assert {path.name for path in out.iterdir()} == {
        "dynamics.svg",
        "attribution.svg",
        "dynamics-a.md",
        "dynamics-other.md",
        "figure5.svg",
    }
    first = (out / "dynamics.svg").read_bytes()
    run("dynamics", *arguments)
    assert (out / "dynamics.svg").read_bytes() == first
    run("dynamics", *arguments, "--paper-convention")
    assert (out / "dynamics.svg").read_bytes() != first
    with pytest.raises(UserError, match="nothing to draw"):
        run("dynamics", "--out", out)


def test_the_predicted_ratio_is_that_of_the_norms(profiles, tmp_path, run):
    (tmp_path / "a.json").write_text(json.dumps(profiles[0]), encoding="utf-8")
    run("theory", tmp_path / "a.json", "--json", tmp_path / "prediction.json")
    (rotation,) = read_json(tmp_path / "prediction.json").values()
    visual, text = (profiles[0]["layers"][series]["log_norm"]["mean"] for series in ("visual", "text"))
    assert rotation["predicted_ratio"][0] == pytest.approx(2.718281828459045 ** (text[0] - visual[0]))
    assert len(rotation["measured_ratio"]) == len(rotation["coherence"]) == 2


def test_fit_of_a_prediction():
    assert log_tangent_fit([-1.0, -2.0], [-1.0, -2.0]) == {"share": 1.0, "r_squared": 1.0}
    assert log_tangent_fit([1.0, 2.0], [-1.0, -2.0])["r_squared"] < 0


def test_visual_tokens_of_zeros_make_a_profile_without_nan(tmp_path):
    profile = small_profile(0.0)
    json.dumps(profile, allow_nan=False)
    assert profile["norms"]["visual tokens at layer 0"]["mean"] == 0
    assert profile["layers"]["text"]["norm"]["mean"][0] > 0
    with pytest.raises(UserError, match="no angles to compare"):
        predicted_rotation(profile)
