"""Rows of training data that name an image outside the image folder; `tests/train/data/test_fetch.py` has archives."""

import pytest

from train.data.conversations import BadRow, image_files


def test_an_image_outside_is_a_bad_row(tmp_path):
    images, secret = tmp_path / "images", tmp_path / "secret.png"
    images.mkdir()
    secret.touch()
    (images / "in.png").touch()
    names = [str(secret), f"//{secret}", f"in.png\0/{secret}"]
    for up in ("..", "./..", "x/../..", "..\\", "images/../.."):
        names += [f"{up}/secret.png", f"{up}/images/in.png"]
    for name in names:
        with pytest.raises(BadRow):
            image_files(name, images)
    assert image_files("in.png", images) == [f"{images}/in.png"]
