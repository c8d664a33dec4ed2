"""The benchmark at toy size writes its result; the recorded result is within its limit."""

import json
from pathlib import Path

from benchmarks import diagnostics_overhead


def test_the_result_is_written_and_printed(tmp_path, call, capsys):
    out = tmp_path / "result.json"
    small = ["--width", "64", "--layers", "2", "--side", "4", "--pairs", "3"]
    call(diagnostics_overhead.main, "--out", out, *small)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found
    assert found["ratios"]["profile"] > 0
    assert found["shape"]["visual_tokens"] == 16


def test_the_recorded_cost_is_at_most_a_quarter():
    recorded = Path(diagnostics_overhead.__file__).parent / "results" / "diagnostics_overhead.json"
    found = json.loads(recorded.read_text(encoding="utf-8"))
    assert found["shape"]["visual_tokens"] == 729 and found["shape"]["parameters"] > 39e6
    assert found["ratios"]["profile"] <= 1.25
