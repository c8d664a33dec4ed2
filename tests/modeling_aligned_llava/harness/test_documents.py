"""Images are hashed as they are stored and decoded once, ahead of the batch that needs them."""

import io
import threading

import pytest
from datasets import Dataset, Features, Image, List
from PIL import Image as PILImage

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.documents import Documents, opened_ahead
from tests.benchmark_stand_in import image_of


def encoded(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return {"bytes": file.getvalue(), "path": None}


def turned():
    exif = PILImage.Exif()
    exif[0x0112] = 6
    return encoded(PILImage.new("RGB", (40, 20)), exif=exif)


def dataset(images):
    return Dataset.from_dict({"image": images}, features=Features({"image": Image()}))


@pytest.fixture
def rows(tmp_path):
    image_of(3).save(tmp_path / "file.png")
    stored = [encoded(image_of(1)), encoded(image_of(1)), encoded(image_of(2)), None, turned()]
    return dataset([*stored, {"bytes": None, "path": str(tmp_path / "file.png")}])


def visual(document):
    return [document["image"].convert("RGB")] if document["image"] else []


def test_a_look_tells_images_apart_without_decoding_them(rows, monkeypatch):
    opened = [Documents(rows, "task").open(visual, index) for index in range(len(rows))]
    monkeypatch.setattr(Image, "decode_example", None)  # a call would be an error
    documents = Documents(rows, "task")
    looks = [documents.look(visual, index) for index in range(len(rows))]
    digests = [digest for digest, _ in looks]
    assert digests[0] == digests[1] and len(set(digests)) == len(rows) - 1
    assert [digest == "" for digest in digests] == [index == 3 for index in range(len(rows))]
    assert [sizes for _, sizes in looks] == [[image.size for image in images] for images in opened]
    assert looks[4][1] == [(20, 40)]


def test_a_task_that_changes_an_image_is_looked_at_decoded(rows):
    """Two crops of one stored image are different images."""
    documents = Documents(rows, "task")

    def shrunk(document):
        document["image"].thumbnail((8, 8))
        return [document["image"]]

    looks = [
        documents.look(show, 0)
        for show in (visual, lambda d: [d["image"].crop((0, 0, 5, 5))], lambda d: [d["image"].resize((9, 9))], shrunk)
    ]
    assert len({digest for digest, _ in looks}) == 4
    assert [sizes[0] for _, sizes in looks[1:]] == [(5, 5), (9, 9), (8, 6)]


def test_documents_that_are_no_files_are_looked_at_decoded():
    lists = Dataset.from_dict({"images": [[encoded(image_of(1)), encoded(image_of(2))]]}).cast(
        Features({"images": List(Image())})
    )
    for rows, show in ((lists, lambda document: document["images"]), ([[image_of(1), image_of(2)]], list)):
        digest, sizes = Documents(rows, "task").look(show, 0)
        assert digest and sizes == [image_of(1).size, image_of(2).size]


def test_a_document_with_something_else_is_named(rows):
    with pytest.raises(ValueError, match="pope document 2: aligned_llava reads images only"):
        Documents(rows, "pope").look(lambda document: ["video.mp4"], 2)


def test_a_document_that_cannot_be_read_is_named(rows):
    whole = encoded(PILImage.effect_noise((64, 64), 90))["bytes"]
    broken = [whole[:-200], b"<html>404</html>", encoded(PILImage.new("RGB", (900, 2)))["bytes"], whole]
    deep = io.BytesIO()
    PILImage.new("I;16", (8, 8), 9000).save(deep, "PNG")
    broken.append(deep.getvalue())
    documents = Documents(dataset([{"bytes": content, "path": None} for content in broken]), "pope")
    documents.look(visual, 0)
    for index, read, what in (
        (0, documents.open, "its image cannot be read: image file is truncated"),
        (1, documents.look, "its image cannot be read: cannot identify"),
        (2, documents.look, "its image has 900 x 2 pixels"),
        (4, documents.look, "its image has pixels of more than 8 bits"),
    ):
        with pytest.raises(UserError, match=f"^pope document {index}: {what}"):
            read(visual, index)
    with pytest.raises(UserError, match="pope document 3 has no usable image: AttributeError: 'NoneType'"):
        documents.open(lambda document: [None.convert("RGB")], 3)


def test_images_are_opened_while_the_batch_before_is_answered():
    opened = [threading.Event() for _ in range(3)]

    def opening(batch):
        return {"digest": lambda: opened[batch].set() or batch}

    for batch, images in opened_ahead(range(3), opening):
        assert images == {"digest": batch}
        assert batch == 2 or opened[batch + 1].wait(timeout=30)
