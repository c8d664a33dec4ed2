"""The benchmark at toy size writes its result; the recorded result is within its limit."""

import json
from pathlib import Path

import pytest

from benchmarks import norm_overhead


def test_the_result_is_written_and_printed(tmp_path, capsys):
    out = tmp_path / "new" / "result.json"
    norm_overhead.main(["--out", str(out), "--tokens", "8", "--width", "112"])
    result = json.loads(out.read_text())
    assert result == json.loads(capsys.readouterr().out.splitlines()[-1])
    taken = result["seconds"]
    expected = pytest.approx(1 + taken["norm"]["norm-gwc"] / taken["baseline_step"])
    assert result["ratios"] == {"norm-gwc": expected}
    assert {"date", "versions", "hardware"} <= set(result)


def test_the_recorded_cost_is_at_most_one_percent():
    recorded = Path(norm_overhead.__file__).parent / "results" / "norm_overhead.json"
    assert 1 < json.loads(recorded.read_text())["ratios"]["norm-gwc"] <= 1.01
