"""A handful of the campaign's images; `tests/modeling_aligned_llava/loading/test_images.py` has the details."""

from tests.faults.damaged_images import KINDS, damaged_image, images_case


def test_every_path_names_an_image_or_sees_the_same_pixels(tmp_path):
    found = images_case(0, 0, 48, tmp_path)
    assert found["images"] == 48 == found["images used"] + found["images refused"]
    assert len({damaged_image(0, number)[0] for number in range(48)}) > len(KINDS) / 2
