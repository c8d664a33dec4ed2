from research.diagnose_run import finished_models


def test_finished_models_are_found_baseline_first(tmp_path):
    for name in ("norm", "baseline", "a", "norm-gwc"):
        folder = tmp_path / "checkpoints" / name / "stage2"
        folder.mkdir(parents=True)
        if name != "norm-gwc":
            (folder / "config.json").write_text("{}")
    models = finished_models(tmp_path)
    assert list(models) == ["baseline", "a", "norm"] and models["a"] == tmp_path / "checkpoints/a/stage2"
    assert finished_models(tmp_path / "absent") == {}
