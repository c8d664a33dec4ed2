"""A handful of the campaign's mutations of each file."""

import pytest

from tests.faults.mutated_files import FILES, RECIPE, mutations_case


@pytest.mark.parametrize("name", [*FILES, RECIPE])
def test_mutated_files_are_refused_or_mean_what_they_say(name, tmp_path):
    found = mutations_case("0", name, 4, tmp_path)
    assert found["mutations"] == 4 == sum(found.get(end, 0) for end in ("refused", "same results", "other settings"))
