"""The pictures of the nouns: Noto's emoji, 64 pixels wide, on one sheet."""

import functools
from pathlib import Path

from PIL import Image

from research.pictures.nouns import NOUNS


SHEET = Path(__file__).parent / "sheet.webp"
SIDE = 64
COLUMNS = 20


@functools.cache
def _sheet() -> Image.Image:
    with Image.open(SHEET) as image:
        return image.convert("RGBA")


@functools.cache
def picture_of(noun: str) -> Image.Image:
    """The noun's picture (RGBA), cropped to its ink.

    Raises:
        ValueError: there is no such noun.
    """
    index = NOUNS.index(noun)
    left, top = index % COLUMNS * SIDE, index // COLUMNS * SIDE
    picture = _sheet().crop((left, top, left + SIDE, top + SIDE))
    return picture.crop(picture.getbbox())
