"""Images for the diagnostics, drawn from the benchmarks."""

from collections import Counter

import pytest

from eval.data.image_sample import in_benchmarks
from modeling_aligned_llava.errors import UserError
from tests.benchmark_stand_in import image_of


def test_the_sample_of_the_benchmarks_is_deterministic(mirror_root):
    first, again = (in_benchmarks(mirror_root, 4) for _ in range(2))
    assert [image.id for image in first] == [image.id for image in again] and len(first) == 4
    assert all(image.open().mode == "RGB" for image in first)
    whole = in_benchmarks(mirror_root, 10**6)
    assert Counter(image.id.partition("/")[0] for image in whole) == {"mmbench": 10, "pope": 10, "mmstar": 10}
    assert len({image.id for image in whole}) == 30
    for image in whole:
        if image.id.startswith("pope/"):  # whose rows lie in three files
            number = int(image.id.removeprefix("pope/"))
            assert image.open().getpixel((0, 0)) == image_of(number // 2).getpixel((0, 0))
    with pytest.raises(UserError, match="there is no folder"):
        in_benchmarks(mirror_root / "absent", 4)
