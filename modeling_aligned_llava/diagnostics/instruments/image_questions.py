"""Images with a question about each, to measure a model on: those that a command line names."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image

from modeling_aligned_llava.diagnostics.command_line import FOLDER_LIMIT, SAMPLE_LIMIT
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


def named_images(arguments: argparse.Namespace) -> list[ImageQuestion]:
    """The images that `--images` or `--data` names.

    Raises:
        UserError: there are none, or `--data` is used outside a clone.
    """
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1 image is needed")
    if arguments.data is not None:
        if arguments.sample is None:
            raise UserError("--data needs a clone of the repository; without one, measure on --images")
        return arguments.sample(arguments.data, arguments.limit or SAMPLE_LIMIT)
    return in_folder(arguments.images, arguments.limit or FOLDER_LIMIT)


def in_folder(path: Path, limit: int) -> list[ImageQuestion]:
    """The first `limit` images at `path`, in the order of their names.

    Raises:
        UserError: there is none.
    """
    if not path.exists():
        raise UserError(f"--images: there is no file or folder {path}")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not files:
        raise UserError(f"--images: no image in {path} (looked for {', '.join(sorted(SUFFIXES))})")
    root = path.parent if path.is_file() else path
    return [ImageQuestion(str(file.relative_to(root)), partial(open_image, file)) for file in files[:limit]]
