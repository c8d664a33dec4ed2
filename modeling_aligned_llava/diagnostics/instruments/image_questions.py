"""Images with a question about each, to measure a model on: those that a command line names, or drawn ones."""

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image, ImageChops, ImageDraw, ImageFont

from modeling_aligned_llava.diagnostics.command_line import FOLDER_LIMIT, SAMPLE_LIMIT
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import open_image


SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
QUESTION = "Describe the image."
DRAWN, SIDE = 12, 384  # images where none are named, and their pixels
WORDS = ("open", "exit", "tea", "north", "music", "bread", "street", "garden", "ticket", "river", "school", "market")
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class ImageQuestion:
    """An image and a question about it; where known, boxes (pixels) that show the answer."""

    id: str
    open: Callable[[], Image.Image]  # raises UserError
    question: str = QUESTION
    boxes: tuple[Box, ...] = ()


def named_images(arguments: argparse.Namespace) -> list[ImageQuestion]:
    """The images that `--images` or `--data` names; without either, twelve drawn ones.

    Raises:
        UserError: there are none, or `--data` is used outside a clone.
    """
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1 image is needed")
    if arguments.data is not None:
        if arguments.sample is None:
            raise UserError("--data needs a clone of the repository; without one, measure on --images")
        return arguments.sample(arguments.data, arguments.limit or SAMPLE_LIMIT)
    if arguments.images is None:
        return [ImageQuestion(f"drawn {number}", partial(draw, number)) for number in range(arguments.limit or DRAWN)]
    return in_folder(arguments.images, arguments.limit or FOLDER_LIMIT)


def in_folder(path: Path, limit: int) -> list[ImageQuestion]:
    """The first `limit` images at `path`, in the order of their names; hidden files are none (`._1.jpg` of a Mac).

    Raises:
        UserError: there is none.
    """
    if not path.exists():
        raise UserError(f"--images: there is no file or folder {path}")
    root = path.parent if path.is_file() else path
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if _is_image(p.relative_to(root)))
    if not files:
        raise UserError(f"--images: no image in {path} (looked for {', '.join(sorted(SUFFIXES))})")
    return [ImageQuestion(str(file.relative_to(root)), partial(open_image, file)) for file in files[:limit]]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.parts)


def draw(number: int) -> Image.Image:
    """Coloured shapes and a word on a shaded, grainy ground, the same for every call with this number."""
    numbers = random.Random(number)

    def colour() -> tuple[int, int, int]:
        return numbers.randrange(256), numbers.randrange(256), numbers.randrange(256)

    def corners() -> list[float]:
        left, top, width, height = (numbers.uniform(0, SIDE / 2) for _ in range(4))
        return [left, top, left + width, top + height]

    shades = Image.linear_gradient("L").resize((SIDE, SIDE)).rotate(90 * numbers.randrange(4))
    grain = Image.frombytes("L", (SIDE, SIDE), numbers.randbytes(SIDE**2)).point(lambda value: value / 8)
    grounds = [Image.new("RGB", shades.size, colour()) for _ in range(2)]
    image = Image.composite(grounds[0], grounds[1], shades)
    image = ImageChops.add(image, Image.merge("RGB", [grain] * 3))
    pen = ImageDraw.Draw(image)
    for _ in range(numbers.randint(3, 7)):
        numbers.choice([pen.ellipse, pen.rectangle])(corners(), fill=colour(), outline=colour(), width=4)
    place, font = (numbers.uniform(0, SIDE / 2), numbers.uniform(0, SIDE / 2)), ImageFont.load_default(SIDE / 8)
    pen.text(place, WORDS[number % len(WORDS)], fill=colour(), font=font)
    return image
