"""Names in archives and in rows of training data that leave their folder."""

import random
import stat
import zipfile

import pytest

from tests.faults.refusals import refused
from train.archive import extract_zip
from train.data.conversations import BadRow, image_files


ROUNDS = 200


def test_members_of_an_archive(tmp_path):
    """In all spellings, and links."""
    rng = random.Random(0)
    for number in range(ROUNDS):
        parts = rng.choices(["..", "a", "b.jpg", ".", "c d"], k=rng.randrange(1, 5))
        parts.insert(rng.randrange(len(parts) + 1), "..")
        name = rng.choice(["/", "\\"]).join([*parts, f"evil{number}.jpg"])
        name = rng.choice([name, f"/{name}", f"C:\\{name}", f"{tmp_path}/evil{number}.jpg"])
        member = zipfile.ZipInfo(name)
        member.filename = name  # ZipInfo tidies it
        if rng.random() < 0.3:
            member = zipfile.ZipInfo(f"fine/link{number}")
            member.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(tmp_path / "evil.zip", "w") as zipped:
            zipped.writestr("fine.jpg", b"fine")
            zipped.writestr(member, str(tmp_path))
        with refused("nothing was extracted"):
            extract_zip(tmp_path / "evil.zip", tmp_path / "deep" / "out")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["evil.zip"]


def test_images_of_rows(tmp_path):
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
