"""One command writes every table and figure of a run."""

import json

import pytest

from modeling_aligned_llava.diagnostics.instruments.models import load
from modeling_aligned_llava.errors import UserError
from research import diagnose_run
from research.diagnose_run import finished_models, main


def test_every_table_and_figure_is_written(mirror_root, tiny_checkpoint, tmp_path, call):
    links = {f"checkpoints/{method}/stage2": tiny_checkpoint(method) for method in ("baseline", "norm")}
    for link, target in {**links, "data/mirrors": mirror_root}.items():
        (tmp_path / link).parent.mkdir(parents=True)
        (tmp_path / link).symlink_to(target)
    call(main, tmp_path, "--limit", "3")
    _check(tmp_path / "diagnostics")
    with pytest.raises(UserError, match="has no checkpoint of it"):
        call(main, tmp_path, "--methods", "other")


@pytest.mark.slow
def test_models_that_were_given_are_studied_on_the_data_that_was_given(
    mirror_root, tiny_checkpoint, tiny_language_model, tmp_path, call, monkeypatch
):
    models = {"baseline": tiny_checkpoint("baseline"), "norm": tiny_checkpoint("norm"), "text": tiny_language_model}
    paths = {name: {"path": str(path)} for name, path in models.items()}
    (tmp_path / "run.json").write_text(json.dumps({"models": paths, "data": {"root": str(mirror_root)}}))
    loaded = []
    monkeypatch.setattr(diagnose_run, "load", lambda *asked: loaded.append(asked) or load(*asked))
    call(main, tmp_path, "--limit", "3")
    assert [path for path, _ in loaded] == [str(models["baseline"]), str(models["norm"])]
    _check(tmp_path / "diagnostics")


def _check(out):
    for name in ("dynamics.svg", "attribution.svg", "asymmetry.md", "encoders.md", "embeddings.md", "parameters.md"):
        assert (out / name).stat().st_size > 200, name
    for name in ("norms.md", "attention.svg", "attention.md", "gradients.md"):
        assert (out / "norm" / name).stat().st_size > 200, name
    change = json.loads((out / "asymmetry.json").read_text(encoding="utf-8"))["norm"]["log_norm, layer 0"]
    assert change["change_ci95"][0] <= change["change"] <= change["change_ci95"][1]


def test_finished_models_are_found_baseline_first(tmp_path):
    for name in ("norm", "baseline", "a", "norm-gwc"):
        folder = tmp_path / "checkpoints" / name / "stage2"
        folder.mkdir(parents=True)
        if name != "norm-gwc":
            (folder / "config.json").write_text("{}")
    models = finished_models(tmp_path)
    assert list(models) == ["baseline", "a", "norm"] and models["a"] == tmp_path / "checkpoints/a/stage2"
    assert finished_models(tmp_path / "absent") == {}
