"""A small simulation: intervals cover the truth; ways that leave seeds out, or take three for many, do not."""

import json

from research import interval_coverage
from research.interval_coverage import Shape, coverage
from tests import REPOSITORY


def test_intervals_of_three_seeds_cover_the_truth_and_those_without_seeds_do_not():
    for outcome, ways in coverage("plain", Shape(1, 1000, 1, False), 2.0, 3, 300).items():
        assert 0.90 <= ways["ours"] <= 0.99, outcome
        assert ways["items only"] < ways["normal"] < ways["ours"] and ways["items only"] < 0.88, outcome


def test_intervals_of_one_seed_cover_its_own_score(monkeypatch):
    monkeypatch.setattr("eval.score.statistics.RESAMPLES", 500)
    for shape in (Shape(57, 4, 1, False), Shape(1, 60, 6, False)):
        for outcome, ways in coverage("small", shape, 2.0, 1, 150).items():
            assert 0.89 <= ways["ours"] <= 0.99, outcome


def test_the_committed_result_is_within_its_limits():
    """Two seeds are too few, and the documentation says so."""
    found = json.loads((REPOSITORY / "benchmarks/results/interval_coverage.json").read_text())
    for count in ("1", "3", "5", "10"):
        limits = found["by_seeds"][count]
        assert 0.93 <= limits["lowest"] and limits["highest"] <= 0.975, count


def test_the_result_has_every_way_and_its_range(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(interval_coverage, "SHAPES", {interval_coverage.HIERARCHICAL: Shape(1, 50, 1, False)})
    monkeypatch.setattr("eval.score.statistics.RESAMPLES", 100)
    monkeypatch.setattr("sys.argv", ["interval_coverage", "--repetitions", "3", "--out", str(tmp_path / "out.json")])
    interval_coverage.main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found["by_seeds"]) == {"1", "2", "3", "5", "10"} and len(found["rows"]) == 2 * (1 + 4 * 3)
    assert any("hierarchical bootstrap" in row["coverage"] for row in found["rows"])
    assert len(found["tables"]) == 3 * 2 * 2 * 2 and found["table_repetitions"] == 3
    assert all(len(row["columns"]) == 9 for row in found["tables"])


def test_columns_that_share_have_narrower_intervals_in_the_committed_result():
    """At two seeds half as wide; their coverage in the mean over columns stays that of the level."""
    found = json.loads((REPOSITORY / "benchmarks/results/interval_coverage.json").read_text())
    rows = {(row["seeds"], row["together"], row["outcome"], row["way"]): row for row in found["tables"]}
    for (count, together, outcome, way), shared in rows.items():
        if way == "shared":
            alone = rows[count, together, outcome, "alone"]["half_width"]
            assert shared["half_width"]["mean"] < alone["mean"] / (2 if count == 2 else 1)
            assert 0.94 <= shared["coverage"]["mean"] <= 0.965 and shared["coverage"]["lowest"] > 0.88
