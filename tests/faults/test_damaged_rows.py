"""A handful of the campaign's rows; `tests/train/data/test_quarantine.py` has the details."""

import pytest

from tests.faults.damaged_rows import PATHS, rows_case


@pytest.mark.parametrize("path", PATHS)
def test_every_row_is_used_or_named(path, tmp_path):
    assert rows_case(0, path, 0, 24, tmp_path)["rows"] == 24
