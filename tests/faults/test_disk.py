"""Some full disks of the campaign, with another seed."""

import pytest

from tests.faults import disk


@pytest.mark.parametrize(
    "work", [disk.answers, disk.results, disk.logs, disk.extraction], ids=lambda work: work.__name__
)
def test_a_full_disk_loses_nothing(work, tmp_path):
    found = disk.run(work, "fast", tmp_path)
    if "reason" in found:
        pytest.skip(f"no mount: {found['reason']}")
    assert found["full"] > 0
