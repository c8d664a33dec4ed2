"""The benchmark of opening data: it counts rows, and memory stays flat."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import data_opening


def test_all_rows_are_opened_and_bad_ones_counted(tmp_path, capsys):
    data_opening.make_data(tmp_path, 2500)
    for _ in ("first", "cached"):
        data_opening.open_once(tmp_path, Path("tinyworld/backbones/language"))
    first, cached = map(json.loads, capsys.readouterr().out.split("\n")[-3:-1])
    assert (first["rows"], first["bad_rows"], cached["bad_rows"]) == (2500, 2, 2)
    assert cached["seconds"] < first["seconds"] and first["mean_length"] > 729


@pytest.mark.slow
@pytest.mark.campaign
def test_a_hundred_thousand_rows_need_less_than_500_mb(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["data_opening", "--rows", "100000", "--out", str(tmp_path / "out.json")])
    data_opening.main()
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["first"]["rows"] == 100_000 and result["first"]["bad_rows"] == 50
    assert all(result[name]["memory_growth_mb"] < 500 for name in ("first", "cached"))
