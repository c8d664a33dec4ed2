"""The benchmark at toy size writes its result; the recorded result is within its limit."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import norm_overhead


def test_the_result_is_written_and_printed(monkeypatch, tmp_path, capsys):
    for name, value in {"TOKENS": 8, "VISION_WIDTH": 32, "WIDTH": 112}.items():
        monkeypatch.setattr(norm_overhead, name, value)
    out = tmp_path / "new" / "result.json"
    monkeypatch.setattr(sys, "argv", ["norm_overhead", "--out", str(out), "--steps", "2", "--passes", "2"])
    norm_overhead.main()
    result = json.loads(out.read_text())
    assert result == json.loads(capsys.readouterr().out.splitlines()[-1])
    taken = result["seconds"]
    assert result["ratios"] == {"norm-gwc": pytest.approx(1 + taken["norm"] / taken["baseline_step"])}
    assert {"date", "versions", "hardware"} <= set(result)


def test_the_recorded_cost_is_at_most_one_percent():
    recorded = Path(norm_overhead.__file__).parent / "results" / "norm_overhead.json"
    assert 1 < json.loads(recorded.read_text())["ratios"]["norm-gwc"] <= 1.01
