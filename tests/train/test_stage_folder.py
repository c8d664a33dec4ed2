"""The settings as they are written, and the folder that keeps them, without torch."""

import os
import subprocess
import sys

import pytest
import yaml

from tests.one_line import one_line
from train.settings import read_settings
from train.stage_folder import StageFolder


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"frozen": ["^a", "^b"], "max_steps": 8, "learning_rates": {"x": 0.001}}))
    return path


def peek(recipe, *options):
    return read_settings(["--config", str(recipe), *options])


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        (["--frozen", "^c", "^d", "--max_steps", "9"], "frozen", ["^c", "^d"]),
        (["--frozen", "^c"], "frozen", ["^c"]),
        (["--max-steps", "-1"], "max_steps", "-1"),
        (["--max_steps=9"], "max_steps", "9"),
        (["--lr_scheduler_kwargs", "a", "b"], "lr_scheduler_kwargs", ["a", "b"]),
        (["--clip_by_part", "--max_steps", "9"], "clip_by_part", "true"),
        (["--seed", "1", "--seed", "2"], "seed", "2"),
    ],
)
def test_the_command_line_wins_over_the_recipe(recipe, options, name, expected):
    assert peek(recipe, *options)[name] == expected


def test_every_value_of_a_list_option_counts(recipe, tmp_path):
    folder = StageFolder(tmp_path)
    folder.begin(peek(recipe, "--frozen", "^a", "^c"))
    assert folder.changed_settings(peek(recipe, "--frozen", "^a", "^c", "--max_steps", "8")) == []
    assert folder.changed_settings(peek(recipe)) == ["frozen was ['^a', '^c'], is ['^a', '^b']"]


def test_the_method_filled_in_by_hand_is_the_same(recipe, tmp_path):
    folder, raw = StageFolder(tmp_path), ["--method", "norm", "--data_path", "data/{method}.json"]
    by_hand = ["--method", "norm", "--data_path", "data/norm.json"]
    for first, second in ((raw, by_hand), (by_hand, raw)):
        folder.begin(peek(recipe, *first))
        assert folder.changed_settings(peek(recipe, *second)) == []


@pytest.mark.parametrize(
    ("written", "given", "same"),
    [
        (True, "true", True),
        (False, "no", True),
        (1e-5, "0.00001", True),
        ("1e-5", "1.0e-5", True),
        (1, "1.0", True),
        (None, "null", True),
        ({"x": "1e-5", "y": None}, '{"y": null, "x": 0.00001}', True),
        (True, "false", False),
        (1e-5, "2e-5", False),
        ("/data #1", "/data #2", False),
        ({"x": 1}, '{"x": 2}', False),
    ],
)
def test_a_setting_repeated_on_the_command_line_is_the_same(tmp_path, written, given, same):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"some": written}))
    folder = StageFolder(tmp_path)
    folder.begin(peek(recipe))
    assert (folder.changed_settings(peek(recipe, "--some", given)) == []) == same


def test_other_rows_are_refused_and_old_folders_have_none(recipe, tmp_path):
    folder = StageFolder(tmp_path)
    folder.begin(peek(recipe))
    folder.check_rows("1", "rows.json")  # of before rows were recorded
    folder.begin(peek(recipe), "1")
    assert folder.changed_settings(peek(recipe)) == []
    folder.check_rows("1", "rows.json")
    with one_line(r"rows\.json gives other rows than when .* was started"):
        folder.check_rows("2", "rows.json")


def test_automatic_precision_is_what_the_folder_was_started_with(recipe, tmp_path):
    folder = StageFolder(tmp_path)
    folder.begin(peek(recipe, "--bf16", "False"))
    assert folder.changed_settings(peek(recipe, "--bf16", "auto")) == []
    assert folder.changed_settings(peek(recipe, "--bf16", "True")) == ["bf16 was False, is True"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config"], "--config takes one file, not 0"),
        (["--config", "nowhere.yaml"], "--config: there is no file nowhere.yaml"),
        (["stage1.yaml"], "'stage1.yaml' belongs to no option"),
    ],
)
def test_what_is_not_a_setting_is_one_line(arguments, message):
    with one_line(message):
        read_settings(arguments)


def test_help_is_printed_without_torch():
    code = "import sys; from train import sft; sys.argv += ['--help']; sft.main(); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert "--learning_rates: Learning rate of each parameter group" in done.stdout


def test_a_finished_stage_is_recognised_without_torch(recipe, tmp_path):
    arguments = ["--config", str(recipe), "--output_dir", str(tmp_path)]
    folder = StageFolder(tmp_path)
    folder.begin(read_settings(arguments))
    folder.mark_complete({})
    code = (
        f"import sys; from train import sft; sys.argv += {arguments!r}; sft.main(); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == f"{tmp_path}: already done\n"


def test_data_written_after_a_finished_stage_is_said(tmp_path):
    folder, data = StageFolder(tmp_path), tmp_path / "rows.json"
    data.write_text("[]")
    folder.mark_complete({})
    assert folder.already_done({"data_path": data}) == f"{tmp_path}: already done"
    os.utime(data, (data.stat().st_mtime + 9,) * 2)
    assert f"already done, before {data} was written: remove it" in folder.already_done({"data_path": str(data)})
