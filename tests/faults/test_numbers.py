"""A handful of the campaign's cases; `tests/train/optimization/test_finite_steps.py` has the details."""

from tests.faults.numbers import CAMPAIGN


def test_broken_steps_stop_the_run_or_are_skipped(tmp_path):
    for case in [*CAMPAIGN.cases(0)][:2]:
        (tmp_path / case.name).mkdir()
        assert case.run(tmp_path / case.name) == {"stopped": 1, "skipped": 1}
