"""The documents of a task: their images are hashed as they are stored, and decoded once, ahead of their batch.

`datasets` decodes an image at every access, and each is asked for twice: before the batches are formed (to hash it and
to count its tokens) and when its batch is answered. The first needs only the header of the file.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from datasets import Dataset
from datasets import Image as ImageFeature
from datasets.features.features import require_decoding
from PIL import Image


DECODERS = 4  # threads
ROTATED = (5, 6, 7, 8)  # orientations in EXIF that swap width and height
ORIENTATION = 0x0112

Batch = TypeVar("Batch")
Visual = Callable[[Any], Sequence[Image.Image] | None]  # a task's function from a document to its images


class Documents:
    """The documents of one split.

    Args:
        rows: a `Dataset`, or any sequence of documents.
        name: of the task, for error messages.
    """

    def __init__(self, rows: Any, name: str) -> None:
        self._rows, self._name = rows, name
        features = rows.features if isinstance(rows, Dataset) else {}
        self._columns = [column for column, feature in features.items() if isinstance(feature, ImageFeature)]
        nested = any(require_decoding(features[column]) for column in features.keys() - set(self._columns))
        self._stored: Any = None  # the rows with their images as they are in the file
        if isinstance(rows, Dataset) and not nested:
            self._stored = rows
            for column in self._columns:
                self._stored = self._stored.cast_column(column, ImageFeature(decode=False))

    def look(self, visual: Visual, index: int) -> tuple[str, list[tuple[int, int]]]:
        """Return a digest of the images of a document ("" without one) and the (width, height) of each.

        `visual` gets blank images of the right sizes, which take no decoding; whatever it does to them it will do to
        the true ones.
        """
        if self._stored is None:
            images = self.open(visual, index)
            return _digest(repr(each.size).encode() + each.tobytes() for each in images), [i.size for i in images]
        document = self._stored[index]
        stored: list[bytes] = []
        for name in self._columns:
            if document[name] is not None:
                stored.append(_content(document[name]))
                document[name] = Image.new("L", _size(stored[-1]))
        images = self._images(visual, document, index)
        return _digest(stored if images else ()), [image.size for image in images]

    def open(self, visual: Visual, index: int) -> list[Image.Image]:
        """Return the images of a document.

        Raises:
            ValueError: the document shows something else than images.
        """
        return [image.convert("RGB") for image in self._images(visual, self._rows[index], index)]

    def _images(self, visual: Visual, document: Any, index: int) -> list[Image.Image]:
        images = list(visual(document) or [])
        if not all(isinstance(image, Image.Image) for image in images):
            raise ValueError(f"{self._name} document {index}: aligned_llava reads images only")
        return images


def opened_ahead(
    batches: Iterable[Batch], open_images: Callable[[Batch], list[Callable[[], Any]]]
) -> Iterator[tuple[Batch, list[Any]]]:
    """Yield each batch with its images, which threads open while the batch before it is answered.

    Args:
        open_images: returns what to call for the images of each segment of a batch.
    """
    with ThreadPoolExecutor(DECODERS) as pool:
        waiting: tuple[Batch, list[Any]] | None = None
        for batch in batches:
            following = batch, [pool.submit(call) for call in open_images(batch)]
            if waiting is not None:
                yield waiting[0], [future.result() for future in waiting[1]]
            waiting = following
        if waiting is not None:
            yield waiting[0], [future.result() for future in waiting[1]]


def _content(stored: dict[str, Any]) -> bytes:
    return stored["bytes"] if stored["bytes"] is not None else Path(stored["path"]).read_bytes()


def _size(content: bytes) -> tuple[int, int]:
    """Width and height of an encoded image, as `datasets` turns it."""
    with Image.open(io.BytesIO(content)) as header:
        turned = header.getexif().get(ORIENTATION) in ROTATED
        return (header.height, header.width) if turned else (header.width, header.height)


def _digest(images: Iterable[bytes]) -> str:
    digest, found = hashlib.sha256(), False
    for image in images:
        found = True
        digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest() if found else ""
