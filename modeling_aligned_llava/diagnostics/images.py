"""Images with a question about each, to measure a model on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import open_image


SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
QUESTION = "Describe the image."
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class ImageQuestion:
    """An image and a question about it; where known, boxes (pixels) that show the answer."""

    id: str
    open: Callable[[], Image.Image]  # raises UserError
    question: str = QUESTION
    boxes: tuple[Box, ...] = ()


def in_folder(path: Path, limit: int) -> list[ImageQuestion]:
    """The first `limit` images at `path`, in the order of their names.

    Raises:
        UserError: there is none.
    """
    if not path.exists():
        raise UserError(f"--images: there is no file or folder {path}")
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise UserError(f"--images: no image in {path} (looked for {', '.join(sorted(SUFFIXES))})")
    root = path.parent if path.is_file() else path
    return [ImageQuestion(str(file.relative_to(root)), partial(open_image, file)) for file in found[:limit]]
