"""`train.data prepare`: the rows that training would prepare, found by it afterwards, for both stages."""

import json
import re

import pytest

from modeling_aligned_llava.errors import UserError
from tests.train.conftest import CONFIGURATION
from tests.train.data.rows import turns
from train.data import __main__ as command
from train.data.__main__ import prepare
from train.stage import run_stage


def test_training_finds_the_rows_of_both_stages(stage_arguments, tiny_backbones, tmp_path, monkeypatch, capsys):
    towers = ["--vision_tower", str(tiny_backbones.vision), "--language_model", str(tiny_backbones.qwen2)]
    first, second = (stage_arguments(stage, "norm", tmp_path, data_cache=tmp_path / "cache") for stage in (1, 2))
    prepare(first)
    prepare([*second, *towers], CONFIGURATION / "stage1.yaml")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "24 rows; 0 filtered, 0 damaged" in line] == lines[::2]
    assert all(re.fullmatch(r"24 rows in [\d.]+ s, [\d,]+ rows/s", line) for line in lines[1::2])
    assert not (tmp_path / "norm" / "stage1" / "assembled").exists()
    monkeypatch.setattr("train.data.prepared.usable_rows", lambda *_: pytest.fail("prepared again"))
    run_stage(first)
    run_stage(second)
    assert (tmp_path / "norm" / "stage2" / "training_complete.json").exists()


def test_damaged_rows_over_the_limit_are_named_before_training(stage_arguments, tmp_path, call, capsys):
    rows = [{"conversations": turns("A?")}, {"conversations": turns("A?", "")}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    arguments = stage_arguments(1, "norm", tmp_path, data_path=tmp_path / "rows.json")
    with pytest.raises(UserError, match=r"1 of 2 rows are damaged, more than .*: 1 x an answer is empty"):
        call(command.main, "prepare", *arguments)
    listed = (tmp_path / "norm" / "stage1" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["filtered"] for line in listed] == [True, False]
    call(command.main, "prepare", *arguments, "--bad_rows_limit", "0.5")
    assert "0 rows; 1 filtered (1 x turns do not" in capsys.readouterr().out
