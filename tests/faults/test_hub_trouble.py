"""Some cases of the campaign, with another seed."""

import math

import pytest

from tests.faults import hub_trouble


@pytest.mark.parametrize(
    ("name", "address", "kind", "times"),
    [
        ("training data", 0, "503", 2),
        ("training data", 4, "damage", 2),
        ("training data", 4, "cut", math.inf),
        ("benchmarks", 3, "drop", 2),
        ("push", 0, "429", 1),
        ("push", 3, "500", math.inf),
    ],
)
def test_trouble_is_survived_or_ends_in_one_line(tmp_path, name, address, kind, times):
    found = hub_trouble.run(tmp_path, name, address, kind, times, "fast")
    assert found["met"] and found["lasting"] == (times == math.inf and kind != "cut")
