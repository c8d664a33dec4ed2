"""A handful of the campaign's cases; `tests/train/optimization/test_finite_steps.py` has the details."""

from tests.faults.numbers import CAMPAIGN


def test_broken_steps_stop_the_run_or_are_skipped(tmp_path):
    assert next(CAMPAIGN.cases(0)).run(tmp_path) == {"stopped": 1, "skipped": 1}
