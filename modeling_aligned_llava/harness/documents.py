"""The documents of a task: their images are hashed as they are stored, and decoded once, ahead of their batch.

`datasets` decodes an image at every access, and each is asked for twice: before the batches are formed (to hash it and
to count its tokens) and when its batch is answered. The first needs only the header of the file.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from datasets import Dataset
from datasets import Image as ImageFeature
from datasets.features.features import require_decoding
from PIL import Image

from modeling_aligned_llava.errors import errors_named
from modeling_aligned_llava.loading.images import FORMATS, check_header, upright_size


DECODERS = 4  # threads

Batch = TypeVar("Batch")
Images = list[Image.Image]
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

        `visual` gets stand-ins of the right sizes, which take no decoding. If it does more to them than to convert
        their colours (a crop, say), the images are decoded, because they are others than those stored.

        Raises:
            UserError: an image cannot be read, or is too large or too narrow to be decoded safely.
        """
        if self._stored is not None:
            document = self._stored[index]
            for column in self._columns:
                document[column] = document[column] and self._stand_in(document[column], index)
            images = self._images(visual, document, index)
            stand_ins = [image for image in images if isinstance(image, StandIn) and image.size == image.true_size]
            if len(stand_ins) == len(images):
                return _digest(image.content for image in stand_ins), [image.size for image in stand_ins]
        images = self.open(visual, index)
        return _digest(repr(image.size).encode() + image.tobytes() for image in images), [
            image.size for image in images
        ]

    def open(self, visual: Visual, index: int) -> list[Image.Image]:
        """Return the images of a document.

        Raises:
            UserError: an image cannot be read, or the document has none.
            ValueError: the document shows something else than images.
        """
        with errors_named(f"{self._name} document {index}: its image cannot be read", Exception):
            document = self._rows[index]  # decoders raise all kinds of errors on damaged files
        return [image.convert("RGB") for image in self._images(visual, document, index)]

    def _stand_in(self, stored: dict[str, Any], index: int) -> "StandIn":
        name = f"{self._name} document {index}: its image"
        with errors_named(f"{name} cannot be read", Exception):
            content = stored["bytes"]
            return StandIn.of(Path(stored["path"]).read_bytes() if content is None else content, name)

    def _images(self, visual: Visual, document: Any, index: int) -> list[Image.Image]:
        with errors_named(f"{self._name} document {index} has no usable image"):
            images = list(visual(document) or [])  # a task's own code
        if not all(isinstance(image, Image.Image) for image in images):
            raise ValueError(f"{self._name} document {index}: aligned_llava reads images only")
        return images


class StandIn(Image.Image):
    """An image of the right size without its content; a copy in other colours is the same."""

    content: bytes
    true_size: tuple[int, int]

    @classmethod
    def of(cls, content: bytes, name: str) -> "StandIn":
        """Stand in for an encoded image, turned as `datasets` turns it; errors of `check_header`."""
        with Image.open(io.BytesIO(content), formats=FORMATS) as header:
            check_header(header, name)
            size = upright_size(header)
        image: Any = Image.new("L", size)
        image.__class__ = cls  # what changes its content makes a plain image of it
        image.content, image.true_size = content, size
        return image

    def convert(self, *arguments: Any, **options: Any) -> Image.Image:
        return self

    def copy(self) -> Image.Image:
        return self


def opened_ahead(
    batches: Iterable[Batch], open_images: Callable[[Batch], dict[str, Callable[[], Images]]]
) -> Iterator[tuple[Batch, dict[str, Images]]]:
    """Yield each batch with its images, which threads open while the batch before it is answered.

    Args:
        open_images: returns what to call for the images of a batch, by their digest.
    """
    with ThreadPoolExecutor(DECODERS) as pool:
        waiting: list[tuple[Batch, dict[str, Future[Images]]]] = []
        for batch in batches:
            waiting.append((batch, {digest: pool.submit(call) for digest, call in open_images(batch).items()}))
            if len(waiting) > 1:
                yield _opened(*waiting.pop(0))
        for opening in waiting:
            yield _opened(*opening)


def _opened(batch: Batch, images: dict[str, Future[Images]]) -> tuple[Batch, dict[str, Images]]:
    return batch, {digest: future.result() for digest, future in images.items()}


def _digest(images: Iterable[bytes]) -> str:
    digests = b"".join(hashlib.sha256(image).digest() for image in images)
    return hashlib.sha256(digests).hexdigest() if digests else ""
